//! Generates random histories: calls of a pool, and the power cuts, faults and flipped bits that it meets.

use pagefold_engine::Key;
use pagefold_engine::device::SimOp;
use pagefold_engine::limits::{CHUNK_BYTES, DEVICE_BYTES_MIN, RECORDSIZE_MAX, RESERVED_BYTES};
use pagefold_engine::record::Compression;

use crate::random::Random;

/// Objects that histories write.
pub const OBJECTS: std::ops::Range<u64> = 2..9;

/// Returns the page size of an object in bytes.
pub const fn record_size(object: u64) -> u32 {
    match object {
        2 | 3 => 4 << 10,
        4 | 5 => 8 << 10,
        6 => 16 << 10,
        7 => 128 << 10,
        _ => RECORDSIZE_MAX,
    }
}

/// Kinds of bytes that a write stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Nothing but zeros.
    Zeros,
    /// Incompressible.
    Noise,
    /// Compressible.
    Rows,
    /// Pages of a table of PostgreSQL.
    Heap,
    /// Pages of an index.
    Btree,
}

/// Part of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "as in pagefold_engine::dataset::Change")]
pub enum Act {
    Put { key: Key, len: u64, seed: u64 },
    Delete { key: Key },
    Codec { object: u64, codec: u8 },
    Write { object: u64, offset: u64, len: u64, fill: Fill, seed: u64 },
    Punch { object: u64, from: u64, to: u64 },
    Share { from: (u64, u64), to: (u64, u64), count: u64 },
}

/// Paths of the datasets that histories make, beside the pool's own.
pub const DATASETS: [&str; 3] = ["a", "b", "a/x"];

/// An operation on datasets and snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "as the methods of pagefold_engine::pool::Pool")]
pub enum CatalogueOp {
    Create {
        path: String,
    },
    Snapshot {
        datasets: Vec<String>,
        name: String,
    },
    Clone {
        snapshot: String,
        path: String,
    },
    DestroyDataset {
        path: String,
    },
    DestroySnapshots {
        snapshots: Vec<String>,
    },
    Rollback {
        snapshot: String,
        newer: bool,
    },
    Reset {
        path: String,
        own: bool,
    },
    /// Moves a clone onto a newer snapshot, where the two go together.
    Rebase {
        path: String,
        onto: String,
        own: bool,
    },
    Promote {
        path: String,
    },
    Rename {
        path: String,
        to: String,
    },
    Hold {
        snapshot: String,
    },
    Release {
        snapshot: String,
    },
    /// Sends a snapshot, or what changed since `from`, and receives it into a dataset of the same pool.
    Receive {
        snapshot: String,
        from: Option<String>,
        path: String,
    },
}

