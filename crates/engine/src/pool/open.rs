//! Opens a pool: loads the last checkpoint and replays the log after it.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Condvar, Mutex, RwLock};

use super::ahead::ReadAhead;
use super::catalogue::{Catalogue, VersionContext};
use super::clean::Cleaner;
use super::copies::CopiesState;
use super::create::{FIRST_DATASET, OWN};
use super::identity::demand;
use super::image::Image;
use super::label::{Label, LogGroup, Superblock};
use super::lacks::{Since, decode_all};
use super::load::{ChunkBytes, load_lists, load_table, read_placed};
use super::members::{Assembled, Without, assemble, demand_tables};
use super::memory::CacheBounds;
use super::opening::Standing;
use super::options::OpenOptions;
use super::places::check_places;
use super::redo::Redoing;
use super::rescue::Search;
use super::rescue::{Missing, RescueReport};
use super::root::{PlacedRecord, Root, TablePage};
use super::roster::Labels;
use super::sizing::Sizing;
use super::spares::DEVICE_RULES;
use super::store::Nodes;
use super::stored::StoredCatalogue;
use super::table_pages::StoredPages;
use super::{Log, Maintenance, Pool, ReplayReport as Report, Signal};
use crate::dataset::{
    Commit, Dataset, DeadBlocks, Journal, LiveDataset, LogicalCapacity, ModelTable, PrimaryCache, Shared,
    SpaceAccounting,
};
use crate::device::{Device, Devices, Roster};
use crate::limits::CHUNK_BYTES;
use crate::record::{Compression, RecordCache, model_of};
use crate::segment::{DirEntryState, Directory, Segment, Segments, TableBound, TablePages};
use crate::space::{Chunk, Chunks};
use crate::tree::{NodeCache, NodeStore, Tree};
use crate::types::COPIES;
use crate::wal::{
    BatchView, LogDamage, LogDevice, LogEnd, LogSource, LogWriter, LoggedBatches, Position, RecordKind,
    replay, salt_of, write_directory,
};
use crate::{Addr, Error, Ptr, Result};

mod logged;
mod unflushed;

use logged::to_log_device;

/// Result of the replay at opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayReport {
    /// True if the pool had been exported, so that there was nothing to replay after the checkpoint.
    pub clean: bool,
    /// Number of batches that counted.
    pub batches: u64,
    /// Bytes of these batches.
    pub bytes: u64,
    /// Number of these batches that have damaged records.
    pub damaged: u64,
    /// Place where the log is damaged; all that had been acknowledged behind it is lost ([`OpenOptions::accept_loss`]).
    pub damage: Option<LogDamage>,
    /// True if the log device was not here, or could not be read as a whole, and what only that may have had is lost, too.
    pub gave_up_log_device: bool,
    /// Number of changes of the journal that were redone.
    pub journalled: u64,
}

/// Leap of the numbers of batches where a part of the log was given up. It is more than that part can hold, so that no
/// batch in it can be taken for a successor of the new ones (T7).
const BATCH_NUMBER_LEAP: u64 = 1 << 32;

/// A batch on its device.
#[derive(Clone, Copy)]
struct UnflushedBatch {
    chunk: Chunk,
    start: u32,
    end: u32,
    /// Checksum of the batch.
    checksum: u64,
    /// False if it counts although records of it are damaged.
    is_whole: bool,
}

/// A pool while it is being opened.
struct OpeningPool {
    labels: Arc<Labels>,
    devices: Devices,
    ahead: ReadAhead,
    superblock: Superblock,
    /// Superblock that begins this opening.
    opening_superblock: Superblock,
    root: Root,
    /// All records of the checkpoint that no segment accounts for.
    roots: Vec<PlacedRecord>,
    image: Image,
    /// Pointers to the stored pages of the catalogue, and the bytes of these pages.
    catalogue_ptrs: BTreeMap<u64, Vec<Ptr>>,
    catalogue_pages: BTreeMap<u64, Vec<u8>>,
    table: Vec<TablePage>,
    table_pages: Arc<StoredPages>,
    chunks: Arc<Chunks>,
    segments: Arc<Segments>,
    /// Chunks in use as of the checkpoint.
    used_before: Vec<Chunk>,
    /// Bytes in use of each segment in which replay found batches.
    used: HashMap<u64, (Chunk, u32)>,
    /// The last batches, beginning with the first that is not known to be flushed.
    unflushed: Vec<(u64, UnflushedBatch)>,
    /// Number of the last batch with operations plus one, as far as the checkpoint and the log tell.
    operations_below: u64,
    /// Batches that the log device has.
    logged: Option<LoggedBatches>,
    /// True if the log device may have batches that no other device has, and they are given up.
    gives_up_log_device: bool,
    /// Damage that was found; `None` unless the pool is opened for rescue.
    rescue: Option<RescueReport>,
}

