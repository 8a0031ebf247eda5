//! A pool and a store in memory, for tests of backups.
#![allow(dead_code, unreachable_pub, reason = "each test uses some of it")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use pagefold_backup::{CreateOptions, Created, InitOptions, Repository, Result, Secret, Seen, Store};
use pagefold_engine::Key;
use pagefold_engine::dataset::{Change, Dataset};
use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{
    CreateOptions as MakePool, Guid, OpenOptions, Pool, ReceiveOptions, Source, create_on,
};
use pagefold_engine::tree::{Value, Visit};

pub const PAGE: u32 = 8192;
pub const RECEIVE: ReceiveOptions = ReceiveOptions { created: 5, keep: true, force: false };

pub fn pool(guid: u8) -> Arc<Pool> {
    let devices = vec![Arc::new(SimDevice::new(512 << 20, 1)) as Arc<dyn Device>];
    create_on("tank", &devices, &MakePool { force: false, created: 0, guid: Guid([guid; 16]) }).unwrap();
    Pool::open_on(devices, &OpenOptions { salt: 0, cache_bytes: 16 << 20, ..OpenOptions::default() }).unwrap()
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

pub fn put(dataset: &dyn Dataset, object: u64, value: &[u8]) {
    dataset.apply(&[Change::Put(Key::new(object, 2, 7), value.to_vec())]).unwrap();
}

/// `count` noisy pages of an object, and others that compress, and shared ones.
pub fn fill(pool: &Pool, count: u64) {
    let dataset = pool.open_dataset("db").unwrap();
    for page in 0..count {
        write(&*dataset, 3, page, &noise(page + 1, PAGE as usize));
    }
    for page in 0..200 {
        write(&*dataset, 4, page * 2, &format!("row {page} ").repeat(2000).as_bytes()[..PAGE as usize]);
    }
    (0..500).for_each(|object| put(&*dataset, 100 + object, &noise(object, 40)));
    let share = Change::Share { from_object: 3, from_page: 0, to_object: 5, to_page: 3, count: 12 };
    dataset.apply(&[share]).unwrap();
}

/// All that a dataset or snapshot holds, with pages as they read.
pub fn contents(pool: &Pool, path: &str) -> BTreeMap<Key, Vec<u8>> {
    pool.sync().unwrap();
    let version = pool.version(path).unwrap();
    let mut found = BTreeMap::new();
    let walked = version.tree.walk(&mut |visit| {
        match visit {
            Visit::Entry(key, Value::Bytes(bytes)) if key.kind < Key::ENGINE_KINDS => {
                found.insert(key, bytes.into_vec());
            }
            Visit::Entry(key, Value::Page(_)) if key.kind == Key::PAGE => drop(found.insert(key, Vec::new())),
            Visit::Entry(..) | Visit::Node { .. } => {}
            Visit::Damaged { ptr, error, .. } => panic!("{ptr:?}: {error}"),
        }
        Ok(())
    });
    walked.unwrap();
    for (key, value) in found.iter_mut().filter(|(key, _)| key.kind == Key::PAGE) {
        value.resize(PAGE as usize, 0);
        version.read(key.object, PAGE, key.offset * u64::from(PAGE), value).unwrap();
    }
    found
}

pub struct Bench {
    pub memory: Arc<InMemory>,
    pub pool: Arc<Pool>,
}

impl Bench {
    pub fn new(pages: u64) -> Self {
        let pool = pool(1);
        pool.create_dataset("db", 1).unwrap();
        fill(&pool, pages);
        Self { memory: Arc::new(InMemory::new()), pool }
    }

    pub fn store(&self) -> Store {
        Store::new(Arc::clone(&self.memory) as Arc<dyn ObjectStore>, "some/where").unwrap()
    }

    pub fn init(&self, secret: Option<&str>) -> Repository {
        let secret = secret.map(|text| Secret::new(text.into()).unwrap());
        Repository::init(self.store(), Seen::default(), &InitOptions { secret, ..InitOptions::default() })
            .unwrap()
    }

    pub fn snapshot(&self, name: &str) -> String {
        let path = format!("db@{name}");
        self.pool.snapshot(&["db"], name, 10).unwrap();
        path
    }

    pub fn stream(&self, path: &str, from: Option<&str>) -> Vec<u8> {
        let mut stream = Vec::new();
        self.pool.send(&Source::Snapshot { path, from }, &mut stream, &mut |_| {}).unwrap();
        stream
    }

    pub fn objects(&self) -> BTreeMap<String, Vec<u8>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut all = BTreeMap::new();
            let listed: Vec<_> =
                futures_util::TryStreamExt::try_collect(self.memory.list(None)).await.unwrap();
            for meta in listed {
                let meta: object_store::ObjectMeta = meta;
                let bytes = self.memory.get(&meta.location).await.unwrap().bytes().await.unwrap();
                all.insert(meta.location.to_string(), bytes.to_vec());
            }
            all
        })
    }

    pub fn set(&self, object: &str, bytes: Option<&[u8]>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            match bytes {
                Some(bytes) => {
                    self.memory.put(&Path::from(object), bytes.to_vec().into()).await.unwrap();
                }
                None => self.memory.delete(&Path::from(object)).await.unwrap(),
            }
        });
    }
}

pub fn options() -> CreateOptions {
    CreateOptions { pool: "tank".into(), dataset: "db".into(), made: 20, ..CreateOptions::default() }
}

pub fn create(repository: &Repository, mut stream: &[u8]) -> Result<Created> {
    repository.create(&mut stream, &options(), &mut |_, _| {})
}

pub fn restore(repository: &Repository, word: &str, since: Option<&str>) -> Result<Vec<u8>> {
    let mut stream = Vec::new();
    let since = since.map(|since| repository.find(since)).transpose()?;
    repository.restore(&repository.find(word)?, since.as_ref(), None, &mut stream, &mut |_, _| {})?;
    Ok(stream)
}

pub fn receive(pool: &Pool, path: &str, mut stream: &[u8]) {
    pool.receive(path, &RECEIVE, &mut stream, &mut |_| {}).unwrap();
}

/// Numbers that look drawn, the same for each seed.
pub struct Chance(pub u64);

impl Chance {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (self.0 >> 33) % bound
    }
}

/// A store that does something just before the next commit.
pub struct BeforeCommit {
    inner: Arc<dyn ObjectStore>,
    call: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl BeforeCommit {
    pub fn store(bench: &Bench, call: impl FnOnce() + Send + 'static) -> Store {
        let call = Mutex::new(Some(Box::new(call) as _));
        Store::new(Arc::new(Self { inner: Arc::clone(&bench.memory) as _, call }), "some/where").unwrap()
    }
}

impl std::fmt::Debug for BeforeCommit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("before a commit")
    }
}

impl std::fmt::Display for BeforeCommit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("before a commit")
    }
}

#[async_trait::async_trait]
impl ObjectStore for BeforeCommit {
    async fn put_opts(&self, at: &Path, bytes: PutPayload, options: PutOptions) -> StoreResult<PutResult> {
        if at.as_ref().contains("/log/")
            && let Some(call) = self.call.lock().unwrap().take()
        {
            // Another thread, since the call may wait for requests of its own.
            std::thread::spawn(call).join().unwrap();
        }
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
