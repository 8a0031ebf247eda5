//! Random histories of a repository, killed anywhere, against a model that remembers what each backup has to give back.
//! PAGEFOLD_HISTORIES says how many.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod bench;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bench::{Bench, Chance, PAGE, contents, noise, options, pool, put, receive, restore, write};
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use pagefold_backup::{CreateOptions, Error, InitOptions, Keep, Repository, Seen, Store};
use pagefold_engine::Key;
use pagefold_engine::dataset::Change;

/// A store that does so many more requests that change it, and then fails whatever is asked, as for a process that was killed.
#[derive(Debug)]
struct Mortal {
    inner: Arc<dyn ObjectStore>,
    left: Arc<AtomicI64>,
}

impl std::fmt::Display for Mortal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("mortal")
    }
}

impl Mortal {
    fn live(&self, changes: i64) -> StoreResult<()> {
        match self.left.fetch_sub(changes, Ordering::SeqCst) > 0 {
            true => Ok(()),
            false => Err(object_store::Error::Generic { store: "mortal", source: "killed".into() }),
        }
    }
}

#[async_trait::async_trait]
impl ObjectStore for Mortal {
    async fn put_opts(&self, at: &Path, bytes: PutPayload, options: PutOptions) -> StoreResult<PutResult> {
        self.live(1)?;
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
        self.live(0)?;
        self.inner.get_opts(at, options).await
    }
    fn delete_stream(
        &self,
        all: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        if let Err(error) = self.live(1) {
            return Box::pin(futures_util::stream::once(async { Err(error) }));
        }
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

const OBJECTS: u64 = 4;
const PAGES: u64 = 60;

fn change(bench: &Bench, chance: &mut Chance) {
    let dataset = bench.pool.open_dataset("db").unwrap();
    for _ in 0..chance.below(150) {
        let (object, page) = (3 + chance.below(OBJECTS), chance.below(PAGES));
        match chance.below(12) {
            0 => put(&*dataset, 100 + chance.below(40), &noise(chance.below(1 << 30), 30)),
            1 => dataset.apply(&[Change::Delete(Key::new(100 + chance.below(40), 2, 7))]).unwrap(),
            2 => {
                let to = page + 1 + chance.below(20);
                dataset.apply(&[Change::Punch { object, from: page, to }]).unwrap();
            }
            3 => {
                let to_object = 3 + (object - 2) % OBJECTS;
                let share = Change::Share {
                    from_object: object,
                    from_page: page,
                    to_object,
                    to_page: page,
                    count: 4,
                };
                // Pages that are not there cannot be shared.
                drop(dataset.apply(&[share]));
            }
            _ => write(&*dataset, object, page, &noise(chance.below(1 << 30) + 9, PAGE as usize)),
        }
    }
}

/// The contents that have to come back, by snapshot.
type Model = BTreeMap<String, BTreeMap<Key, Vec<u8>>>;

fn check(repository: &Repository, model: &Model, told: &str) {
    let checked = repository.check().unwrap();
    assert_eq!(checked.damages, 0, "{told}: {:?}", checked.told);
    for backup in repository.backups().unwrap() {
        let target = pool(2);
        receive(&target, "x", &restore(repository, &backup.number.to_string(), None).unwrap());
        let found = contents(&target, &format!("x@{}", backup.snapshot));
        assert!(found == model[&backup.snapshot], "{told}: backup {} is another one", backup.number);
    }
}

fn history(seed: u64) -> (u64, u64) {
    let mut chance = Chance(seed);
    let bench = Bench::new(20);
    let repository = bench.init(None);
    let mut model = Model::new();
    let mut last: Option<String> = None;
    let (mut repacked, mut killed) = (0, 0);
    for step in 0..14_u64 {
        let told = format!("seed {seed}, step {step}");
        let left =
            Arc::new(AtomicI64::new(if chance.below(2) == 0 { chance.below(5) as i64 + 1 } else { 1 << 40 }));
        let mortal = Mortal { inner: Arc::clone(&bench.memory) as _, left: Arc::clone(&left) };
        let store = Store::new(Arc::new(mortal), "some/where").unwrap();
        let writer = Repository::open(store, Seen::default(), None).unwrap();
        let died = |error: Error| assert!(matches!(error, Error::Store { .. }), "{told}: {error}");
        match chance.below(8) {
            0..4 => {
                change(&bench, &mut chance);
                let name = format!("s{step}");
                let path = bench.snapshot(&name);
                model.insert(name, contents(&bench.pool, &path));
                let from = last.clone().filter(|_| chance.below(4) > 0);
                let keep = (chance.below(3) == 0).then(|| "last=2".parse::<Keep>().unwrap());
                let options = CreateOptions { keep, made: step, ..options() };
                let stream = bench.stream(&path, from.as_deref());
                match writer.create(&mut stream.as_slice(), &options, &mut |_, _| {}) {
                    Ok(_) => last = Some(path),
                    Err(Error::NotFound(_)) => {}
                    Err(error) => {
                        killed += 1;
                        died(error);
                    }
                }
            }
            4 => {
                let all = repository.backups().unwrap();
                if all.len() > 1 {
                    let gone = &all[chance.below(all.len() as u64) as usize];
                    writer.forget(&[gone.number]).unwrap_or_else(died);
                }
            }
            5 => writer.prune(None, chance.below(3) == 0, false).map_or_else(died, drop),
            _ => match writer.repack(1 << 30, false) {
                Ok(done) => repacked += done.packs,
                Err(error) => {
                    killed += 1;
                    died(error);
                }
            },
        }
        check(&repository, &model, &told);
    }
    // The last backup goes on being what the next one is made on top of.
    repository.repack(1 << 30, false).unwrap();
    repository.prune(None, true, false).unwrap();
    check(&repository, &model, &format!("seed {seed}, the end"));
    (repacked, killed)
}

#[test]
fn whatever_happened_every_backup_comes_back() {
    let count = std::env::var("PAGEFOLD_HISTORIES").map_or(24, |count| count.parse().unwrap());
    let (mut repacked, mut killed) = (0, 0);
    for seed in 1..=count {
        let (packs, deaths) = history(seed);
        repacked += packs;
        killed += deaths;
    }
    println!("{count} histories, {repacked} packs were emptied, {killed} runs killed");
    assert!(repacked >= count / 10 && killed >= count / 4, "{repacked} packs, {killed} deaths");
}

#[test]
fn repacking_frees_what_is_dead_and_writers_under_way_lose_nothing() {
    let bench = Bench::new(2000);
    let repository = Repository::init(bench.store(), Seen::default(), &InitOptions::default()).unwrap();
    let one = bench.snapshot("one");
    let mut model = Model::new();
    let make = |path: &str, from: Option<&str>| {
        let stream = bench.stream(path, from);
        repository.create(&mut stream.as_slice(), &options(), &mut |_, _| {}).unwrap()
    };
    make(&one, None);
    model.insert("one".into(), contents(&bench.pool, &one));
    let dataset = bench.pool.open_dataset("db").unwrap();
    // Two pages of three: no block is dead as a whole.
    for page in (0..2000).filter(|page| page % 3 != 0) {
        write(&*dataset, 3, page, &noise(page + 7777, PAGE as usize));
    }
    let two = bench.snapshot("two");
    make(&two, Some(&one));
    model.insert("two".into(), contents(&bench.pool, &two));
    // Both are needed whole: nothing is to be done.
    assert_eq!(repository.repack(1 << 30, false).unwrap().packs, 0);
    repository.forget(&[1]).unwrap();
    let estimated = repository.repack(1 << 30, true).unwrap();
    let none = repository.repack(1 << 10, false).unwrap();
    assert_eq!((none.packs, none.left_packs), (0, estimated.packs));
    let bytes = |bench: &Bench| bench.objects().values().map(Vec::len).sum::<usize>();
    let before = bytes(&bench);
    // A writer that has read the old manifest, and comes to its end after the new one.
    write(&*dataset, 3, 5, &noise(123, PAGE as usize));
    let three = bench.snapshot("three");
    model.insert("three".into(), contents(&bench.pool, &three));
    let stream = bench.stream(&three, Some(&two));
    let other = Repository::open(bench.store(), Seen::default(), None).unwrap();
    let mut meanwhile = Meanwhile(&stream, Some(&repository), None);
    other.create(&mut meanwhile, &options(), &mut |_, _| {}).unwrap();
    let done = meanwhile.2.unwrap();
    assert!(done.packs >= 1 && done.packs <= estimated.packs, "{done:?}");
    assert!(done.written_bytes * 2 < done.freed_bytes + (1 << 20), "{done:?}");
    check(&repository, &model, "with old and new manifests");
    repository.forget(&[3]).unwrap();
    repository.prune(None, false, false).unwrap();
    check(&repository, &model, "after a prune");
    repository.prune(None, false, false).unwrap();
    check(&repository, &model, "after two");
    assert!(bytes(&bench) + (done.freed_bytes / 2) as usize <= before, "{} of {before}", bytes(&bench));
    // Incremental restores and backups go on.
    write(&*dataset, 3, 6, &noise(124, PAGE as usize));
    let four = bench.snapshot("four");
    model.insert("four".into(), contents(&bench.pool, &four));
    assert!(make(&four, Some(&two)).backup.added_bytes < 1 << 20);
    check(&repository, &model, "after the next backup");
}

/// Repacks when the stream comes to its end.
struct Meanwhile<'a>(&'a [u8], Option<&'a Repository>, Option<pagefold_backup::Repacked>);

impl std::io::Read for Meanwhile<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.0.len() < 64
            && let Some(repository) = self.1.take()
        {
            self.2 = Some(repository.repack(1 << 30, false).unwrap());
        }
        self.0.read(out)
    }
}

