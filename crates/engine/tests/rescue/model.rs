//! Pools that are written, and the model of what they hold: where it lies, and what a damaged copy still gives.

use std::collections::BTreeMap;
use std::sync::Arc;

use pagefold_engine::dataset::{Change, Dataset};
use pagefold_engine::device::{AlignedBuf, Device, SimDevice};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create_on};
use pagefold_engine::wal::{RecordKind, batch};
use pagefold_engine::{Error, Key};

use super::{CHUNK, MIB, OBJECT, PAGE, PAGES, VersionModel, WrittenPool, devices, open, page, random};

impl VersionModel {
    fn put(&mut self, dataset: &dyn Dataset, object: u64, offset: u64, seed: u64) {
        let key = Key::new(object, 0x11, offset);
        let value = random(seed, 100);
        dataset.apply(&[Change::Put(key, value.clone())]).unwrap();
        self.values.insert(key, value);
    }

    fn delete(&mut self, dataset: &dyn Dataset, object: u64, offset: u64) {
        let key = Key::new(object, 0x11, offset);
        dataset.apply(&[Change::Delete(key)]).unwrap();
        self.values.remove(&key);
    }

    pub(super) fn write(&mut self, dataset: &dyn Dataset, at: u64, seed: u64) {
        let (offset, data) = (at * u64::from(PAGE), page(seed));
        let change = Change::Write { object: OBJECT, record_size: PAGE, offset, data: &data };
        dataset.apply(&[change]).unwrap();
        self.pages.insert(at, seed);
    }

    fn punch(&mut self, dataset: &dyn Dataset, from: u64, to: u64) {
        dataset.apply(&[Change::Punch { object: OBJECT, from, to }]).unwrap();
        self.pages.retain(|at, _| !(from..to).contains(at));
    }

    /// Compares it with a dataset of a damaged pool: what is not in the list is as it was written, what is in it cannot
    /// be read. Returns how much the list has.
    pub(super) fn compare(
        &self,
        pool: &Pool,
        path: &str,
        report: &pagefold_engine::pool::CheckReport,
    ) -> usize {
        let dataset = pool.open_dataset(path).unwrap();
        let lost = pool.unreadable(path, report).unwrap();
        let absent = (0..90).map(|object| Key::new(object, 0x12, 5));
        for key in self.values.keys().copied().chain(absent) {
            match dataset.get(&key) {
                Ok(found) => {
                    assert!(!lost.has(&key), "{key:?} of '{path}' is listed");
                    assert_eq!(found.as_ref(), self.values.get(&key), "{key:?} of '{path}'");
                }
                Err(error) => assert!(error.is_damage() && lost.has(&key), "{key:?} of '{path}': {error}"),
            }
        }
        let end = Key::new(u64::MAX, Key::ENGINE_KINDS, 0);
        for (from, to) in lost.readable(Key::FIRST, end) {
            let found: Vec<(Key, Vec<u8>)> = dataset.range(&from, &to, usize::MAX).unwrap();
            let expected = self.values.range(from..to).map(|(key, value)| (*key, value.clone()));
            assert!(found.into_iter().eq(expected), "{from:?}..{to:?} of '{path}'");
        }
        let no_pages = Vec::new();
        let lost_pages = lost.pages.get(&OBJECT).unwrap_or(&no_pages);
        for at in 0..PAGES + 20 {
            let listed = lost.has(&Key::page(OBJECT, at))
                || lost_pages.iter().any(|(first, end)| (*first..*end).contains(&at));
            let mut out = vec![0xAA; PAGE as usize];
            match dataset.read(OBJECT, PAGE, at * u64::from(PAGE), &mut out) {
                Ok(()) => {
                    assert!(!listed, "page {at} of '{path}' is listed");
                    let expected =
                        self.pages.get(&at).map_or_else(|| vec![0; PAGE as usize], |seed| page(*seed));
                    assert!(out == expected, "page {at} of '{path}'");
                }
                Err(error) => assert!(error.is_damage() && listed, "page {at} of '{path}': {error}"),
            }
        }
        let pages: u64 = lost.pages.values().flatten().map(|(first, end)| end - first).sum();
        lost.keys.len() + pages as usize
    }
}

impl WrittenPool {
    /// With datasets and snapshots, some changes of which only the log has.
    pub(super) fn new() -> Self {
        Self::of_size(160 * MIB)
    }

