//! A database's model from sampled pages.

use std::collections::HashMap;

use super::layout::{Layout, Seen, int_bytes};
use super::page::{MAGIC, kind};
use super::signature::{ALIKE, Signature};
use super::write::pack;
use super::{Branch, MAX_BRANCHES, Parts, SqliteModel, words};
use crate::columns::learn::{Sampled, choose};
use crate::patterns::{MAX_PATTERNS, Patterns, most_frequent};

/// Pages that codings are tried on.
const TRIAL_PAGES: usize = 40;
/// Fewer sampled pages that are alike are left to the branch that is nearest, or to generic coding.
const MIN_PAGES: usize = 2;
/// Overflow pages from which on they are coded, too.
const MIN_OVERFLOW: usize = 3;

/// Pages that are alike.
struct Group<'p> {
    signature: Signature,
    pages: Vec<&'p [u8]>,
}

/// Bytes at the end of each page that are not SQLite's: a byte of the file's header, if its page is among `pages`. Without it, none.
pub(crate) fn reserved(pages: &[&[u8]]) -> usize {
    let first = pages.iter().find(|page| page.starts_with(MAGIC));
    first.and_then(|page| page.get(20)).map_or(0, |&reserved| usize::from(reserved))
}

/// Learns from pages of one file: those that [`Parts::parse`] accepts, and overflow pages between them.
pub(crate) fn learn(pages: &[&[u8]], level: i32) -> Option<SqliteModel> {
    let reserved = reserved(pages);
    let mut parts = Parts::default();
    let (mut groups, mut others): (Vec<Group<'_>>, usize) = (vec![], 0);
    for page in pages {
        if !parts.parse(page, reserved) {
            others += 1;
            continue;
        }
        let signature = Signature::of(&parts, page);
        let apart = |group: &Group<'_>| group.signature.distance(&signature).unwrap_or(u32::MAX);
        match groups.iter_mut().min_by_key(|group| apart(group)).filter(|group| apart(group) <= ALIKE) {
            Some(group) => group.pages.push(page),
            None => groups.push(Group { signature, pages: vec![page] }),
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

/// The largest groups, and with them the pages of small ones that are not too unlike.
fn settle(mut groups: Vec<Group<'_>>) -> Vec<Group<'_>> {
    groups.sort_by_key(|group| usize::MAX - group.pages.len());
    let large = groups.iter().filter(|group| group.pages.len() >= MIN_PAGES).count();
    // Where no two pages are alike, a branch is for what is at least of the same form.
    let small = groups.split_off(large.clamp(1.min(groups.len()), MAX_BRANCHES));
    for group in small {
        let apart = |other: &Group<'_>| other.signature.distance(&group.signature).unwrap_or(u32::MAX);
        let room = groups.len() < MAX_BRANCHES;
        match groups.iter_mut().min_by_key(|other| apart(other)).filter(|other| apart(other) < u32::MAX) {
            Some(other) => other.pages.extend(group.pages),
            None if large == 0 && room => groups.push(group),
            None => {}
        }
    }
    groups
}

fn learn_branch(group: Group<'_>, reserved: usize, (level, first): (i32, usize)) -> Branch {
    let layout = find_layout(&group, reserved);
    let words = words(layout.values);
    let mut counts = vec![HashMap::new(); words];
    let mut parts = Parts::default();
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
    let plans = choose(&columns, &mut sampled, level, Branch::columns_at(first, layout.values));
    let patterns =
        counts.into_iter().map(|counts| Patterns::new(most_frequent(counts, MAX_PATTERNS))).collect();
    Branch { signature: group.signature, layout, patterns, first, plans }
}

/// The layout that has all values of the pages.
fn find_layout(group: &Group<'_>, reserved: usize) -> Layout {
    let mut seen: Vec<Seen> = vec![];
    let mut rowid = 0;
    let mut parts = Parts::default();
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
    Layout::new(group.signature.kind, &seen, rowid)
}
