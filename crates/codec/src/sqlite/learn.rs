//! Learns a database's model from sampled pages.

use std::collections::HashMap;

use super::layout::{Seen, SqliteLayout, int_bytes};
use super::page::{MAGIC, kind};
use super::signature::{ALIKE, Signature};
use super::write::pack;
use super::{MAX_BRANCHES, SqliteBranch, SqliteModel, SqlitePage, words};
use crate::columns::learn::{Sampled, choose};
use crate::patterns::{MAX_PATTERNS, Patterns, most_frequent};

/// Largest number of pages that codings are tried on.
const TRIAL_PAGES: usize = 40;
/// Fewest sampled pages that get a branch of their own. Smaller groups are left to the nearest branch, or to generic
/// coding.
const MIN_PAGES: usize = 2;
/// Fewest sampled pages that do not parse, and so count as overflow pages, with which these are coded, too.
const MIN_OVERFLOW: usize = 3;

/// Pages that are alike.
struct AlikePages<'p> {
    signature: Signature,
    pages: Vec<&'p [u8]>,
}

/// Returns the number of bytes at the end of each page that are not SQLite's. A byte of the file's header tells it; 0
/// if the page with that header is not among `pages`.
pub(crate) fn reserved(pages: &[&[u8]]) -> usize {
    let first = pages.iter().find(|page| page.starts_with(MAGIC));
    first.and_then(|page| page.get(20)).map_or(0, |&reserved| usize::from(reserved))
}

/// Learns from pages of one file: those that [`SqlitePage::parse`] accepts, and overflow pages between them. Returns `None`
/// if it accepts none.
pub(crate) fn learn(pages: &[&[u8]], level: i32) -> Option<SqliteModel> {
    let reserved = reserved(pages);
    let mut parts = SqlitePage::default();
    let (mut groups, mut others): (Vec<AlikePages<'_>>, usize) = (vec![], 0);
    for page in pages {
        if !parts.parse(page, reserved) {
            others += 1;
            continue;
        }
        let signature = Signature::of(&parts, page);
        let apart = |group: &AlikePages<'_>| group.signature.distance(&signature).unwrap_or(u32::MAX);
        match groups.iter_mut().min_by_key(|group| apart(group)).filter(|group| apart(group) <= ALIKE) {
            Some(group) => group.pages.push(page),
            None => groups.push(AlikePages { signature, pages: vec![page] }),
        }
    }
    let groups = settle(groups);
    let mut model = SqliteModel { reserved, overflow: others >= MIN_OVERFLOW, branches: vec![] };
    for group in groups {
        let first = model.end();
        model.branches.push(learn_branch(group, reserved, (level, first)));
    }
    (!model.branches.is_empty()).then_some(model)
}

/// Returns the largest groups. The pages of each small group are added to the nearest one, if any has pages of the same
/// form.
fn settle(mut groups: Vec<AlikePages<'_>>) -> Vec<AlikePages<'_>> {
    groups.sort_by_key(|group| usize::MAX - group.pages.len());
    let large = groups.iter().filter(|group| group.pages.len() >= MIN_PAGES).count();
    // If no two pages are alike, the branches are for pages of the same form.
    let small = groups.split_off(large.clamp(1.min(groups.len()), MAX_BRANCHES));
    for group in small {
        let apart = |other: &AlikePages<'_>| other.signature.distance(&group.signature).unwrap_or(u32::MAX);
        let room = groups.len() < MAX_BRANCHES;
        match groups.iter_mut().min_by_key(|other| apart(other)).filter(|other| apart(other) < u32::MAX) {
            Some(other) => other.pages.extend(group.pages),
            None if large == 0 && room => groups.push(group),
            None => {}
        }
    }
    groups
}

fn learn_branch(group: AlikePages<'_>, reserved: usize, (level, first): (i32, usize)) -> SqliteBranch {
    let layout = find_layout(&group, reserved);
    let words = words(layout.values);
    let mut counts = vec![HashMap::new(); words];
    let mut parts = SqlitePage::default();
    let step = group.pages.len().div_ceil(TRIAL_PAGES).max(1);
    let (mut images, mut grids) = (vec![], vec![]);
    for (at, page) in group.pages.iter().enumerate() {
        if !parts.parse(page, reserved) {
            continue;
        }
        parts.parse_columns(page, &layout);
        for (word, counts) in counts.iter_mut().enumerate() {
            pack(&mut parts, word);
            parts.packed.iter().for_each(|&packed| *counts.entry(packed).or_insert(0) += 1);
        }
        if at % step == 0 {
            images.push(std::mem::take(&mut parts.image));
            grids.push(std::mem::take(&mut parts.grid));
        }
    }
    let sampled = images.iter().zip(grids).map(|(image, grid)| Sampled { page: image, grid });
    let mut sampled: Vec<Sampled<'_>> = sampled.collect();
    let columns: Vec<_> = layout.slots.iter().map(|slot| slot.column()).collect();
    let plans = choose(&columns, &mut sampled, level, SqliteBranch::columns_at(first, layout.values));
    let patterns =
        counts.into_iter().map(|counts| Patterns::new(most_frequent(counts, MAX_PATTERNS))).collect();
    SqliteBranch { signature: group.signature, layout, patterns, first, plans }
}

/// Returns the layout that has slots for all values of the pages.
fn find_layout(group: &AlikePages<'_>, reserved: usize) -> SqliteLayout {
    let mut seen: Vec<Seen> = vec![];
    let mut rowid = 0;
    let mut parts = SqlitePage::default();
    for page in &group.pages {
        if !parts.parse(page, reserved) {
            continue;
        }
        for cell in parts.cells.iter().filter(|cell| !cell.odd) {
            if kind::is_table(parts.header.kind) {
                rowid = rowid.max(int_bytes(cell.rowid));
            }
            seen.resize_with(seen.len().max(cell.values), Seen::default);
            let values = &parts.values[cell.first..cell.first + cell.values];
            seen.iter_mut().zip(values).for_each(|(seen, value)| seen.note(page, value));
        }
    }
    SqliteLayout::new(group.signature.kind, &seen, rowid)
}
