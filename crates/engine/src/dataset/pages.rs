//! The page map: the record of each page, and the references to it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::accounting::RecordRole;
use super::live::{LiveDataset, report_unreadable};
use super::pending::PageOp;
use super::redo::{Bases, PageRun};
use super::shared::count;
use super::usage::UsageDelta;
use crate::limits::BASES_MAX;
use crate::tree::{Edit, Value};
use crate::{Addr, Error, Key, Ptr, Result};

/// Number of entries of the tree that are looked up at a time.
const LOOKUP_ENTRIES: usize = 1024;

/// Changes of the bases of pages.
#[derive(Default)]
struct Chains {
    edits: Vec<Edit>,
    /// Bases that are given by address, instead of being kept from the records that the pages had.
    added: Vec<Ptr>,
    /// Records of pages that become bases of the same pages: the tree refers to them as before.
    moved: Vec<Addr>,
}

/// Records that edits put into a tree.
struct Put<'a> {
    pages: usize,
    /// Records of pages and bases that were not there before.
    records: &'a [Ptr],
    moved: &'a [Addr],
}

impl LiveDataset {
    fn wait_for_pages(&self, object: u64, from: u64, to: u64) {
        let busy =
            self.stages.read().committing.as_ref().is_some_and(|pending| pending.touches(object, from, to));
        if busy {
            self.shared.wait_landed();
        }
    }

    pub(super) fn punch(&self, object: u64, from: u64, to: u64) -> Result<()> {
        self.wait_for_pages(object, from, to);
        {
            let mut stages = self.stages.write();
            let before = stages.accepting.page_bytes;
            stages.accepting.forget(object, from, to);
            self.shared.dirty_bytes.fetch_sub(before - stages.accepting.page_bytes, Ordering::Relaxed);
            stages.accepting.page_op(PageOp::Punch { object, from, to });
        }
        self.remove_pages(object, from, to)
    }

    /// Removes pages from the tree and frees their records (runtime and replay).
    pub(crate) fn remove_pages(&self, object: u64, from: u64, to: u64) -> Result<()> {
        let pages = Edit::DeleteRange(Key::page(object, from), page_end(object, to));
        let bases = Edit::DeleteRange(Key::base(object, from, 0), Key::base(object, to, 0));
        self.replace_pages(object, None, vec![pages, bases], &[]).map(drop)
    }

    /// Points consecutive pages to records, and frees the records that they had, except for bases of the new records
    /// (runtime and replay). Returns the numbers of the pages that had a record before, with its address.
    pub(crate) fn put_pages(&self, run: &PageRun) -> Result<Vec<(u64, Addr)>> {
        let before =
            self.bases_between(run.object, run.first, run.first.saturating_add(run.ptrs.len() as u64))?;
        let Chains { edits: bases, added, moved } = self.chains(run, &before)?;
        let mut born: Vec<Ptr> = run.ptrs.iter().flatten().copied().collect();
        born.extend(added);
        if run.shared {
            self.add_references(&born)?;
        } else {
            self.accounting.lock().born(RecordRole::Page, born.iter());
        }
        let pages = (run.first..).zip(&run.ptrs).map(|(page, ptr)| {
            let key = Key::page(run.object, page);
            ptr.map_or(Edit::Delete(key), |ptr| Edit::Put(key, Value::Page(ptr)))
        });
        let edits = pages.chain(bases).collect();
        // Holes that are shared from an object without pages do not determine the target's recordsize.
        let record_size = (run.record_size > 0).then_some(run.record_size);
        let put = Put { pages: run.ptrs.iter().flatten().count(), records: &born, moved: &moved };
        self.replace_pages(run.object, record_size, edits, &[put])
    }

    /// Returns the bases of an object's pages from `first` up to `end`, by page.
    pub fn bases_between(&self, object: u64, first: u64, end: u64) -> Result<BTreeMap<u64, Vec<Ptr>>> {
        let mut found: BTreeMap<u64, Vec<Ptr>> = BTreeMap::new();
        let (mut from, to) = (Key::base(object, first, 0), Key::base(object, end, 0));
        while from < to {
            let entries = self.tree.range(&from, &to, LOOKUP_ENTRIES)?;
            for (key, value) in &entries {
                if let Value::Page(ptr) = value {
                    found.entry(key.offset / BASES_MAX as u64).or_default().push(*ptr);
                }
            }
            let last = entries.last().filter(|_| entries.len() == LOOKUP_ENTRIES);
            let Some((last, _)) = last else { break };
            from = Key { offset: last.offset.saturating_add(1), ..*last };
        }
        Ok(found)
    }