/// One step of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A change of the pool's own dataset.
    Apply(Vec<Act>),
    /// A change of another dataset, if there is such.
    ApplyTo(String, Vec<Act>),
    /// A change of the catalogue.
    Catalogue(CatalogueOp),
    /// A stream into a dataset. The snapshot that is sent follows from `pick` and from the snapshots that there are by
    /// then; there may be none.
    Stream {
        /// The dataset that receives.
        path: String,
        /// Decides between the snapshots.
        pick: u64,
        /// Thousandths of the stream after which it ends early.
        torn: Option<u64>,
    },
    /// A reset of a clone to its origin, or a move onto a newer snapshot. Which, and of which clone, follows from
    /// `pick` and from the clones and snapshots that there are by then.
    Graft {
        /// Chooses the clone and the snapshot, and whether the clone's own snapshots are destroyed.
        pick: u64,
    },
    /// Makes everything durable.
    Sync,
    /// First half of a durable commit.
    Begin {
        /// Number of those who wait for it.
        waiters: u64,
    },
    /// Second half of a commit that was begun.
    End {
        /// True to end the commit that was begun last, instead of first.
        newest: bool,
    },
    /// Commits without waiting for the device.
    Commit,
    /// A checkpoint.
    Checkpoint,
    /// A checkpoint, with steps between its cut and its writing, and before its end.
    Overlap(Vec<Step>, Vec<Step>),
    /// Has the cleaner do a pass.
    Clean,
    /// Maintenance that the background would do.
    Maintain,
    /// Devices are told which chunks are free: all of them, after a checkpoint, or those that became free lately.
    Trim {
        /// True to tell of all free chunks.
        all: bool,
    },
    /// Learns a model of the object that wants one most.
    Learn,
    /// Codes again what is stored.
    Recode,
    /// Nothing happens for a second or two.
    Rest,
    /// Exports and opens again.
    Export,
    /// Reads and compares.
    Read {
        /// Object.
        object: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Compares everything and checks the pool.
    Check,
    /// The process dies, the power stays.
    Kill,
    /// Arms a power cut on one device.
    Cut {
        /// Device.
        device: u64,
        /// Number of writes and flushes until then.
        calls: u64,
    },
    /// A power cut now, and further ones during recovery.
    Crash {
        /// Decides what survives.
        seed: u64,
        /// For each further power cut, the number of writes and flushes of the recovery until then.
        again: Vec<u64>,
    },
    /// A power cut now, after which each write that was not flushed is there as a whole or not at all. Then the first
    /// lost change is made again.
    Outage {
        /// Decides what survives.
        seed: u64,
    },
    /// Calls to a device fail.
    Fault {
        /// Device.
        device: u64,
        /// Kind of calls that fail.
        op: SimOp,
        /// Number of calls that succeed first.
        skip: u64,
        /// Number of calls that fail then.
        times: u64,
    },
    /// A bit flips.
    Flip {
        /// Device.
        device: u64,
        /// Byte.
        offset: u64,
        /// Bit of it.
        bit: u8,
    },
    /// A bit flips in what was written lately.
    Rot {
        /// Device.
        device: u64,
        /// Number of writes after the one that is hit.
        back: u64,
        /// Byte, counted from the beginning of the write.
        byte: u64,
        /// Bit of it.
        bit: u8,
    },
}

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
    /// Devices' sizes in bytes.
    pub devices: Vec<u64>,
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
    /// Seed of the devices.
    pub seed: u64,
    /// Largest number of power cuts that are tried in the middle of each step, beside those that are steps. Where pools
    /// are full or aged, and chunks are not small, it is an eighth of this.
    pub images: usize,
    /// Its steps.
    pub steps: Vec<Step>,
}

/// Returns the size in bytes of the smallest device, or a few chunks more.
fn small_device(random: &mut Random) -> u64 {
    DEVICE_BYTES_MIN + random.below(5) * CHUNK_BYTES
}

/// A quarter of a chunk in bytes: sizes of writes are multiples or parts of it, so that they keep their proportion to
/// chunks.
const MIB: u64 = CHUNK_BYTES / 4;

impl History {
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
        let cache_bytes = if random.percent(50) { 64 << 10 } else { 32 * MIB };
        let len = if theme == Theme::Full { random.within(100, 400) } else { random.within(10, 150) };
        // Models have a random sequence of their own, so that histories without models stay as they were before there
        // were any.
        let modelled = Random::new(!seed).percent(40);
        let rest = Random::new(seed ^ 0x0E57);
        // A quarter of the seeds has streams. The others stay as they were before there were any.
        let streamed = theme != Theme::Full && seed % 4 == 3;
        let streams = streamed.then(|| Random::new(seed ^ 0x57_2EA4));
        // Another quarter, likewise, has clones that are reset or rebased.
        let grafted = theme != Theme::Full && seed % 4 == 1;
        let grafts = grafted.then(|| Random::new(seed ^ 0x6_2AF7));
        // Four seeds of sixteen, likewise, discard.
        let trims = matches!(seed % 16, 0 | 5 | 10 | 15).then(|| Random::new(seed ^ 0x0D_15CA));
        let percent = if theme == Theme::Full { 30 } else { 60 };
        let forked = streamed || grafted || Random::new(seed ^ 0xF0_4CED).percent(percent);
        let journalled = Random::new(seed ^ 0x70A2_AA15).percent(30);
        let small = Random::new(seed ^ 0x5_3A11);
        // An eighth, likewise, has outages soon after one another.
        let outages =
            (theme == Theme::Crash && seed.is_multiple_of(8)).then(|| Random::new(seed ^ 0x0B_1ACC));
        let mut writer = Writer {
            random,
            rest,
            small,
            streams,
            grafts,
            trims,
            outages,
            theme,
            modelled,
            forked,
            devices: count,
            span: 0,
            acts: 0,
        };
        writer.span = 1 << writer.random.within(2, 8);
        writer.acts = writer.random.within(1, 8);
        let mut steps: Vec<Step> = Vec::new();
        for _ in 0..len {
            steps.push(writer.step());
            steps.extend(writer.stream());
            steps.extend(writer.graft());
            steps.extend(writer.trim());
            steps.extend(writer.outages());
        }
        let mut flips = 0;
        if theme == Theme::Flips && writer.rest.percent(60) {
            // More must hold after a single flip than after many, so most histories keep only their first.
            steps.retain(|step| !matches!(step, Step::Flip { .. }) || std::mem::replace(&mut flips, 1) == 0);
        }
        if theme == Theme::Flips && seed.is_multiple_of(2) {
            steps.retain(|step| !matches!(step, Step::Flip { .. }));
            let mut random = Random::new(seed ^ 0x0_2075);
            let at = random.below(steps.len() as u64 + 1) as usize;
            steps.splice(at..at, rot(&mut random, count));
        }
        // A third quarter, with neither streams nor clones that are reset, has quotas.
        let bounds =
            (theme != Theme::Full && seed % 4 == 2).then(|| Bounds::new(&mut Random::new(seed ^ 0x9_0074)));
        Self { theme, devices, cache_bytes, modelled, forked, journalled, bounds, seed, images: 0, steps }
    }
}

