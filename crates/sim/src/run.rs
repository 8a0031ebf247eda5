//! Runs a history against a simulated pool and compares the pool with the model after each step.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use pagefold_engine::Error;
use pagefold_engine::dataset::{Change, Commit, Journal};
use pagefold_engine::device::{Device, InjectedFault, SimDevice};
use pagefold_engine::limits::{BLOCK_BYTES, CHUNK_BYTES, RESERVED_BYTES};
use pagefold_engine::pool::{
    CALL_PAGES, CreateOptions, Flight, Guid, LearnOptions, OpenOptions, PageRange, Pool, Totals, create_on,
};
use pagefold_engine::record::Compression;
use pagefold_engine::segment::PageIds;
use pagefold_engine::space::reserved_places;

use crate::history::{Act, Bounds, CatalogueOp, History, OBJECTS, Step, Theme};
use crate::images::{Camera, States};
use crate::model::COUNTER;
use crate::random::Random;
use crate::verify::{Calls, Terms, check, check_bounds, compare, compare_range};
use crate::world::World;

mod acts;
mod catalogue;
mod commits;
mod recovery;

use acts::most;
pub(crate) use acts::{changes, contents, run_catalogue_op};

/// Divisor of the number of images where pools are full or aged, which take much longer to compare. Pools of small
/// chunks do not.
const FULL_SHARE: usize = if cfg!(feature = "small-chunks") { 1 } else { 8 };

/// A failure, and the step at which it happened.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Position in the history.
    pub step: usize,
    /// The property that did not hold.
    pub what: String,
}

/// Counts of what a run did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Changes accepted.
    pub applies: u64,
    /// Changes refused for lack of space.
    pub refused: u64,
    /// Models adopted.
    pub learned: u64,
    /// Pages coded again.
    pub recoded: u64,
    /// Operations on the catalogue that were done.
    pub catalogue_ops: u64,
    /// Streams received without interruption.
    pub received: u64,
    /// Streams received after they had been interrupted and were resumed.
    pub resumed: u64,
    /// Clones that were reset to their origin.
    pub reset: u64,
    /// Clones that were moved onto a newer snapshot.
    pub rebased: u64,
    /// Power cuts between steps, in the middle of calls (where an earlier step armed one), and during recovery from
    /// these.
    pub crashes: u64,
    /// Power cuts that were tried on copies of the devices, in the middle of steps, and during recovery from these.
    pub images: u64,
    /// Times that the pool was opened.
    pub opens: u64,
    /// Calls that failed because of a fault.
    pub failed: u64,
    /// Damaged pools that could not be opened.
    pub unopenable: u64,
    /// Damaged pools that were opened by accepting the loss of what lay behind the damage.
    pub given_up: u64,
    /// Damaged pools whose log ended before the last acknowledged change.
    pub shortened: u64,
}

impl Stats {
    /// Adds the counts of another run.
    pub const fn add(&mut self, other: &Self) {
        self.applies += other.applies;
        self.refused += other.refused;
        self.learned += other.learned;
        self.recoded += other.recoded;
        self.catalogue_ops += other.catalogue_ops;
        self.received += other.received;
        self.resumed += other.resumed;
        self.reset += other.reset;
        self.rebased += other.rebased;
        self.crashes += other.crashes;
        self.images += other.images;
        self.opens += other.opens;
        self.failed += other.failed;
        self.unopenable += other.unopenable;
        self.given_up += other.given_up;
        self.shortened += other.shortened;
    }
}

type Outcome<T = ()> = Result<T, String>;

/// An accepted change or operation on the catalogue. Recovery may find it or not.
#[derive(Clone, Debug)]
enum Event {
    /// A change of a dataset, and its number.
    Change(String, u64, Vec<Act>),
    Catalogue(CatalogueOp),
}

impl Event {
    fn happen(&self, world: &mut World) {
        match self {
            Self::Change(path, id, acts) => world.apply(path, *id, acts),
            Self::Catalogue(op) => {
                if let Some(after) = world.after(op) {
                    *world = after;
                }
            }
        }
    }
}

