use crate::record::Compression;

#[test]
fn what_is_printed_is_parsed_back() {
    let levels = (1..=19).map(Compression::Zstd).chain((1..=12).map(Compression::Zlib));
    let levels = levels.chain((1..=19).map(Compression::Page));
    for compression in levels.chain([Compression::Off, Compression::Lz4, Compression::Auto]) {
        assert_eq!(compression.to_string().parse::<Compression>().unwrap(), compression);
    }
}

#[test]
fn what_is_stored_is_one_byte_and_read_back() {
    let levels = (1..=19).map(Compression::Zstd).chain((1..=12).map(Compression::Zlib));
    let levels = levels.chain((1..=19).map(Compression::Page));
    let all = levels.chain([Compression::Off, Compression::Lz4, Compression::Auto]);
    let mut stored: Vec<u8> = Vec::new();
    for compression in all {
        stored.push(compression.to_stored());
        assert_eq!(Compression::from_stored(&[compression.to_stored()]).unwrap(), compression);
    }
    stored.sort_unstable();
    stored.dedup();
    assert_eq!(stored.len(), 53);
    for byte in (0..=u8::MAX).filter(|byte| !stored.contains(byte)) {
        assert!(Compression::from_stored(&[byte]).is_err(), "{byte}");
    }
    assert!(Compression::from_stored(&[]).is_err() && Compression::from_stored(&[1, 1]).is_err());
    assert!(stored.iter().all(|byte| *byte < 64), "six bits");
}

#[test]
fn users_type_it_in_their_ways() {
    let parse = |text: &str| text.parse::<Compression>().unwrap();
    assert_eq!(parse("zstd"), Compression::Zstd(3));
    assert_eq!(parse("zstd-3").to_string(), "zstd");
    assert_eq!(parse(" ZSTD-19 "), Compression::Zstd(19));
    assert_eq!(parse("zlib"), Compression::Zlib(6));
    assert_eq!(parse("page"), Compression::Page(3));
    assert_eq!(parse("page-9"), Compression::Page(9));
    assert_eq!(parse("Off"), Compression::Off);
    assert_eq!(Compression::default().to_string(), "auto");
}

#[test]
fn mistakes_are_answered_with_the_choices_and_the_nearest() {
    let message = |text: &str| text.parse::<Compression>().unwrap_err().to_string();
    for (typed, hint) in [
        ("zstf", "did you mean zstd?"),
        ("lz", "did you mean lz4?"),
        ("zlip-3", "did you mean zlib?"),
        ("zstd-20", "zstd has the levels 1 to 19"),
        ("zlib-0", "zlib has the levels 1 to 12"),
        ("zstd-", "zstd has the levels"),
        ("page-0", "page has the levels 1 to 19"),
    ] {
        let message = message(typed);
        assert!(message.contains(hint) && message.contains("zstd-1 to zstd-19"), "{message}");
    }
    for typed in ["", "gzip-compressed", "snappy", "-", "zstd3000"] {
        let message = message(typed);
        assert!(
            message.contains("choose off, lz4") && message.contains(&format!("\"{typed}\"")),
            "{message}"
        );
    }
    assert!(!message("snappy").contains("did you mean"));
}