impl Pool {
    /// Opens the pool on the devices at `paths`.
    pub fn open(paths: &[PathBuf], options: &OpenOptions) -> Result<Arc<Self>> {
        Self::open_on(Self::open_devices(paths, options)?, options)
    }

    /// Opens the pool on devices that are already open, given in any order.
    pub fn open_on(devices: Vec<Arc<dyn Device>>, options: &OpenOptions) -> Result<Arc<Self>> {
        if options.rescue && !(options.read_only && options.accept_loss) {
            return Err(Error::Invalid("a pool that is opened for rescue is not changed".into()));
        }
        let mut assembled =
            assemble(devices, Without { rescue: options.rescue, needed_log_device: options.accept_loss })?;
        let aside = std::mem::take(&mut assembled.aside);
        if !options.read_only {
            assembled.labels.iter().try_for_each(Label::check_writable)?;
        }
        let identity = identify(&assembled, options)?;
        let mut opening = OpeningPool::load(&assembled, identity, options)?;
        opening.read_log_device(options)?;
        let mut ops = Vec::new();
        let end = opening.scan(&mut ops, options.accept_loss);
        let end = opening.judge_log_device(end, options)?;
        if !options.read_only {
            opening.settle_members(&assembled)?;
        }
        let pool = opening.finish(end, &ops, options)?;
        pool.load_spares(aside.clone())?;
        if !options.read_only && pool.check_failed().is_ok() {
            pool.tend_log_device()?;
        }
        if !options.read_only
            && pool.check_failed().is_ok()
            && let Err(error) = pool.settle_split(&aside)
        {
            tracing::error!(%error, "a split that was interrupted is not settled; the next opening tries it again");
        }
        if !options.read_only
            && let Err(error) = pool.forget_rebases().and_then(|()| pool.forget_comparisons())
        {
            // The leftovers only hinder another comparison or rebase, which will report them.
            tracing::warn!(%error, "what was made for a comparison or a rebase is left");
        }
        Ok(pool)
    }
}

/// The superblocks by which a pool is opened.
struct Identity {
    /// The superblock that counts.
    superblock: Superblock,
    /// Superblock that begins this opening.
    opening_superblock: Superblock,
}

fn identify(assembled: &Assembled, options: &OpenOptions) -> Result<Identity> {
    let superblock = assembled.superblock;
    if let (Some(known), Some(label)) = (&options.since, assembled.labels.first()) {
        let here = assembled.devices.here();
        let paths: Vec<&Path> = here.iter().map(|device| device.one().path()).collect();
        demand(&superblock.standing(), known, &label.name, &paths)?;
    }
    demand_tables(assembled, &options.since_tables)?;
    if options.read_only {
        return Ok(Identity { superblock, opening_superblock: superblock });
    }
    let seen = assembled.opening_seen;
    let opening = superblock.opening.next(superblock.generation, seen, options.salt, options.now)?;
    let opening_superblock = superblock.generation.checked_add(1).map(|generation| Superblock {
        generation,
        opening,
        exported: false,
        confirmed: true,
        ..superblock
    });
    let opening_superblock =
        opening_superblock.ok_or_else(|| Error::corrupt("superblock", "its generation cannot be"))?;
    Ok(Identity { superblock, opening_superblock })
}

