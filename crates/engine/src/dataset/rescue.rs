//! Changes a dataset although parts of its tree cannot be read. Replay does so when a pool is opened for rescue. All
//! changes that can be made are made, without space accounting. A key that could not be changed cannot be looked up
//! either, so nothing out of date is read.

use super::LiveDataset;
use super::pages::page_end;
use super::redo::PageRun;
use crate::Key;
use crate::tree::{Edit, Value};

impl LiveDataset {
    /// Sets a value, or removes it if it is `None`. Returns false if its place cannot be read.
    pub(crate) fn rescue_value(&self, key: Key, value: Option<&[u8]>) -> bool {
        self.rescue(value.map_or(Edit::Delete(key), |bytes| Edit::Put(key, Value::Bytes(bytes.into()))))
    }

    /// Points pages to records, except for pages whose place cannot be read. Returns the number of these.
    pub(crate) fn rescue_pages(&self, run: &PageRun) -> u64 {
        let edits = (run.first..).zip(&run.ptrs).map(|(page, ptr)| {
            let key = Key::page(run.object, page);
            ptr.map_or(Edit::Delete(key), |ptr| Edit::Put(key, Value::Page(ptr)))
        });
        edits.filter(|edit| !self.rescue(edit.clone())).count() as u64
    }

    /// Removes pages, except for those whose place cannot be read. Returns false if there are such.
    pub(crate) fn rescue_removed(&self, object: u64, from: u64, to: u64) -> bool {
        let range = (Key::page(object, from), page_end(object, to));
        let readable = self.tree.readable(&range.0, &range.1);
        let all = readable == [range] || range.0 >= range.1;
        readable.into_iter().all(|(from, to)| self.rescue(Edit::DeleteRange(from, to))) && all
    }

    fn rescue(&self, edit: Edit) -> bool {
        // Edits are made one at a time, since several are applied as one or not at all.
        let applied = self.tree.apply(&mut std::iter::once(edit), &mut |_, _| {}, &mut Vec::new());
        applied.is_ok()
    }
}
