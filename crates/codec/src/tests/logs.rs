//! Tests logs: facts of their formats, and that every page comes back.

use proptest::prelude::*;

use super::round_trip::round_trip;
use super::{cases, model_of};
use crate::log::redo::{begin, number, put_number};
use crate::log::strides;
use crate::testing::Random;
use crate::testing::logs::{redo_blocks, wal_pages};
use crate::{Format, Model, Scratch, recognise};

/// The expected values are those of `mtr0types.h`: the numbers of each length begin where those of the length below
/// end.
#[test]
fn numbers_of_the_redo_log_are_those_of_the_format() {
    for (value, expected) in [
        (0, &[0][..]),
        (0x7F, &[0x7F]),
        (0x80, &[0x80, 0]),
        (0x407F, &[0xBF, 0xFF]),
        (0x4080, &[0xC0, 0, 0]),
        (0x20_407F, &[0xDF, 0xFF, 0xFF]),
        (0x20_4080, &[0xE0, 0, 0, 0]),
        (0x1020_4080, &[0xF0, 0, 0, 0, 0]),
        (u32::MAX, &[0xF0, 0xEF, 0xDF, 0xBF, 0x7F]),
    ] {
        let mut bytes = [0; 6];
        assert_eq!(put_number(&mut bytes, 0, value), Some(expected.len()));
        assert_eq!(bytes[..expected.len()], *expected);
        let read = number(&bytes, 0).unwrap();
        assert_eq!((read.value, read.bytes), (value, expected.len()));
        assert!(number(&bytes[..expected.len() - 1], 0).is_none());
    }
    assert!(number(&[0xF0, 0xFF, 0xFF, 0xFF, 0xFF], 0).is_none() && number(&[0xF8; 5], 0).is_none());
}

/// A commit as PostgreSQL 15 wrote it, and an insertion as MariaDB 10.11 did.
#[test]
fn checksums_are_those_of_the_servers() {
    let commit = bytes("2200000022030000181a01160000000000010000115b7d86ff082d7095d413040300");
    assert_eq!(crate::log::wal::checksum(&commit), u32::from_le_bytes([0x11, 0x5B, 0x7D, 0x86]));
    let inserted = bytes(
        "280b870509bab80137a02e06bab808000700830000000000cf62000001a201608000e617800199bb727ca185\
         9f4e5b46464646464646464646464646464646464646464646464601a65b74ce",
    );
    assert_eq!(begin(&inserted), Some(0));
    assert_eq!(begin(&inserted[..inserted.len() - 1]), None);
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
}

/// With these bytes the search at each place would follow all records behind it.
#[test]
fn a_block_of_records_without_an_end_takes_no_long() {
    for byte in [0x91, 0x81, 0x11, 0x10] {
        assert_eq!(begin(&vec![byte; 64 << 10]), None);
    }
    let mut ends: Vec<u8> = [0x91, 0x55].repeat(32 << 10);
    ends.extend([1, 9, 9, 9, 9]);
    assert_eq!(begin(&ends), None);
}

#[test]
fn strides_are_found_and_undone() {
    let rows: Vec<u8> = (0..200u32)
        .flat_map(|n| [(7000 + n).to_le_bytes(), (n * 3).to_be_bytes(), [9; 4], [5; 4]].concat())
        .collect();
    assert_eq!(strides::find(&rows), 2);
    assert_eq!(strides::find(&Random::new(1).bytes(4000)), 0);
    for units in [0, 1, 2, 64] {
        let mut there = rows.clone();
        strides::apply(&mut there, units);
        strides::undo(&mut there, units);
        assert!(there == rows);
    }
}

/// Asserts that pages with four bytes overwritten come back, unless the model refuses them.
fn damaged_come_back(model: &Model, scratch: &mut Scratch, random: &mut Random, pages: Vec<Vec<u8>>) {
    for mut page in pages {
        let at = random.below(page.len() - 4);
        page[at..at + 4].copy_from_slice(&random.bytes(4));
        let mut record = vec![];
        if model.encode(scratch, &page, &mut record) {
            let mut again = vec![0xAA; page.len()];
            model.decode(scratch, &record, &mut again).unwrap();
            assert!(again == page);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn wal_pages_come_back(seed in any::<u64>(), size in 0..3usize) {
        let mut random = Random::new(seed);
        let pages = wal_pages(&mut random, [1024, 8192, 32_768][size], 24);
        let model = model_of(&pages[..16]);
        prop_assert_eq!(model.format().name(), "postgres-wal");
        let mut scratch = Scratch::new();
        prop_assert_eq!(recognise(&mut scratch, &pages[3]).map(Format::name), Some("postgres-wal"));
        prop_assert_eq!(round_trip(&model, &mut scratch, &pages), pages.len());
        damaged_come_back(&model, &mut scratch, &mut random, pages);
    }

    #[test]
    fn redo_blocks_come_back(seed in any::<u64>(), size in 0..3usize) {
        let mut random = Random::new(seed);
        let blocks = redo_blocks(&mut random, [1024, 4096, 16_384][size], 24);
        let model = model_of(&blocks[..16]);
        prop_assert_eq!(model.format().name(), "innodb-redo");
        let mut scratch = Scratch::new();
        // A block in the middle of a long mini-transaction is not recognised; a pool needs one in three.
        let kinds: Vec<_> = blocks.iter().map(|block| recognise(&mut scratch, block).map(Format::name)).collect();
        let recognised = kinds.iter().filter(|kind| **kind == Some("innodb-redo")).count();
        prop_assert!(3 * recognised > blocks.len(), "{kinds:?}");
        prop_assert_eq!(round_trip(&model, &mut scratch, &blocks), blocks.len());
        damaged_come_back(&model, &mut scratch, &mut random, blocks);
    }
}
