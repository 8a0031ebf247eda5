//! Looks keys up.
//!
//! All lookups work the same way. They descend under the read lock through the nodes that are in memory. If a node is
//! absent, they release the lock, load the node, and start again. Nodes loaded for a call stay in its `Held`, so that a
//! small cache cannot make it start again for ever.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::node::{Body, Branch, Child, KeyBounds, Leaf, Node, search_run};
use super::{Live, NodeCache, NodeStore, Tree, Value, codec};
use crate::types::{Addr, Key, Ptr};
use crate::{Error, Result};

/// Clean nodes that a call keeps in memory until it is done.
pub(super) type Held = BTreeMap<Addr, Arc<Node>>;

/// A clean node that is needed and not in memory, with what its parent says of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub ptr: Ptr,
    /// Its level; `None` for a root, which may be of any level.
    pub level: Option<u8>,
    pub bounds: KeyBounds,
}

impl Want {
    /// Returns true if `node` has the level that the parent expects here (invariant 5).
    fn accepts(&self, node: &Node) -> bool {
        self.level.is_none_or(|level| node.level() == level)
    }

    /// Loads the node, without a cache.
    pub(super) fn load(&self, store: &dyn NodeStore) -> Result<Node> {
        let node = codec::decode(self.ptr, &store.load(self.ptr)?)?;
        self.verify(&node)?;
        Ok(node)
    }

    /// Fails if `node` has another level or other keys than its parent says (invariant 5).
    pub(super) fn verify(&self, node: &Node) -> Result<()> {
        let damaged = |detail: String| Err(Error::corrupt(format!("tree node {}", self.ptr.addr), detail));
        if !self.accepts(node) {
            return damaged(format!(
                "level {} below a node of level {}",
                node.level(),
                self.level.unwrap_or(0) + 1
            ));
        }
        if !node.is_within(&self.bounds) {
            return damaged(format!("keys outside of what its parent says: {:?}", self.bounds));
        }
        Ok(())
    }

    /// Returns the node from `cache`, or loads it into that.
    pub(super) fn fetch(&self, cache: &NodeCache, store: &dyn NodeStore) -> Result<Arc<Node>> {
        let node = cache.get_or_load(self.ptr.addr, || self.load(store))?;
        // Another tree, with another parent, may have brought it into the cache.
        self.verify(&node)?;
        Ok(node)
    }
}

/// The surroundings of a node on the way down: its bounds, and for a leaf a neighbour.
pub(super) struct Surroundings {
    pub bounds: KeyBounds,
    /// Clean leaf next to it, below the same parent.
    pub neighbour: Option<Want>,
}

/// Goes one step down from `branch`, whose keys are within `bounds`.
fn step<'a>(branch: &'a Branch, key: &Key, bounds: KeyBounds) -> (&'a Child, Surroundings) {
    let i = branch.index_of(key);
    let mut neighbour = None;
    if branch.level() == 1 {
        let beside = if i + 1 < branch.len() { Some(i + 1) } else { i.checked_sub(1) };
        if let Some(beside) = beside
            && let Child::Clean { len_bytes, addr } = *branch.child(beside)
        {
            let ptr = Ptr { addr, len_bytes };
            neighbour = Some(Want { ptr, level: Some(0), bounds: branch.bounds(beside, bounds) });
        }
    }
    (branch.child(i), Surroundings { bounds: branch.bounds(i, bounds), neighbour })
}

