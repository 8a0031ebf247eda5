//! The datasets and snapshots of an open pool, and the operations that change them.
//!
//! - C1: the versions that grow from a snapshot name it as `prev`. A snapshot is destroyed only while exactly one
//!   version does.
//! - C2: the catalogue changes with the log's lock held and the gate closed, by a catalogue operation that is in the
//!   log. Exceptions are what checkpoints find out (where a version is stored) and what is worked off of
//!   `unreferenced`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::image::{Image, UnreferencedImage, VersionImage, VersionKind};
use crate::dataset::redo::CatalogueOp;
use crate::dataset::{Ancestor, Bucket, DeadBlocks, LiveDataset, Shared, SpaceAccounting};
use crate::sums::subtract_stored;
use crate::tree::{NodeCache, NodeStore, Tree};
use crate::{Addr, Error, Key, Ptr, Result};

/// A dataset or snapshot.
pub(super) struct Version {
    pub(super) kind: VersionKind,
    /// A dataset's path below the pool (empty: the pool's own); a snapshot's name within its dataset.
    pub(super) name: String,
    /// The snapshot before it; 0 for none.
    pub(super) prev: u64,
    /// Seconds since 1970.
    pub(super) created: u64,
    pub(super) properties: BTreeMap<String, String>,
    /// Holds of a snapshot: tag, and seconds since 1970.
    pub(super) holds: BTreeMap<String, u64>,
    pub(super) data: Arc<LiveDataset>,
}

impl Version {
    pub(super) fn snapshot_of(&self) -> Option<u64> {
        match self.kind {
            VersionKind::Snapshot { of, .. } => Some(of),
            VersionKind::Dataset => None,
        }
    }
}

/// Records or trees that nothing refers to any more, and that are freed in the background.
pub(super) enum Unreferenced {
    /// Records to be freed; if `held`, only to be forgotten, because a snapshot has them.
    Records { bucket: Bucket, held: bool },
    /// The stored buckets of a dead list, to be forgotten only.
    List { id: u64 },
    /// A tree: records that are not older than these bounds are to be freed, from the cursor on.
    Tree { data: Arc<LiveDataset>, bound: u64, node_bound: u64, cursor: Option<Key> },
}

impl Unreferenced {
    /// Returns the tree, if this is one.
    pub(super) fn tree(&self) -> Option<&Tree> {
        match self {
            Self::Tree { data, .. } => Some(&data.tree),
            Self::Records { .. } | Self::List { .. } => None,
        }
    }
}

/// Shared parts that each version is made with.
pub(super) struct VersionContext {
    pub(super) shared: Arc<Shared>,
    pub(super) store: Arc<dyn NodeStore>,
    pub(super) nodes: Arc<NodeCache>,
    pub(super) blocks: Arc<DeadBlocks>,
}

/// All datasets and snapshots, by number.
pub(super) struct Catalogue {
    pub(super) parts: VersionContext,
    /// Number of the next dataset or snapshot.
    pub(super) next_id: u64,
    pub(super) versions: BTreeMap<u64, Version>,
    pub(super) unreferenced: VecDeque<Unreferenced>,
    /// Unreferenced items that a device does not read. They are stored with the others, and the next opening tries them
    /// again. Trees among them are stored ones.
    pub(super) aside: Vec<Unreferenced>,
    /// Bytes by which the stored form may have grown, by operations since the last quiesce point.
    pub(super) grown_bytes: AtomicU64,
    /// Versions that are being sent or received, and the number of times: nobody destroys them meanwhile.
    pub(super) pins: BTreeMap<u64, usize>,
    /// While the log is replayed: a raw address above those of all nodes, since the nodes of a checkpoint may come
    /// after the operations that are replayed. 0 otherwise.
    pub(super) nodes_below: u64,
}

fn unknown(id: u64) -> Error {
    Error::corrupt(format!("dataset or snapshot {id}"), "the catalogue does not have it")
}

/// Bytes in memory of a dataset or snapshot beside its dead lists and properties: name, space accounting, the ends of
/// its tree.
const VERSION_BYTES: u64 = 1 << 10;
/// Most bytes that the stored form of a version, of an unreferenced item, or of both takes, beside names, properties and
/// what its dead list has open.
const VERSION_STORED_BYTES: u64 = 512;
/// Most bytes that the lengths of two texts take.
const TEXTS_BYTES: usize = 2 * 3;

