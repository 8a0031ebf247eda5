use std::io::Read;

use super::*;

fn sample(len: usize) -> Vec<u8> {
    let mut state = 1_u32;
    (0..len)
        .map(|n| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if n % 5 == 0 { (state >> 24) as u8 } else { (n / 700) as u8 }
        })
        .collect()
}

fn compressed(text: &str, bytes: &[u8]) -> Vec<u8> {
    let mut coder = Compressor::new(Vec::new(), text.parse().unwrap()).unwrap();
    for part in bytes.chunks(100_003) {
        coder.write_all(part).unwrap();
    }
    coder.finish().unwrap()
}

fn read(name: &str, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match name {
        "none" => out.extend(bytes),
        // One member, not several.
        "gzip" => drop(flate2::read::GzDecoder::new(bytes).read_to_end(&mut out).unwrap()),
        "zstd" => drop(zstd::Decoder::new(bytes).unwrap().read_to_end(&mut out).unwrap()),
        _ => {
            // The crate's decoder ends with a frame; the program lz4 and PostgreSQL's go on.
            let mut rest = bytes;
            while !rest.is_empty() {
                let mut decoder = lz4::Decoder::new(rest).unwrap();
                decoder.read_to_end(&mut out).unwrap();
                let (left, done) = decoder.finish();
                done.unwrap();
                assert!(left.len() < rest.len());
                rest = left;
            }
        }
    }
    out
}

#[test]
fn what_was_compressed_is_read_back_and_threads_change_nothing() {
    for len in [0, 1, DEFLATE_BYTES, DEFLATE_BYTES + 1, FRAME_BYTES, 2 * FRAME_BYTES + 12_345] {
        let bytes = sample(len);
        for name in ["none", "gzip", "zstd"] {
            let one =
                compressed(&if name == "none" { name.into() } else { format!("{name}:workers=1") }, &bytes);
            assert_eq!(read(name, &one), bytes, "{name} {len}");
            if name != "none" {
                assert_eq!(
                    compressed(&format!("{name}:workers=3,level=1"), &bytes),
                    compressed(&format!("{name}:1"), &bytes)
                );
            }
        }
        // Frames of one block: the crate's decoder reads beyond a frame's end, and cannot tell by how much.
        if len <= FRAME_BYTES {
            assert_eq!(read("lz4", &compressed("lz4", &bytes)), bytes, "lz4 {len}");
        }
    }
}

#[test]
fn bytes_that_do_not_compress_are_read_back() {
    let mut state = 7_u64;
    let noise: Vec<u8> = (0..3 << 20)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect();
    for name in ["gzip:1", "gzip:9", "zstd"] {
        let out = compressed(name, &noise);
        assert_eq!(read(name.split(':').next().unwrap(), &out), noise, "{name}");
    }
}

#[test]
fn how_it_is_said() {
    let parse = |text: &str| text.parse::<Compression>();
    assert_eq!(parse("none").unwrap(), Compression::NONE);
    assert_eq!(parse("0").unwrap(), Compression::NONE);
    let nine = parse("9").unwrap();
    assert_eq!((nine.method, nine.level), (Method::Gzip, 9));
    let zstd = parse("zstd:level=7,workers=4").unwrap();
    assert_eq!((zstd.method, zstd.level, zstd.workers), (Method::Zstd, 7, 4));
    assert_eq!(parse("zstd:12").unwrap().level, 12);
    for text in [
        "",
        "none:1",
        "xz",
        "gzip:0",
        "gzip:10",
        "lz4:13",
        "zstd:level=",
        "zstd:workers=0",
        "zstd:x=1",
        "zstd:,",
        "-1",
    ] {
        assert!(parse(text).is_err(), "{text}");
    }
}

#[test]
fn a_writer_that_fails_is_told() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::from_raw_os_error(28))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut coder = Compressor::new(Full, "zstd:workers=2".parse().unwrap()).unwrap();
    let bytes = vec![0; FRAME_BYTES];
    let failed = (0..20).find_map(|_| coder.write_all(&bytes).err()).unwrap();
    assert_eq!(failed.raw_os_error(), Some(28));
}
