//! Writes the versions of datasets in a checkpoint, and keeps their space accounting.
//!
//! Versions share nodes that are not stored yet. A checkpoint writes snapshots first, in the order of their making,
//! then the nodes that only datasets have; so a snapshot's nodes lie below its bound (L2). The nodes that a version has
//! unreferenced are found by comparing it with the snapshot before, twice: as of the quiesce point for the stored
//! catalogue, and as of now for the one in memory.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use super::Pool;
use super::catalogue::Catalogue;
use super::copies::Copies;
use super::image::VersionKind;
use super::image::{Image, UnreferencedImage};
use crate::dataset::{LiveDataset, space_of};
use crate::limits::RECORD_BYTES_MAX;
use crate::record::encode_metadata;
use crate::sums::remainder;
use crate::tree::{ImmutableTree, Settling, WrittenNodes};
use crate::wal::RecordKind;
use crate::{Addr, Error, Ptr, Result};

/// The trees of a quiesce point that are to be written, and the catalogue as of the quiesce point.
pub(super) struct Versions {
    image: Image,
    snapshots: Vec<(u64, ImmutableTree)>,
    datasets: Vec<(u64, ImmutableTree)>,
    /// Trees that are unreferenced, by position in the image.
    unreferenced: Vec<(usize, ImmutableTree)>,
    own: ImmutableTree,
    /// Bytes that were promised to the nodes of all these trees, for one copy.
    promised_bytes: u64,
    /// Numbers of the snapshots that were written, with their bounds.
    bounds: Vec<(u64, u64)>,
    /// Pages of the catalogue as the last checkpoint stored them, and numbers of those that this one stores anew.
    pages: BTreeMap<u64, Vec<u8>>,
    changed: BTreeSet<u64>,
}

/// Difference in newly stored nodes between a version and the snapshot before it.
struct NodeDifference {
    id: u64,
    /// Nodes of the snapshot that the version does not have.
    released: Vec<Ptr>,
    /// All nodes of the version.
    all: Vec<Ptr>,
    /// Bytes of the version's nodes that the snapshot does not have.
    fresh_bytes: u64,
}

/// Compares versions, each given with the snapshot before it.
fn differences(
    written: &BTreeMap<u64, WrittenNodes>,
    links: impl Iterator<Item = (u64, u64)>,
) -> Vec<NodeDifference> {
    let none = WrittenNodes::new();
    let mut found = Vec::new();
    for (id, prev) in links {
        let of = written.get(&id).unwrap_or(&none);
        let before = written.get(&prev).unwrap_or(&none);
        let missing = |(node, ptr): (&usize, &Ptr)| if of.contains_key(node) { None } else { Some(*ptr) };
        let mut released: Vec<Ptr> = before.iter().filter_map(missing).collect();
        // The order is that of the log, so that the same history makes the same bytes.
        released.sort_unstable_by_key(|ptr| ptr.addr);
        let fresh = of.iter().filter(|(node, _)| !before.contains_key(*node));
        let fresh_bytes = fresh.map(|(_, ptr)| space_of(ptr)).sum();
        if !(released.is_empty() && of.is_empty()) {
            found.push(NodeDifference { id, released, all: of.values().copied().collect(), fresh_bytes });
        }
    }
    found
}

impl Versions {
    /// Makes the trees immutable as of now. The caller holds the log's lock and the gate's write side.
    pub(super) fn take(catalogue: &Catalogue, own: &LiveDataset, pages: &BTreeMap<u64, Vec<u8>>) -> Self {
        let (mut snapshots, mut datasets) = (Vec::new(), Vec::new());
        for (id, version) in &catalogue.versions {
            let tree = &version.data.tree;
            match version.kind {
                VersionKind::Snapshot { node_bound: None, .. } => {
                    snapshots.push((*id, tree.make_immutable()));
                }
                VersionKind::Dataset => {
                    // The tree is made immutable in any case: even with nothing in memory it may still count nodes that
                    // only its snapshots have now.
                    let is_stored = tree.stored_root().is_some();
                    let immutable = tree.make_immutable();
                    if !is_stored {
                        datasets.push((*id, immutable));
                    }
                }
                VersionKind::Snapshot { .. } => {}
            }
        }
        let unreferenced = catalogue.unreferenced.iter().enumerate().filter_map(|(at, item)| {
            let tree = item.tree()?;
            tree.stored_root().is_none().then(|| (at, tree.make_immutable()))
        });
        let (unreferenced, own) = (unreferenced.collect(), own.tree.make_immutable());
        let mut versions = Self {
            unreferenced,
            image: catalogue.image(),
            snapshots,
            datasets,
            own,
            promised_bytes: catalogue.parts.nodes.make_left_immutable().stored,
            bounds: Vec::new(),
            pages: pages.clone(),
            changed: BTreeSet::new(),
        };
        versions.changed = versions.find_changed();
        versions
    }