/// A durable commit that was begun and has not ended.
struct Begun {
    flight: Flight,
    /// Number of events that are durable after it, counted from the first of the history.
    events: usize,
    waiters: u64,
    /// Answers that the waiters got: true if the commit succeeded.
    told: Arc<Mutex<Vec<bool>>>,
}

/// Options for learning models. Histories are small, and so are the relations that get models.
pub(crate) const LEARN: LearnOptions = LearnOptions { pages_min: 12, sample_pages: 40 };

/// Largest number of durable commits that are begun and have not ended: the number of committing threads.
const FLIGHTS_MAX: usize = 2;

struct Sim<'a> {
    history: &'a History,
    devices: Vec<Arc<SimDevice>>,
    pool: Option<Arc<Pool>>,
    begun: Vec<Begun>,
    /// Oldest content that may be found after a crash.
    base: World,
    /// Events since `base`, oldest first.
    log: Vec<Event>,
    /// Number of events before `base`.
    forgotten: usize,
    /// Content now.
    now: World,
    /// Number of events of `log` that must survive the end of the process.
    committed: usize,
    /// Number of events of `log` that must survive a power cut.
    durable: usize,
    /// True if no change was accepted since the last commit.
    settled: bool,
    next_id: u64,
    /// Number of bits that have flipped so far.
    flips: u32,
    /// True if only one bit has flipped, and where labels and superblocks lie. That must cost nothing, since these have
    /// copies.
    harmless: bool,
    /// True while the power is cut by an outage (`Step::Outage`).
    outage: bool,
    /// Number of events, from the first of the history, that must survive a single flipped bit, unless an error tells
    /// of their loss: something durable says that they were durable.
    attested: usize,
    /// Number of the next batch, and number of durable events, when something last became durable.
    durable_then: (u64, usize),
    /// The last stream that was begun.
    receiving: Option<CatalogueOp>,
    /// True while steps run within a checkpoint, which waits for their end.
    overlapping: bool,
    /// True if the loss of the log behind damage was accepted.
    gave_up: bool,
    /// True if a fault was injected since the last power cut.
    faulted: bool,
    /// The journal survives the end of the process, but not a power cut.
    journal: Option<Arc<Journal>>,
    /// True if the journal holds the changes that the last process accepted.
    kept: bool,
    /// Least number of errors that the last checkpoint has stored, and number of those that the pool has counted by
    /// now.
    errors: (u64, u64),
    random: Random,
    /// Takes images of the devices in the middle of steps.
    camera: Option<Arc<Camera>>,
    /// Source of chance for images.
    shutter: Random,
    stats: Stats,
}

/// Runs a history to its end or to the first thing that does not hold.
pub fn run(history: &History) -> Result<Stats, Failure> {
    let mut step = 0;
    let outcome = catch_unwind(AssertUnwindSafe(|| run_steps(history, &mut step)));
    let outcome = outcome.unwrap_or_else(|panic| Err(panic_text(&*panic)));
    outcome.map_err(|what| Failure { step, what })
}

/// Returns the message of a panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?");
    format!("panic: {text}")
}

fn run_steps(history: &History, at: &mut usize) -> Outcome<Stats> {
    let mut sim = Sim::new(history)?;
    for (position, step) in history.steps.iter().enumerate() {
        *at = position;
        sim.step(step)?;
        if sim.pool.is_none() {
            return Ok(sim.stats);
        }
    }
    *at = history.steps.len();
    sim.finish()?;
    Ok(sim.stats)
}

fn options(history: &History, salt: u64) -> OpenOptions {
    let chunks = history.devices.iter().sum::<u64>() >> 22;
    OpenOptions {
        cache_bytes: history.cache_bytes,
        log_bytes: Some(16 << 20),
        salt,
        reads_at_once: 1,
        // With few ids per page, the table has as many pages as the table of a large pool.
        table_page_ids: PageIds::new(2 + chunks as u8 % 5),
        // In two of three pools the table is larger than the memory that it may take: by far, or a little.
        table_bytes: [None, Some(0), Some(3000)][chunks as usize / 5 % 3],
        ..OpenOptions::default()
    }
}

fn open(
    history: &History,
    devices: Vec<Arc<dyn Device>>,
    options: &OpenOptions,
) -> pagefold_engine::Result<Arc<Pool>> {
    let pool = Pool::open_on(devices, options)?;
    pool.set_compression(compression(history, false));
    Ok(pool)
}