impl Catalogue {
    /// Returns the bytes that the catalogue takes in memory.
    pub(super) fn memory_bytes(&self) -> u64 {
        let dead = |version: &Version| version.data.accounting.lock().dead.memory_bytes();
        // The pages as they were stored last stay in memory, too (`Maintenance::catalogue_pages`).
        let texts = |version: &Version| {
            let properties = version.properties.iter();
            2 * properties.map(|(name, value)| (name.len() + value.len()) as u64).sum::<u64>()
        };
        let versions = self.versions.values().map(|version| VERSION_BYTES + texts(version) + dead(version));
        let unreferenced = self.all_unreferenced().map(|item| match item {
            Unreferenced::Records { bucket, .. } => bucket.memory_bytes(),
            Unreferenced::List { .. } | Unreferenced::Tree { .. } => VERSION_BYTES,
        });
        versions.chain(unreferenced).sum()
    }

    /// Makes the catalogue from its stored image.
    pub(super) fn load(image: &Image, parts: VersionContext) -> Result<Self> {
        let mut catalogue = Self {
            parts,
            next_id: image.next_id,
            versions: BTreeMap::new(),
            unreferenced: VecDeque::new(),
            aside: Vec::new(),
            grown_bytes: AtomicU64::default(),
            pins: BTreeMap::new(),
            nodes_below: 0,
        };
        for (id, stored) in &image.versions {
            let accounting = SpaceAccounting {
                ancestors: Vec::new(),
                page_bytes: stored.page_bytes,
                node_bytes: stored.node_bytes,
                fresh_bytes: stored.fresh_bytes,
                dead: stored.dead.clone(),
                budget: None,
            };
            let version = Version {
                kind: stored.kind,
                name: stored.name.clone(),
                prev: stored.prev,
                created: stored.created,
                properties: stored.properties.clone(),
                holds: stored.holds.clone(),
                data: catalogue.dataset_of(*id, catalogue.tree(stored.root), accounting),
            };
            if version.snapshot_of().is_some() {
                version.data.takes_no_changes.store(true, Ordering::Relaxed);
            }
            catalogue.versions.insert(*id, version);
        }
        for kept in &image.unreferenced {
            catalogue.unreferenced.push_back(match kept.clone() {
                UnreferencedImage::Records { bucket, held } => Unreferenced::Records { bucket, held },
                UnreferencedImage::List { id } => Unreferenced::List { id },
                UnreferencedImage::Tree { root, bound, node_bound, cursor } => {
                    let data = catalogue.dataset_of(0, catalogue.tree(root), SpaceAccounting::default());
                    data.assume_shared();
                    Unreferenced::Tree { data, bound, node_bound, cursor }
                }
            });
        }
        catalogue.check_links()?;
        for (id, version) in &catalogue.versions {
            if version.kind == VersionKind::Dataset {
                version.data.accounting.lock().ancestors = catalogue.lineage(*id);
                version.data.find_shared_records()?;
            }
        }
        Ok(catalogue)
    }

    /// Checks that versions that were read name only versions that exist and are older.
    fn check_links(&self) -> Result<()> {
        let snapshot =
            |id: u64| self.versions.get(&id).is_some_and(|version| version.snapshot_of().is_some());
        for (id, version) in &self.versions {
            let prev = version.prev == 0 || (version.prev < self.next_id && snapshot(version.prev));
            let older = version.snapshot_of().is_none() || version.prev < *id;
            let of = version.snapshot_of().is_none_or(|of| {
                self.versions.get(&of).is_some_and(|dataset| dataset.kind == VersionKind::Dataset)
            });
            if *id == 0 || *id >= self.next_id || !(prev && older && of) {
                return Err(Error::corrupt("catalogue of the pool", format!("version {id} is out of place")));
            }
        }
        Ok(())
    }

    pub(super) fn tree(&self, root: Option<Ptr>) -> Tree {
        Tree::new(root, Arc::clone(&self.parts.store), Arc::clone(&self.parts.nodes))
    }

    pub(super) fn dataset_of(&self, id: u64, tree: Tree, accounting: SpaceAccounting) -> Arc<LiveDataset> {
        let blocks = Some(Arc::clone(&self.parts.blocks));
        Arc::new(LiveDataset::new(id, tree, Arc::clone(&self.parts.shared), accounting, blocks))
    }