impl OpeningPool {
    fn load(
        assembled: &Assembled,
        Identity { superblock, opening_superblock }: Identity,
        options: &OpenOptions,
    ) -> Result<Self> {
        let (devices, sizes) = (assembled.devices.clone(), &assembled.sizes_for_chunks());
        let chunks = Arc::new(Chunks::new(sizes));
        let segments = Arc::new(Segments::new(CacheBounds::of(options.cache_bytes).directories));
        for table in assembled.tables.iter().filter(|table| table.leaves) {
            chunks.close_device(table.group);
            segments.set_leaving(table.group, true);
        }
        let ahead = ReadAhead::new(options.reads_at_once);
        let labels = Labels::new(assembled, Arc::clone(&segments), options)?;
        let labels = Arc::new(labels);
        if let Some(group) = labels.log_group() {
            devices.spare(group, true);
        }
        let roster: Weak<dyn Roster> = Arc::downgrade(&labels) as _;
        devices.set_roster(roster);
        if !options.read_only {
            labels.settle(&superblock)?;
        }
        let Superblock { addr, root: first, second, .. } = superblock;
        let placed = PlacedRecord { addr, first, second };
        let root = Root::decode(&read_placed(&devices, &segments, &placed, "root of the last checkpoint")?)?;
        // A pool that has no page yet can still take pages of any size.
        let wanted = options.table_page_ids.filter(|_| root.lists.is_empty());
        segments.set_page_ids(wanted.unwrap_or(root.page_ids));
        let named = root.lists.iter().chain(&root.dead).chain(&root.catalogue).chain(&root.lacks);
        let roots: Vec<PlacedRecord> = [placed].iter().chain(named).copied().collect();
        check_places(&chunks, roots.iter(), "root of the last checkpoint")?;
        let created = labels.common().created;
        let StoredCatalogue { image, ptrs: catalogue_ptrs, pages: catalogue_pages } =
            StoredCatalogue::read(&devices, &segments, &chunks, &root, created)?;
        let mut missing = Missing::new(options.rescue);
        let table = load_lists(&devices, &segments, &chunks, &root, &mut missing)?;
        let table_pages = Arc::new(StoredPages::new(devices.clone(), &table));
        if !options.rescue {
            // Rescued entries must stay in memory: no page of the table has them.
            let follows = CacheBounds::of(options.cache_bytes).table;
            let most = options.table_bytes.map_or(TableBound::Follows(follows), TableBound::Fixed);
            segments.page_from(Arc::clone(&table_pages) as Arc<dyn TablePages>, most);
        }
        let mut filled = ChunkBytes::new(sizes);
        // Second copies are added below, since only the root tells where they lie.
        let mut visit = |segment: &Segment| {
            if segment.id < COPIES {
                filled.add(segment);
            }
        };
        load_table(&devices, &segments, (&root, &table), &mut missing, &ahead, &mut visit)?;
        let mut rescue = None;
        if options.rescue {
            let pool = labels.common().log.low();
            let search = Search::new(&devices, pool);
            rescue = Some(missing.rescue(&table, search, sizes, &segments, root.position.segment));
        }
        for (id, parts) in &root.copies {
            segments.set_copies(*id, parts)?;
        }
        // Parts that were rescued without a table may be remnants, whose place another segment has taken since; so all
        // is counted anew.
        let from = if rescue.is_some() { 0 } else { COPIES };
        if from == 0 {
            filled = ChunkBytes::new(sizes);
        }
        segments.for_each_from(from, |segment| filled.add(segment))?;
        let mut used_before = filled.used(rescue.is_none())?;
        used_before.extend(roots.iter().map(|placed| Chunk::at(placed.second.device, placed.second.offset)));
        let position = root.position;
        let directory = Directory::decode(&root.open_directory, position.segment, CHUNK_BYTES as u32)?;
        if directory.entries().last().is_some_and(|last| last.slot >= position.slots) {
            return Err(Error::corrupt(
                "root of the last checkpoint",
                "its directory is ahead of its log position",
            ));
        }
        if !segments.has(position.segment) {
            segments.insert(Segment::fresh(position.segment, position.chunk))?;
        }
        segments.set_open_directory(position.segment, directory);
        let used = HashMap::from([(position.segment, (position.chunk, position.used))]);
        let operations_below = position.batch;
        Ok(Self {
            labels,
            devices,
            ahead,
            superblock,
            opening_superblock,
            root,
            roots,
            image,
            catalogue_ptrs,
            catalogue_pages,
            table,
            table_pages,
            chunks,
            segments,
            used_before,
            used,
            unflushed: Vec::new(),
            operations_below,
            logged: None,
            gives_up_log_device: false,
            rescue,
        })
    }