    /// Returns the pages of the catalogue that the checkpoint stores anew or removes.
    pub(super) fn changed(&self) -> &BTreeSet<u64> {
        &self.changed
    }

    fn find_changed(&self) -> BTreeSet<u64> {
        let mut changed: BTreeSet<u64> = self.pages.keys().copied().collect();
        for (page, bytes) in self.image.encode_pages() {
            if self.pages.get(&page) == Some(&bytes) {
                changed.remove(&page);
            } else {
                changed.insert(page);
            }
        }
        // Writing a tree changes the space accounting of its version, and of the versions that grow from it.
        let written: HashSet<u64> = self.snapshots.iter().chain(&self.datasets).map(|(id, _)| *id).collect();
        for (id, version) in &self.image.versions {
            if written.contains(id) || written.contains(&version.prev) {
                changed.insert(Image::page_of(*id));
            }
        }
        changed
    }

    /// Writes all nodes that are not stored, and returns the root of the pool's own tree.
    pub(super) fn persist(&mut self, pool: &Pool, copies: &mut Copies<'_>) -> Result<Option<Ptr>> {
        let mut node_bytes = 0;
        let write = &mut |nodes: Vec<Vec<u8>>| {
            node_bytes += nodes.iter().map(|node| node.len() as u64).sum::<u64>();
            let records = nodes.into_iter().map(encode_metadata).collect();
            copies.append(RecordKind::Node, records)
        };
        let image = &mut self.image;
        for (id, immutable) in &mut self.snapshots {
            let root = immutable.persist(write)?;
            let bound = pool.next_addr();
            self.bounds.push((*id, bound));
            if let Some(version) = image.versions.get_mut(id) {
                version.root = root;
                if let VersionKind::Snapshot { node_bound, .. } = &mut version.kind {
                    *node_bound = Some(bound);
                }
            }
        }
        for (id, immutable) in &mut self.datasets {
            let root = immutable.persist(write)?;
            if let Some(version) = image.versions.get_mut(id) {
                version.root = root;
            }
        }
        for (at, immutable) in &mut self.unreferenced {
            if let Some(UnreferencedImage::Tree { root, .. }) = image.unreferenced.get_mut(*at) {
                *root = immutable.persist(write)?;
            }
        }
        self.settle_image();
        let own = self.own.persist(write)?;
        remainder(self.promised_bytes, node_bytes);
        Ok(own)
    }

    /// Updates the space accounting in the image by the trees that were just stored.
    fn settle_image(&mut self) {
        let immutable = self.snapshots.iter().chain(&self.datasets);
        let written: BTreeMap<u64, WrittenNodes> =
            immutable.map(|(id, immutable)| (*id, immutable.written())).collect();
        let links: Vec<(u64, u64)> =
            self.image.versions.iter().map(|(id, version)| (*id, version.prev)).collect();
        for NodeDifference { id, released, all, fresh_bytes } in differences(&written, links.into_iter()) {
            let births: Vec<u64> = released.iter().map(|ptr| self.birth_of_node(id, ptr.addr)).collect();
            let Some(version) = self.image.versions.get_mut(&id) else { continue };
            version.node_bytes += all.iter().map(space_of).sum::<u64>();
            version.fresh_bytes += fresh_bytes;
            for (birth, ptr) in births.into_iter().zip(released) {
                let _ = version.dead.push(birth, ptr);
            }
        }
    }

    /// Works as [`Catalogue::birth_of_node`], as of the quiesce point.
    fn birth_of_node(&self, id: u64, addr: Addr) -> u64 {
        let prev = |id: u64| self.image.versions.get(&id).map_or(0, |version| version.prev);
        let mut at = prev(id);
        while let Some(version) = self.image.versions.get(&at) {
            match version.kind {
                VersionKind::Snapshot { node_bound: Some(bound), .. } if bound <= addr.raw() => return at,
                _ => at = prev(at),
            }
        }
        0
    }