    pub(super) fn get(&self, id: u64) -> Result<&Version> {
        self.versions.get(&id).ok_or_else(|| unknown(id))
    }

    fn get_mut(&mut self, id: u64) -> Result<&mut Version> {
        self.versions.get_mut(&id).ok_or_else(|| unknown(id))
    }

    /// Returns a dataset that an operation of the log changes.
    pub(super) fn changing(&self, id: u64) -> Result<&LiveDataset> {
        let version = self.get(id)?;
        match version.kind {
            VersionKind::Dataset => Ok(&version.data),
            VersionKind::Snapshot { .. } => Err(Error::corrupt("log", format!("it changes snapshot {id}"))),
        }
    }

    /// Returns the datasets, by number.
    pub(super) fn datasets(&self) -> impl Iterator<Item = (u64, &Version)> {
        self.versions
            .iter()
            .filter(|(_, version)| version.kind == VersionKind::Dataset)
            .map(|(id, version)| (*id, version))
    }

    /// Returns the snapshots of a dataset, oldest first.
    pub(super) fn snapshots(&self, dataset: u64) -> Vec<u64> {
        let of = |version: &Version| version.snapshot_of() == Some(dataset);
        self.versions.iter().filter(|(_, version)| of(version)).map(|(id, _)| *id).collect()
    }

    /// Returns the versions that grow from a snapshot.
    pub(super) fn successors(&self, snapshot: u64) -> Vec<u64> {
        self.versions.iter().filter(|(_, version)| version.prev == snapshot).map(|(id, _)| *id).collect()
    }

    /// Returns a snapshot as the versions that grow from it see it.
    pub(super) fn as_ancestor(&self, id: u64) -> Option<Ancestor> {
        match self.versions.get(&id)?.kind {
            VersionKind::Snapshot { bound, node_bound, .. } => Some(Ancestor { id, bound, node_bound }),
            VersionKind::Dataset => None,
        }
    }

    /// Returns the snapshots that a version grows from, oldest first.
    pub(super) fn lineage(&self, id: u64) -> Vec<Ancestor> {
        let mut found = Vec::new();
        let mut at = self.versions.get(&id).map_or(0, |version| version.prev);
        while let Some(ancestor) = self.as_ancestor(at) {
            found.push(ancestor);
            at = self.versions.get(&at).map_or(0, |version| version.prev);
        }
        found.reverse();
        found
    }

    /// Returns the newest snapshot before version `id` that is older than a node; 0 if none is.
    pub(super) fn birth_of_node(&self, id: u64, addr: Addr) -> u64 {
        let mut at = self.versions.get(&id).map_or(0, |version| version.prev);
        while let Some(ancestor) = self.as_ancestor(at) {
            if ancestor.node_bound.is_some_and(|bound| bound <= addr.raw()) {
                return at;
            }
            at = self.versions.get(&at).map_or(0, |version| version.prev);
        }
        0
    }

    /// Returns the snapshot that a dataset was cloned from; `None` if it is no clone.
    pub(super) fn origin(&self, dataset: u64) -> Option<u64> {
        let mut at = self.versions.get(&dataset)?.prev;
        while self.versions.get(&at)?.snapshot_of() == Some(dataset) {
            at = self.versions.get(&at)?.prev;
        }
        Some(at)
    }

    /// Returns, for each clone, the dataset of whose snapshot it was made.
    pub(super) fn parents(&self) -> HashMap<u64, u64> {
        let parent = |id: u64| self.get(self.origin(id)?).ok()?.snapshot_of();
        self.datasets().filter_map(|(id, _)| Some((id, parent(id)?))).collect()
    }