/// Verifies that a checkpoint writes no more than the `promised_bytes` of free chunks. Steps in which the cleaner moved
/// records are left out: these have a promise of their own.
fn verify_promise(promised_bytes: u64, before: &Totals, after: &Totals) -> Outcome {
    let written = |totals: &Totals| totals.tree_bytes + totals.checkpoint_bytes + totals.copy_bytes;
    let written = written(after) - written(before);
    let is_one = after.checkpoints == before.checkpoints + 1 && after.moved_bytes == before.moved_bytes;
    if !is_one || written <= promised_bytes {
        return Ok(());
    }
    Err(format!("a checkpoint writes {written} bytes, and {promised_bytes} were promised"))
}

/// Size of a journal in bytes: larger than any change of a history.
const JOURNAL_BYTES: usize = 16 << 20;

fn journal(history: &History) -> Outcome<Option<Arc<Journal>>> {
    if !history.journalled {
        return Ok(None);
    }
    Journal::with_bytes(JOURNAL_BYTES).map(|made| Some(Arc::new(made))).map_err(|error| error.to_string())
}

/// Returns the compression of pages that are written, or that are coded `again`.
fn compression(history: &History, again: bool) -> Compression {
    match (history.modelled, again) {
        (true, _) => Compression::Page(1),
        (false, true) => Compression::Zstd(9),
        (false, false) if history.seed.is_multiple_of(3) => Compression::Lz4,
        (false, false) => Compression::Auto,
    }
}

impl<'a> Sim<'a> {
    fn new(history: &'a History) -> Outcome<Self> {
        let devices: Vec<Arc<SimDevice>> = (0_u64..)
            .zip(&history.devices)
            .map(|(at, size)| Arc::new(SimDevice::new(*size, history.seed.wrapping_add(at))))
            .collect();
        let mut sim = Self {
            history,
            devices,
            pool: None,
            begun: Vec::new(),
            base: World::default(),
            log: Vec::new(),
            forgotten: 0,
            now: World::default(),
            committed: 0,
            durable: 0,
            settled: true,
            next_id: 1,
            flips: 0,
            harmless: false,
            outage: false,
            attested: 0,
            durable_then: (0, 0),
            receiving: None,
            overlapping: false,
            gave_up: false,
            faulted: false,
            journal: journal(history)?,
            kept: false,
            errors: (0, 0),
            random: Random::new(history.seed ^ 0x5EED),
            camera: None,
            shutter: Random::new(history.seed ^ 0x5_4077E4),
            stats: Stats::default(),
        };
        let create = CreateOptions { force: false, created: 0, guid: Guid(*b"simulated pool 1") };
        create_on("sim", &sim.handles(), &create).map_err(|error| format!("create: {error}"))?;
        let options = OpenOptions { journal: sim.journal.clone(), ..options(history, 0) };
        let pool = open(history, sim.handles(), &options).map_err(|e| format!("first open: {e}"))?;
        for (name, bytes) in history.bounds.iter().flat_map(Bounds::properties) {
            let set = pool.set_property(name, Some(&bytes.to_string()));
            set.map_err(|error| format!("{name} of {bytes} bytes: {error}"))?;
        }
        sim.pool = Some(pool);
        sim.watch();
        Ok(sim)
    }

    /// Begins to take images of the present devices.
    fn watch(&mut self) {
        // With flipped bits, an image that lost data would prove nothing: the flips may have cost it.
        if self.history.images == 0 || self.history.theme == Theme::Flips {
            return;
        }
        let most = match self.history.theme {
            Theme::Full | Theme::Aged => self.history.images.div_ceil(FULL_SHARE),
            _ => self.history.images,
        };
        let camera = Camera::new(&self.devices, most, self.shutter.bits());
        camera.acknowledge(self.forgotten + self.durable);
        self.camera = Some(camera);
    }

