//! Generates random histories: calls of a pool, and the power cuts, faults and flipped bits that it meets.

mod aged;
mod changes;
mod damage;
mod step;
mod verbs;
mod writer;

use pagefold_engine::limits::{CHUNK_BYTES, DEVICE_BYTES_MIN};

use crate::random::Random;

pub use step::{Act, CatalogueOp, DATASETS, Fill, OBJECTS, Step, record_size};

/// Kinds of trouble that histories look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    /// Power cuts.
    Crash,
    /// Power cuts of a pool that is nearly full.
    Full,
    /// Power cuts of a pool of which most is overwritten again and again.
    Aged,
    /// Calls that fail.
    Faults,
    /// Bits that flip.
    Flips,
}

/// Bounds of the pool's own dataset, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Quota, which snapshots and all datasets count towards.
    pub quota: u64,
    /// Quota of the dataset itself.
    pub refquota: u64,
    /// Quota of the dataset itself, before compression.
    pub logicalquota: u64,
    /// Part of the quota that is kept for the dataset.
    pub reservation: u64,
}

impl Bounds {
    fn new(random: &mut Random) -> Self {
        let quota = MIB << random.below(6);
        let refquota = quota >> random.below(3);
        Self {
            quota,
            refquota,
            logicalquota: refquota << random.below(4),
            reservation: quota >> random.below(4),
        }
    }

    /// Returns the names of the properties with their values.
    pub fn properties(&self) -> [(&'static str, u64); 4] {
        [
            ("quota", self.quota),
            ("refquota", self.refquota),
            ("logicalquota", self.logicalquota),
            ("reservation", self.reservation),
        ]
    }
}

/// A pool and what happens to it.
#[derive(Clone, Debug)]
pub struct History {
    /// Kind of trouble that it looks for.
    pub theme: Theme,
    /// Groups' sizes in bytes.
    pub devices: Vec<u64>,
    /// Number of devices of each group, which are mirrors of each other if there are several.
    pub copies: usize,
    /// True if devices are attached, replaced and detached, pools are split, and there are spares.
    pub verbs: bool,
    /// True if devices join and leave while checkpoints are under way, and changes come in the middle of verbs.
    pub beside: bool,
    /// True if the pool has a log device, behind all others.
    pub log_device: bool,
    /// Cache in bytes.
    pub cache_bytes: u64,
    /// True if pages are coded by models.
    pub modelled: bool,
    /// True if there are several datasets, and snapshots.
    pub forked: bool,
    /// True if accepted changes are entered into a journal, which survives the process.
    pub journalled: bool,
    /// Quotas and a reservation of the pool's own dataset, below which all others are.
    pub bounds: Option<Bounds>,
    /// True if the pool has so many pages that they take long to compare.
    pub dense: bool,
    /// Number of long properties of the pool's own dataset, which every checkpoint stores.
    pub properties: u64,
    /// Seed of the devices.
    pub seed: u64,
    /// Largest number of power cuts that are tried in the middle of each step, beside those that are steps. Where pools
    /// are full or aged, and chunks are not small, or pages are many, it is an eighth of this.
    pub images: usize,
    /// Its steps.
    pub steps: Vec<Step>,
}

/// Sequence that says which histories of mirrors have verbs. With this one the seeds by which planted bugs of mirrors
/// are found have none.
const VERBS: u64 = 0x7_E4C8;

/// The same for log devices: pools by which other planted bugs are found have none.
const LOG_DEVICES: u64 = 0x106D_E747;

/// Returns the size in bytes of the smallest device, or a few chunks more.
fn small_device(random: &mut Random) -> u64 {
    DEVICE_BYTES_MIN + random.below(5) * CHUNK_BYTES
}

/// Returns true if the pool of this seed has a log device.
fn has_log_device(seed: u64) -> bool {
    Random::new(seed ^ LOG_DEVICES).percent(15)
}

/// A quarter of a chunk in bytes: sizes of writes are multiples or parts of it, so that they keep their proportion to
/// chunks.
const MIB: u64 = CHUNK_BYTES / 4;

impl History {
    /// Returns the history with changes and checkpoints in the middle of its verbs, and verbs in the middle of checkpoints.
    #[must_use]
    pub fn with_beside(self) -> Self {
        Self { beside: true, steps: verbs::with_beside(self.seed, self.steps), ..self }
    }

