//! Backups of pools in memory, in stores in memory: round trips, what increments cost, interruptions, damage, writers at once.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod bench;

use std::io::Read;
use std::sync::Arc;

use bench::{Bench, Chance, PAGE, contents, create, noise, options, pool, put, receive, restore, write};
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use pagefold_backup::{Error, InitOptions, Keep, Location, Repository, Secret, Seen, Store, select};
use pagefold_engine::Key;
use pagefold_engine::dataset::Change;

#[test]
fn backups_come_back_as_they_were_and_increments_cost_what_changed() {
    for secret in [None, Some("horse")] {
        // 20 MiB that do not compress: packs of data, and of all else.
        let bench = Bench::new(if secret.is_none() { 2600 } else { 300 });
        let repository = bench.init(secret);
        let one = bench.snapshot("one");
        let before = repository.store().requests();
        let first = create(&repository, &bench.stream(&one, None)).unwrap();
        let after = repository.store().requests();
        let puts = after.puts - before.puts;
        assert!(puts <= (after.put_bytes - before.put_bytes) / (8 << 20) + 2, "{puts} puts");
        assert!(matches!(create(&repository, &bench.stream(&one, None)), Err(Error::Exists(_))));

        let dataset = bench.pool.open_dataset("db").unwrap();
        for page in [0, 7, 290, 1000] {
            write(&*dataset, 3, page, &noise(page + 9999, PAGE as usize));
        }
        dataset.apply(&[Change::Punch { object: 4, from: 10, to: 31 }]).unwrap();
        dataset.apply(&[Change::Delete(Key::new(120, 2, 7))]).unwrap();
        put(&*dataset, 121, b"other");
        let share = Change::Share { from_object: 3, from_page: 1000, to_object: 9, to_page: 0, count: 1 };
        dataset.apply(&[share]).unwrap();
        let two = bench.snapshot("two");
        let before = repository.store().requests();
        let second = create(&repository, &bench.stream(&two, Some(&one))).unwrap();
        let after = repository.store().requests();
        assert_eq!((after.puts - before.puts, second.since), (2, Some(first.backup.number)));
        assert!(second.backup.added_bytes < 800 << 10, "{} bytes", second.backup.added_bytes);
        // Nothing changed: a commit is all that is written.
        let three = bench.snapshot("three");
        let third = create(&repository, &bench.stream(&three, Some(&two))).unwrap();
        assert_eq!((third.packs, third.backup.added_bytes), (0, 0));
        // The snapshot before is gone: what is the same is found by comparing.
        write(&*dataset, 3, 50, &noise(77, PAGE as usize));
        let four = bench.snapshot("four");
        let fourth = create(&repository, &bench.stream(&four, None)).unwrap();
        assert!(fourth.backup.added_bytes < 400 << 10, "{} bytes", fourth.backup.added_bytes);

        let other = pool(2);
        for name in ["one", "two", "four"] {
            receive(&other, name, &restore(&repository, &format!("tank/db@{name}"), None).unwrap());
            let path = format!("{name}@{name}");
            assert!(contents(&other, &path) == contents(&bench.pool, &format!("db@{name}")), "{name}");
        }
        // On top of what is there, and backwards.
        receive(&other, "one", &restore(&repository, "tank/db@four", Some("1")).unwrap());
        assert!(contents(&other, "one@four") == contents(&bench.pool, "db@four"));
        receive(&other, "four", &restore(&repository, "1", Some("tank/db@four")).unwrap());
        assert!(contents(&other, "four@one") == contents(&bench.pool, "db@one"));

        let checked = repository.check().unwrap();
        assert_eq!((checked.damages, checked.backups, checked.commits), (0, 4, 5), "{:?}", checked.told);
        let all = repository.backups().unwrap();
        let verified = repository.verify(&all, 1.0, 0, &mut |_| {}).unwrap();
        assert_eq!((verified.damages, verified.backups), (0, 4), "{:?}", verified.told);
        // A pack that several backups need counts once.
        assert_eq!(verified.packs, checked.packs);
        assert!(verified.records >= 500);
        let packs = repository.verify_packs(&all, 1.0, 0, &mut |_| {}).unwrap();
        assert!(packs.damages == 0 && packs.packs > 2, "{:?}", packs.told);

        // The second prune deletes what only forgotten backups need, and everything else is as it was.
        for page in [0, 7, 50, 290, 1000] {
            write(&*dataset, 3, page, &noise(page + 5555, PAGE as usize));
        }
        dataset.apply(&[Change::Punch { object: 4, from: 40, to: 42 }]).unwrap();
        dataset.apply(&[Change::Punch { object: 9, from: 0, to: 1 }]).unwrap();
        put(&*dataset, 121, b"another");
        put(&*dataset, 599, b"another");
        let five = bench.snapshot("five");
        create(&repository, &bench.stream(&five, Some(&four))).unwrap();
        let count = |bench: &Bench| bench.objects().keys().filter(|name| name.contains("packs/")).count();
        let packs = count(&bench);
        repository.forget(&[1, 2, 3, 4]).unwrap();
        let pruned = repository.prune(None, false, false).unwrap();
        assert_eq!((pruned.deleted_packs, count(&bench)), (0, packs));
        assert!(pruned.condemned_packs > 0);
        let pruned = repository.prune(None, false, false).unwrap();
        assert!(pruned.deleted_packs > 0 && count(&bench) < packs);
        let again = pool(3);
        receive(&again, "db", &restore(&repository, "tank/db", None).unwrap());
        assert!(contents(&again, "db@five") == contents(&bench.pool, "db@five"));
        assert_eq!(repository.check().unwrap().damages, 0);
    }
}

