//! Changes that were accepted and are not yet in the log.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::Key;
use crate::dataset::Claim;
use crate::dataset::redo::{Bases, PageRun, REDO_FIXED_BYTES, REDO_PTR_BYTES, Redo};

/// A page as an application wrote it: exactly one recordsize long.
pub(crate) type PageBuf = Arc<[u8]>;

/// Changes that were accepted since the last quiesce point, as their net effect: only the last version of each page or
/// value.
#[derive(Default)]
pub(crate) struct Pending {
    /// Pages by object and page number.
    pub pages: HashMap<(u64, u64), PageBuf>,
    /// Values; `None` deletes.
    pub values: HashMap<Key, Option<Vec<u8>>>,
    /// Those of `pages` that are stored in full although their content is unchanged, because their deltas are expanded.
    pub plain: HashSet<(u64, u64)>,
    /// Punches and shares, in order. They precede all of `pages`.
    pub page_ops: Vec<PageOp>,
    /// Space reserved for all changes.
    pub claimed: Claim,
    /// Bytes of memory in `pages`.
    pub page_bytes: u64,
    /// Upper bound of the redo operations of values and page operations, in bytes.
    pub redo_bytes: usize,
}

/// A change of the page map that writes no page.
#[derive(Debug)]
pub(crate) enum PageOp {
    /// Pages were removed.
    Punch {
        /// Object.
        object: u64,
        /// First page.
        from: u64,
        /// One past the last page.
        to: u64,
    },
    /// Pages share records.
    Share(PageRun),
}

impl Pending {
    /// Returns true if there is nothing to commit.
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.values.is_empty() && self.page_ops.is_empty()
    }

    /// Adds a value or a deletion.
    pub(crate) fn set(&mut self, key: Key, value: Option<Vec<u8>>) {
        self.redo_bytes += REDO_FIXED_BYTES + value.as_ref().map_or(0, Vec::len);
        self.values.insert(key, value);
    }

    /// Adds a page.
    pub(crate) fn write(&mut self, object: u64, page: u64, buf: PageBuf) {
        self.page_bytes += buf.len() as u64;
        if let Some(old) = self.pages.insert((object, page), buf) {
            self.page_bytes -= old.len() as u64;
        }
    }

    /// Forgets pages that were written and are now removed.
    pub(crate) fn forget(&mut self, object: u64, from: u64, to: u64) {
        let span = to.saturating_sub(from);
        if span <= self.pages.len() as u64 {
            for page in from..to {
                if let Some(old) = self.pages.remove(&(object, page)) {
                    self.page_bytes -= old.len() as u64;
                }
            }
        } else {
            let freed = &mut self.page_bytes;
            self.pages.retain(|(of, page), buf| {
                let stays = *of != object || *page < from || *page >= to;
                if !stays {
                    *freed -= buf.len() as u64;
                }
                stays
            });
        }
    }

    /// Adds a page operation.
    pub(crate) fn page_op(&mut self, op: PageOp) {
        self.redo_bytes += REDO_FIXED_BYTES;
        if let PageOp::Share(run) = &op {
            self.redo_bytes += run.ptrs.len() * (REDO_PTR_BYTES + 1);
            if let Bases::Shared(bases) = &run.bases {
                self.redo_bytes += bases.iter().map(|of_page| of_page.len() * REDO_PTR_BYTES).sum::<usize>();
            }
        }
        self.page_ops.push(op);
    }

    /// Returns true if any page of the range was written.
    pub(crate) fn touches(&self, object: u64, from: u64, to: u64) -> bool {
        if to.saturating_sub(from) <= self.pages.len() as u64 {
            (from..to).any(|page| self.pages.contains_key(&(object, page)))
        } else {
            self.pages.keys().any(|(of, page)| *of == object && (from..to).contains(page))
        }
    }

    /// Returns an upper bound of all redo operations, in bytes.
    pub(crate) fn redo_bytes_max(&self) -> usize {
        self.redo_bytes + self.pages.len() * (REDO_FIXED_BYTES + REDO_PTR_BYTES)
    }

    /// Appends the redo operations of values and page operations. The order of values does not matter for the result:
    /// their keys differ, and a batch counts as a whole.
    pub(crate) fn encode_redo(&self, dataset: u64, out: &mut Vec<u8>) {
        let mut values: Vec<_> = self.values.iter().collect();
        // Values are sorted, so that the same changes make the same log.
        values.sort_unstable_by_key(|(key, _)| **key);
        for (key, value) in values {
            match value {
                Some(value) => Redo::Put(dataset, *key, value).encode(out),
                None => Redo::Delete(dataset, *key).encode(out),
            }
        }
        for op in &self.page_ops {
            match op {
                PageOp::Punch { object, from, to } => {
                    Redo::Punch { dataset, object: *object, from: *from, to: *to }.encode(out);
                }
                PageOp::Share(run) => run.encode(out),
            }
        }
    }
}
