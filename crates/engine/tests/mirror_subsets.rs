//! Whatever devices of a pool with mirrors are there, stale halves and copies among them: what is shown is the newest
//! state if a device that has it is there for each mirror; otherwise the pool is refused, or shown as it was once. It is
//! also refused if a copy is there of which nobody can say whether it went on by itself.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::sync::Arc;

use pagefold_engine::Error;
use pagefold_engine::dataset::Change;
use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{CreateOptions, DeviceState, Guid, OpenOptions, Pool, create_groups_on};

const PAGE: u32 = 4096;
const PAGES: u64 = 8;
const SIZE: u64 = 134 << 20;

/// A random number generator (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// A device as it was at some time, and the version of the pool then.
#[derive(Clone)]
struct Image {
    sim: Arc<SimDevice>,
    version: u64,
}

impl Image {
    fn copy(&self) -> Self {
        Self { sim: Arc::new(self.sim.crash(&mut |contents| contents - 1)), version: self.version }
    }
}

struct Case {
    copies: usize,
    /// The devices as they are, and which of them are whole.
    now: Vec<Image>,
    whole: Vec<bool>,
    /// Copies that were made of each of them.
    old: Vec<Vec<Image>>,
    version: u64,
    opens: u64,
}

fn options(salt: u64, read_only: bool) -> OpenOptions {
    OpenOptions { cache_bytes: 4 << 20, salt, read_only, ..OpenOptions::default() }
}

/// Returns the version that a pool shows, which has to be the same everywhere.
fn shown(pool: &Pool) -> u64 {
    let versions: Vec<u64> = (0..PAGES)
        .map(|at| {
            let mut page = vec![0; PAGE as usize];
            pool.dataset().read(4, PAGE, at * u64::from(PAGE), &mut page).unwrap();
            u64::from_le_bytes(page[..8].try_into().unwrap())
        })
        .collect();
    assert!(versions.iter().all(|version| *version == versions[0]), "{versions:?}");
    versions[0]
}

impl Case {
    fn new(groups: usize, copies: usize) -> Self {
        let sims: Vec<Arc<SimDevice>> =
            (0..(groups * copies) as u64).map(|seed| Arc::new(SimDevice::new(SIZE, seed))).collect();
        let handles = |sims: &[Arc<SimDevice>]| -> Vec<Arc<dyn Device>> {
            sims.iter().map(|sim| Arc::clone(sim) as Arc<dyn Device>).collect()
        };
        let layout: Vec<Vec<Arc<dyn Device>>> = sims.chunks(copies).map(handles).collect();
        let create = CreateOptions { force: false, created: 0, guid: Guid(*b"0123456789abcdef") };
        create_groups_on("tank", &layout, &create).unwrap();
        let now: Vec<Image> = sims.into_iter().map(|sim| Image { sim, version: 0 }).collect();
        let mut case = Self {
            copies,
            whole: vec![true; now.len()],
            old: vec![Vec::new(); now.len()],
            now,
            version: 0,
            opens: 0,
        };
        case.go_on(&mut Random(1), true);
        case
    }

