//! Prunes beside other work, prunes of several pools, and what they find in a directory.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod bench;

use std::io::Read;
use std::time::{Duration, SystemTime};

use bench::{
    BeforeCommit, Bench, PAGE, contents, create, fill, noise, options, pool, receive, restore, write,
};
use pagefold_backup::{CreateOptions, Error, InitOptions, Keep, Location, Repository, Seen, Store};
use pagefold_engine::pool::Source;

/// Forgets backups and prunes when the stream comes to its end.
struct Meanwhile<'a>(&'a [u8], &'a Repository, Option<&'a [u64]>);

impl Read for Meanwhile<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.0.len() < 64
            && let Some(gone) = self.2.take()
        {
            self.1.forget(gone).unwrap();
            self.1.prune(None, false, false).unwrap();
        }
        self.0.read(out)
    }
}

/// Backs up `to` on top of `from`, while backups are forgotten and a prune passes by; nothing may be missing then.
fn create_meanwhile(bench: &Bench, to: &str, from: &str, gone: &[u64]) {
    let repository = Repository::open(bench.store(), Seen::default(), None).unwrap();
    let other = Repository::open(bench.store(), Seen::default(), None).unwrap();
    let stream = bench.stream(to, Some(from));
    repository.create(&mut Meanwhile(&stream, &other, Some(gone)), &options(), &mut |_, _| {}).unwrap();
    let all = repository.backups().unwrap();
    let verified = repository.verify(&all, 1.0, 0, &mut |_| {}).unwrap();
    assert_eq!(verified.damages, 0, "{:?}", verified.told);
    let target = pool(2);
    let newest = all.last().unwrap();
    receive(&target, "x", &restore(&repository, &newest.number.to_string(), None).unwrap());
    assert!(contents(&target, &format!("x@{}", newest.snapshot)) == contents(&bench.pool, to));
}

#[test]
fn what_was_condemned_and_is_needed_again_takes_two_prunes() {
    let bench = Bench::new(50);
    let repository = bench.init(None);
    let dataset = bench.pool.open_dataset("db").unwrap();
    let one = bench.snapshot("one");
    create(&repository, &bench.stream(&one, None)).unwrap();
    write(&*dataset, 3, 1, &noise(700, PAGE as usize));
    let two = bench.snapshot("two");
    // The prune condemns the packs of backup 1, and backup 2 takes over most of them.
    create_meanwhile(&bench, &two, &one, &[1]);
    write(&*dataset, 3, 2, &noise(701, PAGE as usize));
    let three = bench.snapshot("three");
    create_meanwhile(&bench, &three, &two, &[2]);
}

#[test]
fn packs_of_a_repacking_that_a_prune_condemned_take_two_prunes() {
    let bench = Bench::new(2000);
    let repository = bench.init(None);
    let dataset = bench.pool.open_dataset("db").unwrap();
    let one = bench.snapshot("one");
    create(&repository, &bench.stream(&one, None)).unwrap();
    for page in (0..2000).filter(|page| page % 3 != 0) {
        write(&*dataset, 3, page, &noise(page + 7777, PAGE as usize));
    }
    let two = bench.snapshot("two");
    create(&repository, &bench.stream(&two, Some(&one))).unwrap();
    repository.forget(&[1]).unwrap();
    let other = Repository::open(bench.store(), Seen::default(), None).unwrap();
    let store = BeforeCommit::store(&bench, move || drop(other.prune(None, false, false).unwrap()));
    let repacker = Repository::open(store, Seen::default(), None).unwrap();
    assert!(repacker.repack(1 << 30, false).unwrap().new_packs > 0);
    write(&*dataset, 3, 2, &noise(701, PAGE as usize));
    let three = bench.snapshot("three");
    create_meanwhile(&bench, &three, &two, &[2]);
}

/// Returns options by which one backup stays.
fn keeping_one() -> CreateOptions {
    let keep: Keep = "last=1".parse().unwrap();
    CreateOptions { keep: Some(keep), ..options() }
}