    /// Does what a catalogue operation of the log says. That the operation is possible was checked before it was
    /// logged.
    ///
    /// # Errors
    /// Of reading trees; [`Error::Corrupt`] for a catalogue operation that is not possible.
    pub(super) fn perform(&mut self, op: &CatalogueOp<'_>) -> Result<()> {
        let growth = self.growth_of(op);
        self.grown_bytes.fetch_add(growth, Ordering::Relaxed);
        self.parts.shared.room.grown_bytes.fetch_add(growth, Ordering::Relaxed);
        match *op {
            CatalogueOp::Create { id, created, name } => {
                let data = self.dataset_of(id, self.tree(None), SpaceAccounting::default());
                self.add(id, VersionKind::Dataset, name, 0, created, data)
            }
            CatalogueOp::Snapshot { dataset, id, bound, created, name } => {
                self.snapshot(dataset, id, bound, created, name)
            }
            CatalogueOp::Clone { snapshot, id, created, name } => self.clone_of(snapshot, id, created, name),
            CatalogueOp::Destroy { id } => match self.get(id)?.kind {
                VersionKind::Dataset => self.destroy_dataset(id),
                VersionKind::Snapshot { .. } => self.destroy_snapshot(id),
            },
            CatalogueOp::Rollback { dataset } => self.rollback(dataset),
            CatalogueOp::Promote { dataset } => self.promote(dataset),
            CatalogueOp::Rename { id, name } => self.rename(id, name),
            CatalogueOp::Property { id, name, value } => {
                let properties = &mut self.get_mut(id)?.properties;
                match value {
                    Some(value) => drop(properties.insert(name.into(), value.into())),
                    None => drop(properties.remove(name)),
                }
                Ok(())
            }
            CatalogueOp::Hold { snapshot, created, tag } => {
                let holds = &mut self.get_mut(snapshot)?.holds;
                if created == 0 {
                    holds.remove(tag);
                } else {
                    holds.insert(tag.into(), created);
                }
                Ok(())
            }
        }
    }

    /// Returns the most bytes by which an operation makes the stored form grow.
    pub(super) fn growth_of(&self, op: &CatalogueOp<'_>) -> u64 {
        let text = match *op {
            CatalogueOp::Property { id, name, value } => {
                let before = self.get(id).ok().and_then(|version| version.properties.get(name));
                let of = |value: &str| name.len() + value.len() + TEXTS_BYTES;
                return value.map_or(0, of).saturating_sub(before.map_or(0, |before| of(before))) as u64;
            }
            CatalogueOp::Create { name, .. }
            | CatalogueOp::Snapshot { name, .. }
            | CatalogueOp::Clone { name, .. }
            | CatalogueOp::Rename { name, .. }
            | CatalogueOp::Hold { tag: name, .. } => name,
            CatalogueOp::Destroy { .. } | CatalogueOp::Rollback { .. } | CatalogueOp::Promote { .. } => "",
        };
        VERSION_STORED_BYTES + text.len() as u64
    }

    fn add(
        &mut self,
        id: u64,
        kind: VersionKind,
        name: &str,
        prev: u64,
        created: u64,
        data: Arc<LiveDataset>,
    ) -> Result<()> {
        let next = id.checked_add(1).filter(|_| id >= self.next_id);
        self.next_id = next.ok_or_else(|| {
            Error::corrupt(format!("dataset or snapshot {id}"), "its number was used before")
        })?;
        let version = Version {
            kind,
            name: name.into(),
            prev,
            created,
            properties: BTreeMap::new(),
            holds: BTreeMap::new(),
            data,
        };
        self.versions.insert(id, version);
        Ok(())
    }

    fn snapshot(&mut self, dataset: u64, id: u64, bound: u64, created: u64, name: &str) -> Result<()> {
        let of = self.get(dataset)?;
        let (data, prev) = (Arc::clone(&of.data), of.prev);
        data.settle_usage()?;
        let tree = data.tree.fork();
        // No node of the tree waits to be written: all are older than the snapshot, or were found by replay.
        let node_bound = tree.stored_root().map(|_| bound.max(self.nodes_below));
        let mut accounting = data.accounting.lock();
        let ancestors = std::mem::take(&mut accounting.ancestors);
        let taken = std::mem::take(&mut *accounting);
        accounting.page_bytes = taken.page_bytes;
        accounting.node_bytes = taken.node_bytes;
        accounting.ancestors = ancestors;
        accounting.ancestors.push(Ancestor { id, bound, node_bound });
        drop(accounting);
        // Snapshots keep nothing of their dead lists in memory (L4).
        let mut taken = taken;
        taken.dead.flush(&self.parts.blocks)?;
        let kept = self.dataset_of(id, tree, taken);
        kept.takes_no_changes.store(true, Ordering::Relaxed);
        self.add(id, VersionKind::Snapshot { of: dataset, bound, node_bound }, name, prev, created, kept)?;
        self.get_mut(dataset)?.prev = id;
        Ok(())
    }

