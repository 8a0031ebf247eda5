//! Tries power cuts in the middle of steps, on copies of the devices that are taken while the engine is at work on
//! them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pagefold_engine::Error;
use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{DeviceState, OpenOptions, Pool};
use parking_lot::Mutex;

use crate::pools::{Half, of_the_pool};
use crate::random::Random;
use crate::verify::{Calls, Terms, check, compare, is_log_damage, signature};
use crate::world::{Signature, World};

/// Number of images in a hundred whose power goes again while they recover.
const AGAIN_PERCENT: u64 = 15;
/// Largest number of power cuts while such an image recovers.
const CUTS_MAX: u64 = 3;
/// A recovery does fewer writes and flushes than this before such a power cut.
const CALLS_MAX: u64 = 24;

/// All devices as a power cut at some instant left them.
pub(crate) struct Image {
    devices: Vec<SimDevice>,
    /// Number of events that were acknowledged as durable by then.
    pub(crate) durable: usize,
}

/// Takes images of devices at random instants between and within their calls.
pub(crate) struct Camera {
    devices: Vec<Arc<SimDevice>>,
    most: usize,
    durable: AtomicUsize,
    film: Mutex<Film>,
}

struct Film {
    random: Random,
    /// Instants since images were last taken out.
    instants: u64,
    images: Vec<Image>,
}

impl Camera {
    /// Takes images of these devices, when it is told of an instant. Until [`Self::develop`] is called, it keeps at
    /// most `most`, and each instant is as likely as any other.
    pub(crate) fn new(devices: &[Arc<SimDevice>], most: usize, seed: u64) -> Arc<Self> {
        let film = Film { random: Random::new(seed), instants: 0, images: Vec::new() };
        let durable = AtomicUsize::new(0);
        Arc::new(Self { devices: devices.to_vec(), most, durable, film: Mutex::new(film) })
    }

    /// Notes that `events` events are known to be durable from now on.
    pub(crate) fn acknowledge(&self, events: usize) {
        self.durable.store(events, Ordering::Relaxed);
    }

    /// Returns the images that were taken since this was last called.
    pub(crate) fn develop(&self) -> Vec<Image> {
        let mut film = self.film.lock();
        film.instants = 0;
        std::mem::take(&mut film.images)
    }

    /// Takes an image, or does not, so that each instant is as likely to be kept (reservoir sampling, Vitter's
    /// algorithm R).
    pub(crate) fn instant(&self) {
        let mut film = self.film.lock();
        let at = match film.images.len() {
            count if count < self.most => count,
            _ => {
                let instants = film.instants + 1;
                film.random.below(instants) as usize
            }
        };
        film.instants += 1;
        if at >= self.most || self.devices.iter().any(|device| device.is_off()) {
            return;
        }
        let devices = self.devices.iter().map(|device| crashed(device, &mut film.random)).collect();
        let image = Image { devices, durable: self.durable.load(Ordering::Relaxed) };
        match film.images.get_mut(at) {
            Some(kept) => *kept = image,
            None => film.images.push(image),
        }
    }
}

/// Returns a device after a power cut: of the writes that were not flushed, none, all or any part has survived.
pub(crate) fn crashed(device: &SimDevice, random: &mut Random) -> SimDevice {
    match random.below(8) {
        0 => device.crash(&mut |_| 0),
        1 => device.crash(&mut |n| n - 1),
        _ => device.crash_seeded(random.bits()),
    }
}

/// States that may be found.
pub(crate) struct States<'a> {
    /// Their signatures, oldest first.
    pub(crate) signatures: Vec<Signature>,
    /// Returns the content of the state at a position. Few of them are found, and copies of worlds take long to make.
    pub(crate) world: Box<dyn Fn(usize) -> World + 'a>,
    /// The half that may have become a pool of its own.
    pub(crate) half: Option<&'a Half>,
}

