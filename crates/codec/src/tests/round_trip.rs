//! Every page comes back, from every model that takes it.

use proptest::prelude::*;

use super::{cases, model_of};
use crate::testing::innodb::{InnodbTable, index_page};
use crate::testing::{Keys, Random, Schema, btree_page, corpora, heap_page};
use crate::{Format, Kinds, Model, Options, Scratch, learn, recognise};

/// Codes `pages` and asserts that each comes back; returns the number of pages that the model took.
pub(super) fn round_trip(model: &Model, scratch: &mut Scratch, pages: &[Vec<u8>]) -> usize {
    let stored = Model::from_bytes(&model.to_bytes()).unwrap();
    assert_eq!(stored.to_bytes(), model.to_bytes());
    let mut taken = 0;
    for page in pages {
        let mut record = b"before".to_vec();
        // The record is not verified, so that an encoder that errs is found here.
        if !model.encode_unverified(scratch, page, &mut record) {
            continue;
        }
        taken += 1;
        let mut again = vec![0xAA; page.len()];
        stored.decode(scratch, &record[6..], &mut again).unwrap();
        assert!(
            again == *page,
            "the page differs from byte {:?} on",
            again.iter().zip(page).position(|(a, b)| a != b)
        );
        let mut verified = vec![];
        assert!(model.encode(scratch, page, &mut verified));
        assert_eq!(verified, record[6..]);
    }
    taken
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn heap_pages_come_back(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let schema = Schema::random(&mut random);
        let pages: Vec<Vec<u8>> = (0..24).map(|block| heap_page(&mut random, &schema, block)).collect();
        let model = model_of(&pages[..16]);
        prop_assert_eq!(model.format().name(), "postgres-heap");
        prop_assert_eq!(round_trip(&model, &mut Scratch::new(), &pages), pages.len());
    }

    #[test]
    fn btree_pages_come_back(seed in any::<u64>(), aged in any::<bool>(), keys in 0..3) {
        let keys = [Keys::Ints, Keys::Pairs, Keys::Words][keys as usize];
        let mut random = Random::new(seed);
        let pages: Vec<Vec<u8>> = (0..24).map(|block| btree_page(&mut random, keys, aged, block)).collect();
        let model = model_of(&pages[..16]);
        prop_assert_eq!(model.format().name(), "postgres-btree");
        prop_assert_eq!(round_trip(&model, &mut Scratch::new(), &pages), pages.len());
    }

    #[test]
    fn innodb_pages_come_back(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let table = InnodbTable::random(&mut random);
        let pages: Vec<Vec<u8>> = (3..27).map(|number| index_page(&mut random, &table, number)).collect();
        prop_assert!(pages.iter().all(|page| recognise(&mut Scratch::new(), page).map(Format::name) == Some("innodb")));
        let model = model_of(&pages[..18]);
        prop_assert_eq!(model.format().name(), "innodb");
        // A model has no branch for inner pages if none were among the sampled ones.
        prop_assert!(round_trip(&model, &mut Scratch::new(), &pages) >= 18);
    }

    /// A relation was rewritten with other columns, and its model is still in use.
    #[test]
    fn pages_of_another_relation_come_back(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let (mut one, mut other) = (Schema::random(&mut random), Schema::random(&mut random));
        (one.page_bytes, other.page_bytes) = (8192, 8192);
        let pages: Vec<Vec<u8>> = (0..8).map(|block| heap_page(&mut random, &one, block)).collect();
        let others: Vec<Vec<u8>> = (0..8).map(|block| heap_page(&mut random, &other, 70_000 + block)).collect();
        let model = model_of(&pages);
        prop_assert_eq!(round_trip(&model, &mut Scratch::new(), &others), others.len());
    }

    /// The tablespace was rebuilt with other columns under the same index.
    #[test]
    fn innodb_pages_of_another_table_come_back(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let (mut one, mut other) = (InnodbTable::random(&mut random), InnodbTable::random(&mut random));
        (one.page_bytes, other.page_bytes) = (16_384, 16_384);
        let pages: Vec<Vec<u8>> = (0..12).map(|number| index_page(&mut random, &one, number)).collect();
        let others: Vec<Vec<u8>> =
            (0..8).map(|number| index_page(&mut random, &other, 70_000 + number)).collect();
        round_trip(&model_of(&pages), &mut Scratch::new(), &others);
    }

    #[test]
    fn damaged_innodb_pages_come_back_or_are_refused(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let table = InnodbTable::random(&mut random);
        let mut pages: Vec<Vec<u8>> = (0..12).map(|number| index_page(&mut random, &table, number)).collect();
        let model = model_of(&pages);
        for page in &mut pages {
            for _ in 0..1 + random.below(6) {
                // Mostly bytes of structure.
                let from = [0, 38, 94, 0, page.len() - 200][random.below(5)];
                let at = (from + random.below(200)).min(page.len() - 1);
                let at = if random.once_in(3) { random.below(page.len()) } else { at };
                page[at] = random.next() as u8;
            }
        }
        round_trip(&model, &mut Scratch::new(), &pages);
    }

    /// The codec assumes nothing of a page but its bytes.
    #[test]
    fn damaged_pages_come_back_or_are_refused(seed in any::<u64>(), btree in any::<bool>()) {
        let mut random = Random::new(seed);
        let mut schema = Schema::random(&mut random);
        schema.page_bytes = 8192;
        let page = |random: &mut Random, block| {
            if btree { btree_page(random, Keys::Words, true, block) } else { heap_page(random, &schema, block) }
        };
        let mut pages: Vec<Vec<u8>> = (0..12).map(|block| page(&mut random, block)).collect();
        let model = model_of(&pages);
        for page in &mut pages {
            for _ in 0..1 + random.below(6) {
                // Mostly bytes of structure.
                let within = [24, 100, page.len(), page.len()][random.below(4)];
                let at = random.below(within);
                page[at] = random.next() as u8;
            }
        }
        round_trip(&model, &mut Scratch::new(), &pages);
    }
}