/// Ends with an error after so many bytes.
struct Cut<'a>(&'a [u8]);

impl Read for Cut<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.0.is_empty() {
            return Err(std::io::Error::other("killed"));
        }
        self.0.read(out)
    }
}

/// A small overwrite is a delta of some bytes in the pool, and a whole record in a stream: there are thousands of them after an UPDATE.
#[test]
fn small_overwrites_of_many_pages_are_backed_up() {
    let bench = Bench::new(1500);
    let repository = bench.init(None);
    let make = |path: &str, from: Option<&str>| {
        let stream = bench.stream(path, from);
        repository.create(&mut stream.as_slice(), &options(), &mut |_, _| {}).unwrap()
    };
    let one = bench.snapshot("one");
    make(&one, None);
    let dataset = bench.pool.open_dataset("db").unwrap();
    for page in 0..1500 {
        let offset = page * u64::from(PAGE) + 100;
        let change = Change::Write { object: 3, record_size: PAGE, offset, data: b"other" };
        dataset.apply(&[change]).unwrap();
    }
    let two = bench.snapshot("two");
    assert!(bench.pool.totals().pages_delta > 1000, "the pages are deltas");
    make(&two, Some(&one));
    let target = pool(2);
    receive(&target, "x", &restore(&repository, "2", None).unwrap());
    assert!(contents(&target, "x@two") == contents(&bench.pool, &two));
}

#[test]
fn an_interrupted_backup_goes_on_where_it_was() {
    let bench = Bench::new(5200);
    let folder = tempfile::tempdir().unwrap();
    let seen = Seen { folder: Some(folder.path().into()) };
    Repository::init(bench.store(), seen.clone(), &InitOptions::default()).unwrap();
    let one = bench.snapshot("one");
    let stream = bench.stream(&one, None);
    let repository = Repository::open(bench.store(), seen.clone(), None).unwrap();
    repository.create(&mut Cut(&stream[..stream.len() * 7 / 8]), &options(), &mut |_, _| {}).unwrap_err();
    assert!(repository.backups().unwrap().is_empty());
    // A line that a crash cut short.
    let mut files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let journal = files.find(|path| path.extension().is_some_and(|end| end == "journal")).unwrap();
    let mut text = std::fs::read(&journal).unwrap();
    text.extend_from_slice(b"\n00ff");
    std::fs::write(&journal, &text).unwrap();
    let repository = Repository::open(bench.store(), seen.clone(), None).unwrap();
    assert_eq!(repository.begun().unwrap().len(), 1);
    let created = create(&repository, &stream).unwrap();
    assert!(created.resumed_packs >= 2, "{} packs", created.resumed_packs);
    assert!(!journal.exists());
    // Killed behind the commit, before the journal was removed: that backup has ended, and is not gone on with.
    std::fs::write(&journal, &text).unwrap();
    assert!(repository.begun().unwrap().is_empty());
    assert!(!journal.exists());
    let other = pool(2);
    receive(&other, "db", &restore(&repository, "1", None).unwrap());
    assert!(contents(&other, "db@one") == contents(&bench.pool, "db@one"));

    // A store that has gone back to an older state is told.
    let newest = bench.objects().into_keys().rfind(|name| name.contains("/log/")).unwrap();
    bench.set(&newest, None);
    let error = Repository::open(bench.store(), seen, None).unwrap().backups().unwrap_err();
    assert!(error.to_string().contains("gone back"), "{error}");
}