    /// Returns the changes that `run` makes to the bases of its pages, which were `before`.
    fn chains(&self, run: &PageRun, before: &BTreeMap<u64, Vec<Ptr>>) -> Result<Chains> {
        let mut chains = Chains::default();
        let none = Vec::new();
        let mut tops = Vec::new();
        if matches!(run.bases, Bases::Kept(_)) {
            tops = vec![None; run.ptrs.len()];
            self.tree.pages(run.object, run.first, &mut tops)?;
        }
        for (at, page) in (run.first..).take(run.ptrs.len()).enumerate() {
            let was = before.get(&page).unwrap_or(&none);
            let key = |place: usize| Key::base(run.object, page, place);
            match &run.bases {
                Bases::Kept(kept) if kept.get(at).is_some_and(|kept| usize::from(*kept) > was.len()) => {
                    let top = tops.get(at).copied().flatten();
                    let top =
                        top.filter(|_| kept.get(at).is_some_and(|kept| usize::from(*kept) == was.len() + 1));
                    let top = top.ok_or_else(|| {
                        Error::corrupt("log", "a delta is based on more records than its page has")
                    })?;
                    chains.edits.push(Edit::Put(key(was.len()), Value::Page(top)));
                    chains.moved.push(top.addr);
                }
                Bases::Kept(kept) => {
                    let stay = kept.get(at).copied().map_or(0, usize::from);
                    chains.edits.extend((stay..was.len()).map(|place| Edit::Delete(key(place))));
                }
                Bases::Shared(bases) => {
                    let bases = bases.get(at).unwrap_or(&none);
                    let put = bases.iter().enumerate();
                    chains.edits.extend(put.map(|(place, base)| Edit::Put(key(place), Value::Page(*base))));
                    chains.edits.extend((bases.len()..was.len()).map(|place| Edit::Delete(key(place))));
                    chains.added.extend(bases);
                }
                Bases::None => {
                    chains.edits.extend((0..was.len()).map(|place| Edit::Delete(key(place))));
                }
            }
        }
        Ok(chains)
    }

