//! Compares the space accounting of a version with what its tree has.

use std::collections::HashMap;

use super::{CheckWalk, Content};
use crate::dataset::{RecordRole, space_of};
use crate::pool::catalogue::Catalogue;
use crate::{Addr, Ptr, Result};

/// Checks the space accounting and the dead list of a version against its tree and that of the snapshot before it.
pub(super) fn check(
    catalogue: &Catalogue,
    id: u64,
    before: &Content,
    content: &Content,
    walk: &mut CheckWalk,
) -> Result<()> {
    let report = &mut walk.report;
    let accounting = catalogue.get(id)?.data.accounting();
    let fresh = content.all.iter().filter(|(role, ptr)| !before.has(*role, ptr.addr));
    let counted: [u64; 3] = [
        content.bytes(RecordRole::Page),
        content.bytes(RecordRole::Node),
        fresh.map(|(_, ptr)| space_of(ptr)).sum(),
    ];
    let told = [accounting.page_bytes, accounting.node_bytes, accounting.fresh_bytes];
    if told != counted {
        let path = catalogue.path(id);
        report.error(format!(
            "pages, nodes and fresh records of '{path}' take {told:?} bytes, counted are {counted:?}"
        ));
    }
    // The snapshot before the version and those before that, newest first.
    let mut ancestors = Vec::new();
    let mut at = catalogue.get(id)?.prev;
    while let Some(ancestor) = catalogue.as_ancestor(at) {
        ancestors.push(ancestor);
        at = catalogue.get(at)?.prev;
    }
    let missing = before.all.iter().filter(|(role, ptr)| !content.has(*role, ptr.addr));
    let mut missing: HashMap<Addr, RecordRole> = missing.map(|(role, ptr)| (ptr.addr, *role)).collect();
    let dead = &accounting.dead;
    let mut found: Vec<(u64, Ptr)> =
        dead.open().flat_map(|(birth, ptrs)| ptrs.iter().map(move |ptr| (birth, *ptr))).collect();
    let mut buckets = 0;
    catalogue.parts.blocks.buckets(dead.id, 0, &mut |birth, bucket| {
        buckets += 1;
        let (mut records, mut bytes) = (0, 0);
        let entries = bucket.for_each(&catalogue.parts.blocks, &mut |ptr| {
            records += 1;
            bytes += space_of(&ptr);
            found.push((birth, ptr));
        })?;
        walk.dead_entries += 1 + entries;
        if (records, bytes) != (bucket.records, bucket.bytes) {
            walk.report.error(format!(
                "a dead list of '{}' has {records} records of {bytes} bytes, and says {} of {}",
                catalogue.path(id),
                bucket.records,
                bucket.bytes
            ));
        }
        Ok(())
    })?;
    let report = &mut walk.report;
    if buckets != dead.buckets {
        let path = catalogue.path(id);
        report.error(format!("the dead list of '{path}' has {buckets} buckets, and says {}", dead.buckets));
    }
    for (birth, ptr) in found {
        let Some(role) = missing.remove(&ptr.addr) else {
            report.error(format!(
                "record {} is in the dead list of '{}' and should not",
                ptr.addr,
                catalogue.path(id)
            ));
            continue;
        };
        let older = ancestors.iter().position(|ancestor| ancestor.precedes(role, ptr.addr));
        let oldest = older.and_then(|at| ancestors.get(at)).map_or(0, |ancestor| ancestor.id);
        let younger = older.unwrap_or(ancestors.len()).checked_sub(1).and_then(|at| ancestors.get(at));
        if birth < oldest || younger.is_none_or(|younger| birth >= younger.id) {
            report.error(format!(
                "record {} of '{}' was not born after {birth}",
                ptr.addr,
                catalogue.path(id)
            ));
        }
    }
    if let Some(addr) = missing.keys().next() {
        let path = catalogue.path(id);
        report.error(format!(
            "{} records (one is {addr}) are missing in the dead list of '{path}'",
            missing.len()
        ));
    }
    Ok(())
}