/// Prunes when the stream comes to its end.
struct Meanwhile<'a>(&'a [u8], &'a Repository, usize);
impl Read for Meanwhile<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.0.len() < 64 {
            (0..std::mem::take(&mut self.2)).for_each(|_| drop(self.1.prune(None, false, false).unwrap()));
        }
        self.0.read(out)
    }
}

#[test]
fn writers_at_once_lose_nothing_and_late_ones_are_fenced() {
    let bench = Bench::new(50);
    bench.init(None);
    let streams: Vec<_> = (0..6)
        .map(|number| {
            write(&*bench.pool.open_dataset("db").unwrap(), 3, number, &noise(number + 500, PAGE as usize));
            let name = bench.snapshot(&format!("s{number}"));
            bench.stream(&name, None)
        })
        .collect();
    std::thread::scope(|scope| {
        for stream in &streams {
            scope.spawn(|| {
                let repository = Repository::open(bench.store(), Seen::default(), None).unwrap();
                create(&repository, stream).unwrap();
            });
        }
    });
    let repository = Repository::open(bench.store(), Seen::default(), None).unwrap();
    let all = repository.backups().unwrap();
    assert_eq!(all.iter().map(|backup| backup.number).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(repository.verify(&all, 1.0, 0, &mut |_| {}).unwrap().damages, 0);

    let name = bench.snapshot("late");
    let stream = bench.stream(&name, None);
    let other = Repository::open(bench.store(), Seen::default(), None).unwrap();
    let late = other.create(&mut Meanwhile(&stream, &repository, 2), &options(), &mut |_, _| {});
    assert!(matches!(late, Err(Error::Fenced(_))), "{late:?}");
    // One prune is no harm, though it saw the packs of the backup that was under way.
    other.create(&mut Meanwhile(&stream, &repository, 1), &options(), &mut |_, _| {}).unwrap();
    repository.prune(None, false, false).unwrap();
    assert_eq!(repository.verify(&repository.backups().unwrap(), 1.0, 0, &mut |_| {}).unwrap().damages, 0);

    let keep: Keep = "last=1".parse().unwrap();
    assert_eq!(select(&repository.backups().unwrap(), &keep), [1, 2, 3, 4, 5, 6]);
    let pruned = repository.prune(Some(&keep), true, false).unwrap();
    assert_eq!(pruned.forgotten.len(), 6);
    assert_eq!(repository.verify(&repository.backups().unwrap(), 1.0, 0, &mut |_| {}).unwrap().damages, 0);
}

#[test]
fn damaged_swapped_truncated_and_replayed_objects_are_told() {
    for secret in [None, Some("horse")] {
        let bench = Bench::new(40);
        let repository = bench.init(secret);
        let one = bench.snapshot("one");
        create(&repository, &bench.stream(&one, None)).unwrap();
        write(&*bench.pool.open_dataset("db").unwrap(), 3, 1, &noise(12, PAGE as usize));
        let two = bench.snapshot("two");
        create(&repository, &bench.stream(&two, Some(&one))).unwrap();
        let expected = restore(&repository, "2", None).unwrap();
        let objects = bench.objects();
        // The description has to be opened each time, which takes Argon2id: it comes once.
        let opened = || {
            Repository::open(
                bench.store(),
                Seen::default(),
                secret.map(|text| Secret::new(text.into()).unwrap()).as_ref(),
            )
        };
        let outcome = |repository: &Repository| match restore(repository, "2", None) {
            Ok(stream) => assert!(stream == expected, "restored wrong"),
            Err(
                Error::Damaged { .. } | Error::Missing { .. } | Error::Unsupported(_) | Error::NotFound(_),
            ) => {}
            Err(error) => panic!("told as something else: {error}"),
        };
        let mut told = 0;
        for (name, bytes) in objects.iter().filter(|(name, _)| !name.ends_with("repository")) {
            let places = (0..12).map(|at| at * bytes.len() / 12);
            let flipped = places.clone().map(|at| {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << (at % 8);
                bytes
            });
            let cut = places.map(|at| bytes[..at].to_vec());
            let other = objects.iter().filter(|(other, _)| *other != name).map(|(_, bytes)| bytes.clone());
            for bytes in flipped.chain(cut).chain(other) {
                bench.set(name, Some(&bytes));
                outcome(&repository);
                let all = repository.backups();
                let found = all.and_then(|all| repository.verify(&all, 1.0, 0, &mut |_| {}));
                let checked = repository.check();
                let is_told = !matches!((&found, &checked), (Ok(found), Ok(checked)) if found.damages + checked.damages == 0);
                told += usize::from(is_told);
            }
            bench.set(name, None);
            outcome(&repository);
            bench.set(name, Some(bytes));
        }
        assert!(told > 60, "{told}");
        let name = objects.keys().find(|name| name.ends_with("repository")).unwrap();
        for at in 0..objects[name].len() {
            let mut bytes = objects[name].clone();
            bytes[at] ^= 1;
            bench.set(name, Some(&bytes));
            assert!(opened().is_err());
        }
        bench.set(name, Some(&objects[name]));
        outcome(&opened().unwrap());
        let wrong = Secret::new(b"cow".to_vec()).unwrap();
        let error = Repository::open(bench.store(), Seen::default(), Some(&wrong)).err().unwrap();
        assert!(matches!(error, Error::Key(_)), "{error}");
        let none = Repository::open(bench.store(), Seen::default(), None);
        assert_eq!(none.is_err(), secret.is_some());
        if secret.is_some() {
            assert!(objects.values().all(|bytes| !bytes.windows(4).any(|part| part == b"row ")));
        }
    }
}

/// Against the S3 server that PAGEFOLD_S3 names, with a bucket `pagefold`.
#[test]
#[ignore = "needs a server: make backup-s3"]
fn backups_in_a_bucket_are_as_those_in_memory() {
    let endpoint = std::env::var("PAGEFOLD_S3").unwrap();
    let location =
        Location::parse("s3://pagefold/some/where", Some(&endpoint), Some("us-east-1"), None).unwrap();
    let open = || Store::open(&location, true).unwrap();
    let secret = || Secret::new(b"horse".to_vec()).unwrap();
    let missing = Repository::open(open(), Seen::default(), None).err().unwrap();
    assert!(matches!(missing, Error::NotFound(_)), "{missing}");
    let options = InitOptions { secret: Some(secret()), ..InitOptions::default() };
    let repository = Repository::init(open(), Seen::default(), &options).unwrap();
    assert!(matches!(Repository::init(open(), Seen::default(), &options), Err(Error::Exists(_))));
    let bench = Bench::new(5200);
    let one = bench.snapshot("one");
    let before = repository.store().requests();
    create(&repository, &bench.stream(&one, None)).unwrap();
    let after = repository.store().requests();
    assert!(after.puts - before.puts <= (after.put_bytes - before.put_bytes) / (8 << 20) + 2);
    write(&*bench.pool.open_dataset("db").unwrap(), 3, 1, &noise(9999, PAGE as usize));
    let two = bench.snapshot("two");
    let before = repository.store().requests();
    create(&repository, &bench.stream(&two, Some(&one))).unwrap();
    println!("{:?}\n{before:?}\n{:?}", after, repository.store().requests());
    assert_eq!(repository.store().requests().puts - before.puts, 2);
    let other = pool(2);
    receive(&other, "db", &restore(&repository, "1", None).unwrap());
    receive(&other, "db", &restore(&repository, "2", Some("1")).unwrap());
    for name in ["db@one", "db@two"] {
        assert!(contents(&other, name) == contents(&bench.pool, name), "{name}");
    }
    let streams: Vec<_> =
        (0..4).map(|number| bench.stream(&bench.snapshot(&format!("s{number}")), None)).collect();
    std::thread::scope(|scope| {
        for stream in &streams {
            scope.spawn(|| {
                let repository = Repository::open(open(), Seen::default(), Some(&secret())).unwrap();
                create(&repository, stream).unwrap();
            });
        }
    });
    let all = repository.backups().unwrap();
    assert_eq!(all.len(), 6);
    assert_eq!(repository.check().unwrap().damages, 0);
    assert_eq!(repository.verify(&all, 1.0, 0, &mut |_| {}).unwrap().damages, 0);
    assert_eq!(repository.verify_packs(&all, 1.0, 0, &mut |_| {}).unwrap().damages, 0);
    let keep: Keep = "last=1".parse().unwrap();
    assert_eq!(repository.prune(Some(&keep), true, false).unwrap().forgotten.len(), 5);
    assert_eq!(repository.verify(&repository.backups().unwrap(), 1.0, 0, &mut |_| {}).unwrap().damages, 0);
}

/// A store that ignores conditions, and one that loses the response of every create.
#[derive(Debug)]
struct Odd {
    inner: InMemory,
    ignores: bool,
}

impl std::fmt::Display for Odd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("odd")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Odd {
    async fn put_opts(
        &self,
        at: &Path,
        bytes: PutPayload,
        mut options: PutOptions,
    ) -> StoreResult<PutResult> {
        let is_create = options.mode == PutMode::Create;
        if is_create && self.ignores {
            options.mode = PutMode::Overwrite;
        }
        let put = self.inner.put_opts(at, bytes, options).await?;
        if is_create && !self.ignores {
            let source = "the response was lost, and the second attempt met the first".into();
            return Err(object_store::Error::AlreadyExists { path: at.to_string(), source });
        }
        Ok(put)
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

#[test]
fn stores_that_break_promises_are_refused_and_lost_responses_are_no_loss() {
    let odd = |ignores| Store::new(Arc::new(Odd { inner: InMemory::new(), ignores }), "").unwrap();
    let refused = Repository::init(odd(true), Seen::default(), &InitOptions::default()).err().unwrap();
    assert!(matches!(refused, Error::UnsafeStore(_)), "{refused}");
    let vouched = InitOptions { single_writer: true, ..InitOptions::default() };
    Repository::init(odd(true), Seen::default(), &vouched).unwrap();
    let repository = Repository::init(odd(false), Seen::default(), &InitOptions::default()).unwrap();
    let bench = Bench::new(10);
    let one = bench.snapshot("one");
    create(&repository, &bench.stream(&one, None)).unwrap();
    assert_eq!(repository.backups().unwrap().len(), 1);
    assert_eq!(repository.check().unwrap().commits, 2);
}

/// PAGEFOLD_DAMAGES says how many. An object is changed in some bytes, cut, swapped with another one, replaced by an older one, or taken away; half
/// of the time a restore is under way on top of what is there. What comes back is right, or it is told.
#[test]
fn damaged_by_the_thousand_and_nothing_comes_back_wrong() {
    let count: u64 = std::env::var("PAGEFOLD_DAMAGES").map_or(300, |count| count.parse().unwrap());
    let (mut told, mut harmless) = (0, 0);
    for secret in [None, Some("horse")] {
        let bench = Bench::new(60);
        let repository = bench.init(secret);
        let mut last: Option<String> = None;
        for number in 0..4_u64 {
            write(&*bench.pool.open_dataset("db").unwrap(), 3, number, &noise(number + 12, PAGE as usize));
            let path = bench.snapshot(&format!("s{number}"));
            create(&repository, &bench.stream(&path, last.as_deref())).unwrap();
            last = Some(path);
        }
        let expected =
            [restore(&repository, "4", None).unwrap(), restore(&repository, "4", Some("2")).unwrap()];
        let objects = bench.objects();
        let names: Vec<&String> = objects.keys().filter(|name| !name.ends_with("repository")).collect();
        let mut chance = Chance(7);
        for round in 0..count / 2 {
            let name = names[chance.below(names.len() as u64) as usize];
            let other = names[chance.below(names.len() as u64) as usize];
            let mut bytes = objects[name].clone();
            let mut also = None;
            match chance.below(5) {
                0 => bytes.truncate(chance.below(bytes.len() as u64) as usize),
                1 => {
                    also = Some((other, bytes));
                    bytes = objects[other].clone();
                }
                2 => bytes.clone_from(&objects[other]),
                _ => {
                    for _ in 0..=chance.below(3) {
                        let at = chance.below(bytes.len() as u64) as usize;
                        bytes[at] ^= 1 << chance.below(8);
                    }
                }
            }
            bench.set(name, (chance.below(20) > 0).then_some(&bytes[..]));
            if let Some((other, bytes)) = &also {
                bench.set(other, Some(bytes));
            }
            let which = (round % 2) as usize;
            match restore(&repository, "4", [None, Some("2")][which]) {
                Ok(stream) => {
                    assert!(
                        stream == expected[which],
                        "round {round}: {name} was damaged, and something else came back"
                    );
                    harmless += 1;
                }
                Err(
                    Error::Damaged { .. }
                    | Error::Missing { .. }
                    | Error::Unsupported(_)
                    | Error::NotFound(_),
                ) => told += 1,
                Err(error) => panic!("round {round}: {name}: told as something else: {error}"),
            }
            for name in [Some(name), also.map(|(other, _)| other)].into_iter().flatten() {
                bench.set(name, Some(&objects[name]));
            }
        }
        assert!(restore(&repository, "4", None).unwrap() == expected[0]);
    }
    println!("{count} damaged objects: {told} told, {harmless} of which nothing was needed");
    assert!(told >= count / 10, "{told}");
}