    /// Stores the changed pages of the catalogue, after everything else; enters their places in `ptrs`.
    pub(super) fn persist_pages(
        &mut self,
        copies: &mut Copies<'_>,
        ptrs: &mut BTreeMap<u64, Vec<Ptr>>,
    ) -> Result<()> {
        let mut pages = self.image.encode_pages();
        for page in &self.changed {
            ptrs.remove(page);
            let Some(bytes) = pages.get(page) else { continue };
            let records = bytes.chunks(RECORD_BYTES_MAX / 2).map(|piece| encode_metadata(piece.to_vec()));
            ptrs.insert(*page, copies.append(RecordKind::Catalogue, records.collect())?);
        }
        std::mem::swap(&mut self.pages, &mut pages);
        pages.retain(|page, _| !self.changed.contains(page));
        // A change of a page that was not expected to change would be lost.
        if pages.iter().any(|(page, bytes)| self.pages.get(page) != Some(bytes)) {
            return Err(Error::Invalid("the catalogue changed while a checkpoint stored it".into()));
        }
        Ok(())
    }

    /// Takes the pages of the catalogue as they are stored now.
    pub(super) fn take_pages(&mut self) -> BTreeMap<u64, Vec<u8>> {
        std::mem::take(&mut self.pages)
    }

    /// Returns the records of the catalogue's head, after everything was written; `ptrs` has the places of the pages.
    pub(super) fn encode_head(&self, pool: &Pool, ptrs: &BTreeMap<u64, Vec<Ptr>>) -> Result<Vec<Vec<u8>>> {
        let mut pages = Vec::with_capacity(ptrs.len());
        for (page, ptrs) in ptrs {
            let placed = ptrs.iter().map(|ptr| pool.placed(ptr.addr)).collect::<Result<_>>()?;
            pages.push((*page, placed));
        }
        Ok(self.image.encode_head(&pages))
    }
}

impl Pool {
    /// Returns the least raw address that the next record can get.
    pub(super) fn next_addr(&self) -> u64 {
        let position = self.log.lock().writer.position();
        Addr::new(position.segment, position.slots).raw()
    }

    /// Ends the writing of versions when their checkpoint counts: their nodes become clean, or dead if no version has
    /// them any more.
    pub(super) fn retire(&self, versions: Versions) -> Result<()> {
        // This needs no lock: immutable trees do not change.
        let immutable = versions.snapshots.iter().chain(&versions.datasets).map(|(_, immutable)| immutable);
        let immutable = immutable
            .chain(versions.unreferenced.iter().map(|(_, immutable)| immutable))
            .chain([&versions.own]);
        let mut left: WrittenNodes = immutable.flat_map(ImmutableTree::written).collect();
        let bounds = versions.bounds.clone();
        // It is declared before the locks, so it is dropped after them: nobody waits until the memory of all nodes is
        // freed.
        let mut settling = Settling::default();
        let mut written: BTreeMap<u64, WrittenNodes> = BTreeMap::new();
        let _log = self.log.lock();
        let _gate = self.shared.gate.write();
        let mut catalogue = self.catalogue.write();
        bounds.iter().for_each(|(id, bound)| catalogue.set_node_bound(*id, *bound));
        let trees = catalogue.trees();
        for (id, data) in trees.iter().map(|(id, data)| (*id, data)).chain([(0, &self.own)]) {
            let of = data.tree.written();
            for node in of.keys() {
                left.remove(node);
            }
            if id != 0 && !of.is_empty() {
                written.insert(id, of);
            }
        }
        let links: Vec<(u64, u64)> =
            catalogue.versions.iter().map(|(id, version)| (*id, version.prev)).collect();
        for NodeDifference { id, released, all, fresh_bytes } in differences(&written, links.into_iter()) {
            catalogue.add_dead_nodes(id, &released)?;
            catalogue.add_nodes(id, &all, fresh_bytes)?;
        }
        // Otherwise the immutable trees would count as references.
        drop(versions);
        for data in trees.iter().map(|(_, data)| data).chain([&self.own]) {
            data.tree.settle(&mut settling);
        }
        self.shared.nodes.settle_left();
        let dead: Vec<Ptr> = left.into_values().collect();
        self.shared.segments.mark_dead(&dead);
        Ok(())
    }

    /// Returns a dataset of the pool by its number.
    pub(super) fn dataset_by_id(&self, id: u64) -> Option<Arc<LiveDataset>> {
        let datasets = self.datasets.read();
        let at = datasets.binary_search_by_key(&id, |dataset| dataset.id).ok()?;
        datasets.get(at).map(Arc::clone)
    }
}
