//! A pool in memory with files of several kinds, and its backup in a store that can be slow, fail and lie.
#![allow(clippy::unwrap_used, clippy::panic, dead_code, unreachable_pub, reason = "helpers of tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use pagefold_backup::{Contents, CreateOptions, InitOptions, Repository, Secret, Seen, Store};
use pagefold_codec::testing::{Random, Schema, heap_page};
use pagefold_engine::Key;
use pagefold_engine::dataset::{Change, Dataset};
use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{
    CreateOptions as MakePool, Guid, LearnOptions, OpenOptions, Origin as SnapshotOrigin, Pool,
    ReceiveOptions, Source, StreamHead, create_on,
};
use pagefold_fs::{Caller, Clock, FormatOptions, Fs, FsOptions, Time};
use pagefold_lazy::{BackupDataset, Origin, ReadOptions, skeleton};

pub const PAGE: u32 = 8192;
const RECEIVE: ReceiveOptions = ReceiveOptions { created: 5, keep: false, force: false };
/// Pages of the object that a model codes.
pub const MODELLED: u64 = 120;
/// The dataset that is backed up.
pub const DATASET: &str = "db";

pub fn open(device: &Arc<SimDevice>, salt: u64) -> Arc<Pool> {
    let devices = vec![Arc::clone(device) as Arc<dyn Device>];
    Pool::open_on(devices, &OpenOptions { salt, cache_bytes: 16 << 20, ..OpenOptions::default() }).unwrap()
}

/// An empty pool.
pub fn pool(guid: u8) -> (Arc<SimDevice>, Arc<Pool>) {
    let device = Arc::new(SimDevice::new(256 << 20, 1));
    let devices = vec![Arc::clone(&device) as Arc<dyn Device>];
    create_on("tank", &devices, &MakePool { force: false, created: 0, guid: Guid([guid; 16]) }).unwrap();
    let pool = open(&device, 0);
    (device, pool)
}

pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len).map(|_| (next() >> 32) as u8).collect()
}

pub fn write(dataset: &dyn Dataset, object: u64, page: u64, data: &[u8]) {
    let offset = page * u64::from(PAGE);
    dataset.apply(&[Change::Write { object, record_size: PAGE, offset, data }]).unwrap();
}

/// All of `len` bytes of an object from `offset` on.
pub fn read(dataset: &dyn Dataset, object: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xEE; len];
    dataset.read(object, PAGE, offset, &mut bytes).unwrap();
    bytes
}

/// Objects 3 (noise), 4 (text, every other page), 5 (shares some of 3), 6 (of a database, by a model), and values.
fn fill(pool: &Pool) {
    pool.set_property("compression", Some("page-1")).unwrap();
    pool.set_compression("page-1".parse().unwrap());
    pool.create_dataset(DATASET, 1).unwrap();
    let dataset = pool.open_dataset(DATASET).unwrap();
    for page in 0..1300 {
        write(&*dataset, 3, page, &noise(page + 1, PAGE as usize));
    }
    for page in 0..200 {
        write(&*dataset, 4, page * 2, &format!("row {page} ").repeat(2000).as_bytes()[..PAGE as usize]);
    }
    for object in 0..500 {
        dataset.apply(&[Change::Put(Key::new(100 + object, 2, 7), noise(object, 40))]).unwrap();
    }
    let share = Change::Share { from_object: 3, from_page: 0, to_object: 5, to_page: 3, count: 12 };
    dataset.apply(&[share]).unwrap();
    let mut random = Random::new(5);
    let schema = Schema::simple(false);
    let pages: Vec<Vec<u8>> =
        (0..MODELLED as usize).map(|block| heap_page(&mut random, &schema, block)).collect();
    (0..).zip(&pages).for_each(|(page, bytes)| write(&*dataset, 6, page, bytes));
    pool.sync().unwrap();
    pool.learn(&LearnOptions { pages_min: 60, sample_pages: 60 }).unwrap().unwrap();
    (0..).zip(&pages).for_each(|(page, bytes)| write(&*dataset, 6, page, bytes));
    pool.sync().unwrap();
}

/// A store in memory whose reads can be made to fail, or to take their time.
#[derive(Debug)]
pub struct Odd {
    pub inner: Arc<InMemory>,
    /// Number of reads that fail from now on.
    pub failing: AtomicU64,
    /// Each read takes so many milliseconds.
    pub delay_ms: AtomicU64,
    /// It shows nothing.
    pub empty: AtomicBool,
    /// Number of reads so far.
    pub reads: AtomicU64,
    /// Number of reads under way.
    under_way: AtomicU64,
    /// The largest number of reads that were under way at once.
    pub most_at_once: AtomicU64,
}

impl std::fmt::Display for Odd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("odd")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Odd {
    async fn put_opts(&self, at: &Path, bytes: PutPayload, options: PutOptions) -> StoreResult<PutResult> {
        self.inner.put_opts(at, bytes, options).await
    }
    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, options).await
    }
    async fn get_opts(&self, at: &Path, options: GetOptions) -> StoreResult<GetResult> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let at_once = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(at_once, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(self.delay_ms.load(Ordering::Relaxed))).await;
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        let fails = self.failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if fails.is_ok() {
            return Err(object_store::Error::Generic { store: "odd", source: "no route to host".into() });
        }
        if self.empty.load(Ordering::SeqCst) {
            return Err(object_store::Error::NotFound { path: at.to_string(), source: "nothing".into() });
        }
        self.inner.get_opts(at, options).await
    }
    fn delete_stream(
        &self,
        all: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        self.inner.delete_stream(all)
    }
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.inner.list(prefix)
    }
    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }
    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// A pool, and its backup.