impl History {
    /// Returns the history of a pool that is filled to a share of its size, and then overwritten until that share was
    /// written several times.
    fn aged(seed: u64, mut random: Random) -> Self {
        let devices: Vec<u64> = vec![small_device(&mut random)];
        let cache_bytes = if random.percent(50) { 64 << 10 } else { 32 * MIB };
        // Small pools can hold at least a third of their size.
        let live_bytes = devices.iter().sum::<u64>() / 1000 * random.within(200, 440);
        let object = random.within(4, 8);
        let size = record_size(object);
        let pages = (live_bytes / u64::from(size)).max(1);
        // Some pages are written far more often than others.
        let hot = if random.percent(50) { (pages / 8).max(1) } else { pages };
        let run = (random.within(1, MIB / u64::from(size)) * u64::from(size)).min(MIB);
        let mut steps = Vec::new();
        let write =
            |offset: u64, len: u64, seed: u64| Act::Write { object, offset, len, fill: Fill::Noise, seed };
        for at in (0..pages * u64::from(size)).step_by(MIB as usize) {
            steps.push(Step::Apply(vec![write(at, MIB.min(pages * u64::from(size) - at), random.bits())]));
        }
        let mut left = live_bytes * random.within(2, 5);
        while left > 0 {
            let mut acts = Vec::new();
            let among = if random.percent(90) { hot } else { pages };
            for _ in 0..random.within(1, 6) {
                let offset = random.below(among) * u64::from(size);
                acts.push(write(offset, run.min(pages * u64::from(size) - offset), random.bits()));
                left = left.saturating_sub(run);
            }
            // Sometimes a cold value is written beside the hot pages.
            if random.percent(30) {
                let key = Key::new(1, 2, random.below(4000));
                acts.push(Act::Put { key, len: random.skewed(4000), seed: random.bits() });
            }
            steps.push(Step::Apply(acts));
            steps.extend(between_overwrites(&mut random));
        }
        Self::of_one_object(seed, &mut random, devices, cache_bytes, object, steps)
    }

    /// Returns the history of a pool that is filled to its capacity, and then overwritten in phases: all over, in hot
    /// places, in bands, and in strides that differ from place to place. So chunks become empty in groups of very
    /// different liveness, and the cleaner's next pass tells little about the ones after it.
    fn brim(seed: u64, mut random: Random) -> Self {
        // The smallest devices are mostly reserve.
        let devices: Vec<u64> = vec![DEVICE_BYTES_MIN + random.within(8, 80) * CHUNK_BYTES];
        let cache_bytes = if random.percent(50) { 64 << 10 } else { 32 * MIB };
        let live_bytes = devices.iter().sum::<u64>() / 1000 * random.within(300, 660);
        let object = random.within(4, 6);
        let size = u64::from(record_size(object));
        let pages = (live_bytes / size).max(1);
        let noise = |page: u64, count: u64, seed: u64| {
            let count = count.min(pages - page);
            Act::Write { object, offset: page * size, len: count * size, fill: Fill::Noise, seed }
        };
        let per_act = (MIB / size).max(1);
        let mut steps: Vec<Step> = (0..pages)
            .step_by(per_act as usize)
            .map(|page| Step::Apply(vec![noise(page, per_act, random.bits())]))
            .collect();
        let mut left = pages * random.within(3, 8);
        while left > 0 {
            // One phase.
            let mut phase = random.within(pages / 32 + 1, pages / 2 + 1).min(left);
            left -= phase;
            let kind = random.below(4);
            let width = if kind == 0 { pages } else { random.within(pages / 32 + 1, pages / 4 + 1) };
            let first = random.below(pages - width + 1);
            let (mut next, mut stride) = (first, random.within(2, 9));
            while phase > 0 {
                let mut acts = Vec::new();
                for _ in 0..random.within(1, 40).min(phase) {
                    let page = match kind {
                        0 | 1 => first + random.below(width),
                        2 => next,
                        _ => next + random.below(2),
                    };
                    acts.push(noise(page.min(pages - 1), 1, random.bits()));
                    next += if kind == 3 { stride } else { 1 };
                    if next >= first + width {
                        (next, stride) = (first, random.within(2, 9));
                    }
                    phase -= 1;
                }
                steps.push(Step::Apply(acts));
                steps.extend(between_overwrites(&mut random));
            }
        }
        Self::of_one_object(seed, &mut random, devices, cache_bytes, object, steps)
    }