impl Live {
    /// Calls `look` with the leaf that `key` is or would be in; returns `None` for an empty tree. Clean nodes are asked
    /// of `find`. If it does not have one, that node is returned as the error.
    pub(super) fn at_leaf<R>(
        &self,
        key: &Key,
        mut find: impl FnMut(&Want) -> Option<Arc<Node>>,
        look: impl FnOnce(&Leaf, &Surroundings) -> R,
    ) -> Result<Option<R>, Want> {
        let Some(mut child) = self.root.as_ref() else { return Ok(None) };
        let mut place = Surroundings { bounds: KeyBounds::default(), neighbour: None };
        let mut level = None;
        // Changed and immutable nodes are borrowed from the tree. From the first clean node on, they are shared with
        // the cache.
        let ptr = loop {
            match child {
                Child::Clean { len_bytes, addr } => break Ptr { addr: *addr, len_bytes: *len_bytes },
                Child::Dirty(node) => match node.body() {
                    Body::Leaf(leaf) => return Ok(Some(look(leaf, &place))),
                    Body::Branch(branch) => {
                        (child, place) = step(branch, key, place.bounds);
                        level = Some(branch.level() - 1);
                    }
                },
            }
        };
        let want = Want { ptr, level, bounds: place.bounds };
        let mut node = find(&want).filter(|node| want.accepts(node)).ok_or(want)?;
        loop {
            let next = match node.body() {
                Body::Leaf(leaf) => return Ok(Some(look(leaf, &place))),
                Body::Branch(branch) => {
                    let (child, below) = step(branch, key, place.bounds);
                    place = below;
                    match child {
                        Child::Dirty(node) => Arc::clone(node),
                        Child::Clean { len_bytes, addr } => {
                            let ptr = Ptr { addr: *addr, len_bytes: *len_bytes };
                            let want = Want { ptr, level: Some(branch.level() - 1), bounds: place.bounds };
                            find(&want).filter(|node| want.accepts(node)).ok_or(want)?
                        }
                    }
                }
            };
            node = next;
        }
    }
}

/// A lookup under way: the tree as of now, and the nodes that can be had without I/O.
pub(super) struct View<'a> {
    live: &'a Live,
    held: &'a Held,
    cache: &'a NodeCache,
}

impl View<'_> {
    pub(super) fn at_leaf<R>(
        &self,
        key: &Key,
        look: impl FnOnce(&Leaf, &Surroundings) -> R,
    ) -> Result<Option<R>, Want> {
        let mut hits = 0;
        let find = |want: &Want| {
            let node = self.held.get(&want.ptr.addr).cloned().or_else(|| self.cache.get(want.ptr.addr));
            hits += u64::from(node.is_some());
            node
        };
        let found = self.live.at_leaf(key, find, look);
        if hits > 0 {
            self.cache.count_hits(hits);
        }
        found
    }

    fn range(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Value)>, Want> {
        let mut out = Vec::new();
        let mut cursor = *from;
        while out.len() < limit && cursor < *to {
            let upper = self.at_leaf(&cursor, |leaf, place| {
                let start = leaf.search(&cursor).unwrap_or_else(|i| i);
                let entries = leaf.entries(start..leaf.len()).take_while(|(key, _)| key < to);
                out.extend(entries.take(limit - out.len()).map(|(key, value)| (key, value.to_value())));
                place.bounds.upper
            })?;
            let Some(upper) = upper.flatten() else { break };
            cursor = upper;
        }
        Ok(out)
    }

    /// Appends to `out` the values of the first of `keys`, and of those after it that are in the same leaf.
    fn some(&self, keys: &[Key], out: &mut Vec<Option<Value>>) -> Result<(), Want> {
        let Some(first) = keys.first() else { return Ok(()) };
        let found = self.at_leaf(first, |leaf, place| {
            let here = keys.iter().take_while(|key| place.bounds.contains(key));
            out.extend(here.map(|key| leaf.search(key).ok().map(|i| leaf.value(i).to_value())));
        })?;
        if found.is_none() {
            out.extend(keys.iter().map(|_| None));
        }
        Ok(())
    }

    fn pages(&self, object: u64, first: u64, out: &mut [Option<Ptr>]) -> Result<(), Want> {
        out.fill(None);
        let end = first.saturating_add(out.len() as u64);
        let mut cursor = first;
        while cursor < end {
            let upper = self.at_leaf(&Key::page(object, cursor), |leaf, place| {
                let (range, offsets) = leaf.run(object, Key::PAGE);
                let start = search_run(offsets, cursor).unwrap_or_else(|i| i);
                for (i, &page) in offsets.iter().enumerate().skip(start).take_while(|&(_, &page)| page < end)
                {
                    out[(page - first) as usize] = leaf.ptr(range.start + i);
                }
                place.bounds.upper
            })?;
            let Some(page) = page_of(upper.flatten(), object) else { break };
            cursor = page;
        }
        Ok(())
    }
}

