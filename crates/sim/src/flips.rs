//! Flips one bit anywhere in the image of a pool. It must be harmless, or an error must tell of it: it never shows as
//! other data.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pagefold_engine::dataset::Change;
use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create_on};
use pagefold_engine::record::Compression;
use pagefold_engine::segment::PageIds;

use crate::history::{History, Step};
use crate::model::COUNTER;
use crate::random::Random;
use crate::run::{LEARN, changes, contents, panic_text, run_catalogue_op};
use crate::verify::{Calls, Terms, check, compare, is_log_damage};
use crate::world::World;

/// A pool at rest, and its content.
pub struct PoolImage {
    devices: Vec<Arc<SimDevice>>,
    world: World,
    /// Device and position of the first byte of each block that was written.
    blocks: Vec<(usize, u64)>,
}

/// A bit of an image.
#[derive(Clone, Copy, Debug)]
pub struct Flip {
    /// Number of the device.
    pub device: usize,
    /// Byte on it.
    pub offset: u64,
    /// Bit of the byte.
    pub bit: u8,
}

/// Outcomes of a flipped bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Everything is right.
    Harmless,
    /// Check tells of the damage, a scrub repairs it from a second copy, and then everything is right.
    Corrected,
    /// The pool opens, everything that can be read is right, and check tells of the damage.
    Reported,
    /// The pool does not open, because its log is damaged, and says so.
    Refused,
}

/// Numbers of bits by their fate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fates {
    /// [`Fate::Harmless`]
    pub harmless: u64,
    /// [`Fate::Corrected`]
    pub corrected: u64,
    /// [`Fate::Reported`]
    pub reported: u64,
    /// [`Fate::Refused`]
    pub refused: u64,
}

impl Fates {
    /// Counts one bit.
    pub const fn count(&mut self, fate: Fate) {
        match fate {
            Fate::Harmless => self.harmless += 1,
            Fate::Corrected => self.corrected += 1,
            Fate::Reported => self.reported += 1,
            Fate::Refused => self.refused += 1,
        }
    }

    /// Adds the counts of another.
    pub const fn add(&mut self, other: &Self) {
        self.harmless += other.harmless;
        self.corrected += other.corrected;
        self.reported += other.reported;
        self.refused += other.refused;
    }
}

fn handles(devices: &[Arc<SimDevice>]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect()
}

fn options(salt: u64) -> OpenOptions {
    OpenOptions {
        cache_bytes: 8 << 20,
        log_bytes: Some(16 << 20),
        salt,
        reads_at_once: 1,
        table_page_ids: PageIds::new(4),
        table_bytes: salt.is_multiple_of(2).then_some(1000),
        ..OpenOptions::default()
    }
}

