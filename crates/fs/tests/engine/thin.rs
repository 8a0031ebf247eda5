//! Thin capacity: what mounts tell where `logicalcapacity` is set, and what is accepted of it.

use std::sync::Arc;

use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::Pool;
use pagefold_fs::testing::ManualClock;
use pagefold_fs::{Fs, FsError, FsOptions, Ino, OpenFlags, StatFs, WriteFlags};

use super::{DEVICE_BYTES, FORMAT, USER, assert_clean, device, fill, mount, open};

const MIB: u64 = 1 << 20;

/// Numbers at random, from a seed.
struct Noise(u64);

impl Noise {
    /// Returns bytes of which every second KiB is noise: they are stored in half of their length.
    fn soft(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![b' '; len];
        for piece in bytes.chunks_mut(2048) {
            for byte in piece.iter_mut().take(1024) {
                self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (self.0 >> 56) as u8;
            }
        }
        bytes
    }
}

/// Size, free and available bytes of a mount.
fn df(pool: &Pool, fs: &Fs) -> (u64, u64, u64) {
    pool.measure_expansion();
    let StatFs { block_size, blocks, blocks_free, blocks_available, .. } = fs.statfs().unwrap();
    assert!(blocks_available <= blocks_free && blocks_free <= blocks);
    let unit = u64::from(block_size);
    (blocks * unit, blocks_free * unit, blocks_available * unit)
}

fn write(fs: &Fs, name: &[u8], bytes: u64, piece: u64, noise: &mut Noise) -> Result<(), FsError> {
    let f = fs.create(Ino::ROOT, name, 0o644, OpenFlags::default(), &USER)?.ino;
    let mut written = 0;
    while written < bytes {
        let len = piece.min(bytes - written);
        fs.write(f, written, &noise.soft(usize::try_from(len).unwrap()), WriteFlags::default())?;
        written += len;
    }
    fs.release(f);
    fs.sync()
}

#[test]
fn what_a_thin_pool_tells_to_be_available_is_accepted() {
    for (capacity, recordsize) in
        [("4x", 16 << 10), ("auto", 16 << 10), ("2x", 8 << 10), ("3x", 128 << 10_u32)]
    {
        let device = device();
        let pool = open(&device);
        pool.set_logical_capacity(capacity.parse().unwrap());
        Fs::format(&*pool.dataset(), &ManualClock::default(), &FORMAT).unwrap();
        let options = FsOptions { recordsize: Some(recordsize), ..FsOptions::default() };
        let fs = Fs::mount(pool.dataset(), Arc::new(ManualClock::default()), options).unwrap();
        let mut noise = Noise(1);
        write(&fs, b"first", 32 * MIB, MIB, &mut noise).unwrap();
        for (name, piece) in [(b"a", MIB), (b"b", 65_537), (b"c", MIB), (b"d", 4096)] {
            let (size, free, told) = df(&pool, &fs);
            let told = if name == b"a" { told / 2 } else { told };
            let written = write(&fs, name, told, piece, &mut noise);
            assert!(
                written.is_ok(),
                "{capacity}, {recordsize}: {told} of {free} of {size} bytes: {written:?}"
            );
        }
        let (size, free, told) = df(&pool, &fs);
        let stored = pool.space();
        assert!(told < 8 * MIB, "{told} bytes are left, and {stored:?}");
        if capacity == "2x" {
            // The data compress a little better or worse; promise and room end together.
            assert!(free < size / 8, "{free} of {size}");
        }
        assert_clean(&*pool.dataset());
    }
}

