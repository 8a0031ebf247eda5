//! Learns a model from pages of a log.

use std::collections::HashMap;

use super::page::{BLOCKS_MAX, RecordHead, Rel, SAME_REL, header_bytes, heads, rel_of};
use super::{ANY, NO_SLOT, PATTERNS_MAX, RELS_MAX, RecordPattern, WalModel, stream};
use crate::columns;
use crate::entropy::Counter;
use crate::log::LogPage;
use crate::log::io::Put;
use crate::log::slots::{SLOTS_MAX, Samples, Slots};
use crate::sampling::median;
use crate::wire::{le16, le32};

/// Fewest records for a pattern with relations of its own, and for one of any relation.
const OWN_MIN: u32 = 8;
const SHARED_MIN: u32 = 3;
/// Largest number of patterns with relations of their own.
const OWN_MAX: usize = 170;

/// A page, and the heads of its records with their places.
type Parsed<'p> = (&'p [u8], Vec<(usize, RecordHead)>);

/// Makes a model of `pages`, whose streams are yet to be counted.
pub(crate) fn learn(pages: &[&[u8]], level: i32) -> Option<WalModel> {
    let pages: Vec<&[u8]> = pages.iter().copied().filter(|page| header_bytes(page).is_some()).collect();
    let first = pages.first()?;
    let all: Vec<Parsed<'_>> = pages.iter().map(|page| (*page, heads(page))).collect();
    let rels = relations(&all);
    let mut model = WalModel {
        magic: le16(first, 0),
        timeline: le32(first, 4),
        address: median(pages.iter().map(|page| super::walk::address(page)).collect()),
        xid: median(
            all.iter()
                .filter_map(|(page, heads)| Some(le32(page, heads.first()?.0 + 4)))
                .filter(|&xid| xid > 0)
                .collect(),
        ),
        rels,
        patterns: vec![],
        by_key: HashMap::new(),
        rel_numbers: HashMap::new(),
        slots: Slots::default(),
    };
    model.index();
    patterns(&mut model, &all);
    let samples = data(&model, &pages);
    model.slots = Slots::learn(&samples, stream::END, level);
    Some(model)
}

/// Returns the most frequent relations, each with the median of its blocks.
fn relations(all: &[Parsed<'_>]) -> Vec<(Rel, u32)> {
    let mut counts: HashMap<Rel, (u32, Vec<u32>)> = HashMap::new();
    for (page, heads) in all {
        for (_, head) in heads {
            for block in head.blocks[..head.count].iter().filter(|block| block.flags & SAME_REL == 0) {
                let (count, blocks) = counts.entry(rel_of(page, block)).or_default();
                *count += 1;
                blocks.push(le32(page, block.rel_at + 12));
            }
        }
    }
    let mut rels: Vec<(u32, Rel, u32)> = counts
        .into_iter()
        .filter(|(_, (count, _))| *count >= OWN_MIN)
        .map(|(rel, (count, blocks))| (count, rel, median(blocks)))
        .collect();
    rels.sort_by(|x, y| y.cmp(x));
    rels.truncate(RELS_MAX);
    rels.into_iter().map(|(_, rel, block)| (rel, block)).collect()
}

/// Finds patterns: the frequent ones with their relations, others with any.
fn patterns(model: &mut WalModel, all: &[Parsed<'_>]) {
    let mut own: HashMap<Vec<u8>, u32> = HashMap::new();
    for (page, heads) in all {
        for (_, head) in heads {
            let key = head.key(|block| model.rel_numbers.get(&rel_of(page, block)).copied().unwrap_or(ANY));
            *own.entry(key).or_default() += 1;
        }
    }
    let mut keys = sorted(own.into_iter().filter(|(_, count)| *count >= OWN_MIN));
    keys.truncate(OWN_MAX);
    let taken: std::collections::HashSet<Vec<u8>> = keys.iter().cloned().collect();
    // Records of other relations, or of those that come after training, are like records of known ones.
    let mut shared: HashMap<Vec<u8>, u32> = HashMap::new();
    for (_, heads) in all {
        for (_, head) in heads {
            *shared.entry(head.key(|_| ANY)).or_default() += 1;
        }
    }
    keys.extend(sorted(
        shared.into_iter().filter(|(key, count)| *count >= SHARED_MIN && !taken.contains(key)),
    ));
    keys.truncate(PATTERNS_MAX);
    let mut next = 0;
    for key in keys {
        let mut slots = [NO_SLOT; 1 + 2 * BLOCKS_MAX];
        for slot in &mut slots[..1 + (key.len() - 3) / 2] {
            if next < SLOTS_MAX {
                *slot = next as u16;
                next += 1;
            }
        }
        model.patterns.push(RecordPattern { key, slots });
    }
    model.slots = Slots::empty(next, stream::END);
    model.index();
}

fn sorted(counts: impl Iterator<Item = (Vec<u8>, u32)>) -> Vec<Vec<u8>> {
    let mut all: Vec<(Vec<u8>, u32)> = counts.collect();
    all.sort_by(|x, y| y.1.cmp(&x.1).then_with(|| x.0.cmp(&y.0)));
    all.into_iter().map(|(key, _)| key).collect()
}

/// Collects data of records, by slot.
fn data(model: &WalModel, pages: &[&[u8]]) -> Samples {
    let mut parts = LogPage { samples: Some(Samples::new(model.slots.count())), ..LogPage::default() };
    let mut buffers = columns::Buffers::default();
    let mut counter = Counter::new(model.end());
    for page in pages {
        let mut copy = page.to_vec();
        buffers.text.clear();
        buffers.plain.clear();
        // A page that cannot be walked tells nothing.
        let _ = super::walk::walk(
            model,
            &mut Put { sink: &mut counter, buffers: &mut buffers },
            &mut parts,
            &mut copy,
        );
    }
    parts.samples.unwrap_or_default()
}