#[test]
fn continuous_backups_leave_few_objects() {
    let bench = Bench::new(200);
    let repository = bench.init(None);
    let keep: Keep = "last=1".parse().unwrap();
    let options = CreateOptions { keep: Some(keep), ..options() };
    let dataset = bench.pool.open_dataset("db").unwrap();
    let mut last: Option<String> = None;
    let mut requests = Vec::new();
    for cycle in 0..100_u64 {
        write(&*dataset, 3, cycle % 200, &noise(cycle + 5000, PAGE as usize));
        let path = bench.snapshot(&format!("c{cycle}"));
        let stream = bench.stream(&path, last.as_deref());
        let before = repository.store().requests();
        let created = repository.create(&mut stream.as_slice(), &options, &mut |_, _| {}).unwrap();
        let after = repository.store().requests();
        assert_eq!(created.forgotten, u64::from(cycle > 0));
        requests.push((after.puts - before.puts, after.put_bytes - before.put_bytes));
        last = Some(path);
    }
    assert!(requests.iter().all(|(puts, _)| *puts == 2), "{requests:?}");
    let count = || bench.objects().keys().filter(|name| name.contains("packs/")).count();
    assert_eq!(count(), 100);
    let first = repository.prune(None, false, false).unwrap();
    let done = repository.repack(1 << 30, false).unwrap();
    repository.prune(None, false, false).unwrap();
    repository.prune(None, false, false).unwrap();
    assert!(count() <= 3, "{} packs; {first:?}, {done:?}", count());
    let model = Model::from([("c99".to_owned(), contents(&bench.pool, "db@c99"))]);
    check(&repository, &model, "the replica");
}
