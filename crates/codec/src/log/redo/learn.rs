//! Learns a model from blocks of a redo log.

use std::collections::HashMap;

use super::page::{RedoRecord, begin, transaction};
use super::{ANY, PATTERNS_MAX, RedoModel, SPACES_MAX, stream};
use crate::columns;
use crate::entropy::Counter;
use crate::log::LogPage;
use crate::log::io::Put;
use crate::log::slots::{Samples, Slots};
use crate::sampling::median;

/// Fewest records for a pattern, and for a tablespace that patterns name.
const PATTERN_MIN: u32 = 6;
const SPACE_MIN: usize = 8;
/// Largest number of patterns of one tablespace and one first byte of data; the others are for any.
const OWN_MAX: usize = 190;

/// Makes a model of `blocks`, whose streams are yet to be counted.
pub(crate) fn learn(blocks: &[&[u8]], level: i32) -> Option<RedoModel> {
    let all: Vec<(&[u8], usize)> = blocks.iter().filter_map(|block| Some((*block, begin(block)?))).collect();
    if all.is_empty() {
        return None;
    }
    let mut pages: HashMap<u32, Vec<u32>> = HashMap::new();
    records(&all, |_, record, _| {
        if let Some((space, page)) = record.page {
            pages.entry(space).or_default().push(page);
        }
    });
    let mut counted: Vec<(usize, u32, u32)> = pages
        .into_iter()
        .filter(|(_, pages)| pages.len() >= SPACE_MIN)
        .map(|(space, pages)| (pages.len(), space, median(pages)))
        .collect();
    counted.sort_by(|x, y| y.cmp(x));
    counted.truncate(SPACES_MAX);
    let spaces = counted.into_iter().map(|(_, space, page)| (space, page)).collect();
    let (by_key, space_numbers) = Default::default();
    let mut model = RedoModel { spaces, patterns: vec![], by_key, space_numbers, slots: Slots::default() };
    model.index();
    model.patterns = patterns(&model, &all);
    model.index();
    model.slots = Slots::empty(model.patterns.len(), stream::END);
    let mut parts = LogPage { samples: Some(Samples::new(model.slots.count())), ..LogPage::default() };
    let mut buffers = columns::Buffers::default();
    let mut counter = Counter::new(model.end());
    for (block, begin) in &all {
        let mut copy = block.to_vec();
        buffers.text.clear();
        let mut io = Put { sink: &mut counter, buffers: &mut buffers };
        // A block that cannot be walked tells nothing.
        let _ = super::walk::walk(&model, &mut io, &mut parts, &mut copy, *begin);
    }
    model.slots = Slots::learn(&parts.samples.unwrap_or_default(), stream::END, level);
    Some(model)
}

/// Calls `each` with all records of mini-transactions whose checksum is right, and with the tablespace of each.
fn records(blocks: &[(&[u8], usize)], mut each: impl FnMut(&[u8], &RedoRecord, Option<u32>)) {
    for (block, begin) in blocks {
        let (mut at, mut space) = (*begin, None);
        while let Some(end) = transaction(block, at) {
            while at < end {
                let Some(record) = RedoRecord::parse(block, at) else { break };
                space = record.page.map_or(space, |(space, _)| Some(space));
                each(block, &record, space);
                at = record.end;
            }
            at = end + super::page::END_BYTES;
        }
    }
}

/// Returns the frequent kinds of records; then kinds of any first byte of data, or of any tablespace, or both.
fn patterns(model: &RedoModel, blocks: &[(&[u8], usize)]) -> Vec<[u8; 3]> {
    let mut counts: HashMap<[u8; 3], u32> = HashMap::new();
    let mut wide: HashMap<[u8; 3], u32> = HashMap::new();
    records(blocks, |block, record, space| {
        let mark = space.and_then(|space| model.space_numbers.get(&space)).copied().unwrap_or(ANY);
        let [first, begins, mark] = record.key(block, mark);
        *counts.entry([first, begins, mark]).or_default() += 1;
        for key in [[first, ANY, mark], [first, begins, ANY], [first, ANY, ANY]] {
            *wide.entry(key).or_default() += 1;
        }
    });
    let sorted = |counts: HashMap<[u8; 3], u32>| {
        let mut all: Vec<(u32, [u8; 3])> =
            counts.into_iter().filter(|(_, n)| *n >= PATTERN_MIN).map(|(key, n)| (n, key)).collect();
        all.sort_by(|x, y| y.cmp(x));
        all.into_iter().map(|(_, key)| key).collect::<Vec<_>>()
    };
    let mut keys = sorted(counts);
    keys.truncate(OWN_MAX);
    for key in sorted(wide) {
        if keys.len() < PATTERNS_MAX && !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}
