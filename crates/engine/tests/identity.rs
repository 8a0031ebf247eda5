//! Copies, stale devices and half-done opening superblocks: which devices are opened together, and which are refused.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use pagefold_engine::Error;
use pagefold_engine::dataset::Change;
use pagefold_engine::device::{Device, FileDevice, OneDevice, OpenMode, SimDevice, create_file_device};
use pagefold_engine::pool::{
    self, CreateOptions, FoundState, Guid, Label, OpenOptions, Pool, Relation, Standing, Witness, create_on,
};

const MIB: u64 = 1 << 20;
const PAGE: u32 = 8192;
const GUID: Guid = Guid(*b"0123456789abcdef");
const OTHER: Guid = Guid(*b"another GUID....");

type Sims = Vec<Arc<SimDevice>>;

fn handles(sims: &Sims) -> Vec<Arc<dyn Device>> {
    sims.iter().map(|sim| Arc::clone(sim) as Arc<dyn Device>).collect()
}

fn options() -> OpenOptions {
    OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::default() }
}

fn open(sims: &Sims) -> pagefold_engine::Result<Arc<Pool>> {
    Pool::open_on(handles(sims), &options())
}

/// A new pool on so many devices.
fn fresh(count: u64) -> Sims {
    let sims: Sims = (0..count).map(|seed| Arc::new(SimDevice::new(134 * MIB, seed))).collect();
    create_on("tank", &handles(&sims), &CreateOptions { force: false, created: 0, guid: GUID }).unwrap();
    sims
}

/// The devices as they are: copies made with cp or dd.
fn copied(sims: &Sims) -> Sims {
    sims.iter().map(|sim| Arc::new(sim.crash(&mut |contents| contents - 1))).collect()
}

fn write(pool: &Pool, at: u64, value: u8) {
    let (data, offset) = (vec![value; PAGE as usize], at * u64::from(PAGE));
    pool.dataset().apply(&[Change::Write { object: 4, record_size: PAGE, offset, data: &data }]).unwrap();
    pool.sync().unwrap();
}

fn read(pool: &Pool, at: u64) -> u8 {
    let mut out = vec![0; PAGE as usize];
    pool.dataset().read(4, PAGE, at * u64::from(PAGE), &mut out).unwrap();
    assert!(out.iter().all(|byte| *byte == out[0]));
    out[0]
}

/// Opens the pool, writes, and closes it.
fn go_on(sims: &Sims, value: u8) {
    let pool = open(sims).unwrap();
    (0..20).for_each(|at| write(&pool, at, value));
    pool.export().unwrap();
}

/// All that is on the devices.
fn contents(sims: &Sims) -> Vec<(u64, Vec<u8>)> {
    let mut all = Vec::new();
    for sim in sims {
        for at in sim.written_blocks() {
            let mut block = pagefold_engine::device::AlignedBuf::zeroed(4096);
            sim.read(at, &mut block).unwrap();
            all.push((at, block.to_vec()));
        }
    }
    all
}

#[track_caller]
fn refused(sims: &Sims, options: &OpenOptions, text: &str) {
    let before = contents(sims);
    let error = Pool::open_on(handles(sims), options).err().unwrap();
    assert!(matches!(error, Error::NotCurrent { .. }), "{error}");
    assert!(error.to_string().contains(text), "{error}");
    assert_eq!(contents(sims), before, "something was written");
}

/// REVIEW U1: ONLINE with EIO, and after one write the right device no longer opened.
#[test]
fn a_stale_device_is_refused_and_the_right_ones_still_open() {
    for checkpoints in [0, 1, 40] {
        let sims = fresh(2);
        go_on(&sims, 1);
        let old = copied(&sims);
        let pool = open(&sims).unwrap();
        write(&pool, 0, 2);
        for _ in 0..checkpoints {
            pool.checkpoint(false).unwrap();
        }
        // The server dies.
        drop(pool);
        for at in [0, 1] {
            let mut mixed = sims.clone();
            mixed[at] = Arc::clone(&old[at]);
            refused(&mixed, &options(), "is an older copy of device");
            refused(&mixed, &OpenOptions { read_only: true, ..options() }, "is an older copy of device");
        }
        let pool = open(&sims).unwrap();
        assert_eq!((read(&pool, 0), read(&pool, 1)), (2, 1));
        // The old ones are a pool, too: as it was.
        assert_eq!(read(&open(&old).unwrap(), 0), 1);
    }
}