    /// Judges the images that were taken so far: each must recover to a state that the events so far allow.
    fn develop(&mut self) -> Outcome {
        let images = self.camera.as_ref().map_or_else(Vec::new, |camera| camera.develop());
        if images.is_empty() {
            return Ok(());
        }
        let states = self.states();
        let count = images.len();
        for (at, image) in images.into_iter().enumerate() {
            let least = image.durable.saturating_sub(self.forgotten);
            let salt = self.shutter.bits();
            let judged = image.judge(&states, least, &options(self.history, salt), &mut self.shutter);
            self.stats.images +=
                judged.map_err(|what| format!("power cut {} of {count} on the way: {what}", at + 1))?;
        }
        Ok(())
    }

    /// Returns the states that a power cut may leave, oldest first.
    fn states(&self) -> States {
        let mut world = self.base.clone();
        let mut states = vec![(world.signature(), world.clone())];
        for event in &self.log {
            event.happen(&mut world);
            states.push((world.signature(), world.clone()));
        }
        states
    }

    fn handles(&self) -> Vec<Arc<dyn Device>> {
        self.devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect()
    }

    fn pool(&self) -> Outcome<&Arc<Pool>> {
        self.pool.as_ref().ok_or_else(|| "the pool is closed".into())
    }

    fn is_off(&self) -> bool {
        self.devices.iter().any(|device| device.is_off())
    }

    fn terms(&self) -> Terms {
        Terms { settled: self.settled, may_fail: self.faulted || self.is_damaged(), calls: Calls::Both }
    }

    /// Returns true if bits have flipped that may have cost something.
    fn is_damaged(&self) -> bool {
        self.flips > 0 && !self.harmless
    }

    fn flip(&mut self, device: u64, offset: u64, bit: u8) {
        let Some(device) = self.devices.get(device as usize) else { return };
        device.flip_bit(offset, bit);
        self.flips += 1;
        let is_reserved = |place: u64| (place..place + RESERVED_BYTES).contains(&offset);
        self.harmless = self.flips == 1 && reserved_places(device.size_bytes()).into_iter().any(is_reserved);
    }

    fn step(&mut self, step: &Step) -> Outcome {
        if let Some(camera) = &self.camera {
            camera.acknowledge(self.forgotten + self.durable);
        }
        let opens = self.stats.opens;
        let promised = self.pool.as_ref().map(|pool| (pool.promised_bytes(), pool.totals()));
        self.take(step)?;
        if self.overlapping {
            return Ok(());
        }
        // An opening may find fewer free chunks than the last one had. The next change or write makes room, so reserves
        // are verified after those only.
        let makes_room = matches!(
            step,
            Step::Apply(_)
                | Step::ApplyTo(..)
                | Step::Commit
                | Step::Checkpoint
                | Step::Clean
                | Step::Maintain
        );
        if let Some(pool) = self.pool.as_ref().filter(|_| makes_room && opens == self.stats.opens) {
            pool.verify_reserves().map_err(|error| format!("reserves: {error}, after {step:?}"))?;
            if let (Some((promised, before)), false) =
                (promised, matches!(step, Step::Apply(_) | Step::ApplyTo(..)))
            {
                verify_promise(promised, &before, &pool.totals())?;
            }
        }
        self.develop()?;
        self.forget_durable();
        Ok(())
    }