    pub(super) fn of_size(size_bytes: u64) -> Self {
        let device = Arc::new(SimDevice::new(size_bytes, 1));
        let options = CreateOptions { force: false, created: 0, guid: Guid(*b"0123456789abcdef") };
        create_on("tank", &devices(&device), &options).unwrap();
        let pool = open(&device, &OpenOptions::default()).unwrap();
        let (mut main, mut other) = (VersionModel::default(), VersionModel::default());
        let dataset = pool.open_dataset("").unwrap();
        for n in 0..4000 {
            main.put(&*dataset, 1 + n % 80, n / 80, n);
        }
        for at in 0..PAGES {
            main.write(&*dataset, at, at);
        }
        pool.checkpoint(false).unwrap();
        pool.snapshot(&[""], "first", 0).unwrap();
        let first = main.clone();
        for n in (0..4000).step_by(7) {
            main.put(&*dataset, 1 + n % 80, n / 80, 10_000 + n);
        }
        (0..PAGES).step_by(3).for_each(|at| main.write(&*dataset, at, 10_000 + at));
        pool.create_dataset("other", 0).unwrap();
        let beside = pool.open_dataset("other").unwrap();
        (0..500).for_each(|n| other.put(&*beside, 1 + n % 9, n, n));
        (0..50).for_each(|at| other.write(&*beside, at, 20_000 + at));
        pool.checkpoint(false).unwrap();
        // From here on only the log has it.
        (0..4000).step_by(11).for_each(|n| main.put(&*dataset, 1 + n % 80, n / 80, 30_000 + n));
        (0..4000).step_by(13).for_each(|n| main.delete(&*dataset, 1 + n % 80, n / 80));
        (0..PAGES).step_by(5).for_each(|at| main.write(&*dataset, at, 30_000 + at));
        main.punch(&*dataset, 300, 420);
        pool.sync().unwrap();
        pool.snapshot(&[""], "second", 0).unwrap();
        let second = main.clone();
        (0..PAGES).step_by(50).for_each(|at| main.write(&*dataset, at, 40_000 + at));
        pool.sync().unwrap();
        // Damage to what nothing followed could not be told from what a crash has torn.
        pool.attest().unwrap();
        drop(pool);
        let versions = BTreeMap::from([("", main), ("@first", first), ("@second", second), ("other", other)]);
        Self::on(Arc::new(device.crash(&mut |_| 0)), versions)
    }

    pub(super) fn on(device: Arc<SimDevice>, versions: BTreeMap<&'static str, VersionModel>) -> Self {
        let mut bytes = AlignedBuf::zeroed(device.size_bytes() as usize);
        device.read(0, &mut bytes).unwrap();
        Self { device, bytes, versions }
    }

    /// The same, with what it holds packed together by the cleaner.
    pub(super) fn cleaned() -> Self {
        let written = Self::new();
        let pool = open(&written.device, &OpenOptions::default()).unwrap();
        pool.clean().unwrap();
        pool.clean().unwrap();
        pool.export().unwrap();
        Self::on(written.device, written.versions)
    }

    /// Where these bytes are: first byte, and a length.
    pub(super) fn places(&self, text: &[u8], len: u64) -> Vec<(u64, u64)> {
        let blocks = self.device.written_blocks();
        let starts = blocks.into_iter().flat_map(|block| block as usize..block as usize + 4096);
        starts.filter(|at| self.bytes[*at..].starts_with(text)).map(|at| (at as u64, len)).collect()
    }

    /// First byte and header of each batch that the device has.
    pub(super) fn batches(&self) -> Vec<(u64, batch::BatchHeader)> {
        let mut found = Vec::new();
        self.each_batch(&mut |start, batch| found.push((start, *batch.header())));
        found
    }

    /// First byte and length of each record of a kind that batches have.
    pub(super) fn records(&self, kind: RecordKind) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        self.each_batch(&mut |start, batch| {
            let of_kind = batch.entries(0).filter(|(_, code)| *code == kind as u8);
            found.extend(of_kind.map(|(entry, _)| (start + u64::from(entry.start), entry.len_bytes.into())));
        });
        found
    }

    fn each_batch(&self, each: &mut dyn FnMut(u64, &batch::Verified<'_>)) {
        let all = &self.bytes;
        for chunk in (MIB as usize..all.len() - CHUNK as usize).step_by(CHUNK as usize) {
            for at in (chunk..chunk + CHUNK as usize).step_by(4096) {
                if let Some(batch) = batch::Verified::new(&all[at..chunk + CHUNK as usize]) {
                    each(at as u64, &batch);
                }
            }
        }
    }

    /// A copy with damage in the middle of these bytes, wherever they are: in second copies, too.
    pub(super) fn damaged(&self, (start, len): (u64, u64)) -> Arc<SimDevice> {
        let copy = self.device.crash(&mut |_| 0);
        let all = &self.bytes;
        let bytes = &all[start as usize..(start + len) as usize];
        for block in self.device.written_blocks() {
            let twins = (block as usize..block as usize + 4096).filter(|at| all[*at..].starts_with(bytes));
            twins.for_each(|at| copy.flip_bit(at as u64 + len / 2, 3));
        }
        Arc::new(copy)
    }

    /// Opens a damaged device for rescue and compares all that is there. Returns how much is lost.
    pub(super) fn compare(&self, device: &Arc<SimDevice>) -> usize {
        let written = device.stats().counts().writes;
        let pool = open(device, &OpenOptions::for_rescue()).unwrap();
        let report = pool.check_open(&mut |_| {});
        let lost = self.versions.iter().map(|(path, model)| model.compare(&pool, path, &report)).sum();
        assert!(lost == 0 || report.errors > 0);
        let dataset = pool.dataset();
        let refused = dataset.apply(&[Change::Delete(Key::new(1, 0x11, 0))]);
        assert!(matches!(refused, Err(Error::ReadOnly(_))), "{refused:?}");
        pool.export().unwrap();
        drop(pool);
        assert_eq!(device.stats().counts().writes, written, "nothing is written");
        lost
    }
}
