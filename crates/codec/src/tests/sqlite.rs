//! Tests SQLite's numbers, types and pages.

use proptest::prelude::*;

use super::round_trip::round_trip;
use super::{cases, model_of};
use crate::columns::decimal::{as_decimal, from_decimal};
use crate::sqlite::page::kind;
use crate::sqlite::record::{int_type, local_bytes, put_varint, value_bytes, varint};
use crate::testing::Random;
use crate::testing::sqlite::{Tree, overflow_page, tree_page};
use crate::{Format, Scratch, recognise};

fn pages(random: &mut Random, tree: &Tree, numbers: std::ops::Range<usize>) -> Vec<Vec<u8>> {
    numbers.map(|number| tree_page(random, tree, number)).collect()
}

/// The expected values are those of "Database File Format".
#[test]
fn numbers_are_those_of_the_format() {
    let mut bytes = [0; 12];
    for (value, expected) in [
        (0, &[0][..]),
        (0x7F, &[0x7F]),
        (0x80, &[0x81, 0]),
        (0x3FFF, &[0xFF, 0x7F]),
        (0x4000, &[0x81, 0x80, 0]),
        ((1 << 56) - 1, &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F]),
        (1 << 56, &[0x80, 0xC0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0]),
        (u64::MAX, &[0xFF; 9]),
    ] {
        assert_eq!(put_varint(&mut bytes, 1, value), 1 + expected.len());
        assert_eq!(bytes[1..1 + expected.len()], *expected, "{value:x}");
        assert_eq!(varint(&bytes, 1), Some((value, expected.len())));
        assert_eq!(varint(&bytes[..expected.len()], 1), None);
    }
    // A number that is longer than it has to be is refused.
    assert_eq!(varint(&[0x80, 1], 0), None);
    for (value, serial) in [
        (0, 8),
        (1, 9),
        (2, 1),
        (-1, 1),
        (-128, 1),
        (128, 2),
        (-32769, 3),
        (1 << 23, 4),
        (1 << 31, 5),
        (1 << 47, 6),
    ] {
        assert_eq!(int_type(value), serial, "{value}");
    }
    assert_eq!(
        [5, 6, 7, 8, 11, 12, 13, 99].map(value_bytes),
        [Some(6), Some(8), Some(8), Some(0), None, Some(0), Some(0), Some(43)]
    );
}

#[test]
fn payloads_overflow_where_sqlite_says() {
    // Of a page of 1,024 bytes without reserved ones: at most 989 and 230 bytes, at least 103.
    let local = |kind, total| local_bytes(kind, total, 1024);
    let table = [989, 990, 1100, 1123, 1124, 5000].map(|total| local(kind::TABLE_LEAF, total));
    assert_eq!(table, [989, 103, 103, 103, 104, 920]);
    assert_eq!([230, 231, 1130, 1200].map(|total| local(kind::INDEX_LEAF, total)), [230, 103, 110, 180]);
}