    /// Returns the history of a pool in which `object` is overwritten by `steps`, and then punched: a full pool can
    /// still be emptied.
    fn of_one_object(
        seed: u64,
        random: &mut Random,
        devices: Vec<u64>,
        cache_bytes: u64,
        object: u64,
        mut steps: Vec<Step>,
    ) -> Self {
        steps.push(Step::Apply(vec![Act::Punch { object, from: 0, to: u64::MAX }]));
        steps.extend([Step::Sync, Step::Maintain, Step::Rest, Step::Check]);
        Self {
            theme: Theme::Aged,
            devices,
            cache_bytes,
            modelled: false,
            forked: false,
            journalled: random.percent(20),
            bounds: None,
            seed,
            images: 0,
            steps,
        }
    }
}

/// Returns the step that follows some overwrites, if any does.
fn between_overwrites(random: &mut Random) -> Option<Step> {
    match random.below(100) {
        0..12 => Some(Step::Sync),
        12..16 => Some(Step::Commit),
        16..22 => Some(Step::Maintain),
        22..24 => Some(Step::Checkpoint),
        24 => Some(Step::Clean),
        25 if random.percent(15) => {
            let again = (0..random.below(2)).map(|_| random.below(6)).collect();
            Some(Step::Crash { seed: random.bits(), again })
        }
        26 if random.percent(30) => Some(Step::Cut { device: 0, calls: random.skewed(40) }),
        _ => None,
    }
}

/// Returns a power cut or a fault that strikes within a few calls.
fn trouble_soon(random: &mut Random, theme: Theme, device: u64) -> Option<Step> {
    match theme {
        Theme::Crash => Some(Step::Cut { device, calls: random.skewed(20) }),
        Theme::Faults => {
            let op = [SimOp::Read, SimOp::Write, SimOp::Flush][random.below(3) as usize];
            Some(Step::Fault { device, op, skip: random.skewed(10), times: 1 })
        }
        Theme::Full | Theme::Aged | Theme::Flips => None,
    }
}

/// Returns steps that make something durable, flip a single bit of a late write, and open the pool again.
fn rot(random: &mut Random, devices: u64) -> [Step; 3] {
    let rest = [Step::Rest, Step::Rest, Step::Sync, Step::Checkpoint][random.below(4) as usize].clone();
    let within = random.below(4096) >> (random.below(2) * 5);
    let (device, back) = (random.below(devices), random.skewed(12));
    let rot = Step::Rot { device, back, byte: within, bit: random.below(8) as u8 };
    let opened =
        if random.percent(50) { Step::Kill } else { Step::Crash { seed: random.bits(), again: Vec::new() } };
    [rest, rot, opened]
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
    theme: Theme,
    modelled: bool,
    forked: bool,
    devices: u64,
    /// Number of pages of an object that this history uses.
    span: u64,
    /// Largest number of acts in a change.
    acts: u64,
}

