//! Learns a heap model from sampled pages.

use std::collections::HashMap;

use super::{HeapModel, HeapPage, MAX_BITMAPS, streams, write};
use crate::columns::Column;
use crate::columns::infer::{self, infer};
use crate::columns::learn::choose;
use crate::columns::plan::Plans;
use crate::patterns::{MAX_PATTERNS, Patterns, most_frequent};
use crate::postgres::page::{LSN_LOW_BITS, LineState};
use crate::sampling::{median, sample};

/// Largest number of tuples that a layout is inferred from.
const INFER_TUPLES: usize = 80;
/// Largest number of pages that codings are tried on.
const TRIAL_PAGES: usize = 64;

/// Learns from pages that [`HeapPage::parse`] accepts. If no columns can be inferred, tuples are kept whole, as text.
/// Returns `None` if it accepts none.
pub(crate) fn learn(pages: &[&[u8]], level: i32) -> Option<HeapModel> {
    let mut parts = HeapPage::default();
    let parsed: Vec<&[u8]> = pages.iter().copied().filter(|page| parts.parse(page)).collect();
    if parsed.is_empty() {
        return None;
    }
    let columns = infer_columns(&parsed);
    let mut model = HeapModel {
        lsn: 0,
        xid: 0,
        patterns: Patterns::default(),
        bitmaps: vec![],
        plans: Plans { columns, plans: vec![], end: streams::END },
    };
    learn_usual(&mut model, &parsed);
    let mut sampled = sample(&parsed, TRIAL_PAGES, |page| HeapPage::locate(page, &model.plans));
    model.plans = choose(&model.plans.columns, &mut sampled, level, streams::END);
    Some(model)
}

/// Returns the layout that describes a sample of tuples, which may have fewer columns than the longest; no columns if
/// none can be found.
fn infer_columns(pages: &[&[u8]]) -> Vec<Column> {
    let mut parts = HeapPage::default();
    let mut samples = vec![];
    let step = pages.len().div_ceil(INFER_TUPLES / 4).max(1);
    let mut columns = 0;
    for page in pages.iter().step_by(step) {
        if !parts.parse(page) {
            continue;
        }
        let normal =
            parts.lines.iter().zip(&parts.tuples).filter(|(line, _)| line.state == LineState::Normal);
        let usual: Vec<_> = normal.filter(|(_, tuple)| tuple.is_regular(usize::MAX)).collect();
        for (line, tuple) in usual.iter().step_by((usual.len() / 3).max(1)) {
            let data = &page[line.off + usize::from(tuple.hoff)..line.off + line.len];
            samples.push(infer::Sample { data, columns: tuple.columns(), present: tuple.present });
            columns = columns.max(tuple.columns());
        }
    }
    samples.sort_by_key(|sample| sample.columns);
    let step = samples.len().div_ceil(INFER_TUPLES).max(1);
    let chosen: Vec<infer::Sample<'_>> = samples.iter().copied().step_by(step).collect();
    infer(&chosen, columns, true).unwrap_or_default()
}

/// Learns the usual LSN, transaction, patterns and null bitmaps.
fn learn_usual(model: &mut HeapModel, pages: &[&[u8]]) {
    let mut parts = HeapPage::default();
    let (mut lsns, mut xids) = (vec![], vec![]);
    let mut bitmaps = HashMap::new();
    for page in pages {
        if parts.parse(page) {
            lsns.push(parts.header.lsn >> LSN_LOW_BITS);
            xids.extend(parts.visits.first().map(|visit| parts.tuples[usize::from(visit.line)].xmin));
        }
    }
    model.lsn = median(lsns);
    model.xid = median(xids);
    let mut patterns = HashMap::new();
    for page in pages {
        if !parts.parse(page) {
            continue;
        }
        parts.parse_columns(page, &model.plans);
        write::find_patterns(model, &mut parts);
        for pattern in &parts.patterns {
            *patterns.entry(pattern.pack()).or_insert(0) += 1;
        }
        for &n in &parts.rows {
            let tuple = &parts.tuples[usize::from(n)];
            if tuple.has_nulls() {
                *bitmaps.entry(tuple.present).or_insert(0) += 1;
            }
        }
    }
    model.patterns = Patterns::new(most_frequent(patterns, MAX_PATTERNS));
    model.bitmaps = most_frequent(bitmaps, MAX_BITMAPS);
}
