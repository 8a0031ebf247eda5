//! Backups of pools in memory, in stores in memory: round trips, what increments cost, interruptions, damage, writers at once.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

#[path = "../bench/mod.rs"]
mod bench;
mod damage;
mod odd;

use std::io::Read;

use bench::{Bench, PAGE, contents, create, noise, options, pool, put, receive, restore, write};
use pagefold_backup::{Error, InitOptions, Keep, Repository, Seen, select};
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

#[test]
fn backups_that_are_made_out_of_order_share_their_records() {
    // Whole snapshots, and changes since the first one.
    for (order, from) in [(["three", "one", "two"], None), (["one", "three", "two"], Some("db@one"))] {
        let bench = Bench::new(400);
        let repository = bench.init(None);
        let dataset = bench.pool.open_dataset("db").unwrap();
        bench.snapshot("one");
        for (name, first) in [("two", 0), ("three", 200)] {
            for page in first..first + 100 {
                write(&*dataset, 3, page, &noise(page + 9999, PAGE as usize));
            }
            bench.snapshot(name);
        }
        let mut added = Vec::new();
        for name in order {
            let from = from.filter(|from| !from.ends_with(name));
            let created = create(&repository, &bench.stream(&format!("db@{name}"), from)).unwrap();
            added.push(created.backup.added_bytes);
        }
        // The first change is in "three" already, and what the second one replaced is in "one".
        assert!(added[2] < 100 << 10 && added[1] > 800 << 10, "{added:?}");
        assert_eq!(repository.check().unwrap().damages, 0);
        // The next one goes on from the newest snapshot, not from the latest backup.
        bench.snapshot("four");
        let four = create(&repository, &bench.stream("db@four", None)).unwrap();
        assert!(four.backup.added_bytes < 100 << 10, "{four:?}");
        // It needs none of the others.
        repository.forget(&[1, 2, 4]).unwrap();
        (0..3).for_each(|_| drop(repository.prune(None, false, false).unwrap()));
        assert_eq!(repository.check().unwrap().damages, 0);
        let other = pool(2);
        receive(&other, "db", &restore(&repository, "3", None).unwrap());
        assert!(contents(&other, "db@two") == contents(&bench.pool, "db@two"));
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

/// A service without a home, or with a full disc.
#[test]
fn who_cannot_remember_a_repository_can_read_it() {
    let bench = Bench::new(20);
    let one = bench.snapshot("one");
    let repository = bench.init(None);
    create(&repository, &bench.stream(&one, None)).unwrap();
    // Nobody can make a folder there, whatever his rights.
    let seen = Seen { folder: Some("/proc/pagefold".into()) };
    let forgetful = Repository::open(bench.store(), seen, None).unwrap();
    assert_eq!(forgetful.backups().unwrap(), repository.backups().unwrap());
    assert_eq!(restore(&forgetful, "1", None).unwrap(), restore(&repository, "1", None).unwrap());
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

/// Servers of files put folders of their own beside what they keep.
#[test]
fn files_of_others_beside_the_commits_are_no_commits() {
    let bench = Bench::new(1);
    let repository = bench.init(None);
    create(&repository, &bench.stream(&bench.snapshot("one"), None)).unwrap();
    let objects = bench.objects();
    let (commit, bytes) = objects.iter().rfind(|(name, _)| name.contains("/log/")).unwrap();
    let (folder, _) = commit.rsplit_once('/').unwrap();
    for name in [format!("{folder}/@eaDir/0"), format!("{commit}.bak")] {
        bench.set(&name, Some(bytes));
    }
    let repository = Repository::open(bench.store(), Seen::default(), None).unwrap();
    let two = bench.snapshot("two");
    create(&repository, &bench.stream(&two, None)).unwrap();
    let repository = Repository::open(bench.store(), Seen::default(), None).unwrap();
    let checked = repository.check().unwrap();
    assert_eq!((checked.damages, repository.backups().unwrap().len()), (0, 2), "{:?}", checked.told);
    // A commit that is missing is still seen beside them.
    let objects = bench.objects();
    let commits: Vec<_> = objects.keys().filter(|name| name.starts_with(folder)).collect();
    bench.set(commits[1], None);
    let repository = Repository::open(bench.store(), Seen::default(), None).unwrap();
    assert!(repository.check().unwrap().damages > 0);
}

/// Entries that wait for the name of a pack are in memory.
#[test]
fn few_bytes_of_values_wait_for_the_pack_of_a_page() {
    let bench = Bench::new(1);
    let repository = bench.init(None);
    let dataset = bench.pool.open_dataset("db").unwrap();
    (0..1000).for_each(|object| put(&*dataset, 1000 + object, &[7; 60_000]));
    let one = bench.snapshot("one");
    let created = create(&repository, &bench.stream(&one, None)).unwrap();
    // The pack with the pages was ended before all 60 MB of values, which compress well, had come.
    assert!(created.packs > 1, "{created:?}");
    assert_eq!(repository.check().unwrap().damages, 0);
}