#[test]
fn pools_of_one_name_do_not_delete_each_others_backups() {
    let bench = Bench::new(20);
    let repository = bench.init(None);
    let one = bench.snapshot("one");
    let stream = bench.stream(&one, None);
    let first = repository.create(&mut stream.as_slice(), &keeping_one(), &mut |_, _| {}).unwrap();

    let other = pool(2);
    other.create_dataset("db", 1).unwrap();
    fill(&other, 30);
    other.snapshot(&["db"], "other", 20).unwrap();
    let mut stream = Vec::new();
    let source = Source::Snapshot { path: "db@other", from: None };
    other.send(&source, &mut stream, &mut |_| {}).unwrap();
    let second = repository.create(&mut stream.as_slice(), &keeping_one(), &mut |_, _| {}).unwrap();

    assert_eq!((first.namesake, second.namesake), (None, Some(1)));
    assert_eq!(repository.backups().unwrap().len(), 2);
    let keep: Keep = "last=1".parse().unwrap();
    assert!(repository.prune(Some(&keep), true, false).unwrap().forgotten.is_empty());
    // The name alone does not tell which one is meant.
    let error = repository.find("tank/db").unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    let text = error.to_string();
    for part in ["backup 1", "backup 2", "01010101", "02020202"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(repository.find("tank/db@other").unwrap().number, 2);
    assert_eq!(repository.find("1").unwrap().snapshot, "one");
}

#[test]
fn the_newest_backup_is_that_of_the_newest_snapshot() {
    let bench = Bench::new(20);
    let repository = bench.init(None);
    // The clock goes back between the snapshots, and the newer one is backed up first.
    bench.pool.snapshot(&["db"], "one", 2_000_000_000).unwrap();
    bench.pool.snapshot(&["db"], "two", 1_700_000_000).unwrap();
    create(&repository, &bench.stream("db@two", None)).unwrap();
    create(&repository, &bench.stream("db@one", None)).unwrap();
    assert_eq!(repository.find("tank/db").unwrap().snapshot, "two");
    let keep: Keep = "last=1".parse().unwrap();
    assert_eq!(repository.prune(Some(&keep), true, false).unwrap().forgotten, [2]);
}

#[test]
fn what_fails_on_this_machine_after_the_commit_is_no_failed_backup() {
    let bench = Bench::new(20);
    bench.init(None);
    for (round, whole_folder) in [(1, false), (2, true)] {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("seen");
        let memory = folder.clone();
        let store = BeforeCommit::store(&bench, move || {
            if whole_folder {
                // Neither can the journal be removed, nor the commit be remembered.
                std::fs::remove_dir_all(&memory).unwrap();
                std::fs::write(&memory, b"a file").unwrap();
                return;
            }
            let files = std::fs::read_dir(&memory).unwrap().map(|entry| entry.unwrap().path());
            let journals: Vec<_> =
                files.filter(|path| path.extension().is_some_and(|end| end == "journal")).collect();
            assert_eq!(journals.len(), 1);
            journals.iter().for_each(|path| std::fs::remove_file(path).unwrap());
        });
        let repository = Repository::open(store, Seen { folder: Some(folder) }, None).unwrap();
        let path = bench.snapshot(&format!("s{round}"));
        let created = create(&repository, &bench.stream(&path, None)).unwrap();
        assert_eq!((created.backup.number, created.warning.is_some()), (round, whole_folder));
        let others = Repository::open(bench.store(), Seen::default(), None).unwrap();
        assert_eq!(others.backups().unwrap().len() as u64, round);
    }
}

/// Writes a file that was last changed so many hours ago.
fn aged(path: &std::path::Path, hours: u64) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = std::fs::File::create(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(hours * 3600)).unwrap();
}

#[test]
fn prunes_of_a_directory_delete_what_killed_uploads_left() {
    let root = tempfile::tempdir().unwrap();
    let location = Location::Directory(root.path().into());
    let store = Store::open(&location, true).unwrap();
    let repository = Repository::init(store, Seen::default(), &InitOptions::default()).unwrap();
    let name = "0123456789abcdef0123456789abcdef";
    let pack = |end: &str| root.path().join(format!("packs/{name}{end}"));
    let log = root.path().join("wal/0000000000000007-000000010000000000000003#12");
    // Of an upload that was killed; of one that may be under way; files that are somebody else's.
    let (old, fresh) = (pack("#1"), pack("#2"));
    let others = [pack("#x"), root.path().join("packs/notes"), root.path().join("elsewhere/x#1")];
    [&old, &log].into_iter().chain(&others).for_each(|path| aged(path, 25));
    aged(&fresh, 23);
    repository.prune(None, false, true).unwrap();
    assert!(old.exists() && log.exists(), "a dry run deletes nothing");
    repository.prune(None, false, false).unwrap();
    assert!(!old.exists() && !log.exists());
    assert!(fresh.exists() && others.iter().all(|path| path.exists()));
}