    fn clone_of(&mut self, snapshot: u64, id: u64, created: u64, name: &str) -> Result<()> {
        let ancestor = self.as_ancestor(snapshot).ok_or_else(|| unknown(snapshot))?;
        let mut ancestors = self.lineage(snapshot);
        ancestors.push(ancestor);
        let source = Arc::clone(&self.get(snapshot)?.data);
        let (page_bytes, node_bytes) = {
            let accounting = source.accounting.lock();
            (accounting.page_bytes, accounting.node_bytes)
        };
        let accounting = SpaceAccounting { ancestors, page_bytes, node_bytes, ..SpaceAccounting::default() };
        let data = self.dataset_of(id, source.tree.fork(), accounting);
        data.find_shared_records()?;
        self.add(id, VersionKind::Dataset, name, snapshot, created, data)
    }

    fn destroy_snapshot(&mut self, id: u64) -> Result<()> {
        let successors = self.successors(id);
        let [next] = successors[..] else {
            return Err(Error::corrupt(format!("snapshot {id}"), "it is to be destroyed and has clones"));
        };
        let Some(removed) = self.versions.remove(&id) else { return Err(unknown(id)) };
        let taken = std::mem::take(&mut *removed.data.accounting.lock());
        let blocks = Arc::clone(&self.parts.blocks);
        let after = self.get_mut(next)?;
        after.prev = removed.prev;
        let is_snapshot = after.snapshot_of().is_some();
        let mut accounting = after.data.accounting.lock();
        // These records lost their last reference after the snapshot, and born after the snapshot before it: no other
        // version has them.
        let mut bucket = accounting.dead.take_from(removed.prev, &blocks)?;
        bucket.spill(&blocks)?;
        accounting.dead.absorb(taken.dead, &blocks)?;
        if is_snapshot {
            accounting.dead.flush(&blocks)?;
        }
        accounting.fresh_bytes += taken.fresh_bytes;
        subtract_stored(&mut accounting.fresh_bytes, bucket.bytes);
        drop(accounting);
        if bucket.records > 0 {
            self.unreferenced.push_back(Unreferenced::Records { bucket, held: false });
        }
        for (_, dataset) in self.datasets() {
            dataset.data.accounting.lock().ancestors.retain(|ancestor| ancestor.id != id);
        }
        Ok(())
    }

    /// Returns the bounds, of pages and nodes, from which on records belong to a dataset alone.
    fn bounds(&self, dataset: u64) -> Result<(u64, u64)> {
        let prev = self.get(dataset)?.prev;
        if prev == 0 {
            return Ok((0, 0));
        }
        let ancestor = self.as_ancestor(prev).ok_or_else(|| unknown(prev))?;
        let node_bound = ancestor.node_bound.ok_or_else(|| {
            Error::corrupt(format!("snapshot {prev}"), "its dataset goes back before it is stored")
        })?;
        Ok((ancestor.bound, node_bound))
    }

    /// Leaves a dead list to the background: its records are held by a snapshot, and need not be listed any more.
    fn forget(&mut self, accounting: &mut SpaceAccounting) {
        let dead = std::mem::take(&mut accounting.dead);
        if dead.id != 0 {
            self.unreferenced.push_back(Unreferenced::List { id: dead.id });
        }
    }

    fn destroy_dataset(&mut self, id: u64) -> Result<()> {
        let (bound, node_bound) = self.bounds(id)?;
        let Some(removed) = self.versions.remove(&id) else { return Err(unknown(id)) };
        removed.data.takes_no_changes.store(true, Ordering::Relaxed);
        let mut taken = std::mem::take(&mut *removed.data.accounting.lock());
        self.forget(&mut taken);
        let shares = removed.data.shares_records();
        self.leave_tree(removed.data.tree.fork(), shares, (bound, node_bound));
        Ok(())
    }

    /// Leaves a tree to the background, to be freed down to these bounds; if `shares`, records in it may be shared.
    fn leave_tree(&mut self, tree: Tree, shares: bool, (bound, node_bound): (u64, u64)) {
        let data = self.dataset_of(0, tree, SpaceAccounting::default());
        if shares {
            data.assume_shared();
        }
        self.unreferenced.push_back(Unreferenced::Tree { data, bound, node_bound, cursor: None });
    }

