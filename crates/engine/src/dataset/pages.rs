//! The page map: which record each page is, and who refers to it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ledger::Part;
use super::live::{LiveDataset, report_unreadable};
use super::pending::PageOp;
use super::redo::PageRun;
use super::shared::count;
use super::usage::UsageDelta;
use crate::tree::{Edit, Value};
use crate::{Error, Key, Ptr, Result};

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
    pub fn remove_pages(&self, object: u64, from: u64, to: u64) -> Result<()> {
        let range = Edit::DeleteRange(Key::page(object, from), page_end(object, to));
        self.replace_pages(object, None, &mut std::iter::once(range), 0, 0)
    }

    /// Points consecutive pages to records and frees what they held before (runtime and replay).
    pub fn put_pages(&self, run: &PageRun) -> Result<()> {
        if run.shared {
            self.add_references(&run.ptrs)?;
        } else {
            self.ledger.lock().born(Part::Page, run.ptrs.iter().flatten());
        }
        let (mut pages, mut stored) = (0, 0);
        for ptr in run.ptrs.iter().flatten() {
            pages += 1;
            stored += i64::from(ptr.len_bytes);
        }
        let mut edits = (run.first..).zip(&run.ptrs).map(|(page, ptr)| {
            let key = Key::page(run.object, page);
            ptr.map_or(Edit::Delete(key), |ptr| Edit::Put(key, Value::Page(ptr)))
        });
        // Holes shared from an object without pages say nothing of the target's recordsize.
        let record_size = (run.record_size > 0).then_some(run.record_size);
        self.replace_pages(run.object, record_size, &mut edits, pages, stored)
    }

    fn replace_pages(
        &self,
        object: u64,
        record_size: Option<u32>,
        edits: &mut dyn Iterator<Item = Edit>,
        mut pages: i64,
        mut stored_bytes: i64,
    ) -> Result<()> {
        let mut freed = Vec::new();
        let mut replaced = Vec::new();
        let applied = self.tree.apply(
            edits,
            &mut |_, value| {
                if let Value::Page(ptr) = value {
                    replaced.push(ptr);
                }
            },
            &mut freed,
        )?;
        report_unreadable(&applied);
        for ptr in &replaced {
            pages -= 1;
            stored_bytes -= i64::from(ptr.len_bytes);
        }
        self.let_go(Part::Node, &freed)?;
        self.release_records(replaced)?;
        if pages != 0 || stored_bytes != 0 || record_size.is_some() {
            self.usage.lock().apply(&self.tree, object, UsageDelta { pages, stored_bytes, record_size })?;
        }
        Ok(())
    }

    /// Drops one reference to each record; the tree lets go of a record without references.
    fn release_records(&self, mut ptrs: Vec<Ptr>) -> Result<()> {
        if ptrs.is_empty() {
            return Ok(());
        }
        if self.shared_records.load(Ordering::Relaxed) > 0 {
            let _serial = self.sharing.lock();
            let mut last = Vec::with_capacity(ptrs.len());
            for ptr in ptrs {
                let key = shared_key(ptr);
                match self.references(&key)? {
                    1 => last.push(ptr),
                    2 => self.edit(&mut std::iter::once(Edit::Delete(key)))?,
                    more => self.edit(&mut std::iter::once(Edit::Put(key, references_value(more - 1))))?,
                }
            }
            ptrs = last;
        }
        self.let_go(Part::Page, &ptrs)
    }

    /// Brings pointers up to date whose records were coded again: pages of `object`, ascending, with the record that each had
    /// and its length now. A page that has another record by now keeps it; so does one whose record a snapshot or another page
    /// refers to, so that all pointers to a record say the same. The caller holds the log's lock and the gate's write side; the log
    /// says nothing of it.
    pub fn restate(&self, object: u64, pages: &[(u64, Ptr)]) -> Result<()> {
        let mut edits = Vec::with_capacity(pages.len());
        let mut saved = 0;
        for run in pages.chunk_by(|(page, _), (next, _)| page + 1 == *next) {
            let Some((first, _)) = run.first() else { continue };
            let mut found = vec![None; run.len()];
            self.tree.pages(object, *first, &mut found)?;
            for ((page, now), was) in run.iter().zip(found) {
                if let Some(was) = was.filter(|was| was.addr == now.addr && was.len_bytes != now.len_bytes)
                    && !self.ledger.lock().holds(Part::Page, now.addr)
                    && self.references_of(now)? == 1
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
        // What is replaced is the same record.
        let applied = self.tree.apply(&mut edits.into_iter(), &mut |_, _| {}, &mut freed)?;
        report_unreadable(&applied);
        self.let_go(Part::Node, &freed)?;
        self.ledger.lock().shortened(saved);
        self.usage.lock().apply(
            &self.tree,
            object,
            UsageDelta { pages: 0, stored_bytes: -saved, record_size: None },
        )
    }

    /// How many pages of the tree refer to a record.
    fn references_of(&self, ptr: &Ptr) -> Result<u64> {
        if self.shared_records.load(Ordering::Relaxed) == 0 {
            return Ok(1);
        }
        self.references(&shared_key(*ptr))
    }

    fn add_references(&self, ptrs: &[Option<Ptr>]) -> Result<()> {
        let _serial = self.sharing.lock();
        self.shared_records.fetch_max(1, Ordering::Relaxed);
        for ptr in ptrs.iter().flatten() {
            let key = shared_key(*ptr);
            let references = self.references(&key)? + 1;
            self.edit(&mut std::iter::once(Edit::Put(key, references_value(references))))?;
        }
        Ok(())
    }

    fn references(&self, key: &Key) -> Result<u64> {
        let Some(Value::Bytes(bytes)) = self.tree.get(key)? else { return Ok(1) };
        let raw = <[u8; 8]>::try_from(&*bytes)
            .map_err(|_| Error::corrupt("reference count", "it has a wrong length"))?;
        Ok(u64::from_le_bytes(raw).max(2))
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
        let run = PageRun { dataset: self.id, object: to.0, record_size, first: to.1, shared: true, ptrs };
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

fn page_end(object: u64, to: u64) -> Key {
    if to == u64::MAX { Key::new(object, Key::PAGE + 1, 0) } else { Key::page(object, to) }
}

/// The entry, if it is the file system's and not the engine's.
fn shared_key(ptr: Ptr) -> Key {
    Key::new(0, Key::SHARED, ptr.addr.raw())
}

fn references_value(references: u64) -> Value {
    Value::Bytes(references.to_le_bytes().into())
}