/// The copy was made while the pool was open: the same opening, some checkpoints ago.
#[test]
fn a_device_as_it_was_some_checkpoints_ago_is_stale() {
    let sims = fresh(3);
    let pool = open(&sims).unwrap();
    write(&pool, 0, 1);
    let old = copied(&sims);
    pool.checkpoint(false).unwrap();
    write(&pool, 1, 2);
    drop(pool);
    for at in 0..3 {
        let mut mixed = sims.clone();
        mixed[at] = Arc::clone(&old[at]);
        refused(&mixed, &options(), "the other devices have 1 checkpoints more");
    }
    assert_eq!(read(&open(&sims).unwrap(), 1), 2);
}

#[test]
fn copies_that_both_went_on_are_never_mixed() {
    let sims = fresh(2);
    go_on(&sims, 1);
    let other = copied(&sims);
    go_on(&sims, 2);
    go_on(&other, 3);
    for (one, two) in [(0, 1), (1, 0)] {
        let mixed = vec![Arc::clone(&sims[one]), Arc::clone(&other[two])];
        refused(&mixed, &options(), "went on apart");
    }
    // One of them went on much longer.
    (0..5).for_each(|_| go_on(&other, 4));
    refused(&vec![Arc::clone(&sims[0]), Arc::clone(&other[1])], &options(), "went on apart");
    assert_eq!(read(&open(&sims).unwrap(), 0), 2);
    assert_eq!(read(&open(&other).unwrap(), 0), 4);
}

#[test]
fn reading_claims_nothing() {
    let sims = fresh(2);
    go_on(&sims, 1);
    let before = contents(&sims);
    let pool = Pool::open_on(handles(&sims), &OpenOptions { read_only: true, ..options() }).unwrap();
    assert_eq!(read(&pool, 0), 1);
    pool.export().unwrap();
    drop(pool);
    assert_eq!(contents(&sims), before);
}

/// Returns the states that a power cut before each call to any of the devices leaves, three for each call.
fn cuts(sims: &Sims, work: impl FnOnce()) -> Vec<Sims> {
    let images: Arc<Mutex<Vec<Sims>>> = Arc::default();
    for sim in sims {
        let (all, images) = (sims.clone(), Arc::clone(&images));
        sim.watch(move || {
            let mut images = images.lock().unwrap();
            let seed = images.len() as u64;
            let all = |crash: &dyn Fn(&SimDevice) -> SimDevice| -> Sims {
                all.iter().map(|sim| Arc::new(crash(sim))).collect()
            };
            images.push(all(&|sim| sim.crash(&mut |_| 0)));
            images.push(all(&|sim| sim.crash(&mut |contents| contents - 1)));
            images.push(all(&|sim| sim.crash_seeded(seed)));
        });
    }
    work();
    sims.iter().for_each(|sim| sim.watch(|| {}));
    std::mem::take(&mut images.lock().unwrap())
}

#[test]
fn the_power_may_go_within_a_claim_and_within_a_checkpoint() {
    for count in 1..=3 {
        let sims = fresh(count);
        go_on(&sims, 1);
        let images = cuts(&sims, || {
            let pool = open(&sims).unwrap();
            write(&pool, 0, 2);
            pool.checkpoint(false).unwrap();
            pool.export().unwrap();
        });
        assert!(images.len() > 60, "{}", images.len());
        for (at, image) in images.iter().enumerate() {
            // And of some once more, within the recovery.
            if at % 24 == 10 {
                let again = cuts(image, || drop(open(image).unwrap_or_else(|error| panic!("{at}: {error}"))));
                for again in again.iter().step_by(2) {
                    let pool = open(again).unwrap_or_else(|error| panic!("{at}, again: {error}"));
                    assert!(matches!(read(&pool, 0), 1 | 2) && read(&pool, 1) == 1);
                }
            }
            let pool = open(image).unwrap_or_else(|error| panic!("{at}: {error}"));
            assert!(matches!(read(&pool, 0), 1 | 2) && read(&pool, 1) == 1);
        }
    }
}

/// The simulator's seeds 50000053, 60000029 and 60000060: an opening superblock was written where the superblock lay
/// that the pool was opened by, in one ring after the other, and two power cuts took both. What the superblock before
/// refers to had been given out since.
#[test]
fn what_counts_stays_whole_however_often_a_claim_is_torn() {
    for count in 1..=3 {
        let sims = fresh(count);
        go_on(&sims, 1);
        let reached = open(&sims).unwrap().standing().generation;
        for (at, image) in cuts(&sims, || drop(open(&sims).unwrap())).iter().enumerate() {
            for again in &cuts(image, || drop(open(image).unwrap_or_else(|error| panic!("{at}: {error}")))) {
                let pool = Pool::open_on(handles(again), &OpenOptions { read_only: true, ..options() });
                let pool = pool.unwrap_or_else(|error| panic!("{at}, again: {error}"));
                assert!(pool.standing().generation >= reached, "{at}, on {count} devices");
            }
        }
    }
}