/// Returns the result of an engine call, with an error as text that begins with `what`.
fn told<T>(what: &str, result: pagefold_engine::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

/// Runs a scrub from its beginning to its end.
fn scrub(pool: &Pool) -> pagefold_engine::Result<()> {
    pool.scrub_start(0, 0)?;
    while pool.scrub_step(0)?.is_some() {}
    Ok(())
}

impl PoolImage {
    /// Makes the pool that the changes of a history lead to. A third of the pools is exported, the others crash after a
    /// rest.
    ///
    /// # Errors
    /// Tells which call fails, although nothing is damaged.
    pub fn new(seed: u64) -> Result<Self, String> {
        let history = History::new(seed);
        let device = |(size, at): (&u64, u64)| Arc::new(SimDevice::new(*size, seed.wrapping_add(at)));
        let devices: Vec<_> = history.devices.iter().zip(0..).map(device).collect();
        let create = CreateOptions { force: false, created: 0, guid: Guid(*b"simulated pool 1") };
        told("create", create_on("sim", &handles(&devices), &create))?;
        let pool = told("open", Pool::open_on(handles(&devices), &options(0)))?;
        pool.set_compression(if history.modelled { Compression::Page(1) } else { Compression::default() });
        let mut world = World::default();
        for (step, id) in history.steps.iter().zip(1..) {
            match step {
                Step::Apply(_) | Step::ApplyTo(..) => {
                    let (path, acts) = match step {
                        Step::ApplyTo(path, acts) => (path.as_str(), acts),
                        Step::Apply(acts) => ("", acts),
                        _ => continue,
                    };
                    let Ok(dataset) = pool.open_dataset(path) else { continue };
                    let data = contents(acts);
                    let mut all = changes(acts, &data);
                    all.push(Change::Put(COUNTER, u64::to_le_bytes(id).to_vec()));
                    if dataset.apply(&all).is_ok() {
                        world.apply(path, id, acts);
                    }
                }
                Step::Catalogue(op) => {
                    if let Some(after) = world.after(op) {
                        told("an operation on the catalogue", run_catalogue_op(&pool, op))?;
                        world = after;
                    }
                }
                Step::Sync => told("sync", pool.sync())?,
                Step::Checkpoint => told("checkpoint", pool.checkpoint(false))?,
                Step::Clean => told("clean", pool.clean()).map(drop)?,
                Step::Learn => told("learn", pool.learn(&LEARN)).map(drop)?,
                _ => {}
            }
        }
        told("sync", pool.sync())?;
        if seed.is_multiple_of(3) {
            told("export", pool.export())?;
        } else {
            told("rest", pool.attest())?;
        }
        drop(pool);
        let devices: Vec<_> = devices.iter().map(|device| Arc::new(device.crash(&mut |_| 0))).collect();
        let blocks = devices
            .iter()
            .enumerate()
            .flat_map(|(at, device)| device.written_blocks().into_iter().map(move |block| (at, block)));
        let blocks = blocks.collect();
        Ok(Self { devices, world, blocks })
    }

    /// Returns a bit of a block that was written.
    pub fn choose(&self, random: &mut Random) -> Flip {
        let at = random.below(self.blocks.len() as u64) as usize;
        let (device, block) = self.blocks.get(at).copied().unwrap_or_default();
        Flip { device, offset: block + random.below(4096), bit: random.below(8) as u8 }
    }

    /// Flips a bit of a copy of the image, and compares everything.
    ///
    /// # Errors
    /// Tells what is wrong without a report by the pool, or the message of a panic.
    pub fn try_flip(&self, flip: Flip) -> Result<Fate, String> {
        catch_unwind(AssertUnwindSafe(|| self.look(Some(flip))))
            .unwrap_or_else(|panic| Err(panic_text(&*panic)))
    }

    /// Compares the image as it is.
    ///
    /// # Errors
    /// Tells what is wrong with it.
    pub fn try_whole(&self) -> Result<Fate, String> {
        self.look(None)
    }

    fn look(&self, flip: Option<Flip>) -> Result<Fate, String> {
        let devices: Vec<_> = self.devices.iter().map(|device| Arc::new(device.crash(&mut |_| 0))).collect();
        if let Some(Flip { device, offset, bit }) = flip
            && let Some(device) = devices.get(device)
        {
            device.flip_bit(offset, bit);
        }
        let pool = match Pool::open_on(handles(&devices), &options(1)) {
            Ok(pool) => pool,
            Err(error) if is_log_damage(&error) => return Ok(Fate::Refused),
            Err(error) => return Err(format!("open: {error}")),
        };
        let report = pool.check_open(&mut |_| {});
        let damaged = report.errors > 0 || pool.replayed().damaged > 0;
        compare(&pool, &self.world, Terms { settled: true, may_fail: damaged, calls: Calls::Both })?;
        if damaged {
            told("scrub", scrub(&pool))?;
            if pool.replayed().damaged > 0 || pool.check_open(&mut |_| {}).errors > 0 {
                return Ok(Fate::Reported);
            }
            compare(&pool, &self.world, Terms { settled: true, may_fail: false, calls: Calls::Both })?;
        }
        check(&pool, &self.world)?;
        Ok(if damaged { Fate::Corrected } else { Fate::Harmless })
    }
}