/// Returns the page number of `key`, if it is the key of a page of `object`.
fn page_of(key: Option<Key>, object: u64) -> Option<u64> {
    key.filter(|key| key.object == object && key.kind == Key::PAGE).map(|key| key.offset)
}

/// The answer of one leaf to a scan.
enum Scan {
    Found(Option<u64>),
    /// The scan has to go on from this page.
    Continue(u64),
}

fn next_data_in(leaf: &Leaf, place: &Surroundings, object: u64, page: u64) -> Scan {
    let (_, offsets) = leaf.run(object, Key::PAGE);
    match offsets.get(search_run(offsets, page).unwrap_or_else(|i| i)) {
        Some(&found) => Scan::Found(Some(found)),
        None => match page_of(place.bounds.upper, object) {
            Some(next) => Scan::Continue(next),
            None => Scan::Found(None),
        },
    }
}

fn next_hole_in(leaf: &Leaf, place: &Surroundings, object: u64, page: u64) -> Scan {
    let (_, offsets) = leaf.run(object, Key::PAGE);
    let Ok(start) = search_run(offsets, page) else { return Scan::Found(Some(page)) };
    // Offsets ascend, so all that follow the first gap are beyond it.
    let stretch = &offsets[start..];
    let present = search_gap(stretch);
    let Some(next) = page.checked_add(present as u64) else { return Scan::Found(None) };
    let ends_leaf = present == stretch.len();
    let more = ends_leaf && place.bounds.upper.is_some_and(|upper| upper <= Key::page(object, next));
    if more { Scan::Continue(next) } else { Scan::Found(Some(next)) }
}