#[test]
fn who_is_behind_what_is_known_is_refused() {
    let sims = fresh(1);
    go_on(&sims, 1);
    let old = copied(&sims);
    let told: Arc<Mutex<Vec<Standing>>> = Arc::default();
    let telling = Arc::clone(&told);
    let witness = Some(Witness::new(move |standing| telling.lock().unwrap().push(*standing)));
    let pool = Pool::open_on(handles(&sims), &OpenOptions { witness, now: 77, ..options() }).unwrap();
    write(&pool, 0, 2);
    let within = copied(&sims);
    pool.export().unwrap();
    let told = told.lock().unwrap().clone();
    assert_eq!(told.len(), 2, "when it was opened and when it was closed");
    assert_eq!((told[0].opening.id.number, told[0].opening.time), (3, 77));
    assert_eq!(told[1].relation(&told[0]), Relation::After);
    let since = |standing: &Standing| OpenOptions { since: Some(*standing), ..options() };
    refused(&old, &since(&told[0]), "is an older copy of pool 'tank'");
    refused(&within, &since(&told[1]), "is an older copy of pool 'tank'");
    assert_eq!(read(&Pool::open_on(handles(&within), &since(&told[0])).unwrap(), 0), 2);
    // It names the opening that both come from, and not how far the other one came in it.
    refused(&within, &since(&told[1]), "went on apart");
    // It may have been opened elsewhere meanwhile.
    (0..130).for_each(|_| drop(open(&sims).unwrap()));
    go_on(&sims, 3);
    assert_eq!(read(&Pool::open_on(handles(&sims), &since(&told[1])).unwrap(), 0), 3);
}

#[test]
fn a_pool_of_its_own_whenever_the_power_goes() {
    for count in 1..=2 {
        let sims = fresh(count);
        // Not exported: what is in the log is replayed under the new GUID.
        let pool = open(&sims).unwrap();
        write(&pool, 0, 1);
        drop(pool);
        let images = cuts(&sims, || assert_eq!(pool::reguid_on(&handles(&sims), OTHER).unwrap(), OTHER));
        let mut between = 0;
        for image in images.iter().chain([&sims]) {
            let guid = match open(image) {
                Ok(pool) => pool.guid(),
                Err(error) => {
                    between += 1;
                    assert!(error.to_string().contains("pagefold reguid --device"), "{error}");
                    pool::reguid_on(&handles(image), Guid(*b"a third GUID....")).unwrap()
                }
            };
            assert!([GUID, OTHER].contains(&guid), "{guid}");
            let pool = open(image).unwrap();
            assert_eq!((pool.guid(), read(&pool, 0)), (guid, 1));
            pool.export().unwrap();
            let label = Label::read(OneDevice::of(image[0].as_ref())).unwrap();
            assert_eq!(label.formerly, if guid == OTHER { GUID } else { Guid::NONE });
        }
        assert_eq!(between > 0, count > 1);
    }
}

#[test]
fn a_pool_gets_another_name_whenever_the_power_goes() {
    let sims = fresh(2);
    go_on(&sims, 1);
    let images = cuts(&sims, || pool::rename_on(handles(&sims), "monday").unwrap());
    let mut names = Vec::new();
    for image in images.iter().chain([&sims]) {
        let pool = open(image).unwrap();
        assert_eq!(read(&pool, 0), 1);
        names.push(pool.name().to_owned());
    }
    assert!(names.contains(&"tank".into()) && names.last().is_some_and(|name| name == "monday"));
    for name in ["", "1", "a\tb", "ä"] {
        assert!(pool::rename_on(handles(&sims), name).is_err(), "{name}");
    }
}

#[test]
fn devices_of_different_pools_are_made_no_pool_of_its_own() {
    let (one, two) = (fresh(2), fresh(1));
    pool::reguid_on(&handles(&two), OTHER).unwrap();
    let mixed = vec![Arc::clone(&one[0]), Arc::clone(&two[0])];
    for devices in [handles(&mixed), handles(&vec![Arc::clone(&one[0])]), Vec::new()] {
        assert!(pool::reguid_on(&devices, Guid([7; 16])).is_err());
    }
    assert!(pool::reguid_on(&handles(&two), OTHER).is_err(), "the same GUID again");
    assert_eq!(open(&one).unwrap().guid(), GUID);
}