impl Writer {
    fn step(&mut self) -> Step {
        if self.forked {
            if self.random.percent(if self.theme == Theme::Full { 6 } else { 25 }) {
                return Step::Catalogue(self.catalogue_op());
            }
            if self.theme != Theme::Full && self.random.percent(8) {
                return Step::Overlap(self.meanwhile(), self.meanwhile());
            }
            if self.random.percent(20) {
                let path = self.path();
                return Step::ApplyTo(path, self.change());
            }
        }
        // A full pool takes long to compare, so it has fewer crashes and more changes.
        if self.theme == Theme::Full && self.random.percent(85) {
            return if self.random.percent(94) { Step::Apply(self.change()) } else { Step::Maintain };
        }
        if self.rest.percent(3) {
            return Step::Rest;
        }
        if self.modelled && self.random.percent(8) {
            return Step::Learn;
        }
        if self.random.percent(2) {
            return Step::Recode;
        }
        match self.random.below(100) {
            0..62 => Step::Apply(self.change()),
            62..66 => Step::Sync,
            66..68 => Step::Begin { waiters: self.random.below(3) },
            68..70 => Step::End { newest: self.random.percent(50) },
            70..74 => Step::Commit,
            74..77 => Step::Checkpoint,
            77..79 => Step::Clean,
            79..82 => Step::Maintain,
            82 => Step::Export,
            83..88 => self.read(),
            88 => Step::Check,
            89 => Step::Kill,
            90..95 => self.crash(),
            _ => self.trouble(),
        }
    }

    /// Returns now and then a stream, and sometimes trouble that may strike in the middle of it.
    fn stream(&mut self) -> Vec<Step> {
        let Some(random) = &mut self.streams else { return Vec::new() };
        if !random.percent(18) {
            return Vec::new();
        }
        let path = DATASETS[random.below(DATASETS.len() as u64) as usize].into();
        let pick = random.bits();
        let torn = if random.percent(30) { Some(random.below(1000)) } else { None };
        let device = random.below(self.devices);
        let mut steps = Vec::new();
        if random.percent(40) {
            steps.extend(trouble_soon(random, self.theme, device));
        }
        steps.push(Step::Stream { path, pick, torn });
        steps
    }

    /// Returns now and then a reset or rebase of a clone, and sometimes trouble that may strike in the middle of it.
    fn graft(&mut self) -> Vec<Step> {
        let Some(random) = &mut self.grafts else { return Vec::new() };
        if !random.percent(18) {
            return Vec::new();
        }
        let pick = random.bits();
        let mut steps = Vec::new();
        let device = random.below(self.devices);
        if random.percent(40) {
            steps.extend(trouble_soon(random, self.theme, device));
        }
        steps.push(Step::Graft { pick });
        steps
    }

    /// Returns now and then a trim, and sometimes trouble that may strike in the middle of it.
    fn trim(&mut self) -> Vec<Step> {
        let Some(random) = &mut self.trims else { return Vec::new() };
        if !random.percent(12) {
            return Vec::new();
        }
        let mut steps = Vec::new();
        let device = random.below(self.devices);
        if random.percent(30) {
            steps.extend(trouble_soon(random, self.theme, device));
        }
        steps.push(Step::Trim { all: random.percent(30) });
        steps
    }

    /// Returns now and then an outage, small commits that nobody waits for, and two more outages. They tear again what
    /// the first has torn, and what was written in its place.
    fn outages(&mut self) -> Vec<Step> {
        let span = self.span;
        let Some(random) = &mut self.outages else { return Vec::new() };
        if !random.percent(4) {
            return Vec::new();
        }
        let outage = |random: &mut Random| Step::Outage { seed: random.bits() };
        let mut steps = vec![outage(random)];
        for _ in 0..random.within(2, 4) {
            let act = if random.percent(50) {
                let key = Key::new(1, 2, random.below(span * 4));
                Act::Put { key, len: random.skewed(300), seed: random.bits() }
            } else {
                let size = u64::from(record_size(2));
                let offset = random.below(span) * size;
                Act::Write { object: 2, offset, len: size, fill: Fill::Rows, seed: random.bits() }
            };
            steps.extend([Step::Apply(vec![act]), Step::Commit]);
        }
        let commit = if random.percent(50) { Step::Sync } else { Step::Commit };
        steps.extend([outage(random), commit, outage(random)]);
        steps
    }