/// Twice the bytes were promised, and the data do not compress. What was promised is told until it is known; where
/// nothing more is accepted, nothing is told to be left. Then everything works that works on a full pool.
#[test]
fn a_thin_pool_that_is_physically_full_frees_and_goes_on_after_it_has_grown() {
    let device = device();
    let pool = open(&device);
    pool.set_logical_capacity("2x".parse().unwrap());
    Fs::format(&*pool.dataset(), &ManualClock::default(), &FORMAT).unwrap();
    let fs = mount(pool.dataset());
    let capacity = pool.space().capacity_bytes;
    let (size, free, told) = df(&pool, &fs);
    assert!(
        size.abs_diff(2 * capacity) < 8192 && free > size - MIB && told > size - 8 * MIB,
        "{told} of {size}"
    );
    fill(&fs, b"0");
    fs.sync().unwrap();
    let (size, free, told) = df(&pool, &fs);
    assert_eq!(told, 0);
    // df(1) shows 100 % of what there is, and that half of the promise is not kept.
    assert!(size.abs_diff(2 * capacity) < 8192 && free > capacity - 16 * MIB, "{free} of {size}");
    let thin = pool.space().thin.unwrap();
    assert!(thin.expansion.of(capacity) < capacity + capacity / 50);
    // Snapshots, deletions and truncations.
    fs.unlink(Ino::ROOT, b"0").unwrap();
    let most = fill(&fs, b"1");
    pool.snapshot(&[""], "held", 1).unwrap();
    let f = fs.lookup(Ino::ROOT, b"1").unwrap().ino;
    fs.setattr(f, &pagefold_fs::SetAttr { size: Some(5), ..Default::default() }).unwrap();
    while fs.reap(10_000).unwrap() {}
    let refused = write(&fs, b"2", 16 * MIB, MIB, &mut Noise(3));
    assert!(matches!(refused, Err(FsError::NoSpace(_))), "the snapshot holds it: {refused:?}");
    pool.destroy_snapshots(&["@held"]).unwrap();
    assert!(fill(&fs, b"3") > most / 10 * 7);
    // Room is added.
    let more: Arc<dyn Device> = Arc::new(SimDevice::new(DEVICE_BYTES, 6));
    pool.add_groups(vec![vec![more]]).unwrap();
    let (grown, _, told) = df(&pool, &fs);
    let capacity = pool.space().capacity_bytes;
    assert!(
        grown.abs_diff(2 * capacity) < 8192 && grown > 2 * size && told > capacity / 3,
        "{told} of {grown}"
    );
    assert!(fill(&fs, b"4") > most);
    assert_eq!(df(&pool, &fs).2, 0);
    assert_clean(&*pool.dataset());
}

#[test]
fn quotas_are_told_in_the_same_terms() {
    let device = device();
    let pool = open(&device);
    pool.set_logical_capacity("3x".parse().unwrap());
    let [stored, logical, free] = ["stored", "logical", "free"].map(|path| {
        pool.create_dataset(path, 1).unwrap();
        let dataset = pool.open_dataset(path).unwrap();
        Fs::format(&*dataset, &ManualClock::default(), &FORMAT).unwrap();
        mount(dataset)
    });
    pool.set_property_of("stored", "quota", Some(&(16 * MIB).to_string())).unwrap();
    pool.set_property_of("logical", "logicalquota", Some(&(12 * MIB).to_string())).unwrap();
    assert_eq!(df(&pool, &stored).0, 48 * MIB);
    assert_eq!(df(&pool, &logical).0, 12 * MIB);
    let size = df(&pool, &free).0;
    let mut noise = Noise(2);
    write(&stored, b"f", 16 * MIB, MIB, &mut noise).unwrap();
    write(&logical, b"f", 8 * MIB, MIB, &mut noise).unwrap();
    // The data are stored in half of their length, and so 32 MiB fit into the quota; 48 were promised.
    let (told, left, available) = df(&pool, &stored);
    assert!(told == 48 * MIB && left.abs_diff(32 * MIB) < MIB, "{left}");
    assert!((8 * MIB..17 * MIB).contains(&available), "{available}");
    write(&stored, b"g", available, MIB, &mut noise).unwrap();
    // A bound on bytes before compression is told as it is.
    let (told, left, available) = df(&pool, &logical);
    assert!(
        told == 12 * MIB && left.abs_diff(4 * MIB) < MIB / 8 && available.abs_diff(4 * MIB) < MIB / 8,
        "{available}"
    );
    // A dataset without bounds tells what the pool has.
    let (told, left, _) = df(&pool, &free);
    assert!(told == size && left < size - 32 * MIB, "{left} of {told}");
    // Reserved bytes are available to their dataset alone.
    let before = [df(&pool, &free).2, df(&pool, &stored).2];
    pool.set_property_of("logical", "reservation", Some(&(64 * MIB).to_string())).unwrap();
    let after = [df(&pool, &free).2, df(&pool, &stored).2];
    assert!(before[0] - after[0] > 64 * MIB && after[1] <= before[1], "{before:?} {after:?}");
    pool.set_property_of("stored", "quota", None).unwrap();
    pool.set_logical_capacity("off".parse().unwrap());
    assert_eq!(df(&pool, &stored).0, pool.space().capacity_bytes / 4096 * 4096);
}