    /// Returns the history with damage to devices between its steps.
    #[must_use]
    pub fn with_damage(self) -> Self {
        Self { steps: damage::with_damage(self.seed, self.steps), ..self }
    }

    /// Returns the history of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let theme = match random.below(100) {
            0..60 => Theme::Crash,
            60..64 => Theme::Full,
            64..84 => Theme::Faults,
            84..94 => Theme::Flips,
            _ => Theme::Aged,
        };
        if theme == Theme::Aged {
            // Pools of small chunks come close to their capacity in a few writes.
            let brim = cfg!(feature = "small-chunks") && seed.is_multiple_of(2);
            return if brim { Self::brim(seed, random) } else { Self::aged(seed, random) };
        }
        let count = if theme != Theme::Full && random.percent(25) { random.within(2, 3) } else { 1 };
        let devices: Vec<u64> = (0..count).map(|_| small_device(&mut random)).collect();
        let copies = Self::copies(seed, theme);
        let log_device = copies == 1 && has_log_device(seed);
        let verbs = copies > 1 && Random::new(seed ^ VERBS).percent(60);
        let cache_bytes = if random.percent(50) { 64 << 10 } else { 32 * MIB };
        let len = if theme == Theme::Full { random.within(100, 400) } else { random.within(10, 150) };
        let mut writer = Writer::new(seed, random, theme, count * copies as u64 + u64::from(log_device));
        let mut steps = writer.steps(len);
        if theme == Theme::Flips {
            writer.keep_a_flip(seed, &mut steps);
        }
        if verbs {
            steps = verbs::with_verbs(seed, theme, count * copies as u64, steps);
        }
        let journalled = Random::new(seed ^ 0x70A2_AA15).percent(30);
        // A third quarter, with neither streams nor clones that are reset, has quotas.
        let bounds =
            (theme != Theme::Full && seed % 4 == 2).then(|| Bounds::new(&mut Random::new(seed ^ 0x9_0074)));
        let (modelled, forked) = (writer.modelled, writer.forked);
        Self {
            theme,
            devices,
            copies,
            verbs,
            beside: false,
            log_device,
            cache_bytes,
            modelled,
            forked,
            journalled,
            bounds,
            dense: false,
            properties: 0,
            seed,
            images: 0,
            steps,
        }
    }
}

impl History {
    /// Returns the number of devices of each group: every eighth history has mirrors, whose devices come and go.
    fn copies(seed: u64, theme: Theme) -> usize {
        let mut random = Random::new(seed ^ 0x3177_0225);
        let mirrored = matches!(theme, Theme::Crash | Theme::Faults) && random.percent(12);
        if mirrored { random.within(2, 3) as usize } else { 1 }
    }
}

struct Writer {
    random: Random,
    /// Source of chance for rests, codecs and single flips. This sequence and those below are apart from `random`, so
    /// that none of them changes what was there before it.
    rest: Random,
    /// Source of chance for small overwrites.
    small: Random,
    /// Source of chance for streams, in histories that have them.
    streams: Option<Random>,
    /// Source of chance for resets and rebases of clones, in histories that have them.
    grafts: Option<Random>,
    /// Source of chance for trims, in histories that have them.
    trims: Option<Random>,
    /// Source of chance for outages, in histories that have them.
    outages: Option<Random>,
    /// Source of chance for power cuts of the first batch of an opening, in histories that have them.
    tears: Option<Random>,
    theme: Theme,
    modelled: bool,
    forked: bool,
    devices: u64,
    /// Number of pages of an object that this history uses.
    span: u64,
    /// Largest number of acts in a change.
    acts: u64,
}
