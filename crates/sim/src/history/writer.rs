//! Chooses the steps of a history.

use pagefold_engine::Key;
use pagefold_engine::device::SimOp;
use pagefold_engine::limits::{CHUNK_BYTES, RESERVED_BYTES};

use super::{Act, CatalogueOp, DATASETS, Fill, MIB, Step, Theme, Writer, record_size};
use crate::random::Random;

/// Returns a power cut or a fault that strikes within a few calls.
pub(super) fn trouble_soon(random: &mut Random, theme: Theme, device: u64) -> Option<Step> {
    match theme {
        Theme::Crash => Some(Step::Cut { device, calls: random.skewed(20) }),
        Theme::Faults => {
            let op = [SimOp::Read, SimOp::Write, SimOp::Flush][random.below(3) as usize];
            Some(Step::Fault { device, op, skip: random.skewed(10), times: 1 })
        }
        Theme::Full | Theme::Aged | Theme::Flips => None,
    }
}

impl Writer {
    /// Returns the writer of the history of `seed`, for a pool of `devices` devices, before the first step.
    pub(super) fn new(seed: u64, random: Random, theme: Theme, devices: u64) -> Self {
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
        let small = Random::new(seed ^ 0x5_3A11);
        // An eighth, likewise, has outages soon after one another.
        let outages =
            (theme == Theme::Crash && seed.is_multiple_of(8)).then(|| Random::new(seed ^ 0x0B_1ACC));
        // A sixteenth, likewise, has power cuts that tear the first batch of an opening, and what replaces it.
        let tears = (theme == Theme::Crash && seed % 16 == 10).then(|| Random::new(seed ^ 0x7_EA25));
        let mut writer = Self {
            random,
            rest,
            small,
            streams,
            grafts,
            trims,
            outages,
            tears,
            theme,
            modelled,
            forked,
            devices,
            span: 0,
            acts: 0,
        };
        writer.span = 1 << writer.random.within(2, 8);
        writer.acts = writer.random.within(1, 8);
        writer
    }

    /// Returns at least `len` steps.
    pub(super) fn steps(&mut self, len: u64) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        for _ in 0..len {
            steps.push(self.step());
            steps.extend(self.stream());
            steps.extend(self.graft());
            steps.extend(self.trim());
            steps.extend(self.outages());
            steps.extend(self.tears());
        }
        steps
    }

    /// Leaves at most one flip in most histories that look for flips. In every other one, a late write rots instead.
    pub(super) fn keep_a_flip(&mut self, seed: u64, steps: &mut Vec<Step>) {
        let mut flips = 0;
        if self.rest.percent(60) {
            // More must hold after a single flip than after many, so most histories keep only their first.
            steps.retain(|step| !matches!(step, Step::Flip { .. }) || std::mem::replace(&mut flips, 1) == 0);
        }
        if seed.is_multiple_of(2) {
            steps.retain(|step| !matches!(step, Step::Flip { .. }));
            let mut random = Random::new(seed ^ 0x0_2075);
            let at = random.below(steps.len() as u64 + 1) as usize;
            steps.splice(at..at, rot(&mut random, self.devices));
        }
    }

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

    /// Returns now and then an opening whose first batch is torn by a power cut, while others behind it may be whole. The
    /// same change is the first of the next opening, and is torn in its turn.
    fn tears(&mut self) -> Vec<Step> {
        let span = self.span;
        let Some(random) = &mut self.tears else { return Vec::new() };
        if !random.percent(10) {
            return Vec::new();
        }
        let tear = |random: &mut Random| Step::Tear { seed: random.bits() };
        // The first batch takes some sectors, and those behind it one or two.
        let mut lens = vec![random.within(400, 1400)];
        lens.extend(vec![100; random.within(1, 2) as usize]);
        let mut steps = vec![Step::Kill];
        for len in lens {
            let key = Key::new(1, 2, random.below(span * 4));
            steps.extend([Step::Apply(vec![Act::Put { key, len, seed: random.bits() }]), Step::Commit]);
        }
        steps.extend([tear(random), Step::Commit, tear(random)]);
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

    fn read(&mut self) -> Step {
        let object = self.object();
        let size = u64::from(record_size(object));
        let offset = self.page() * size + self.random.below(size);
        Step::Read { object, offset, len: self.random.skewed(MIB).max(1) }
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
