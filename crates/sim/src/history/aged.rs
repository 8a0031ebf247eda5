//! Histories of pools that are nearly full, or of which most is overwritten again and again.

use pagefold_engine::Key;
use pagefold_engine::limits::{CHUNK_BYTES, DEVICE_BYTES_MIN};

use super::{Act, Fill, History, MIB, Step, Theme, has_log_device, record_size, small_device};
use crate::random::Random;

impl History {
    /// Returns the history of a pool that is filled to a share of its size, and then overwritten until that share was
    /// written several times.
    pub(super) fn aged(seed: u64, mut random: Random) -> Self {
        let mut devices: Vec<u64> = vec![small_device(&mut random)];
        if seed % 8 == 3 {
            devices.extend(further_devices(seed));
        }
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
            steps.extend(between_overwrites(&mut random, devices.len()));
        }
        Self::of_one_object(seed, &mut random, devices, cache_bytes, object, steps)
    }

    /// Returns the history of a pool that is filled to its capacity, and then overwritten in phases: all over, in hot
    /// places, in bands, and in strides that differ from place to place. So chunks become empty in groups of very
    /// different liveness, and the cleaner's next pass tells little about the ones after it.
    pub(super) fn brim(seed: u64, mut random: Random) -> Self {
        // Pages that compress well make many records, and so checkpoints of more than a chunk.
        let dense = seed % 8 == 4;
        // The smallest devices are mostly reserve.
        let chunks = random.within(8, if dense { 16 } else { 80 });
        let mut devices: Vec<u64> = vec![DEVICE_BYTES_MIN + chunks * CHUNK_BYTES];
        if seed % 8 == 2 {
            devices.extend(further_devices(seed));
        }
        let cache_bytes = if random.percent(50) { 64 << 10 } else { 32 * MIB };
        let live_bytes = devices.iter().sum::<u64>() / 1000 * random.within(300, 660);
        let object = if dense { 3 } else { random.within(4, 6) };
        let size = u64::from(record_size(object));
        let (fill, stored_bytes) = if dense { (Fill::Rows, DENSE_BYTES) } else { (Fill::Noise, size) };
        let pages = (live_bytes / stored_bytes).max(1);
        let overwrite = |page: u64, count: u64, seed: u64| {
            let count = count.min(pages - page);
            Act::Write { object, offset: page * size, len: count * size, fill, seed }
        };
        let per_act = (MIB / size).max(1);
        let mut steps: Vec<Step> = (0..pages)
            .step_by(per_act as usize)
            .map(|page| Step::Apply(vec![overwrite(page, per_act, random.bits())]))
            .collect();
        // Each opening begins chunks that it may leave unfilled.
        let mut restless = (seed % 8 == 6).then(|| Random::new(seed ^ 0x2E57_1E55));
        let mut left = pages * if dense { 2 } else { random.within(3, 8) };
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
                for _ in 0..random.within(1, if dense { 600 } else { 40 }).min(phase) {
                    let page = match kind {
                        0 | 1 => first + random.below(width),
                        2 => next,
                        _ => next + random.below(2),
                    };
                    acts.push(overwrite(page.min(pages - 1), 1, random.bits()));
                    next += if kind == 3 { stride } else { 1 };
                    if next >= first + width {
                        (next, stride) = (first, random.within(2, 9));
                    }
                    phase -= 1;
                }
                steps.push(Step::Apply(acts));
                steps.extend(between_overwrites(&mut random, devices.len()));
                if let Some(random) = &mut restless
                    && random.percent(15)
                {
                    steps.push([Step::Kill, Step::Export, Step::Sync][random.below(3) as usize].clone());
                }
            }
        }
        let properties = if seed.is_multiple_of(8) { 30 + seed / 8 % 50 } else { 0 };
        Self {
            dense,
            properties,
            ..Self::of_one_object(seed, &mut random, devices, cache_bytes, object, steps)
        }
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
            dense: false,
            properties: 0,
            copies: 1,
            verbs: false,
            beside: false,
            log_device: has_log_device(seed),
            seed,
            images: 0,
            steps,
        }
    }
}

/// Bytes that a page of rows takes at most.
const DENSE_BYTES: u64 = 768;

/// Returns the sizes of one or two devices beside the first.
fn further_devices(seed: u64) -> Vec<u64> {
    let mut random = Random::new(seed ^ 0xDE_71CE5);
    (0..random.within(1, 2)).map(|_| small_device(&mut random)).collect()
}

/// Returns the step that follows some overwrites, if any does.
fn between_overwrites(random: &mut Random, devices: usize) -> Option<Step> {
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
        26 if random.percent(30) => {
            let calls = random.skewed(40);
            let device = if devices > 1 { random.below(devices as u64) } else { 0 };
            Some(Step::Cut { device, calls })
        }
        _ => None,
    }
}
