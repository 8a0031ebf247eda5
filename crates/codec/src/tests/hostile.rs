//! Damaged records and models may have any result but a panic.

use proptest::prelude::*;

use super::{cases, model_of};
use crate::columns::Column;
use crate::columns::plan::{Coding, ColumnPlan, Ctx, Plans};
use crate::patterns::Patterns;
use crate::postgres::btree::{self, BtreeModel};
use crate::postgres::heap::{self, HeapModel, HeapPage};
use crate::testing::innodb::{InnodbTable, index_page};
use crate::testing::logs::{redo_blocks, wal_pages};
use crate::testing::sqlite::{Tree, overflow_page, tree_page};
use crate::testing::{Keys, Random, Schema, btree_page, heap_page};
use crate::wire::Reader;
use crate::{Model, Scratch};

fn pages(random: &mut Random, kind: u8) -> Vec<Vec<u8>> {
    if kind == 2 {
        let table = InnodbTable::random(random);
        return (0..8).map(|number| index_page(random, &table, number)).collect();
    }
    if kind == 3 {
        let tree = Tree::random(random);
        let mut pages: Vec<Vec<u8>> = (0..8).map(|number| tree_page(random, &tree, number)).collect();
        pages.extend((0..4).map(|number| overflow_page(random, tree.page_bytes, number)));
        return pages;
    }
    match kind {
        4 => return wal_pages(random, 1024, 12),
        5 => return redo_blocks(random, 1024, 12),
        _ => {}
    }
    let btree = kind == 1;
    let schema = Schema::random(random);
    let keys = [Keys::Ints, Keys::Pairs, Keys::Words][random.below(3)];
    let aged = random.once_in(2);
    let page = |random: &mut Random, block| {
        if btree { btree_page(random, keys, aged, block) } else { heap_page(random, &schema, block) }
    };
    (0..8).map(|block| page(random, block)).collect()
}

fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    match random.below(4) {
        0 => bytes.truncate(random.below(bytes.len() + 1)),
        1 => bytes.extend(random.bytes(4)),
        _ => {
            for _ in 0..1 + random.below(4) {
                if !bytes.is_empty() {
                    let at = random.below(bytes.len());
                    bytes[at] = random.next() as u8;
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn damaged_records_do_no_harm(seed in any::<u64>(), kind in 0..6u8) {
        let mut random = Random::new(seed);
        let pages = pages(&mut random, kind);
        let model = model_of(&pages);
        let mut scratch = Scratch::new();
        for page in &pages {
            let mut record = vec![];
            if !model.encode(&mut scratch, page, &mut record) {
                continue;
            }
            let mut out = vec![0; page.len()];
            for _ in 0..60 {
                let mut damaged = record.clone();
                damage(&mut random, &mut damaged);
                let _ = model.decode(&mut scratch, &damaged, &mut out);
            }
            let noise = random.bytes(200);
            let _ = model.decode(&mut scratch, &noise, &mut out);
            prop_assert!(model.decode(&mut scratch, &record, &mut out[..page.len() / 2]).is_err());
            // Buffers that a damaged record has used serve as well as new ones.
            prop_assert!(model.decode(&mut scratch, &record, &mut out).is_ok());
            prop_assert!(out == *page);
        }
    }

    #[test]
    fn damaged_models_do_no_harm(seed in any::<u64>(), kind in 0..6u8) {
        let mut random = Random::new(seed);
        let pages = pages(&mut random, kind);
        let model = model_of(&pages);
        let mut scratch = Scratch::new();
        let mut record = vec![];
        prop_assume!(model.encode(&mut scratch, &pages[0], &mut record));
        let plain = model.to_plain();
        let mut out = vec![0; pages[0].len()];
        for _ in 0..200 {
            let mut damaged = plain.clone();
            damage(&mut random, &mut damaged);
            // A model that can be read is used for both directions.
            if let Ok(damaged) = Model::from_plain(&damaged) {
                out.resize(damaged.page_bytes(), 0);
                let _ = damaged.decode(&mut scratch, &record, &mut out);
                for page in &pages {
                    let mut again = vec![];
                    let _ = damaged.encode(&mut scratch, page, &mut again);
                }
            }
            let mut stored = model.to_bytes();
            damage(&mut random, &mut stored);
            let _ = Model::from_bytes(&stored);
        }
    }
}

/// They have no alignment, by which rows of PostgreSQL are taken apart.
#[test]
fn models_of_postgresql_have_no_columns_of_innodb() {
    let page = heap_page(&mut Random::new(1), &Schema::simple(false), 0);
    for (column, expected) in [(Column::fixed(4, 4), true), (Column::innodb(4), false)] {
        // As many columns as the table has, so that its rows are taken apart by them.
        let plans = |first| Plans::new(vec![ColumnPlan::new(column, Coding::Plain, Ctx::Nothing); 5], first);
        let patterns = Patterns::default();
        let plans_of_heap = plans(heap::streams::END);
        let heap = HeapModel { lsn: 0, xid: 0, patterns, bitmaps: vec![], plans: plans_of_heap };
        let mut bytes = vec![];
        heap.write_model(&mut bytes);
        let heap = HeapModel::read_model(&mut Reader::new(&bytes));
        assert!(heap.iter().all(|heap| HeapPage::locate(&page, &heap.plans).is_some()));
        assert_eq!(heap.is_ok(), expected, "{column:?}");

        let btree = BtreeModel { lsn: 0, patterns: Patterns::default(), plans: plans(btree::streams::END) };
        let mut bytes = vec![];
        btree.write_model(&mut bytes);
        assert_eq!(BtreeModel::read_model(&mut Reader::new(&bytes)).is_ok(), expected, "{column:?}");
    }
}
