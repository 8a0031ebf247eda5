//! Runs a history against a simulated pool and compares the pool with the model after each step.

mod acts;
mod beside;
mod catalogue;
mod commits;
mod damage;
mod mirrors;
mod power_cuts;
mod recovery;
mod rest;
mod setup;
mod stats;
mod steps;
mod upkeep;
mod verbs;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use beside::Beside;
use pagefold_engine::dataset::Journal;
use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::limits::DEVICE_BYTES_MIN;
use pagefold_engine::pool::{CreateOptions, Flight, LearnOptions, OpenOptions, Pool, create_with_log_on};
use setup::{journal, open, options};
use verbs::Verbs;

use crate::fuse::Fuse;
use crate::history::{Act, Bounds, CatalogueOp, History, Step};
use crate::images::Camera;
use crate::pools::{POOL, of_the_pool};
use crate::random::Random;
use crate::verify::{Calls, Terms, check, compare};
use crate::world::World;

pub(crate) use acts::{changes, contents, run_catalogue_op};
pub use stats::Stats;

/// A failure, and the step at which it happened.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Position in the history.
    pub step: usize,
    /// The property that did not hold.
    pub what: String,
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
    /// All devices that there ever were. Those of a mirror are next to each other, unless the history has verbs.
    devices: Vec<Arc<SimDevice>>,
    /// Devices that are being added to the pool.
    joining: Vec<Arc<SimDevice>>,
    /// Of each device, true if the pool does not get it, and true if it was whole when the pool was last closed.
    away: Vec<bool>,
    whole: Vec<bool>,
    /// Copies of devices, by their places.
    older: BTreeMap<usize, SimDevice>,
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
    /// True while a power cut is followed by the first change that it took (`Step::Outage`, `Step::Tear`).
    repeats: bool,
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
    /// Paths of the devices that meet them.
    struck: BTreeSet<PathBuf>,
    /// True if no fault was an excuse when the pool was last closed.
    was_sound: bool,
    /// The journal survives the end of the process, but not a power cut.
    journal: Option<Arc<Journal>>,
    /// True if the journal holds the changes that the last process accepted.
    kept: bool,
    /// Least number of errors that the last checkpoint has stored, and most that the next opening may find: what the
    /// pool had counted when it was opened or closed last.
    errors: (u64, u64),
    random: Random,
    /// Takes images of the devices in the middle of steps.
    camera: Option<Arc<Camera>>,
    /// Cuts the power of all devices at once.
    fuse: Arc<Fuse>,
    /// Steps that are taken in the middle of a verb.
    beside: Arc<Beside>,
    /// Copies of devices as they were when they were damaged last, by their paths.
    past: BTreeMap<PathBuf, SimDevice>,
    /// Knowledge of verbs of mirrors.
    verbs: Verbs,
    /// Source of chance for images.
    shutter: Random,
    /// Decides on removals of groups alone, so that histories without one stay as they are.
    removals: Random,
    /// Decides on balances alone.
    balances: Random,
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

/// Returns a long text that does not compress below three quarters.
fn text(seed: u64) -> String {
    const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-";
    let mut random = Random::new(seed);
    (0..8 << 10).map(|_| char::from(LETTERS[random.below(64) as usize])).collect()
}

impl<'a> Sim<'a> {
    fn new(history: &'a History) -> Outcome<Self> {
        let sizes = history.devices.iter().flat_map(|size| std::iter::repeat_n(size, history.copies));
        let log_device = history.log_device.then_some(&DEVICE_BYTES_MIN);
        let devices: Vec<Arc<SimDevice>> = (0_u64..)
            .zip(sizes.chain(log_device))
            .map(|(at, size)| Arc::new(SimDevice::new(*size, history.seed.wrapping_add(at))))
            .collect();
        let mut sim = Self {
            history,
            joining: Vec::new(),
            away: vec![false; devices.len()],
            whole: vec![true; devices.len()],
            older: BTreeMap::new(),
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
            repeats: false,
            attested: 0,
            durable_then: (0, 0),
            receiving: None,
            overlapping: false,
            gave_up: false,
            faulted: false,
            struck: BTreeSet::new(),
            was_sound: false,
            journal: journal(history)?,
            kept: false,
            errors: (0, 0),
            random: Random::new(history.seed ^ 0x5EED),
            camera: None,
            fuse: Arc::default(),
            beside: Arc::default(),
            past: BTreeMap::new(),
            verbs: Verbs::default(),
            shutter: Random::new(history.seed ^ 0x5_4077E4),
            removals: Random::new(history.seed ^ 0x4E_0007A1),
            balances: Random::new(history.seed ^ 0xBA1A_9CE5),
            stats: Stats::default(),
        };
        let create = CreateOptions { force: false, created: 0, guid: POOL };
        let mut all = sim.handles();
        let log = all.split_off(all.len() - usize::from(history.log_device));
        let groups: Vec<Vec<_>> = all.chunks(history.copies).map(<[_]>::to_vec).collect();
        create_with_log_on("sim", &groups, &log, &create).map_err(|error| format!("create: {error}"))?;
        let options = OpenOptions { journal: sim.journal.clone(), ..options(history, 0) };
        let pool = open(history, sim.handles(), &options).map_err(|e| format!("first open: {e}"))?;
        for (name, bytes) in history.bounds.iter().flat_map(Bounds::properties) {
            let set = pool.set_property(name, Some(&bytes.to_string()));
            set.map_err(|error| format!("{name} of {bytes} bytes: {error}"))?;
        }
        for at in 0..history.properties {
            let set = pool.set_property(&format!("user:{at}"), Some(&text(history.seed ^ at)));
            set.map_err(|error| format!("property {at}: {error}"))?;
        }
        sim.pool = Some(pool);
        sim.await_pauses();
        sim.watch();
        Ok(sim)
    }

    fn handles(&self) -> Vec<Arc<dyn Device>> {
        let here = self.devices.iter().zip(&self.away).filter(|(_, away)| !**away).map(|(device, _)| device);
        match self.history.verbs {
            true => of_the_pool(here),
            // Nothing may be read that meets a fault: faults are counted by calls.
            false => here.map(|device| Arc::clone(device) as Arc<dyn Device>).collect(),
        }
    }

    fn pool(&self) -> Outcome<&Arc<Pool>> {
        self.pool.as_ref().ok_or_else(|| "the pool is closed".into())
    }

    /// Returns true if the power of a device is off that the pool cannot do without.
    fn is_off(&self) -> bool {
        match &self.pool {
            Some(pool) if self.history.copies > 1 => {
                self.is_a_mirror_off(pool) || self.joining.iter().any(|device| device.is_off())
            }
            _ => self.devices.iter().any(|device| device.is_off()),
        }
    }

    fn terms(&self) -> Terms {
        Terms { settled: self.settled, may_fail: self.is_excused() || self.is_damaged(), calls: Calls::Both }
    }

    /// Returns true if bits have flipped that may have cost something.
    fn is_damaged(&self) -> bool {
        self.flips > 0 && !self.harmless
    }

    /// Returns the verdict. A failure does not count if the power is off: then the power comes back instead.
    fn unless_off(&mut self, verdict: Outcome) -> Outcome {
        if verdict.is_err() && self.is_off() { self.power_cycle(&[]) } else { verdict }
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
            self.gather();
            self.step(&Step::Export)?;
        }
        if self.pool.is_some() { self.settle() } else { Ok(()) }
    }
}