    /// Opens the pool with some of the devices, among them a whole one of each mirror, and writes the next version.
    fn go_on(&mut self, random: &mut Random, all: bool) {
        let mut here = vec![false; self.now.len()];
        for first in (0..self.now.len()).step_by(self.copies) {
            let members: Vec<usize> = (first..first + self.copies).collect();
            let whole: Vec<usize> = members.iter().copied().filter(|at| self.whole[*at]).collect();
            let kept = whole[random.below(whole.len() as u64) as usize];
            for at in members {
                here[at] = all || at == kept || random.percent(50);
            }
        }
        let given: Vec<usize> = (0..here.len()).filter(|at| here[*at]).collect();
        let handles = given.iter().map(|at| Arc::clone(&self.now[*at].sim) as Arc<dyn Device>).collect();
        self.opens += 1;
        let pool = Pool::open_on(handles, &options(self.opens * 1000, false)).unwrap();
        if self.version > 0 {
            assert_eq!(shown(&pool), self.version);
        }
        if random.percent(60) {
            while pool.fill_step(0).unwrap().is_some() {}
        }
        self.version += 1;
        for at in 0..PAGES {
            let mut data = vec![self.version as u8; PAGE as usize];
            data[..8].copy_from_slice(&self.version.to_le_bytes());
            let offset = at * u64::from(PAGE);
            pool.dataset()
                .apply(&[Change::Write { object: 4, record_size: PAGE, offset, data: &data }])
                .unwrap();
        }
        pool.sync().unwrap();
        for _ in 0..random.below(3) {
            pool.checkpoint(false).unwrap();
        }
        for device in pool.device_status() {
            self.whole[usize::from(device.number)] = device.state == DeviceState::Online;
        }
        if random.percent(50) {
            pool.export().unwrap();
        }
        for at in given {
            if self.whole[at] {
                self.now[at].version = self.version;
            }
        }
    }

    /// Shows the pool with any of the devices, or copies of them.
    fn look(&self, random: &mut Random) -> &'static str {
        let mut given: Vec<(usize, Image, bool)> = Vec::new();
        let mut has_copies = false;
        for at in 0..self.now.len() {
            let copies = &self.old[at];
            match random.below(4) {
                0 => {}
                1 if !copies.is_empty() => {
                    has_copies = true;
                    given.push((at, copies[random.below(copies.len() as u64) as usize].copy(), false));
                }
                _ => given.push((at, self.now[at].copy(), self.whole[at])),
            }
        }
        let has_newest = (0..self.now.len()).step_by(self.copies).all(|first| {
            given.iter().any(|(at, _, newest)| *newest && (first..first + self.copies).contains(at))
        });
        let handles = given.iter().map(|(_, image, _)| Arc::clone(&image.sim) as Arc<dyn Device>).collect();
        let opened = Pool::open_on(handles, &options(1, random.percent(50)));
        let what: Vec<(usize, u64, bool)> =
            given.iter().map(|(at, image, newest)| (*at, image.version, *newest)).collect();
        match opened {
            Ok(pool) => {
                let version = shown(&pool);
                let known = given.iter().any(|(_, image, _)| image.version == version);
                assert!(known, "version {version} of {} comes from nowhere: {what:?}", self.version);
                assert!(
                    !has_newest || version == self.version,
                    "version {version} of {}: {what:?}",
                    self.version
                );
                if has_newest { "newest" } else { "older" }
            }
            Err(error) => {
                if has_newest {
                    let in_doubt = matches!(error, Error::NotCurrent { .. }) && has_copies;
                    assert!(in_doubt && error.to_string().contains("went on apart"), "{error}: {what:?}");
                    return "in doubt";
                }
                assert!(matches!(error, Error::NotCurrent { .. } | Error::NotAPool(_)), "{error}: {what:?}");
                "refused"
            }
        }
    }
}

#[test]
fn a_thousand_subsets_with_stale_halves_and_copies() {
    let mut random = Random(7);
    let mut counts = std::collections::BTreeMap::new();
    for (groups, copies) in [(1, 2), (2, 2), (1, 3), (3, 2), (1, 2), (2, 3), (1, 2), (2, 2), (1, 3), (1, 2)] {
        let mut case = Case::new(groups, copies);
        for _ in 0..25 {
            for at in 0..case.now.len() {
                if random.percent(20) {
                    let copy = case.now[at].copy();
                    case.old[at].push(copy);
                }
            }
            case.go_on(&mut random, false);
            for _ in 0..4 {
                *counts.entry(case.look(&mut random)).or_insert(0) += 1;
            }
        }
    }
    println!("{counts:?}");
    assert_eq!(counts.values().sum::<u32>(), 1000);
    assert!(["newest", "older", "refused"].iter().all(|kind| counts[kind] > 50), "{counts:?}");
    assert!(counts.get("in doubt").is_none_or(|count| *count < 50), "{counts:?}");
}