pub struct Bench {
    pub pool: Arc<Pool>,
    pub odd: Arc<Odd>,
    secret: Option<&'static str>,
}

impl Bench {
    /// With the dataset that `make` fills.
    pub fn with(secret: Option<&'static str>, make: impl FnOnce(&Pool)) -> Self {
        let (_, pool) = pool(1);
        make(&pool);
        let odd = Arc::new(Odd {
            inner: Arc::new(InMemory::new()),
            failing: AtomicU64::new(0),
            delay_ms: AtomicU64::new(0),
            empty: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
            most_at_once: AtomicU64::new(0),
        });
        let bench = Self { pool, odd, secret };
        let options = InitOptions { secret: bench.secret(), ..InitOptions::default() };
        Repository::init(bench.store(), Seen::default(), &options).unwrap();
        bench.back_up("one", None);
        bench
    }

    /// Makes a snapshot and its backup.
    pub fn back_up(&self, name: &str, from: Option<&str>) {
        self.pool.snapshot(&[DATASET], name, 10).unwrap();
        let (path, mut stream) = (format!("{DATASET}@{name}"), Vec::new());
        let source = Source::Snapshot { path: &path, from };
        self.pool.send(&source, &mut stream, &mut |_| {}).unwrap();
        let options = CreateOptions {
            pool: "tank".into(),
            dataset: DATASET.into(),
            made: 20,
            ..CreateOptions::default()
        };
        self.repository().create(&mut stream.as_slice(), &options, &mut |_, _| {}).unwrap();
    }

    pub fn repository(&self) -> Repository {
        Repository::open(self.store(), Seen::default(), self.secret().as_ref()).unwrap()
    }

    /// With objects of several kinds.
    pub fn new(secret: Option<&'static str>) -> Self {
        Self::with(secret, fill)
    }

    fn secret(&self) -> Option<Secret> {
        self.secret.map(|text| Secret::new(text.into()).unwrap())
    }

    fn store(&self) -> Store {
        Store::new(Arc::clone(&self.odd) as Arc<dyn ObjectStore>, "").unwrap()
    }

    pub fn contents(&self) -> Contents {
        let repository = self.repository();
        let backup = repository.find("tank/db").unwrap();
        Contents::open(repository, backup).unwrap()
    }

    pub fn lazy(&self) -> Arc<BackupDataset> {
        self.lazy_with(ReadOptions { patience: Duration::from_millis(400), ..ReadOptions::default() })
    }

    pub fn lazy_with(&self, options: ReadOptions) -> Arc<BackupDataset> {
        BackupDataset::new(self.contents(), options)
    }

    pub fn original(&self) -> Arc<dyn Dataset> {
        self.pool.version("db@one").unwrap()
    }

    /// Has every pack changed.
    pub fn damage(&self, change: impl Fn(&mut Vec<u8>)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let listed: Vec<ObjectMeta> =
                futures_util::TryStreamExt::try_collect(self.odd.inner.list(Some(&Path::from("packs"))))
                    .await
                    .unwrap();
            for meta in listed {
                let mut bytes =
                    self.odd.inner.get(&meta.location).await.unwrap().bytes().await.unwrap().to_vec();
                change(&mut bytes);
                self.odd.inner.put(&meta.location, bytes.into()).await.unwrap();
            }
        });
    }

    /// Receives the backup's skeleton as a new dataset of a pool.
    pub fn build(&self, pool: &Pool, path: &str) {
        let head = StreamHead {
            to: SnapshotOrigin { pool: Guid([9; 16]), number: 1, created: 3 },
            from: None,
            after: None,
            name: "skeleton".into(),
            expected_bytes: 0,
        };
        let origin =
            Origin { repository: [2; 16], backup: 1, place: "nowhere".into(), name: "tank/db@one".into() };
        let mut stream = Vec::new();
        skeleton(&self.contents(), &origin, &head, &mut stream).unwrap();
        pool.receive(path, &RECEIVE, &mut stream.as_slice(), &mut |_| {}).unwrap();
    }

    /// Restores the backup as a new dataset of a pool.
    pub fn restore(&self, pool: &Pool, path: &str) {
        let repository = self.repository();
        let backup = repository.find("tank/db").unwrap();
        let mut stream = Vec::new();
        repository.restore(&backup, None, None, &mut stream, &mut |_, _| {}).unwrap();
        pool.receive(path, &RECEIVE, &mut stream.as_slice(), &mut |_| {}).unwrap();
    }
}

pub struct Still;

impl Clock for Still {
    fn now(&self) -> Time {
        Time::default()
    }
}

/// Makes a file system in a new dataset.
pub fn format(pool: &Pool) -> Arc<Fs> {
    pool.create_dataset(DATASET, 1).unwrap();
    let dataset = pool.open_dataset(DATASET).unwrap();
    let options = FormatOptions { seed: 1, uid: 0, gid: 0, perm: 0o755 };
    Fs::format(dataset.as_ref(), &Still, &options).unwrap();
    mount(dataset, false)
}

pub fn mount(dataset: Arc<dyn Dataset>, read_only: bool) -> Arc<Fs> {
    Fs::mount(dataset, Arc::new(Still), FsOptions { read_only, ..FsOptions::default() }).unwrap()
}

pub const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0o022 };