/// A pointer that leads to the next record only if it is taken modulo the page would not come back as it was.
#[test]
fn next_pointers_of_innodb_are_taken_as_they_are() {
    let mut page = index_page(&mut Random::new(6), &InnodbTable::simple(false), 3);
    let known = |page: &[u8]| recognise(&mut Scratch::new(), page).map(Format::name);
    assert_eq!(known(&page), Some("innodb"));
    page[97] ^= 0x40;
    assert_eq!(known(&page), None);
}

/// Siblings are as far apart as they can be; `round_trips` found this case.
#[test]
fn siblings_of_btree_pages_may_be_any_blocks() {
    let mut random = Random::new(8);
    let mut pages: Vec<Vec<u8>> =
        (0..12).map(|block| btree_page(&mut random, Keys::Pairs, false, block)).collect();
    let model = model_of(&pages);
    for page in &mut pages {
        let special = page.len() - 16;
        // A page without a next sibling has no high key.
        if page[special + 4..special + 8] == [0; 4] {
            continue;
        }
        page[special..special + 4].copy_from_slice(&9_u32.to_le_bytes());
        page[special + 4..special + 8].copy_from_slice(&(11_u32 | 1 << 31).to_le_bytes());
    }
    assert_eq!(round_trip(&model, &mut Scratch::new(), &pages), pages.len());
}

#[test]
fn siblings_of_innodb_pages_may_be_any_pages() {
    let mut random = Random::new(10);
    let table = InnodbTable::simple(false);
    let mut pages: Vec<Vec<u8>> = (3..15).map(|number| index_page(&mut random, &table, number)).collect();
    let model = model_of(&pages);
    for page in &mut pages {
        let number = u32::from_be_bytes([page[4], page[5], page[6], page[7]]);
        for (at, usual) in [(8, number - 1), (12, number + 1)] {
            page[at..at + 4].copy_from_slice(&(usual ^ 1 << 31).to_be_bytes());
        }
    }
    // Inner pages may have no branch.
    assert!(round_trip(&model, &mut Scratch::new(), &pages) >= pages.len() / 2);
}