    /// Returns steps that may run while a checkpoint is under way.
    fn meanwhile(&mut self) -> Vec<Step> {
        let one = |writer: &mut Self| match writer.random.below(10) {
            0 if writer.trims.is_some() => Step::Trim { all: false },
            0..3 => Step::Apply(writer.change()),
            3..5 => Step::ApplyTo(writer.path(), writer.change()),
            5 => Step::Commit,
            6 | 7 => {
                Step::Catalogue(CatalogueOp::Snapshot { datasets: vec![writer.any()], name: writer.name() })
            }
            8 => Step::Catalogue(CatalogueOp::Clone { snapshot: writer.snapshot(), path: writer.path() }),
            _ => Step::Catalogue(CatalogueOp::Create { path: writer.path() }),
        };
        (0..self.random.below(6)).map(|_| one(self)).collect()
    }

    fn path(&mut self) -> String {
        DATASETS[self.random.below(DATASETS.len() as u64) as usize].into()
    }

    fn any(&mut self) -> String {
        if self.random.percent(40) { String::new() } else { self.path() }
    }

    fn name(&mut self) -> String {
        format!("s{}", self.random.below(4))
    }

    fn snapshot(&mut self) -> String {
        format!("{}@{}", self.any(), self.name())
    }

    fn catalogue_op(&mut self) -> CatalogueOp {
        match self.random.below(100) {
            0..14 => CatalogueOp::Create { path: self.path() },
            14..46 => {
                let mut datasets = vec![self.any()];
                let second = self.any();
                if self.random.percent(20) && second != datasets[0] {
                    datasets.push(second);
                }
                CatalogueOp::Snapshot { datasets, name: self.name() }
            }
            46..60 => CatalogueOp::Clone { snapshot: self.snapshot(), path: self.path() },
            60..66 => CatalogueOp::DestroyDataset { path: self.path() },
            66..82 => {
                let of = self.any();
                let mut names: Vec<u64> = (0..4).filter(|_| self.random.percent(30)).collect();
                if names.is_empty() {
                    names.push(self.random.below(4));
                }
                if self.random.percent(50) {
                    names.reverse();
                }
                CatalogueOp::DestroySnapshots {
                    snapshots: names.iter().map(|name| format!("{of}@s{name}")).collect(),
                }
            }
            82..88 => CatalogueOp::Rollback { snapshot: self.snapshot(), newer: self.random.percent(60) },
            88..93 => CatalogueOp::Promote { path: self.path() },
            93..96 if self.random.percent(50) => CatalogueOp::Rename { path: self.path(), to: self.path() },
            93..96 => CatalogueOp::Rename { path: self.snapshot(), to: self.name() },
            96..98 => CatalogueOp::Hold { snapshot: self.snapshot() },
            _ => CatalogueOp::Release { snapshot: self.snapshot() },
        }
    }

    fn crash(&mut self) -> Step {
        let seed = self.random.bits();
        let times = if self.random.percent(30) { self.random.within(1, 2) } else { 0 };
        Step::Crash { seed, again: (0..times).map(|_| self.random.below(6)).collect() }
    }

    fn trouble(&mut self) -> Step {
        let device = self.random.below(self.devices);
        match self.theme {
            Theme::Crash | Theme::Full | Theme::Aged => Step::Cut { device, calls: self.random.skewed(40) },
            Theme::Faults => {
                let op = match self.random.below(3) {
                    0 => SimOp::Read,
                    1 => SimOp::Write,
                    _ => SimOp::Flush,
                };
                let times = if self.random.percent(70) { 1 } else { self.random.within(1, 8) };
                Step::Fault { device, op, skip: self.random.skewed(20), times }
            }
            Theme::Flips => {
                // Low chunks are used first; the reserved ends matter too.
                let offset = match self.random.below(10) {
                    0 => self.random.below(256 << 10),
                    1..6 => RESERVED_BYTES + self.random.below(256 << 10),
                    _ => RESERVED_BYTES + self.random.below(6 * CHUNK_BYTES),
                };
                Step::Flip { device, offset, bit: self.random.below(8) as u8 }
            }
        }
    }

    fn change(&mut self) -> Vec<Act> {
        let mut acts = Vec::new();
        let mut shared = false;
        for _ in 0..self.random.within(1, self.acts) {
            let act = self.act(shared);
            shared |= matches!(act, Act::Share { .. });
            acts.push(act);
        }
        if !shared && self.small.percent(40) {
            (0..self.small.within(1, 3)).for_each(|_| acts.push(self.small_write()));
        }
        acts
    }