/// A pool in files, so that they can be found.
struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    fn new(names: &[&str]) -> Self {
        let files = Self { dir: tempfile::tempdir().unwrap() };
        let paths: Vec<PathBuf> = names.iter().map(|name| files.path(name)).collect();
        for path in &paths {
            create_file_device(path, 131 * MIB).unwrap();
        }
        let options = CreateOptions { force: false, created: 0, guid: GUID };
        pool::create("tank", &paths, &options).unwrap();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn copy(&self, from: &str, to: &str) {
        std::fs::copy(self.path(from), self.path(to)).unwrap();
    }

    fn go_on(&self, names: &[&str]) {
        let paths: Vec<PathBuf> = names.iter().map(|name| self.path(name)).collect();
        Pool::open(&paths, &options()).unwrap().export().unwrap();
    }

    /// State, devices, and how many devices are copies that are alike.
    fn found(&self) -> Vec<(FoundState, Vec<String>, usize)> {
        let found = pool::scan(&[self.dir.path().to_owned()], &mut |_| ()).unwrap();
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut found: Vec<_> = found
            .into_iter()
            .map(|one| {
                (one.state, one.devices.iter().map(|path| name(path)).collect::<Vec<_>>(), one.alike.len())
            })
            .collect();
        found.sort_by(|one, two| one.1.cmp(&two.1));
        found
    }
}

fn list(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn every_copy_is_found_and_named() {
    let files = Files::new(&["a"]);
    assert_eq!(files.found(), [(FoundState::Exported, list(&["a"]), 0)]);
    // A second name for the same file is no copy.
    std::fs::hard_link(files.path("a"), files.path("a-again")).unwrap();
    assert_eq!(files.found(), [(FoundState::Exported, list(&["a"]), 0)]);
    files.copy("a", "b");
    assert_eq!(files.found(), [(FoundState::Copies, list(&["a"]), 1)]);
    files.go_on(&["a"]);
    let old = (FoundState::Old, list(&["b"]), 0);
    assert_eq!(files.found(), [(FoundState::Exported, list(&["a"]), 0), old.clone()]);
    files.copy("b", "c");
    files.go_on(&["c"]);
    let apart = |name| (FoundState::Apart, list(&[name]), 0);
    assert_eq!(files.found(), [apart("a"), old, apart("c")]);
    let held = FileDevice::open(&files.path("b"), OpenMode::ReadWrite).unwrap();
    assert!(pool::scan(&[files.path("b")], &mut |_| ()).unwrap()[0].in_use);
    drop(held);
    // A copy with a GUID of its own is another pool.
    pool::reguid(&[files.path("c")], OTHER).unwrap();
    assert_eq!(files.found()[0], (FoundState::Exported, list(&["a"]), 0));
    assert_eq!(files.found()[2], (FoundState::Exported, list(&["c"]), 0));
}

#[test]
fn stale_devices_are_found_beside_the_pool() {
    let files = Files::new(&["a", "b"]);
    files.copy("b", "b-old");
    assert_eq!(files.found(), [(FoundState::Copies, list(&["a", "b"]), 1)]);
    files.go_on(&["a", "b"]);
    let old = (FoundState::Old, list(&["b-old"]), 0);
    assert_eq!(files.found(), [(FoundState::Exported, list(&["a", "b"]), 0), old.clone()]);
    let paths = ["a", "b-old"].map(|name| files.path(name));
    assert!(matches!(Pool::open(&paths, &options()), Err(Error::NotCurrent { .. })));
    std::fs::remove_file(files.path("b")).unwrap();
    assert_eq!(files.found(), [(FoundState::Incomplete, list(&["a"]), 0), old]);
}

/// Of a mirror one device was whole, and the other one was being filled from it; of the former an older copy is here.
#[test]
fn an_older_copy_beside_a_device_that_was_being_filled_is_not_taken_for_the_pool() {
    let files = Files::new(&["a"]);
    files.copy("a", "old");
    create_file_device(&files.path("b"), 131 * MIB).unwrap();
    let pool = Pool::open(&[files.path("a")], &options()).unwrap();
    write(&pool, 0, 1);
    let new = FileDevice::open(&files.path("b"), OpenMode::ReadWrite).unwrap();
    pool.attach(0, Arc::new(new), false).unwrap();
    pool.checkpoint(false).unwrap();
    drop(pool);
    std::fs::rename(files.path("old"), files.path("a")).unwrap();
    let found = files.found();
    assert!(found.iter().all(|(state, ..)| *state == FoundState::Incomplete), "{found:?}");
    let error = Pool::open(&["a", "b"].map(|name| files.path(name)), &options()).err().unwrap().to_string();
    assert!(error.contains("older copy") && error.contains("being filled"), "{error}");
}