    /// First pass: verifies the log, rebuilds the directories of its segments, and collects the operations.
    fn scan(&mut self, ops: &mut Vec<Vec<u8>>, accept_loss: bool) -> Result<LogEnd> {
        let checkpoint = self.root.checkpoint;
        let (segments, used, unflushed) = (&self.segments, &mut self.used, &mut self.unflushed);
        let operations_below = &mut self.operations_below;
        let source = LogSource {
            pool: self.labels.common().log.low(),
            devices: &self.devices,
            chunks: &self.chunks,
            flushed: self.superblock.flushed,
            salt: salt_of(self.superblock.opening.id.nonce),
            accept_loss,
            logged: self.logged.as_ref(),
        };
        let (logged, is_read_only) = (self.logged.is_some(), self.labels.is_read_only());
        let (log_group, is_rescue) = (self.logged.as_ref().map(LoggedBatches::group), self.rescue.is_some());
        let mut redirections = Vec::new();
        let settled = self.superblock.flushed;
        let end = replay(source, self.root.position, &mut |batch: BatchView<'_>| {
            if !segments.has(batch.segment) {
                segments.insert(Segment::fresh(batch.segment, batch.chunk))?;
            }
            let internal = |kind| {
                matches!(kind, RecordKind::Node | RecordKind::Table | RecordKind::Catalogue)
                    && batch.checkpoint == checkpoint
            };
            let entries: Vec<DirEntryState> = batch
                .records
                .iter()
                .map(|(entry, kind, bytes)| DirEntryState {
                    entry: *entry,
                    live: internal(*kind),
                    model: bytes.and_then(model_of).filter(|_| *kind == RecordKind::Page),
                })
                .collect();
            segments.append(batch.segment, &entries)?;
            for DirEntryState { entry, .. } in entries.iter().filter(|state| state.live) {
                let addr = Addr::new(batch.segment, entry.slot);
                segments.copied(Ptr { addr, len_bytes: entry.len_bytes })?;
            }
            if let Some(at) = batch.logged_at.filter(|_| is_read_only) {
                redirections.push(to_log_device(log_group, at, &batch, is_rescue)?);
            }
            used.insert(batch.segment, (batch.chunk, batch.end));
            // With a log device a batch that was flushed need not be flushed where it belongs.
            let flushed = if logged { settled } else { batch.flushed };
            unflushed.retain(|(number, _)| *number >= flushed);
            if batch.number >= flushed {
                let BatchView { chunk, start, end, checksum, is_whole, .. } = batch;
                let placed = UnflushedBatch { chunk, start, end, checksum, is_whole };
                unflushed.push((batch.number, placed));
            }
            if !batch.ops.is_empty() {
                ops.push(batch.ops.to_vec());
                *operations_below = batch.number.saturating_add(1);
            }
            Ok(())
        })?;
        self.devices.redirect(&redirections);
        Ok(end)
    }

    /// Has labels tell which members are whole, and finds out what others lack. The log has been read by now: if that fails,
    /// a member that is not here may be the one that has it, and is whole still when it is here again.
    fn settle_members(&self, assembled: &Assembled) -> Result<()> {
        // A member that is not here, or has not come as far, is not whole from here on (Y1).
        assembled.changed.iter().try_for_each(|group| self.labels.change(*group))?;
        self.labels.mend(self.superblock.exported)?;
        let read =
            |placed| read_placed(&self.devices, &self.segments, placed, "what a member of a mirror lacks");
        let stored = decode_all(self.root.lacks.iter().map(read));
        let mut since = Since::checkpoint(self.used.values().map(|(chunk, _)| *chunk), &self.root);
        self.roots.iter().for_each(|PlacedRecord { second, .. }| since.add(second.device, second.offset));
        self.labels.settle_lacks(&stored, &since, &self.superblock)
    }

    fn finish(mut self, end: LogEnd, ops: &[Vec<u8>], options: &OpenOptions) -> Result<Arc<Pool>> {
        let sizing = Sizing::new(self.chunks.total(), options.cache_bytes, options.log_bytes);
        let (cache, bounds) = (RecordCache::new(options.cache_bytes), CacheBounds::of(options.cache_bytes));
        let models = ModelTable::new(bounds.models);
        let nodes = Arc::new(NodeCache::new(bounds.nodes)?);
        let shared = Arc::new(Shared::new(
            self.devices.clone(),
            (Arc::clone(&self.segments), Arc::clone(&self.chunks)),
            Arc::clone(&nodes),
            (cache, models),
            sizing.bounds,
        ));
        shared.dirty_limit.store(sizing.dirty_limit(0), Ordering::Relaxed);
        let store: Arc<dyn NodeStore> = Arc::new(Nodes::of(&shared));
        let tree = Tree::new(self.root.own, Arc::clone(&store), Arc::clone(&nodes));
        let own =
            Arc::new(LiveDataset::new(OWN, tree, Arc::clone(&shared), SpaceAccounting::default(), None));
        let blocks = Arc::new(DeadBlocks::new(Arc::clone(&own) as _, self.image.next_list));
        let parts = VersionContext { shared: Arc::clone(&shared), store, nodes: Arc::clone(&nodes), blocks };
        let mut catalogue = Catalogue::load(&self.image, parts)?;
        catalogue.nodes_below = Addr::new(end.position.segment + 1, 0).raw();
        Redoing::new(&mut catalogue, &own, &shared, self.rescue.as_mut(), &self.ahead).all(ops)?;
        catalogue.nodes_below = 0;
        own.load_models(options.rescue)?;
        shared.models.set_parents(catalogue.parents());
        let datasets = catalogue.datasets().map(|(_, version)| Arc::clone(&version.data)).collect();
        let dataset = Arc::clone(&catalogue.get(FIRST_DATASET)?.data);
        let mut position = self.settle_space(&end, options)?;
        let operations_below = self.operations_below;
        if let Some(damage) = end.damage {
            tracing::error!(
                device = damage.device,
                offset = damage.offset,
                "what was acknowledged behind damage to the log is given up"
            );
        }
        let gives_up = end.damage.is_some() || self.gives_up_log_device;
        if gives_up {
            let flushed = end.damage.map_or(0, |damage| damage.flushed);
            position.batch = flushed.max(end.position.batch).saturating_add(BATCH_NUMBER_LEAP);
        }
        shared.read_only.store(options.read_only, Ordering::Relaxed);
        let page_ptrs = self.table.iter().map(|page| (page.page, page.placed.ptr())).collect();
        let mut writer = LogWriter::new(
            self.labels.common().log.low(),
            position,
            Arc::clone(&self.segments),
            Arc::clone(&self.chunks),
            &self.devices,
        )
        .with_salt(options.salt);
        if let Some(group) = self.labels.log_group().filter(|_| !options.read_only)
            && self.devices.copies(group) > 0
        {
            let size_bytes = self.labels.group_bytes(group);
            writer.set_log_device(Some(LogDevice::new(&self.devices, group, size_bytes)));
        }
        let flushes = writer.flushes();
        let clean = self.superblock.exported && ops.is_empty();
        let journal = options.journal.as_ref().filter(|_| !options.read_only && !gives_up);
        if let Some(journal) = journal {
            shared.set_journal(Arc::clone(journal));
        }
        let pool = Arc::new(Pool {
            labels: self.labels,
            fill: Mutex::default(),
            copy_check: Mutex::default(),
            removal: Mutex::default(),
            balance: Mutex::default(),
            spares: super::spares::Spares::default(),
            on_leave: OnceLock::new(),
            opening: self.opening_superblock.opening,
            witness: options.witness.clone(),
            table_pages: self.table_pages,
            shared: Arc::clone(&shared),
            chunks: self.chunks,
            nodes,
            own,
            dataset,
            datasets: RwLock::new(Arc::new(datasets)),
            catalogue: RwLock::new(catalogue),
            reaping: Mutex::default(),
            sizing: RwLock::new(sizing),
            log: Mutex::new(Log { writer, window_bytes: end.replayed_bytes }),
            maintenance: Mutex::new(Maintenance {
                superblock: self.opening_superblock.generation,
                page_ptrs,
                catalogue_ptrs: self.catalogue_ptrs,
                catalogue_pages: self.catalogue_pages,
                window_start: self.root.position,
                copies: CopiesState { begun: None, roots: self.roots },
                cleaner: Cleaner::default(),
            }),
            flushes,
            turn: Mutex::default(),
            watch: Mutex::default(),
            sought: Mutex::new(Some((0, 0))),
            attempts: Mutex::default(),
            in_haste: Mutex::default(),
            rewrites: super::rewrites::RewriteCounters::default(),
            passed: Condvar::new(),
            work: Condvar::new(),
            tree_growth: 0.into(),
            committed: 0.into(),
            durable: 0.into(),
            scrub: Mutex::default(),
            trim: Mutex::default(),
            space_history: Mutex::default(),
            autotrim: false.into(),
            autoexpand: false.into(),
            signal: Mutex::new(Signal::default()),
            wake: Condvar::new(),
            cleaning: Mutex::default(),
            clean_wake: Condvar::new(),
            replayed: Report {
                clean,
                batches: end.batches,
                bytes: end.replayed_bytes,
                damaged: end.damaged,
                damage: end.damage,
                gave_up_log_device: self.gives_up_log_device,
                journalled: 0,
            },
            rescue: self.rescue,
            journalled: 0.into(),
            beside: Arc::default(),
            given_up: 0.into(),
        });
        let committer: std::sync::Weak<Pool> = Arc::downgrade(&pool);
        let committer: std::sync::Weak<dyn Commit> = committer;
        shared.set_committer(committer);
        pool.settle_caches();
        pool.apply_properties()?;
        if let Some(journal) = journal {
            pool.redo_journal(journal, (end.position.batch, operations_below))?;
        }
        // Budgets come after the journal: changes that were accepted before must not be refused now.
        pool.catalogue.read().rebudget(&shared);
        pool.catalogue.read().inherit_compression();
        pool.note_sizes(&pool.maintenance.lock(), 0);
        pool.load_late();
        pool.load_scrub()?;
        pool.load_faults(end.damaged);
        pool.load_history();
        pool.measure_expansion();
        if gives_up && !options.read_only {
            // Replay starts at this checkpoint from now on, and so meets neither the damage nor what was given up any more.
            pool.checkpoint(false)?;
        }
        // Each opening begins chunks, and each export: without this, those of a full pool would use up the cleaner's,
        // since nobody else cleans while no change is accepted.
        if !options.read_only {
            let restored = pool.restore_room(&mut pool.maintenance.lock());
            // A pool that cannot be written to any more has failed (W6), and can still be read.
            restored.or_else(|error| if pool.check_failed().is_err() { Ok(()) } else { Err(error) })?;
        }
        Ok(pool)
    }

    /// Settles the states of chunks after replay, writes the directories of replayed segments, and returns the position
    /// at which the log goes on.
    fn settle_space(&self, end: &LogEnd, options: &OpenOptions) -> Result<Position> {
        self.chunks.retain_all(self.segments.chunks());
        let next = end.position.next;
        if !self.chunks.exists(next) {
            return Err(Error::corrupt("log", "its next chunk lies beyond the pool's devices"));
        }
        self.chunks.retain(next);
        self.chunks.add_pending_free(&self.used_before);
        let segment = end.position.segment + 1;
        if options.read_only {
            return Ok(Position { segment, chunk: next, used: 0, slots: 0, next, ..end.position });
        }
        for id in self.segments.open_ids() {
            let Some((chunk, used)) = self.used.get(&id) else { continue };
            let directory = self.segments.open_directory(id).unwrap_or_default();
            let dir = write_directory(&self.devices, *chunk, *used, id, &directory)?;
            self.segments.close(id, dir)?;
        }
        self.write_unflushed()?;
        if end.torn {
            self.erase_header(next)?;
        }
        self.erase_logged(end);
        // A superblock is written, too: a flush of the last one may have failed, and then a device shows it until the
        // power goes, while chunks that the one before refers to are given out from now on.
        let flushed = end.position.batch;
        let mut told = self.opening_superblock;
        told.log_device = self
            .labels
            .log_group()
            .map(|number| LogGroup { number, is_needed: self.devices.copies(number) > 0 });
        if flushed > self.superblock.flushed || self.logged.is_some() {
            // The new superblock tells that all batches that were found are there (T7): the log goes on at another
            // place, and only its last batches tell where.
            self.devices.flush()?;
            told.flushed = flushed;
        }
        // From here on the opening counts. All that was written before this point adds nothing to what was already
        // there.
        self.labels.publish(&told, &|told| {
            let is_here = |group: &LogGroup| self.devices.copies(group.number) > 0;
            let log_device = told.log_device.map(|group| LogGroup { is_needed: is_here(&group), ..group });
            Ok(Superblock { log_device, ..*told })
        })?;
        if let Some(witness) = &options.witness {
            witness.tell(&Standing { open: false, ..told.standing() });
            self.labels.tell_all();
        }
        self.segments.insert(Segment::fresh(segment, next))?;
        let after = self.chunks.allocate()?;
        Ok(Position { segment, chunk: next, used: 0, slots: 0, next: after, ..end.position })
    }
}

