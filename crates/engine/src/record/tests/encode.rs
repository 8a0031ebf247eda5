use proptest::prelude::*;

use crate::limits::{RECORD_BYTES_MAX, RECORDSIZE_MAX};
use crate::record::{Codec, Compression, Encoded, Encoder, NoModels, decode, logical_len};
use crate::segment::record_checksum;
use crate::{Addr, Error};

const ALL: [Compression; 10] = [
    Compression::Off,
    Compression::Lz4,
    Compression::Zstd(1),
    Compression::Zstd(3),
    Compression::Zstd(9),
    Compression::Zstd(19),
    Compression::Zlib(1),
    Compression::Zlib(6),
    Compression::Zlib(12),
    Compression::Auto,
];

fn encode(page: &[u8], compression: Compression) -> (Encoded, Vec<u8>) {
    let mut out = Vec::new();
    let encoded = Encoder::new().encode(page, compression, &mut out);
    (encoded, out)
}

fn text(len_bytes: usize) -> Vec<u8> {
    b"INSERT INTO pgbench_accounts (aid, bid, abalance) VALUES (1, "
        .iter()
        .copied()
        .cycle()
        .take(len_bytes)
        .collect()
}

fn noise(len_bytes: usize) -> Vec<u8> {
    let mut x = 0x2545_F491_4F6C_DD1D_u64;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 32) as u8
    };
    let mut bytes: Vec<u8> = (0..len_bytes).map(|_| next()).collect();
    // There is no trailing zero, so the logical length is known.
    bytes[len_bytes - 1] |= 1;
    bytes
}

#[test]
fn the_layout_is_as_documented() {
    let mut page = vec![0; 4096];
    page[..3].copy_from_slice(b"abc");
    let (encoded, record) = encode(&page, Compression::Off);
    assert_eq!(encoded, Encoded::Stored { codec: Codec::Raw });
    assert_eq!(record, [1, 3, b'a', b'b', b'c']);

    let (_, record) = encode(&noise(300), Compression::Off);
    assert_eq!(record[..3], [1, 0xAC, 0x02]);
    let (_, record) = encode(&noise(RECORDSIZE_MAX as usize), Compression::Off);
    assert_eq!(record[..4], [1, 0x80, 0x80, 0x40]);
    assert!(record.len() <= RECORD_BYTES_MAX);

    for (compression, id) in [(Compression::Lz4, 2), (Compression::Zstd(3), 3), (Compression::Zlib(6), 4)] {
        assert_eq!(encode(&text(8192), compression).1[..3], [id, 0x80, 0x40]);
    }
    for id in 0..=255 {
        assert!(Codec::from_id(id).is_none_or(|codec| codec.id() == id));
    }
}