    fn take(&mut self, step: &Step) -> Outcome {
        match step {
            Step::Apply(acts) => self.apply("", acts),
            Step::ApplyTo(path, acts) if self.now.sets.contains_key(path) => self.apply(path, acts),
            Step::ApplyTo(..) => Ok(()),
            Step::Catalogue(op) => self.apply_op(op),
            Step::Stream { path, pick, torn } => self.stream(path, *pick, *torn),
            Step::Graft { pick } => self.graft(*pick),
            Step::Sync => self.call(Pool::sync, true),
            Step::Begin { waiters } => self.begin(*waiters),
            Step::End { newest } => self.end(*newest),
            Step::Commit => self.call(|pool| pool.commit(false), false),
            Step::Checkpoint => {
                let (counted, opens) = (self.count_errors(), self.stats.opens);
                self.attesting(|pool| pool.checkpoint(false))?;
                if self.stats.opens == opens && self.pool.is_some() {
                    self.errors.0 = counted;
                }
                Ok(())
            }
            Step::Overlap(cut, end) => self.overlap([cut, end]),
            Step::Clean => self.attesting(|pool| pool.clean().map(|_| ())),
            Step::Rest => self.rest(),
            Step::Maintain => {
                // `maintain` commits only if a checkpoint is due, so nothing more counts as committed.
                let before = (self.committed, self.settled);
                let opens = self.stats.opens;
                self.call(|pool| pool.maintain().map(|_| ()), false)?;
                if self.stats.opens == opens {
                    (self.committed, self.settled) = before;
                }
                Ok(())
            }
            Step::Trim { all } => self.trim(*all && !self.overlapping),
            Step::Learn => self.learn(),
            Step::Recode => self.recode(),
            Step::Export => self.export(),
            Step::Read { object, offset, len } => {
                let Some(set) = self.now.sets.get("") else { return Ok(()) };
                let dataset = self.pool()?.dataset();
                let read = compare_range(&*dataset, &set.state, (*object, *offset, *len), self.terms());
                self.unless_off(read)
            }
            Step::Check => self.check(),
            Step::Kill => {
                self.begun.clear();
                self.close();
                if self.is_off() {
                    return self.power_cycle(&[]);
                }
                let all = self.forgotten + self.log.len();
                let (opens, journalled) = (self.stats.opens, self.journal.is_some());
                self.reopen()?;
                let found = self.forgotten + self.log.len();
                if journalled && self.stats.opens == opens + 1 && self.flips == 0 && found < all {
                    return Err(format!("{found} changes of {all} survive the end of the process"));
                }
                Ok(())
            }
            Step::Cut { device, calls } => {
                if let Some(device) = self.devices.get(*device as usize) {
                    device.cut_after(*calls);
                }
                Ok(())
            }
            Step::Crash { seed, again } => {
                self.random = Random::new(*seed);
                self.power_cycle(again)
            }
            Step::Outage { seed } => {
                self.random = Random::new(*seed);
                self.outage = true;
                let cycled = self.power_cycle(&[]);
                self.outage = false;
                cycled
            }
            Step::Fault { device, op, skip, times } => {
                if let Some(device) = self.devices.get(*device as usize) {
                    self.faulted = true;
                    device.inject(InjectedFault { op: *op, range: 0..u64::MAX, skip: *skip, times: *times });
                }
                Ok(())
            }
            Step::Flip { device: at, offset, bit } => {
                let at = *at;
                if let Some(device) = self.devices.get(at as usize) {
                    // Three flips of four hit a block that was written, and half of these its first 128 bytes, where
                    // headers are.
                    let written =
                        (offset / 4 % 4 != 0).then(|| device.written_place(offset / 4096)).flatten();
                    let within = (offset % 4096) >> (offset % 2 * 5);
                    self.flip(at, written.map_or(*offset, |block| block + within), *bit);
                }
                Ok(())
            }
            Step::Rot { device: at, back, byte, bit } => {
                let device = self.devices.get(*at as usize);
                if let Some(place) = device.and_then(|device| device.latest_place(*back as usize)) {
                    self.flip(*at, place + byte, *bit);
                }
                Ok(())
            }
        }
    }

    fn overlap(&mut self, steps: [&[Step]; 2]) -> Outcome {
        let pool = Arc::clone(self.pool()?);
        let status = pool.status();
        let (opens, events) = (self.stats.opens, self.forgotten + self.log.len());
        let mut steps = steps.into_iter();
        let mut outcome = Ok(());
        let made = pool.checkpoint_around(&mut || {
            // Steps run only if there is plenty of room: a commit that has to make room would wait for this checkpoint.
            let roomy =
                2 * status.allocated_bytes < status.size_bytes && status.unstored_tree_bytes < 512 << 10;
            self.overlapping = true;
            for step in steps.next().filter(|_| roomy).into_iter().flatten() {
                if outcome.is_ok() && self.stats.opens == opens && self.pool.is_some() && !self.is_off() {
                    outcome = self.step(step);
                }
            }
            self.overlapping = false;
        });
        outcome?;
        if self.stats.opens != opens || self.pool.is_none() {
            return Ok(());
        }
        if let Err(error) = made {
            drop(pool);
            return self.failed(&error);
        }
        let durable = events.saturating_sub(self.forgotten);
        self.durable = self.durable.max(durable);
        self.committed = self.committed.max(durable);
        self.settled |= events == self.forgotten + self.log.len();
        self.forget();
        Ok(())
    }

