//! Learns a tablespace's model from sampled pages.

use std::collections::{BTreeMap, HashMap};

use super::infer::infer;
use super::{BRANCH, InnodbBranch, InnodbModel, InnodbPage, LSN_LOW_BITS, MAX_BRANCHES, streams};
use crate::columns::learn::choose;
use crate::patterns::{MAX_PATTERNS, Patterns, most_frequent};
use crate::sampling::{median, sample};

/// Largest number of pages that codings are tried on.
const TRIAL_PAGES: usize = 40;
/// Fewest sampled pages of one index and kind that get a branch; fewer are left to generic coding.
const MIN_PAGES: usize = 2;

/// Learns from pages that [`InnodbPage::parse`] accepts; each index, and each of its two kinds of pages, on its own.
pub(crate) fn learn(pages: &[&[u8]], level: i32) -> Option<InnodbModel> {
    let mut parts = InnodbPage::default();
    let mut branches: BTreeMap<(u64, bool), Vec<&[u8]>> = BTreeMap::new();
    for page in pages {
        if parts.parse(page) {
            branches.entry((parts.header.index, parts.header.level == 0)).or_default().push(page);
        }
    }
    let mut branches: Vec<_> = branches.into_iter().filter(|(_, pages)| pages.len() >= MIN_PAGES).collect();
    branches.sort_by_key(|(_, pages)| usize::MAX - pages.len());
    branches.truncate(MAX_BRANCHES);
    let mut model = InnodbModel { branches: vec![] };
    for ((index, leaf), pages) in branches {
        let first = model.branches.last().map_or(BRANCH + 1, |branch| branch.plans.end);
        model.branches.push(learn_branch(index, leaf, &pages, (level, first)));
    }
    (!model.branches.is_empty()).then_some(model)
}

fn learn_branch(index: u64, leaf: bool, pages: &[&[u8]], (level, first): (i32, usize)) -> InnodbBranch {
    let layout = infer(pages);
    let mut parts = InnodbPage::default();
    let (mut lsns, mut trxs, mut spaces) = (vec![], vec![], vec![]);
    let mut patterns = HashMap::new();
    for page in pages {
        if !parts.parse(page) || !parts.parse_columns(page, &layout) {
            continue;
        }
        lsns.push(parts.header.lsn >> LSN_LOW_BITS);
        trxs.push(parts.header.max_trx);
        spaces.push(parts.header.space);
        for (n, record) in parts.records.iter().enumerate() {
            *patterns.entry(record.pattern(n >= parts.header.records)).or_insert(0) += 1;
        }
    }
    let columns: Vec<_> = layout.fields.iter().map(|field| field.column()).collect();
    let mut sampled = sample(pages, TRIAL_PAGES, |page| {
        let mut parts = InnodbPage::default();
        (parts.parse(page) && parts.parse_columns(page, &layout)).then_some(parts.grid)
    });
    let plans = choose(&columns, &mut sampled, level, first + streams::END);
    InnodbBranch {
        index,
        leaf,
        space: median(spaces),
        trx: median(trxs),
        lsn: median(lsns),
        layout,
        patterns: Patterns::new(most_frequent(patterns, MAX_PATTERNS)),
        first,
        plans,
    }
}