    /// Gives a dataset the content of the snapshot before it, which is its own or its origin.
    fn rollback(&mut self, dataset: u64) -> Result<()> {
        let (bound, node_bound) = self.bounds(dataset)?;
        let (data, prev) = (Arc::clone(&self.get(dataset)?.data), self.get(dataset)?.prev);
        let target = Arc::clone(&self.get(prev)?.data);
        let (page_bytes, node_bytes) = {
            let accounting = target.accounting.lock();
            (accounting.page_bytes, accounting.node_bytes)
        };
        let shares = data.shares_records();
        let before = data.tree.replace(&target.tree);
        data.reset()?;
        let mut taken = {
            let mut accounting = data.accounting.lock();
            let ancestors = std::mem::take(&mut accounting.ancestors);
            let now = SpaceAccounting { ancestors, page_bytes, node_bytes, ..SpaceAccounting::default() };
            std::mem::replace(&mut *accounting, now)
        };
        self.forget(&mut taken);
        self.leave_tree(before, shares, (bound, node_bound));
        Ok(())
    }

    fn promote(&mut self, dataset: u64) -> Result<()> {
        let origin = self.origin(dataset).ok_or_else(|| unknown(dataset))?;
        let from = self.get(origin)?.snapshot_of();
        let mut at = origin;
        while let Some(version) = self.versions.get_mut(&at) {
            match &mut version.kind {
                VersionKind::Snapshot { of, .. } if Some(*of) == from => *of = dataset,
                _ => break,
            }
            at = version.prev;
        }
        Ok(())
    }

    fn rename(&mut self, id: u64, name: &str) -> Result<()> {
        let version = self.get_mut(id)?;
        let before = std::mem::replace(&mut version.name, name.into());
        if version.kind != VersionKind::Dataset {
            return Ok(());
        }
        for version in self.versions.values_mut().filter(|version| version.kind == VersionKind::Dataset) {
            let below = version.name.strip_prefix(&before).filter(|rest| rest.starts_with('/'));
            if let Some(rest) = below {
                version.name = format!("{name}{rest}");
            }
        }
        Ok(())
    }

    /// Returns all that is unreferenced, what is set aside last.
    pub(super) fn all_unreferenced(&self) -> impl Iterator<Item = &Unreferenced> {
        self.unreferenced.iter().chain(&self.aside)
    }

    /// Returns the image of the catalogue as it is now. Where changed trees will be stored is not known yet.
    pub(super) fn image(&self) -> Image {
        let versions = self.versions.iter().map(|(id, version)| {
            let accounting = version.data.accounting.lock();
            let image = VersionImage {
                kind: version.kind,
                name: version.name.clone(),
                prev: version.prev,
                created: version.created,
                properties: version.properties.clone(),
                holds: version.holds.clone(),
                root: version.data.tree.stored_root().flatten(),
                page_bytes: accounting.page_bytes,
                node_bytes: accounting.node_bytes,
                fresh_bytes: accounting.fresh_bytes,
                dead: accounting.dead.clone(),
            };
            (*id, image)
        });
        let unreferenced = self.all_unreferenced().map(|item| match item {
            Unreferenced::Records { bucket, held } => {
                UnreferencedImage::Records { bucket: bucket.clone(), held: *held }
            }
            Unreferenced::List { id } => UnreferencedImage::List { id: *id },
            Unreferenced::Tree { data, bound, node_bound, cursor } => UnreferencedImage::Tree {
                root: data.tree.stored_root().flatten(),
                bound: *bound,
                node_bound: *node_bound,
                cursor: *cursor,
            },
        });
        Image {
            next_id: self.next_id,
            next_list: self.parts.blocks.next_list(),
            versions: versions.collect(),
            unreferenced: unreferenced.collect(),
        }
    }

    /// Notes from which raw address on nodes are younger than a snapshot: a checkpoint has written the snapshot's own.
    pub(super) fn set_node_bound(&mut self, id: u64, stored: u64) {
        if let Some(Version { kind: VersionKind::Snapshot { node_bound, .. }, .. }) =
            self.versions.get_mut(&id)
        {
            *node_bound = Some(stored);
        }
        for (_, dataset) in self.datasets() {
            let mut accounting = dataset.data.accounting.lock();
            accounting.ancestors.iter_mut().filter(|ancestor| ancestor.id == id).for_each(|ancestor| {
                ancestor.node_bound = Some(stored);
            });
        }
    }