    /// Returns the verdict. A failure does not count if the power is off: then the power comes back instead.
    fn unless_off(&mut self, verdict: Outcome) -> Outcome {
        if verdict.is_err() && self.is_off() { self.power_cycle(&[]) } else { verdict }
    }

    fn accepted(&mut self, path: &str, acts: &[Act]) {
        let id = self.next_id;
        self.next_id += 1;
        self.stats.applies += 1;
        self.now.apply(path, id, acts);
        self.log.push(Event::Change(path.into(), id, acts.to_vec()));
        self.settled = false;
    }

    fn apply(&mut self, path: &str, acts: &[Act]) -> Outcome {
        let data = contents(acts);
        let claim: u64 = match self.history.bounds {
            Some(_) => acts.iter().map(most).sum::<u64>() + 256,
            None => {
                data.iter().map(|data| 2 * 4096 + 2 * data.len() as u64).sum::<u64>() + CHUNK_BYTES / 4 * 3
            }
        };
        let mut all = changes(acts, &data);
        all.push(Change::Put(COUNTER, self.next_id.to_le_bytes().to_vec()));
        let frees = acts.iter().all(|act| matches!(act, Act::Delete { .. } | Act::Punch { .. }));
        let pool = Arc::clone(self.pool()?);
        let dataset = pool.open_dataset(path).map_err(|error| format!("open of '{path}': {error}"))?;
        let error = match dataset.apply(&all) {
            Ok(()) => {
                self.accepted(path, acts);
                let freeing = acts.iter().any(|act| matches!(act, Act::Delete { .. } | Act::Punch { .. }));
                return if freeing { Ok(()) } else { check_bounds(&pool, path) };
            }
            Err(error) => error,
        };
        let failed = pool.status().failure.is_some();
        if let (Error::NoSpace(_), false) = (&error, failed || self.is_off()) {
            if !matches!(self.history.theme, Theme::Full | Theme::Aged) && self.history.bounds.is_none() {
                return Err(format!("a pool that is nearly empty refuses a change: {error}"));
            }
            if frees && !acts.is_empty() {
                return Err(format!("a change that frees space is refused: {error}"));
            }
            let available = dataset.space().available_bytes;
            if available > claim {
                return Err(format!("refused with {available} bytes available: {error}"));
            }
            self.stats.refused += 1;
            return Ok(());
        }
        drop(pool);
        self.failed(&error)
    }

    /// Handles the failure of a call, which is right only if the power is off, a fault was injected, or bits have
    /// flipped.
    fn failed(&mut self, error: &Error) -> Outcome {
        if self.is_off() {
            return self.power_cycle(&[]);
        }
        if !self.faulted && !self.is_damaged() {
            return Err(format!("a call fails for no reason: {error}"));
        }
        self.stats.failed += 1;
        let pool = Arc::clone(self.pool()?);
        if pool.status().failure.is_none() {
            return Ok(());
        }
        if pool.dataset().apply(&[Change::Delete(COUNTER)]).is_ok() {
            return Err(format!("the pool failed ({error}) and accepts changes"));
        }
        // Within a checkpoint, a second one would wait for the end of the first.
        if pool.sync().is_ok() || !self.overlapping && pool.checkpoint(false).is_ok() {
            return Err(format!("the pool failed ({error}) and acknowledges"));
        }
        drop(pool);
        // Writes that a failed flush lost are missing only after a power cut, and no later flush brings them back. So
        // either the power goes, or the pool is opened again, which has to write them again. It is not opened again
        // while its own checkpoint still runs on these devices.
        if self.random.percent(30) && !self.overlapping {
            self.begun.clear();
            self.close();
            return self.reopen();
        }
        self.power_cycle(&[])
    }

    fn learn(&mut self) -> Outcome {
        // `learn` commits nothing, unless it has to make room.
        let (before, opens) = ((self.committed, self.settled), self.stats.opens);
        let mut adopted = false;
        let learn = |pool: &Pool| {
            let learned = pool.learn(&LEARN)?;
            adopted = learned.is_some_and(|learned| learned.adopted.is_some());
            Ok(())
        };
        self.call(learn, false)?;
        if self.stats.opens == opens {
            (self.committed, self.settled) = before;
        }
        self.stats.learned += u64::from(adopted);
        Ok(())
    }