/// Returns how many of the ascending numbers follow the first without a gap, the first included.
fn search_gap(offsets: &[u64]) -> usize {
    let (mut low, mut high) = (0, offsets.len());
    while low < high {
        let middle = low + (high - low) / 2;
        if offsets[middle] - offsets[0] == middle as u64 {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

impl Tree {
    /// Runs `attempt` under the read lock until it lacks no node.
    ///
    /// A node that cannot be loaded may have been freed in the meantime. If the next attempt asks for it again, it is
    /// damaged.
    fn retry<R>(&self, attempt: impl FnMut(View<'_>) -> Result<R, Want>) -> Result<R> {
        self.retry_telling(attempt).map_err(|failed| failed.1)
    }

    /// Does what [`Tree::retry`] does. The error tells which node cannot be had.
    pub(super) fn retry_telling<R>(
        &self,
        mut attempt: impl FnMut(View<'_>) -> Result<R, Want>,
    ) -> Result<R, Box<(Want, Error)>> {
        let mut held = Held::new();
        let mut failed: Option<(Addr, Error)> = None;
        loop {
            let attempted = {
                let live = self.live.read();
                attempt(View { live: &live, held: &held, cache: &self.cache })
            };
            let want = match attempted {
                Ok(result) => return Ok(result),
                Err(want) => want,
            };
            if let Some((addr, error)) = failed.take()
                && addr == want.ptr.addr
            {
                return Err(Box::new((want, error)));
            }
            match want.fetch(&self.cache, &*self.store) {
                Ok(node) => {
                    held.insert(want.ptr.addr, node);
                }
                Err(error) => failed = Some((want.ptr.addr, error)),
            }
        }
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// Those of [`NodeStore::load`]; [`Error::Corrupt`] for a node that is not well formed or not what its parent says.
    /// All lookups have these errors.
    pub fn get(&self, key: &Key) -> Result<Option<Value>> {
        self.retry(|view| {
            let found =
                view.at_leaf(key, |leaf, _| leaf.search(key).ok().map(|i| leaf.value(i).to_value()))?;
            Ok(found.flatten())
        })
    }

    /// Returns the values of `keys`, which ascend. Each leaf is looked at once, at an instant of its own.
    pub(crate) fn get_all(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        let mut out = Vec::with_capacity(keys.len());
        while let Some(rest) = keys.get(out.len()..).filter(|rest| !rest.is_empty()) {
            self.retry(|view| view.some(rest, &mut out))?;
        }
        Ok(out)
    }

    /// Returns a key for each node that is not in memory and that lookups of `keys`, which ascend, would have to load
    /// first.
    pub(crate) fn absent(&self, keys: &[Key]) -> Vec<Key> {
        let (live, held) = (self.live.read(), Held::new());
        let view = View { live: &live, held: &held, cache: &self.cache };
        let (mut absent, mut rest) = (Vec::new(), keys);
        while let Some(key) = rest.first() {
            let upper = match view.at_leaf(key, |_, place| place.bounds.upper) {
                Ok(upper) => upper.flatten(),
                Err(want) => {
                    absent.push(*key);
                    want.bounds.upper
                }
            };
            let Some(upper) = upper else { break };
            let next = rest.partition_point(|key| *key < upper).max(1);
            rest = rest.get(next..).unwrap_or_default();
        }
        absent
    }

    /// Returns up to `limit` entries with `from <= key < to`, ascending, all as of one instant. The nodes on the way
    /// stay in memory during the call, so `limit` should not be much above some thousands.
    pub fn range(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Value)>> {
        self.retry(|view| view.range(from, to, limit))
    }

    /// Fills `out` with the pointers of the pages `first ..` of `object`, as many as it has places; `None` for holes.
    /// All are as of one instant.
    pub fn pages(&self, object: u64, first: u64, out: &mut [Option<Ptr>]) -> Result<()> {
        self.retry(|view| view.pages(object, first, out))
    }

    /// Does what [`Tree::pages`] does, without I/O and without waiting. Returns `false`, with `out` undefined, if a
    /// node is not in memory or a change is under way.
    pub(crate) fn try_pages(&self, object: u64, first: u64, out: &mut [Option<Ptr>]) -> bool {
        let Some(live) = self.live.try_read() else { return false };
        View { live: &live, held: &Held::new(), cache: &self.cache }.pages(object, first, out).is_ok()
    }

    fn scan(
        &self,
        object: u64,
        mut page: u64,
        step: fn(&Leaf, &Surroundings, u64, u64) -> Scan,
        empty: Option<u64>,
    ) -> Result<Option<u64>> {
        loop {
            let answer = self.retry(|view| {
                view.at_leaf(&Key::page(object, page), |leaf, place| step(leaf, place, object, page))
            })?;
            match answer {
                None => return Ok(empty),
                Some(Scan::Found(found)) => return Ok(found),
                Some(Scan::Continue(next)) => page = next,
            }
        }
    }

    /// Returns the first page of `object` at or after `page` that is present. Changes made during the call may or may
    /// not be seen.
    pub(crate) fn next_data(&self, object: u64, page: u64) -> Result<Option<u64>> {
        self.scan(object, page, next_data_in, None)
    }

    /// Returns the first page number at or after `page` that is absent; `None` if all up to 2^64 - 1 are present.
    /// Changes made during the call may or may not be seen.
    pub(crate) fn next_hole(&self, object: u64, page: u64) -> Result<Option<u64>> {
        self.scan(object, page, next_hole_in, Some(page))
    }
}