    /// Returns all trees in memory, with the numbers of their versions (0: unreferenced).
    pub(super) fn trees(&self) -> Vec<(u64, Arc<LiveDataset>)> {
        let versions = self.versions.iter().map(|(id, version)| (*id, Arc::clone(&version.data)));
        let unreferenced = self.all_unreferenced().filter_map(|item| match item {
            Unreferenced::Tree { data, .. } => Some((0, Arc::clone(data))),
            Unreferenced::Records { .. } | Unreferenced::List { .. } => None,
        });
        versions.chain(unreferenced).collect()
    }

    /// Adds nodes to the dead list of version `id`: it does not refer to them any more, and the snapshot before it has
    /// them.
    pub(super) fn add_dead_nodes(&mut self, id: u64, ptrs: &[Ptr]) -> Result<()> {
        let births: Vec<u64> = ptrs.iter().map(|ptr| self.birth_of_node(id, ptr.addr)).collect();
        let mut accounting = self.get(id)?.data.accounting.lock();
        for (birth, ptr) in births.into_iter().zip(ptrs) {
            accounting.dead.push(birth, *ptr);
        }
        Ok(())
    }

    /// Puts the records that dead lists of snapshots have in memory into the pool's own tree (L4).
    pub(super) fn flush_dead(&self) -> Result<()> {
        self.versions.values().filter(|version| version.snapshot_of().is_some()).try_for_each(|version| {
            let mut accounting = version.data.accounting.lock();
            if accounting.dead.is_open() { accounting.dead.flush(&self.parts.blocks) } else { Ok(()) }
        })
    }

    /// Returns the bytes of records that a version does not refer to any more and that were born after snapshot
    /// `birth`.
    ///
    /// # Errors
    /// Of reading dead lists.
    pub(super) fn dead_bytes_from(&self, id: u64, birth: u64) -> Result<u64> {
        let Some(version) = self.versions.get(&id) else { return Ok(0) };
        let (blocks, accounting) = (&self.parts.blocks, &version.data.accounting);
        if version.kind == VersionKind::Dataset {
            // The buckets are read before the space accounting is locked, since writers wait for that lock.
            let list = accounting.lock().dead.id;
            blocks.buckets(list, birth, &mut |_, _| Ok(()))?;
        }
        accounting.lock().dead.bytes_from(birth, blocks)
    }

    /// Reads the buckets of the dead lists that destroying a snapshot joins, so that nobody has to wait for the devices
    /// then.
    ///
    /// # Errors
    /// Of reading them.
    pub(super) fn read_dead(&self, snapshot: u64) -> Result<()> {
        for id in self.successors(snapshot).into_iter().chain([snapshot]) {
            let list = self.versions.get(&id).map_or(0, |version| version.data.accounting.lock().dead.id);
            self.parts.blocks.buckets(list, 0, &mut |_, _| Ok(()))?;
        }
        Ok(())
    }

    /// Reads the buckets into which a snapshot of a dataset puts the dead records that are in memory: damage to them then
    /// concerns this snapshot alone.
    ///
    /// # Errors
    /// Of reading them.
    pub(super) fn read_open(&self, dataset: u64) -> Result<()> {
        let Some(version) = self.versions.get(&dataset) else { return Ok(()) };
        let (list, births) = {
            let accounting = version.data.accounting.lock();
            (accounting.dead.id, accounting.dead.open().map(|(birth, _)| birth).collect::<Vec<u64>>())
        };
        let read = |birth: u64| self.parts.blocks.some_buckets(list, birth, 1).map(drop);
        births.into_iter().filter(|_| list != 0).try_for_each(read)
    }

    /// Counts nodes of version `id` that are stored now; `fresh_bytes` is the space of those that the snapshot before
    /// does not have.
    pub(super) fn add_nodes(&self, id: u64, all: &[Ptr], fresh_bytes: u64) -> Result<()> {
        let mut accounting = self.get(id)?.data.accounting.lock();
        accounting.nodes_stored(all.iter(), fresh_bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