    fn recode(&mut self) -> Outcome {
        let (now, again) = (compression(self.history, false), compression(self.history, true));
        let ranges: Vec<PageRange> =
            OBJECTS.map(|object| PageRange { object, from: 0, to: u64::MAX }).collect();
        let mut recoded = 0;
        let recode = |pool: &Pool| {
            pool.set_compression(again);
            let mut done = pool.recompress(&ranges, (0, 0), CALL_PAGES).map(|report| report.recompressed);
            // The background, too, codes late pages of any dataset again.
            if let (Ok(_), Some((of, _))) = (&done, pool.late().first().copied()) {
                done = pool.recompress_late(of, 0, CALL_PAGES).and(done);
            }
            pool.set_compression(now);
            match done {
                Ok(pages) => recoded = pages,
                // No chunk is free to clean into, which is no failure of the pool.
                Err(Error::NoSpace(_)) if pool.status().failure.is_none() => {}
                Err(error) => return Err(error),
            }
            Ok(())
        };
        self.call(recode, false)?;
        self.stats.recoded += recoded;
        Ok(())
    }

    /// Returns the number of errors that the pool has counted, over all openings.
    fn count_errors(&mut self) -> u64 {
        let counted = self.pool.as_ref().map_or(self.errors.1, |pool| {
            pool.faults().devices.iter().map(|of| of.reads + of.writes + of.checksums).sum()
        });
        self.errors.1 = counted;
        counted
    }

    /// Drops the pool, as if its process had ended. The errors that it has met may be among those that the next
    /// opening finds stored.
    fn close(&mut self) {
        self.count_errors();
        self.pool = None;
    }

    /// Verifies the count of errors after an opening: all stored ones are in it, and none that were never met, except
    /// those that the opening itself met.
    fn verify_errors(&mut self) -> Outcome {
        let (stored, met) = self.errors;
        let counted = self.count_errors();
        self.errors.0 = self.errors.0.min(counted);
        let own = self.devices.iter().any(|device| device.stats().counts().errors > 0);
        let may_differ = self.flips > 0 || self.gave_up;
        if !may_differ && (counted < stored || (counted > met && !own)) {
            return Err(format!(
                "{counted} errors are counted after opening; {stored} were stored, {met} met"
            ));
        }
        Ok(())
    }

    fn export(&mut self) -> Outcome {
        while !self.begun.is_empty() {
            self.end(false)?;
        }
        let pool = Arc::clone(self.pool()?);
        let counted = self.count_errors();
        if let Err(error) = pool.export() {
            drop(pool);
            return self.failed(&error);
        }
        self.errors.0 = counted;
        let (used, paged) = (pool.status().used_bytes, options(self.history, 0).table_bytes.is_some());
        drop(pool);
        self.close();
        self.committed = self.log.len();
        self.durable = self.log.len();
        self.forget();
        self.reopen()?;
        let found = self.pool.as_ref().map(|pool| pool.status().used_bytes);
        // Segments whose page of the table was away are accounted with the directories that they had before, which may
        // be larger: in an empty pool they are all that is used.
        let same =
            |found| found == used || (paged && found < used && used - found < used / 8 + BLOCK_BYTES as u64);
        if self.terms().may_fail || found.is_none_or(same) {
            return Ok(());
        }
        Err(format!("{used} bytes were accounted as used before export, {found:?} are after"))
    }

    fn check(&mut self) -> Outcome {
        let compared = compare(self.pool()?, &self.now, self.terms());
        if compared.is_err() || !self.settled || self.terms().may_fail || self.flips > 0 {
            return self.unless_off(compared);
        }
        let checked = check(self.pool()?, &self.now);
        self.unless_off(checked)
    }

    fn finish(&mut self) -> Outcome {
        self.step(&Step::Check)?;
        self.step(&Step::Crash { seed: self.history.seed, again: Vec::new() })?;
        if self.pool.is_some() {
            self.step(&Step::Export)?;
        }
        Ok(())
    }
}
