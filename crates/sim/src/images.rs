//! Tries power cuts in the middle of steps, on copies of the devices that are taken while the engine is at work on
//! them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pagefold_engine::device::SimDevice;
use pagefold_engine::pool::{OpenOptions, Pool};
use parking_lot::Mutex;

use crate::pools::{Half, of_the_pool};
use crate::random::Random;
use crate::verify::{Calls, Terms, check, compare, signature};
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
        let found = signature(&pool).map_err(|error| format!("what there is cannot be read: {error}"))?;
        let Some(at) = states.signatures.iter().rposition(|signature| *signature == found) else {
            let ends = [states.signatures.first(), states.signatures.last()];
            return Err(format!("{found:?} is there, which is nothing from {ends:?} that may be"));
        };
        if at < least {
            return Err(format!(
                "{at} changes of {} survive, and {least} were acknowledged",
                states.signatures.len() - 1
            ));
        }
        for partial in pool.partials() {
            let given_up = pool.abort_receive(&partial.path);
            given_up.map_err(|error| format!("what is left of a stream cannot be given up: {error}"))?;
        }
        let world = &(states.world)(at);
        let calls = if random.percent(50) { Calls::Try } else { Calls::Read };
        compare(&pool, world, Terms { settled: true, may_fail: false, calls })?;
        check(&pool, world)?;
        if let Some(half) = states.half {
            half.judge(&pool, &devices, options)?;
        }
        Ok(cuts)
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
