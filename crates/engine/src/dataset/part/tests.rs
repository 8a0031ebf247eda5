use super::{copy_part, decode_part};
use crate::record::{Compression, Encoder, NoModels};
use crate::{Addr, Error};

const PAGE_BYTES: usize = 8192;

fn page() -> Vec<u8> {
    (0..PAGE_BYTES).map(|at| (at % 251) as u8 + 1).collect()
}

fn record() -> Vec<u8> {
    let mut record = Vec::new();
    Encoder::new().encode(&page(), Compression::Lz4, &mut record);
    record
}

#[test]
fn every_part_of_a_page_is_found() {
    let (page, record) = (page(), record());
    for (within, len) in [(0, PAGE_BYTES), (0, 100), (8092, 100), (4000, 192), (PAGE_BYTES, 0)] {
        let wanted = &page[within..within + len];
        let mut copied = vec![0xEE; len];
        copy_part(&page, within, &mut copied).unwrap();
        assert_eq!(copied, wanted);
        let mut decoded = vec![0xEE; len];
        let mut seen = Vec::new();
        decode_part(PAGE_BYTES, &NoModels, (Addr::new(7, 3), &record), within, &mut decoded, |page| {
            seen = page.to_vec();
        })
        .unwrap();
        assert_eq!(decoded, wanted);
        assert_eq!(seen, page, "the whole page is shown");
    }
}

#[test]
fn a_part_beyond_the_page_is_refused() {
    let (page, record) = (page(), record());
    for (within, len) in
        [(1, PAGE_BYTES), (8092, 101), (PAGE_BYTES + 1, 0), (usize::MAX, 1), (0, PAGE_BYTES + 1)]
    {
        let mut out = vec![0; len];
        assert!(matches!(copy_part(&page, within, &mut out), Err(Error::Invalid(_))));
        let decoded = decode_part(
            PAGE_BYTES,
            &NoModels,
            (Addr::new(7, 3), &record),
            within,
            &mut out,
            |_| unreachable!(),
        );
        assert!(matches!(decoded, Err(Error::Invalid(_))));
    }
}

#[test]
fn a_damaged_record_is_named() {
    let mut record = record();
    record[0] = 0;
    for len in [PAGE_BYTES, 100] {
        let mut out = vec![0; len];
        let decoded =
            decode_part(PAGE_BYTES, &NoModels, (Addr::new(7, 3), &record), 0, &mut out, |_| unreachable!());
        let error = decoded.unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }));
        assert!(error.to_string().contains("record 7:3"), "{error}");
    }
}
