//! Learns a B-tree model from sampled pages.

use std::collections::HashMap;

use super::item::ItemKind;
use super::{BtreeModel, BtreePage, streams};
use crate::columns::Column;
use crate::columns::infer::{self, infer_with_cost};
use crate::columns::learn::choose;
use crate::columns::plan::Plans;
use crate::patterns::{MAX_PATTERNS, Patterns, most_frequent};
use crate::postgres::page::LSN_LOW_BITS;
use crate::sampling::{median, sample};

/// Largest number of keys that a layout is inferred from.
const INFER_KEYS: usize = 80;
/// Largest number of pages that codings are tried on.
const TRIAL_PAGES: usize = 48;
/// Largest number of columns that is tried, unless pivots have more.
const MAX_TRIED: usize = 8;

/// Learns from pages that [`BtreePage::parse`] accepts; keys whose columns cannot be inferred are kept whole. Returns
/// `None` if it accepts none.
pub(crate) fn learn(pages: &[&[u8]], level: i32) -> Option<BtreeModel> {
    let mut parts = BtreePage::default();
    let parsed: Vec<&[u8]> = pages.iter().copied().filter(|page| parts.parse(page)).collect();
    if parsed.is_empty() {
        return None;
    }
    let columns = infer_columns(&parsed);
    let plans = Plans { columns, plans: vec![], end: streams::END };
    let mut model = BtreeModel { lsn: 0, patterns: Patterns::default(), plans };
    let mut lsns = vec![];
    let mut patterns = HashMap::new();
    for page in &parsed {
        if parts.parse(page) {
            parts.parse_columns(page, &model.plans);
            lsns.push(parts.header.lsn >> LSN_LOW_BITS);
            for item in &parts.items {
                *patterns.entry(item.pattern()).or_insert(0) += 1;
            }
        }
    }
    model.lsn = median(lsns);
    model.patterns = Patterns::new(most_frequent(patterns, MAX_PATTERNS));
    let mut sampled = sample(&parsed, TRIAL_PAGES, |page| BtreePage::locate(page, &model.plans));
    model.plans = choose(&model.plans.columns, &mut sampled, level, streams::END);
    Some(model)
}

/// Returns the cheapest layout of full keys. Leaf items do not tell how many columns they have.
fn infer_columns(pages: &[&[u8]]) -> Vec<Column> {
    let mut parts = BtreePage::default();
    let mut samples = vec![];
    let mut pivots = 1;
    for page in pages.iter().step_by(pages.len().div_ceil(INFER_KEYS).max(1)) {
        if !parts.parse(page) {
            continue;
        }
        pivots = parts.items.iter().filter_map(super::item::Item::own_columns).fold(pivots, usize::max);
        let full: Vec<usize> = (0..parts.items.len())
            .filter(|&n| matches!(parts.items[n].kind, ItemKind::Plain | ItemKind::Posting))
            .collect();
        for &n in full.iter().step_by((full.len() / 2).max(1)) {
            let (item, line) = (&parts.items[n], parts.lines[n]);
            let (from, to) = item.keys();
            let present = if item.has_nulls() { item.present } else { u128::MAX };
            let data = &page[line.off + from..line.off + to];
            samples.push(infer::Sample { data, columns: usize::MAX, present });
        }
    }
    let step = samples.len().div_ceil(INFER_KEYS).max(1);
    let chosen: Vec<infer::Sample<'_>> = samples.iter().copied().step_by(step).collect();
    let mut best: Option<(f64, Vec<Column>)> = None;
    for columns in pivots..=MAX_TRIED.max(pivots) {
        let own: Vec<infer::Sample<'_>> = chosen
            .iter()
            .map(|sample| infer::Sample { columns, present: mask(sample.present, columns), ..*sample })
            .collect();
        if let Some((cost, layout)) = infer_with_cost(&own, columns, false)
            && best.as_ref().is_none_or(|(least, _)| cost < *least)
        {
            best = Some((cost, layout));
        }
    }
    best.map(|(_, layout)| layout).unwrap_or_default()
}

fn mask(present: u128, columns: usize) -> u128 {
    if columns >= 128 { present } else { present & ((1 << columns) - 1) }
}