/// Bits of a posting list's header come back even if they mean nothing; `round_trips` found this case.
#[test]
fn flags_of_posting_lists_come_back() {
    let mut random = Random::new(9);
    let mut pages: Vec<Vec<u8>> =
        (0..24).map(|block| btree_page(&mut random, Keys::Words, true, block)).collect();
    let model = model_of(&pages);
    let word = |page: &[u8], at: usize| u16::from_le_bytes([page[at], page[at + 1]]);
    let mut changed = 0;
    for page in &mut pages {
        for line in (24..usize::from(word(page, 12))).step_by(4) {
            let at = usize::from(word(page, line) & 0x7FFF);
            let is_posting = at > 0 && word(page, at + 6) & 0x2000 != 0 && word(page, at + 4) & 0x2000 != 0;
            if is_posting && random.once_in(3) {
                page[at + 5] |= [0x10, 0x40, 0x80][random.below(3)];
                changed += 1;
            }
        }
    }
    assert!(changed > 0, "there are posting lists");
    round_trip(&model, &mut Scratch::new(), &pages);
}

#[test]
fn one_scratch_serves_all_models() {
    let mut random = Random::new(5);
    let mut scratch = Scratch::new();
    for seed in 0..6 {
        let schema = Schema::random(&mut Random::new(seed));
        let heaps: Vec<Vec<u8>> = (0..6).map(|block| heap_page(&mut random, &schema, block)).collect();
        round_trip(&model_of(&heaps), &mut scratch, &heaps);
        let trees: Vec<Vec<u8>> =
            (0..6).map(|block| btree_page(&mut random, Keys::Ints, true, block)).collect();
        round_trip(&model_of(&trees), &mut scratch, &trees);
    }
}

#[test]
fn models_are_adopted_if_they_gain() {
    let mut random = Random::new(9);
    let pages: Vec<Vec<u8>> =
        (0..100).map(|block| btree_page(&mut random, Keys::Ints, false, block)).collect();
    let slices: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
    let options = Options { kinds: Kinds::Apart, level: 3, relation_pages: 10_000 };
    assert_eq!(learn(&slices, options).unwrap().format().name(), "postgres-btree");
    // An empty relation saves nothing, so no model is worth its bytes.
    assert!(learn(&slices, Options { relation_pages: 0, ..options }).is_none());
    let noise: Vec<Vec<u8>> = (0..20).map(|_| random.bytes(8192)).collect();
    let slices: Vec<&[u8]> = noise.iter().map(Vec::as_slice).collect();
    assert!(learn(&slices, options).is_none());
    let mut scratch = Scratch::new();
    assert_eq!(recognise(&mut scratch, &pages[3]).map(Format::name), Some("postgres-btree"));
    assert_eq!(recognise(&mut scratch, &noise[0]), None);
    let heap = heap_page(&mut random, &Schema::random(&mut Random::new(1)), 3);
    assert_eq!(recognise(&mut scratch, &heap).map(Format::name), Some("postgres-heap"));
    assert_eq!(recognise(&mut scratch, &heap[1..]), None);
    assert!(learn(&[], options).is_none());
    assert!(learn(&[&[1, 2, 3]], options).is_none());
}

#[test]
fn the_same_pages_give_the_same_model_and_records() {
    let schema = Schema::random(&mut Random::new(3));
    let mut random = Random::new(4);
    let pages: Vec<Vec<u8>> = (0..20).map(|block| heap_page(&mut random, &schema, block)).collect();
    let (one, other) = (model_of(&pages), model_of(&pages));
    assert_eq!(one.to_bytes(), other.to_bytes());
    let (mut a, mut b) = (vec![], vec![]);
    assert!(
        one.encode(&mut Scratch::new(), &pages[7], &mut a)
            && other.encode(&mut Scratch::new(), &pages[7], &mut b)
    );
    assert_eq!(a, b);
}

/// Rows as applications have them, with each kind of coding among them, come back; so do rows with letters that no
/// other value has, or that make a value longer.
#[test]
fn generated_relations_come_back() {
    let mut random = Random::new(20);
    let mut scratch = Scratch::new();
    for (name, bytes) in corpora::relations(90) {
        let mut pages: Vec<Vec<u8>> = bytes.chunks(8192).map(<[u8]>::to_vec).collect();
        let model = model_of(&pages[..60]);
        assert_eq!(round_trip(&model, &mut scratch, &pages), pages.len(), "{name}");
        for page in &mut pages {
            for _ in 0..=random.below(6) {
                let at = page.len() / 2 + random.below(page.len() / 2);
                page[at] = random.below(256) as u8;
            }
        }
        assert!(round_trip(&model, &mut scratch, &pages) > 80, "{name}");
    }
}