impl Pool {
    /// Accepts again the changes that a dead process had accepted and not committed.
    fn redo_journal(&self, journal: &Journal, log: (u64, u64)) -> Result<()> {
        let datasets = self.datasets.read().clone();
        let redone = journal.redo(log, &mut |id, changes| {
            let dataset = datasets.iter().find(|dataset| dataset.id == id);
            let dataset = dataset
                .ok_or_else(|| Error::corrupt("journal", format!("there is no dataset number {id}")))?;
            dataset.apply(changes)
        })?;
        self.journalled.store(redone, Ordering::Relaxed);
        Ok(())
    }

    /// Applies the stored properties that concern the engine.
    fn apply_properties(&self) -> Result<()> {
        if let Some(value) = self.property("compression")? {
            // Without it pages are coded as by default, and the pool can be used.
            match value.parse::<Compression>() {
                Ok(compression) => self.set_compression(compression),
                Err(error) => tracing::warn!(%error, "a property is not obeyed"),
            }
        }
        let is_on = |name| self.property(name).map(|value| value.as_deref() == Some("on"));
        self.set_autotrim(is_on("autotrim")?);
        self.set_autoexpand(is_on("autoexpand")?);
        self.load_balance()?;
        for rule in DEVICE_RULES {
            if let Some(value) = self.property(rule)? {
                // Without it the rule is the default one, and the pool can be used.
                if let Err(error) = self.set_device_rule(rule, &value) {
                    tracing::warn!(%error, "a property about devices is not obeyed");
                }
            }
        }
        if let Some(value) = self.property(LogicalCapacity::NAME)? {
            // Without it mounts tell stored bytes, and the pool can be used.
            match value.parse() {
                Ok(capacity) => self.shared.thin_terms.lock().capacity = capacity,
                Err(error) => tracing::warn!(%error, "a property is not obeyed"),
            }
        }
        if let Some(value) = self.property("primarycache")? {
            self.set_primary_cache(match value.as_str() {
                "metadata" => PrimaryCache::Metadata,
                "none" => PrimaryCache::None,
                _ => PrimaryCache::All,
            });
        }
        Ok(())
    }

    /// Returns the pool's dataset, with the engine's own types.
    pub fn live(&self) -> &Arc<LiveDataset> {
        &self.dataset
    }

    /// Returns the pool's own tree, which has the models and the blocks of dead lists.
    pub fn own(&self) -> &LiveDataset {
        &self.own
    }

    /// Returns the length of a record as it is stored now, in bytes: at most the length in a pointer to it.
    pub fn stored_len(&self, ptr: Ptr) -> u32 {
        self.shared.stored_len(ptr)
    }

    /// Returns the stored form of a record, verified.
    pub fn read_record(&self, addr: Addr) -> Result<Vec<u8>> {
        self.shared.read_record(addr)
    }

    /// Makes all accepted changes durable, as [`Dataset::sync`] does.
    pub fn sync(&self) -> Result<()> {
        self.dataset.sync()
    }
}

#[cfg(test)]
mod tests;