    /// Returns a write of a few bytes of a page, mostly of one that was overwritten like this before.
    fn small_write(&mut self) -> Act {
        let random = &mut self.small;
        let object = random.within(OBJECTS.start, 6);
        let size = u64::from(record_size(object));
        let page = if random.percent(80) { random.below(2) } else { random.below(self.span) };
        let fill = if random.percent(90) { Fill::Noise } else { Fill::Zeros };
        let (offset, len) = (page * size + random.below(size), random.skewed(300).max(1));
        Act::Write { object, offset, len, fill, seed: random.bits() }
    }

    fn object(&mut self) -> u64 {
        // Large pages are rare, so that histories stay small.
        let most = if self.theme == Theme::Full { OBJECTS.end - 1 } else { 7 };
        let object = self.random.within(OBJECTS.start, most);
        if object > 6 && self.theme != Theme::Full && self.random.percent(70) { 4 } else { object }
    }

    fn page(&mut self) -> u64 {
        self.random.below(self.span)
    }

    fn key(&mut self) -> Key {
        Key::new(self.random.within(1, 4), 2 + self.random.below(3) as u8, self.random.below(self.span * 4))
    }

    fn act(&mut self, shared: bool) -> Act {
        if self.rest.percent(2) {
            let codecs = [Compression::Off, Compression::Lz4, Compression::Zstd(3), Compression::Page(1)];
            let codec = codecs[self.rest.below(codecs.len() as u64) as usize].to_stored();
            return Act::Codec { object: self.rest.within(OBJECTS.start, OBJECTS.end - 1), codec };
        }
        match self.random.below(100) {
            0..15 => {
                let len =
                    if self.random.percent(3) { self.random.below(60_000) } else { self.random.skewed(300) };
                Act::Put { key: self.key(), len, seed: self.random.bits() }
            }
            15..22 => Act::Delete { key: self.key() },
            22..80 if !shared => self.write(),
            22..92 => {
                let object = self.object();
                let from = self.page();
                let to = match self.random.below(10) {
                    // Rare in full pools, which would otherwise be emptied as fast as they are filled.
                    0 if self.theme != Theme::Full || self.random.percent(10) => u64::MAX,
                    1..4 => from + self.random.below(self.span),
                    _ => from + self.random.below(3),
                };
                Act::Punch {
                    object,
                    from: if to == u64::MAX && self.random.percent(50) { 0 } else { from },
                    to,
                }
            }
            _ => {
                let (a, b) = if self.random.percent(50) { (2, 3) } else { (4, 5) };
                let pick = |random: &mut Random| if random.percent(50) { a } else { b };
                let from = (pick(&mut self.random), self.page());
                let to = (pick(&mut self.random), self.page());
                Act::Share { from, to, count: self.random.within(1, self.span) }
            }
        }
    }

    /// Returns a write of pages of a relation. Object 4 is a table and object 5 an index, and sometimes the other way
    /// round.
    fn relation(&mut self) -> Act {
        let object = self.random.within(4, 5);
        let size = u64::from(record_size(object));
        let fill = if (object == 4) == self.random.percent(90) { Fill::Heap } else { Fill::Btree };
        let len = size * self.random.within(1, 16);
        Act::Write { object, offset: self.page() * size, len, fill, seed: self.random.bits() }
    }

    fn write(&mut self) -> Act {
        if self.modelled && self.random.percent(50) {
            return self.relation();
        }
        let object = self.object();
        let size = u64::from(record_size(object));
        let full = self.theme == Theme::Full && self.random.percent(70);
        let fill = match self.random.below(if full { 3 } else { 10 }) {
            0 | 1 => Fill::Noise,
            2 => Fill::Zeros,
            _ => Fill::Rows,
        };
        let page = if full { self.random.below((96 * MIB / 6 / size).max(1)) } else { self.page() };
        let (offset, len) = match self.random.below(10) {
            _ if full => (page * size, (MIB / size).max(1) * size),
            0..5 => (page * size, size),
            5..7 => (page * size + self.random.below(size), self.random.within(1, size)),
            7 => (page * size + self.random.below(size), self.random.within(1, (4 * size).min(MIB))),
            8 => (page * size, (size * self.random.within(1, 16)).min(MIB)),
            _ => (page * size + self.random.below(size), self.random.skewed(MIB).max(1)),
        };
        Act::Write { object, offset, len, fill, seed: self.random.bits() }
    }

    fn read(&mut self) -> Step {
        let object = self.object();
        let size = u64::from(record_size(object));
        let offset = self.page() * size + self.random.below(size);
        Step::Read { object, offset, len: self.random.skewed(MIB).max(1) }
    }
}