#[test]
fn decimals_are_told_from_other_numbers() {
    assert_eq!(as_decimal(12.34, 2), Some(1234));
    assert_eq!(as_decimal(12.34, 1), None);
    assert_eq!(as_decimal(-0.5, 3), Some(-500));
    for float in [-0.0, f64::NAN, f64::INFINITY, 1e300, std::f64::consts::PI] {
        assert_eq!(as_decimal(float, 6), None, "{float}");
    }
    assert!((0..100_000).all(|n| as_decimal(from_decimal(n, 4), 4) == Some(n)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn sqlite_pages_come_back(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let tree = Tree::random(&mut random);
        let pages = pages(&mut random, &tree, 0..24);
        let known = pages.iter().filter(|page| recognise(&mut Scratch::new(), page).map(Format::name) == Some("sqlite")).count();
        // A page alone does not tell how many bytes are reserved, and where records overflow depends on that.
        prop_assert!(tree.reserved > 0 || known >= 20, "{} of {} pages are recognised", known, pages.len());
        let model = model_of(&pages[..18]);
        prop_assert_eq!(model.format().name(), "sqlite");
        round_trip(&model, &mut Scratch::new(), &pages);
    }

    /// A file holds several trees, and overflow pages.
    #[test]
    fn sqlite_files_come_back(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let mut pages = vec![];
        let trees = [Tree::simple(true), Tree::index(true), Tree::simple(false)];
        for number in 0..30 {
            pages.push(tree_page(&mut random, &trees[number % 3], number));
            pages.push(overflow_page(&mut random, 4096, number));
        }
        let model = model_of(&pages[..40]);
        prop_assert_eq!(round_trip(&model, &mut Scratch::new(), &pages), pages.len());
    }

    /// The file was made anew with other tables.
    #[test]
    fn sqlite_pages_of_another_table_come_back(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let (mut one, mut other) = (Tree::random(&mut random), Tree::random(&mut random));
        (one.page_bytes, other.page_bytes) = (4096, 4096);
        let model = model_of(&pages(&mut random, &one, 0..12));
        round_trip(&model, &mut Scratch::new(), &pages(&mut random, &other, 0..8));
    }

    #[test]
    fn damaged_sqlite_pages_come_back_or_are_refused(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let tree = Tree::random(&mut random);
        let mut pages = pages(&mut random, &tree, 0..12);
        let model = model_of(&pages);
        for page in &mut pages {
            for _ in 0..1 + random.below(6) {
                // Mostly bytes of structure.
                let within = [12, 100, 200, page.len()][random.below(4)];
                let at = random.below(within);
                page[at] = random.next() as u8;
            }
        }
        round_trip(&model, &mut Scratch::new(), &pages);
    }
}

/// Pages that are alike share a branch; those of a table and its index do not.
#[test]
fn tables_and_indexes_are_coded_apart() {
    let mut random = Random::new(4);
    let (table, index) = (Tree::simple(false), Tree::index(false));
    let mut all = pages(&mut random, &table, 0..20);
    all.extend(pages(&mut random, &index, 20..40));
    let together = model_of(&all);
    let size = |model: &crate::Model, pages: &[Vec<u8>]| {
        let mut record = vec![];
        pages.iter().for_each(|page| assert!(model.encode(&mut Scratch::new(), page, &mut record)));
        record.len()
    };
    let apart = size(&model_of(&all[..20]), &all[..20]) + size(&model_of(&all[20..]), &all[20..]);
    assert!(size(&together, &all) * 50 < apart * 51, "{} and {apart} bytes", size(&together, &all));
}

/// A page that lost all its cells is of some table, too.
#[test]
fn empty_pages_come_back() {
    let mut random = Random::new(6);
    let mut pages = pages(&mut random, &Tree::simple(false), 1..20);
    let mut empty = b"a stale row of text ".repeat(205)[..4096].to_vec();
    empty[..8].copy_from_slice(&[kind::TABLE_LEAF, 0, 0, 0, 0, 16, 0, 0]);
    pages.push(empty);
    let model = model_of(&pages[..19]);
    assert_eq!(round_trip(&model, &mut Scratch::new(), &pages), pages.len());
}

/// Where records overflow depends on the reserved bytes, which only the file's header tells.
#[test]
fn reserved_bytes_are_known_from_the_first_page() {
    let mut random = Random::new(8039521498866036964);
    let tree = Tree::random(&mut random);
    assert!(tree.reserved > 0);
    let pages = pages(&mut random, &tree, 0..24);
    assert!(pages[1..].iter().all(|page| recognise(&mut Scratch::new(), page).is_none()));
    assert_eq!(model_of(&pages[..18]).format().name(), "sqlite");
}

/// The value that goes on in an overflow page may be a number, and the same one in all records of a table or index.
#[test]
fn a_record_may_be_cut_within_a_number() {
    let mut random = Random::new(14962296703709579193);
    let tree = Tree::random(&mut random);
    let pages = pages(&mut random, &tree, 0..24);
    assert!(
        pages[1..]
            .iter()
            .all(|page| recognise(&mut Scratch::new(), page).map(Format::name) == Some("sqlite"))
    );
    let model = model_of(&pages[..18]);
    assert_eq!(round_trip(&model, &mut Scratch::new(), &pages[1..]), pages.len() - 1);
}
