//! Power cuts in the middle of steps: copies of the devices, taken while the engine is at work on them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{OpenOptions, Pool};
use parking_lot::Mutex;

use crate::random::Random;
use crate::verify::{Calls, Terms, check, compare, signature};
use crate::world::{Signature, World};

/// In a hundred images, so many whose power goes again while they recover.
const AGAIN_PERCENT: u64 = 15;
/// Of these the power goes so often at most.
const CUTS_MAX: u64 = 3;
/// Writes and flushes that a recovery does before that, at most.
const CALLS_MAX: u64 = 24;

/// What a power cut at some instant left of all devices.
pub(crate) struct Image {
    devices: Vec<SimDevice>,
    /// So many events were acknowledged as durable by then.
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
    /// Takes up to `most` images of these devices until they are taken out, each instant as likely as another.
    pub(crate) fn new(devices: &[Arc<SimDevice>], most: usize, seed: u64) -> Arc<Self> {
        let film = Film { random: Random::new(seed), instants: 0, images: Vec::new() };
        let camera =
            Self { devices: devices.to_vec(), most, durable: AtomicUsize::new(0), film: Mutex::new(film) };
        let camera = Arc::new(camera);
        for device in devices {
            let camera = Arc::downgrade(&camera);
            device.watch(move || {
                if let Some(camera) = camera.upgrade() {
                    camera.instant();
                }
            });
        }
        camera
    }

    /// From now on so many events are known to be durable.
    pub(crate) fn acknowledge(&self, events: usize) {
        self.durable.store(events, Ordering::Relaxed);
    }

    /// The images since this was last called.
    pub(crate) fn develop(&self) -> Vec<Image> {
        let mut film = self.film.lock();
        film.instants = 0;
        std::mem::take(&mut film.images)
    }

    /// Each of the instants is as likely to be kept (reservoir sampling, Vitter's algorithm R).
    fn instant(&self) {
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

/// A device after a power cut: nothing, all, or anything of what was not flushed has survived.
pub(crate) fn crashed(device: &SimDevice, random: &mut Random) -> SimDevice {
    match random.below(8) {
        0 => device.crash(&mut |_| 0),
        1 => device.crash(&mut |n| n - 1),
        _ => device.crash_seeded(random.bits()),
    }
}

/// States that may be found, oldest first: what tells them, and what they hold.
pub(crate) type States = Vec<(Signature, World)>;

impl Image {
    /// Opens the pool and compares it with the newest of the states that it may be, of which the first `least` must have survived.
    /// Returns how often the power went.
    pub(crate) fn judge(
        self,
        states: &States,
        least: usize,
        options: &OpenOptions,
        random: &mut Random,
    ) -> Result<u64, String> {
        let (pool, cuts) = self.recover(options, random)?;
        let found = signature(&pool).map_err(|error| format!("what there is cannot be read: {error}"))?;
        let Some(at) = states.iter().rposition(|(signature, _)| *signature == found) else {
            let ends = [states.first(), states.last()].map(|state| state.map(|(signature, _)| signature));
            return Err(format!("{found:?} is there, which is nothing from {ends:?} that may be"));
        };
        if at < least {
            return Err(format!(
                "{at} changes of {} survive, and {least} were acknowledged",
                states.len() - 1
            ));
        }
        for partial in pool.partials() {
            let given_up = pool.abort_receive(&partial.path);
            given_up.map_err(|error| format!("what is left of a stream cannot be given up: {error}"))?;
        }
        let world = &states[at].1;
        let calls = if random.percent(50) { Calls::Try } else { Calls::Read };
        compare(&pool, world, Terms { settled: true, may_fail: false, calls })?;
        check(&pool, world)?;
        Ok(cuts)
    }

    /// The pool, recovered; in some cases the power went on the way.
    fn recover(self, options: &OpenOptions, random: &mut Random) -> Result<(Arc<Pool>, u64), String> {
        let mut devices: Vec<Arc<SimDevice>> = self.devices.into_iter().map(Arc::new).collect();
        let wanted = if random.percent(AGAIN_PERCENT) { random.within(1, CUTS_MAX) } else { 0 };
        let mut cuts = 1;
        loop {
            if cuts <= wanted {
                let at = random.below(devices.len() as u64) as usize;
                devices[at].cut_after(random.below(CALLS_MAX));
            }
            let handles = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
            let opened = Pool::open_on(handles, options);
            let is_off = devices.iter().any(|device| device.is_off());
            match opened {
                Ok(pool) if cuts > wanted => return Ok((pool, cuts)),
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