impl States<'_> {
    /// Returns the content of the newest state that has the pool's signature; at least `least` changes must have survived.
    /// Gives up what is left of streams.
    fn found(&self, pool: &Pool, least: usize) -> Result<World, String> {
        let found = signature(pool).map_err(|error| format!("what there is cannot be read: {error}"))?;
        let Some(at) = self.signatures.iter().rposition(|signature| *signature == found) else {
            let ends = [self.signatures.first(), self.signatures.last()];
            return Err(format!("{found:?} is there, which is nothing from {ends:?} that may be"));
        };
        if at < least {
            return Err(format!(
                "{at} changes of {} survive, and {least} were acknowledged",
                self.signatures.len() - 1
            ));
        }
        for partial in pool.partials() {
            let given_up = pool.abort_receive(&partial.path);
            given_up.map_err(|error| format!("what is left of a stream cannot be given up: {error}"))?;
        }
        Ok((self.world)(at))
    }
}

/// Returns the terms of a comparison after which nothing may be missing.
fn terms(random: &mut Random) -> Terms {
    let calls = if random.percent(50) { Calls::Try } else { Calls::Read };
    Terms { settled: true, may_fail: false, calls }
}

/// Returns the result of an engine call, with an error as text that begins with `what`.
fn told<T>(what: &str, result: pagefold_engine::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

/// Runs a whole scrub. Returns the number of things that it found wrong.
fn scrub(pool: &Pool) -> pagefold_engine::Result<u64> {
    // One may be under way since before.
    while pool.scrub_step(0)?.is_some() {}
    pool.scrub_start(0, 0)?;
    while pool.scrub_step(0)?.is_some() {}
    let status = pool.status().scrub;
    Ok(status.damaged + status.unreadable)
}

/// Runs a part of a scrub.
fn scrub_some(pool: &Pool, random: &mut Random) -> pagefold_engine::Result<()> {
    while pool.scrub_step(0)?.is_some() {}
    pool.scrub_start(0, 0)?;
    for _ in 0..random.skewed(40) {
        if pool.scrub_step(0)?.is_none() {
            break;
        }
    }
    Ok(())
}

/// Has the background move some of what is there, and count what it does.
fn work(pool: &Pool, random: &mut Random) -> pagefold_engine::Result<()> {
    for _ in 0..random.below(4) {
        match random.below(3) {
            0 => pool.checkpoint(false)?,
            1 => pool.clean().map(drop)?,
            _ => pool.maintain().map(drop)?,
        }
    }
    Ok(())
}

/// A pool that was opened, its devices, and the number of power cuts.
type Recovered = (Arc<Pool>, Vec<Arc<SimDevice>>, u64);

impl Image {
    /// Returns an image of these devices alone, as a power cut left them.
    pub(crate) const fn of(devices: Vec<SimDevice>, durable: usize) -> Self {
        Self { devices, durable }
    }

    /// Opens the pool and compares it with the newest of `states` that has its signature; at least `least` changes must
    /// have survived. Returns the number of power cuts.
    pub(crate) fn judge(
        self,
        states: &States<'_>,
        least: usize,
        options: &OpenOptions,
        random: &mut Random,
    ) -> Result<u64, String> {
        let (pool, devices, cuts) = self.recover(options, random)?;
        let world = &states.found(&pool, least)?;
        compare(&pool, world, terms(random))?;
        check(&pool, world)?;
        if let Some(half) = states.half {
            half.judge(&pool, &devices, options)?;
        }
        Ok(cuts)
    }

    /// Opens the pool on devices of which those at the paths `damaged` are damaged, and compares it with the model. A scrub
    /// mends what is wrong; then each of them has everything without the other devices of its mirror. Returns the number of
    /// power cuts.
    pub(crate) fn judge_damaged(
        self,
        states: &States<'_>,
        least: usize,
        options: &OpenOptions,
        (damaged, random): (&BTreeSet<PathBuf>, &mut Random),
    ) -> Result<u64, String> {
        let mut devices: Vec<Arc<SimDevice>> = self.devices.into_iter().map(Arc::new).collect();
        let mut cuts = 1;
        let mut pool = told("open", Pool::open_on(of_the_pool(devices.iter()), options))?;
        let world = &states.found(&pool, least)?;
        if random.percent(50) {
            compare(&pool, world, terms(random))?;
        }
        told("background", work(&pool, random))?;
        if random.percent(30) {
            told("scrub", scrub_some(&pool, random))?;
            drop(pool);
            devices = devices.iter().map(|device| Arc::new(crashed(device, random))).collect();
            pool = told("second open", Pool::open_on(of_the_pool(devices.iter()), options))?;
            cuts += 1;
        }
        compare(&pool, world, terms(random))?;
        told("scrub", scrub(&pool))?;
        told("checkpoint", pool.checkpoint(false))?;
        let wrong = told("second scrub", scrub(&pool))?;
        if wrong > 0 {
            return Err(format!("after a scrub {wrong} things are wrong"));
        }
        told("checkpoint", pool.checkpoint(false))?;
        check(&pool, world)?;
        let mut chosen: Vec<PathBuf> = Vec::new();
        for mirror in pool.device_status().chunk_by(|a, b| a.group == b.group) {
            let whole = || mirror.iter().filter(|device| device.state == DeviceState::Online);
            let mended = whole().find(|device| damaged.contains(&device.path));
            chosen.extend(mended.or_else(|| whole().next()).map(|device| device.path.clone()));
        }
        drop(pool);
        let alone = devices.iter().filter(|device| chosen.iter().any(|path| path == device.path()));
        let alone: Vec<Arc<SimDevice>> = alone.map(|device| Arc::new(crashed(device, random))).collect();
        // A scrub leaves alone what nobody needs. An opening looks for more of the log there, and without a mirror it refuses
        // what cannot be read.
        alone.iter().for_each(|device| device.clear_unreadable());
        let pool = told("open without the others", Pool::open_on(of_the_pool(alone.iter()), options))?;
        let found = &states.found(&pool, least)?;
        compare(&pool, found, terms(random)).map_err(|what| format!("without the others: {what}"))?;
        check(&pool, found).map_err(|what| format!("without the others: {what}"))?;
        Ok(cuts + 1)
    }

    /// Opens the pool on devices of which the log device is damaged. It has at least `least` changes, or is refused by an error
    /// that names the damage; then it opens if the loss is accepted. With `may_fail` reads of what was damaged may
    /// fail, and with `may_be_older` the pool may be as it was before all states. Returns true if it was refused.
    pub(crate) fn judge_log_damage(
        self,
        states: &States<'_>,
        least: usize,
        options: &OpenOptions,
        ((may_fail, may_be_older), random): ((bool, bool), &mut Random),
    ) -> Result<bool, String> {
        let devices: Vec<Arc<SimDevice>> = self.devices.into_iter().map(Arc::new).collect();
        let pool = match Pool::open_on(of_the_pool(devices.iter()), options) {
            Ok(pool) => pool,
            Err(error) if is_log_damage(&error) || matches!(error, Error::Io { .. }) => {
                // It may go back to what was there long ago.
                let accepting = OpenOptions { accept_loss: true, ..options.clone() };
                let opened = Pool::open_on(of_the_pool(devices.iter()), &accepting);
                told("open with the loss accepted", opened)?.check_open(&mut |_| {});
                return Ok(true);
            }
            Err(error) => return Err(format!("open: {error}")),
        };
        let is_known = |found: &Signature| states.signatures.contains(found);
        match signature(&pool) {
            Err(_) if may_fail => return Ok(false),
            Ok(found) if may_be_older && !is_known(&found) => return Ok(false),
            _ => {}
        }
        let world = &states.found(&pool, least)?;
        compare(&pool, world, Terms { may_fail, ..terms(random) })?;
        if !may_fail {
            check(&pool, world)?;
        }
        Ok(false)
    }

    /// Opens the pool, in some cases with power cuts on the way. Returns it, its devices, and the number of power cuts.
    fn recover(self, options: &OpenOptions, random: &mut Random) -> Result<Recovered, String> {
        let mut devices: Vec<Arc<SimDevice>> = self.devices.into_iter().map(Arc::new).collect();
        let wanted = if random.percent(AGAIN_PERCENT) { random.within(1, CUTS_MAX) } else { 0 };
        let mut cuts = 1;
        loop {
            if cuts <= wanted {
                let at = random.below(devices.len() as u64) as usize;
                devices[at].cut_after(random.below(CALLS_MAX));
            }
            let opened = Pool::open_on(of_the_pool(devices.iter()), options);
            let is_off = devices.iter().any(|device| device.is_off());
            match opened {
                Ok(pool) if cuts > wanted => return Ok((pool, devices, cuts)),
                Err(error) if !is_off => return Err(format!("open: {error}")),
                // The power has gone on the way, or goes now.
                opened => {
                    drop(opened);
                    cuts += 1;
                    devices = devices.iter().map(|device| Arc::new(crashed(device, random))).collect();
                }
            }
        }
    }
}