#[test]
fn golden_records_decode() {
    // 64 bytes of "abcabc...", coded by other programs (LZ4 by hand, zstd 1.5 without its magic number, Python's zlib).
    let expected: Vec<u8> = b"abc".iter().copied().cycle().take(64).collect();
    for (name, hex) in GOLDEN {
        let record: Vec<u8> =
            (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect();
        let mut page = vec![0xEE; 100];
        decode(&record, &NoModels, &mut page).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(page[..64], expected, "{name}");
        assert!(page[64..].iter().all(|&b| b == 0), "{name}");
    }
}

const GOLDEN: [(&str, &str); 3] = [
    ("lz4", "02403f616263030025506361626361"),
    ("zstd", "034000584d0000186162630100527243"),
    ("deflate", "04404b4c4a4ea4040100"),
];

#[test]
fn zeros_are_not_stored_and_tails_of_zeros_neither() {
    for compression in ALL {
        for len_bytes in [0, 1, 63, 64, 65, 4096, 8192] {
            assert_eq!(encode(&vec![0; len_bytes], compression), (Encoded::Zero, Vec::new()));
        }
        for last in [0, 1, 62, 63, 64, 65, 4030, 4095] {
            let mut page = vec![0; 4096];
            page[last] = 1;
            let (_, record) = encode(&page, compression);
            assert_eq!(logical_len(&record).unwrap(), last + 1);
            let mut out = vec![0xEE; 4096];
            decode(&record, &NoModels, &mut out).unwrap();
            assert_eq!(out, page);
        }
    }
}

#[test]
fn what_does_not_shrink_is_raw_and_what_does_is_not() {
    for compression in ALL {
        let (encoded, record) = encode(&noise(8192), compression);
        assert_eq!(encoded, Encoded::Stored { codec: Codec::Raw });
        assert_eq!(record.len(), 8192 + 3);
        if compression != Compression::Off {
            let (encoded, record) = encode(&text(8192), compression);
            assert_ne!(encoded, Encoded::Stored { codec: Codec::Raw });
            assert!(record.len() < 400, "{compression}: {}", record.len());
        }
    }
    // The first page saves 2 %, which is not worth it; the second saves 10 %, which is.
    for (compressible, codec) in [(164, Codec::Raw), (820, Codec::Zstd)] {
        let mut page = noise(8192);
        page[..compressible].fill(7);
        assert_eq!(encode(&page, Compression::Zstd(3)).0, Encoded::Stored { codec });
    }
}

/// Numbers in hundredths that swing, as a page of an RRD file has them, are coded as numbers, wherever the page ends.
#[test]
fn numbers_are_coded_as_numbers_where_pages_are() {
    let words = (0..512).map(|n| f64::from(30_000 + n * 7919 % 301) / 100.0);
    let page: Vec<u8> = words.flat_map(f64::to_le_bytes).collect();
    let (encoded, record) = encode(&page, Compression::Page(1));
    assert_eq!(encoded, Encoded::Stored { codec: Codec::from_id(5).unwrap() });
    let (other, zstd) = encode(&page, Compression::Zstd(1));
    assert_eq!(other, Encoded::Stored { codec: Codec::Zstd });
    assert!(record.len() * 3 < zstd.len() * 2, "{} and {} bytes", record.len(), zstd.len());
    for len_bytes in [4096, 4090, 4083] {
        let (encoded, record) = encode(&page[..len_bytes], Compression::Page(1));
        assert_eq!(encoded, Encoded::Stored { codec: Codec::from_id(5).unwrap() });
        let mut again = vec![0xEE; 4096];
        decode(&record, &NoModels, &mut again).unwrap();
        assert_eq!(again[..len_bytes], page[..len_bytes]);
        assert!(again[len_bytes..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn encode_appends_and_verification_agrees() {
    let mut out = b"before".to_vec();
    for page in [text(8192), noise(4096), text(RECORDSIZE_MAX as usize)] {
        for compression in ALL {
            let at = out.len();
            Encoder::verifying().encode(&page, compression, &mut out);
            assert_eq!(out[at..], encode(&page, compression).1);
        }
    }
    assert_eq!(&out[..6], b"before");
}

#[test]
fn malformed_records_are_damaged_and_unknown_codecs_unsupported() {
    let mut page = [0; 64];
    let corrupt = [
        &[][..],
        &[0],
        &[0, 3, 1, 2, 3],
        &[1],
        &[1, 0x80],
        &[1, 0],
        &[1, 0x81, 0x00, 5],
        &[1, 0xFF, 0xFF, 0x7F],
        &[1, 0x80, 0x80, 0x80, 1],
        &[1, 65],
        &[1, 2, 9],
        &[1, 2, 9, 9, 9],
        &[2, 5],
        &[3, 5, 1],
        &[4, 5, 0xFF],
    ];
    for record in corrupt {
        let outcome = decode(record, &NoModels, &mut page);
        assert!(matches!(outcome, Err(Error::Corrupt { .. })), "{record:?}: {outcome:?}");
    }
    for id in (5..=255).filter(|id| Codec::from_id(*id).is_none()) {
        assert!(matches!(decode(&[id, 3, 1, 2, 3], &NoModels, &mut page), Err(Error::Unsupported(_))));
    }
    assert!(logical_len(&[1, 0x81, 0x80, 0x40]).is_err());
    assert_eq!(logical_len(&[1, 0x80, 0x80, 0x40]).unwrap(), RECORDSIZE_MAX as usize);
}

#[test]
fn a_page_that_is_too_small_is_damage_not_overrun() {
    for compression in ALL {
        let (_, record) = encode(&text(8192), compression);
        assert!(matches!(decode(&record, &NoModels, &mut vec![0; 8191]), Err(Error::Corrupt { .. })));
        decode(&record, &NoModels, &mut vec![0; 8192]).unwrap();
    }
}

#[test]
fn checksums_tell_wrong_bytes_and_wrong_places() {
    let (here, there) = (Addr::new(7, 1), Addr::new(7, 2));
    let checksum = record_checksum(here, b"record");
    assert_ne!(record_checksum(there, b"record"), checksum);
    assert_ne!(record_checksum(here, b"recorc"), checksum);
    // CRC-32C of the bytes 01 00 00 07 00 00 00 00, then "record", computed bit by bit.
    let bytes = [&here.raw().to_le_bytes()[..], b"record"].concat();
    let slow = !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |c, _| if c & 1 == 1 { c >> 1 ^ 0x82F6_3B78 } else { c >> 1 })
    });
    assert_eq!(checksum, slow);
}

fn pages() -> impl Strategy<Value = Vec<u8>> {
    let run = (any::<u8>(), 1usize..600).prop_map(|(byte, n)| vec![byte; n]);
    let random = proptest::collection::vec(any::<u8>(), 1..300);
    let words = (1usize..400).prop_map(text);
    let zeros = (1usize..3000).prop_map(|n| vec![0; n]);
    proptest::collection::vec(prop_oneof![run, random, words, zeros], 0..24).prop_map(|parts| parts.concat())
}

fn compressions() -> impl Strategy<Value = Compression> {
    proptest::sample::select(&ALL[..])
}

proptest! {
    #[test]
    fn pages_come_back(page in pages(), compression in compressions()) {
        let (encoded, record) = encode(&page, compression);
        if encoded == Encoded::Zero {
            prop_assert!(record.is_empty() && page.iter().all(|&b| b == 0));
        } else {
            prop_assert!(record.len() <= page.len() + 4);
            let mut out = vec![0xEE; page.len()];
            decode(&record, &NoModels, &mut out).unwrap();
            prop_assert_eq!(out, page);
        }
    }

    #[test]
    fn mutated_records_stay_inside_their_page(
        page in pages(),
        compression in compressions(),
        flips in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<proptest::sample::Index>(),
    ) {
        let (_, mut record) = encode(&page, compression);
        for (at, byte) in flips {
            if !record.is_empty() {
                let at = at.index(record.len());
                record[at] = byte;
            }
        }
        record.truncate(cut.index(record.len() + 1));
        let mut out = vec![0xEE; page.len() + 64];
        let _ = decode(&record, &NoModels, &mut out[..page.len()]);
        prop_assert!(out[page.len()..].iter().all(|&b| b == 0xEE));
    }

    #[test]
    fn noise_is_no_way_to_panic(id in 0u8..8, mut record in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Some(first) = record.first_mut() {
            *first = id;
        }
        let _ = decode(&record, &NoModels, &mut [0; 256]);
        let _ = logical_len(&record);
    }
}