    /// Applies edits of pages and their bases, frees the records that they replace, and accounts for both. Returns the
    /// numbers of the pages whose record was replaced or removed, with its address.
    fn replace_pages(
        &self,
        object: u64,
        record_size: Option<u32>,
        edits: Vec<Edit>,
        put: &[Put<'_>],
    ) -> Result<Vec<(u64, Addr)>> {
        let mut freed = Vec::new();
        let mut replaced = Vec::new();
        let mut pages = Vec::new();
        let mut change = UsageDelta { record_size, ..UsageDelta::default() };
        let applied = self.tree.apply(
            &mut edits.into_iter(),
            &mut |key, value| {
                if let Value::Page(ptr) = value {
                    if key.kind == Key::PAGE {
                        change.pages -= 1;
                        pages.push((key.offset, ptr.addr));
                    }
                    replaced.push(ptr);
                }
            },
            &mut freed,
        )?;
        report_unreadable(&applied);
        for put in put {
            change.pages += put.pages as i64;
            change.records += put.records.len() as i64;
            change.stored_bytes += put.records.iter().map(|ptr| i64::from(ptr.len_bytes)).sum::<i64>();
            let mut moved: HashMap<Addr, usize> = HashMap::new();
            put.moved.iter().for_each(|addr| *moved.entry(*addr).or_default() += 1);
            // Each moved address keeps one reference: another page may have unreferenced the same record.
            replaced.retain(|ptr| match moved.get_mut(&ptr.addr) {
                Some(left) if *left > 0 => {
                    *left -= 1;
                    false
                }
                _ => true,
            });
        }
        change.records -= replaced.len() as i64;
        change.stored_bytes -= replaced.iter().map(|ptr| i64::from(ptr.len_bytes)).sum::<i64>();
        self.unreference(RecordRole::Node, &freed)?;
        let unreferenced = self.drop_references(replaced)?;
        self.unreference(RecordRole::Page, &unreferenced)?;
        if change.pages != 0 || change.records != 0 || change.stored_bytes != 0 || record_size.is_some() {
            self.note_usage(object, change)?;
        }
        Ok(pages)
    }

    /// Updates the lengths in pointers to records that were coded again. `pages` are pages of `object`, ascending, each
    /// with its record and the record's length now. A page that has another record by now keeps it. A page whose record
    /// is also in a snapshot or in another page keeps its pointer, so that all pointers to a record say the same. The
    /// caller holds the log's lock and the gate's write side; the log has no entry of this change.
    pub(crate) fn restate(&self, object: u64, pages: &[(u64, Ptr)]) -> Result<()> {
        let mut edits = Vec::with_capacity(pages.len());
        let mut saved = 0;
        let shared = self.shared_among(&pages.iter().map(|(_, ptr)| *ptr).collect::<Vec<Ptr>>())?;
        for run in pages.chunk_by(|(page, _), (next, _)| page + 1 == *next) {
            let Some((first, _)) = run.first() else { continue };
            let mut found = vec![None; run.len()];
            self.tree.pages(object, *first, &mut found)?;
            for ((page, now), was) in run.iter().zip(found) {
                if let Some(was) = was.filter(|was| was.addr == now.addr && was.len_bytes != now.len_bytes)
                    && !self.accounting.lock().holds(RecordRole::Page, now.addr)
                    && !shared.contains_key(&now.addr)
                {
                    saved += i64::from(was.len_bytes) - i64::from(now.len_bytes);
                    edits.push(Edit::Put(Key::page(object, *page), Value::Page(*now)));
                }
            }
        }
        if edits.is_empty() {
            return Ok(());
        }
        let mut freed = Vec::new();
        // The replaced pointers are of the same records, so nothing is freed.
        let applied = self.tree.apply(&mut edits.into_iter(), &mut |_, _| {}, &mut freed)?;
        report_unreadable(&applied);
        self.unreference(RecordRole::Node, &freed)?;
        self.accounting.lock().shortened(saved);
        self.note_usage(object, UsageDelta { stored_bytes: -saved, ..UsageDelta::default() })
    }

    pub(super) fn share(&self, from: (u64, u64), to: (u64, u64), count_pages: u64) -> Result<()> {
        self.shared.wait_landed();
        let mut written = Vec::new();
        {
            let stages = self.stages.read();
            for at in 0..count_pages {
                if let Some(buf) = stages.accepting.pages.get(&(from.0, from.1 + at)) {
                    written.push((at, Arc::clone(buf)));
                }
            }
        }
        let mut ptrs = vec![None; usize::try_from(count_pages).unwrap_or(usize::MAX)];
        self.tree.pages(from.0, from.1, &mut ptrs)?;
        for (at, _) in &written {
            if let Some(slot) = ptrs.get_mut(*at as usize) {
                *slot = None;
            }
        }
        let stored_size = self.usage.lock().record_size(&self.tree, from.0)?;
        let record_size = written.first().map_or(stored_size, |(_, buf)| buf.len() as u32);
        let bases = self.bases_between(from.0, from.1, from.1 + count_pages)?;
        let bases = if bases.is_empty() {
            Bases::None
        } else {
            let of_page = |(at, ptr): (u64, &Option<Ptr>)| {
                ptr.and_then(|_| bases.get(&(from.1 + at)).cloned()).unwrap_or_default()
            };
            Bases::Shared((0..).zip(&ptrs).map(of_page).collect())
        };
        let run =
            PageRun { dataset: self.id, object: to.0, record_size, first: to.1, shared: true, ptrs, bases };
        self.put_pages(&run)?;
        let mut stages = self.stages.write();
        let before = stages.accepting.page_bytes;
        stages.accepting.forget(to.0, to.1, to.1 + count_pages);
        stages.accepting.page_op(PageOp::Share(run));
        for (at, buf) in written {
            stages.accepting.write(to.0, to.1 + at, buf);
        }
        let after = stages.accepting.page_bytes;
        if after >= before {
            count(&self.shared.dirty_bytes, after - before);
        } else {
            self.shared.dirty_bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Returns the key behind the pages of `object` that are below `to`; `u64::MAX` stands for all pages.
pub(super) fn page_end(object: u64, to: u64) -> Key {
    if to == u64::MAX { Key::new(object, Key::PAGE + 1, 0) } else { Key::page(object, to) }
}
