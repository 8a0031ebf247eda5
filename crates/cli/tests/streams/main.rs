//! `send`, `receive` and `diff` as users have them: with servers and without, interrupted at either end. Where something is to be
//! mounted it needs root and /dev/fuse, as `make test` has them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

#[path = "../common/mod.rs"]
mod common;
mod interrupted;

use std::fs::{self, File};
use std::io::Write;
use std::process::{Child, Stdio};

use common::{Output, Sandbox, assert_failure, can_mount, kill_to_the_end, noise, outcome, wait_until};
use serde_json::Value;

/// Pools `tank`, with a dataset `db`, and `vault`; directories `a`, `b`, `c`.
fn with_pools() -> Sandbox {
    let sandbox = Sandbox::new();
    ["a", "b", "c"].iter().for_each(|dir| drop(sandbox.dir(dir)));
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "256M", "-o", "compression=zstd"]);
    sandbox.ok(&["create", "vault", "vault.pf", "--size", "256M"]);
    sandbox.ok(&["dataset", "create", "tank/db"]);
    sandbox
}

/// The program with pipes for all that is not given.
fn spawn(sandbox: &Sandbox, words: &[&str], input: Stdio, output: Stdio) -> Child {
    sandbox.command(words).stdin(input).stdout(output).stderr(Stdio::piped()).spawn().unwrap()
}

/// `send`, into a file of the sandbox.
fn send(sandbox: &Sandbox, words: &[&str], file: &str) {
    let words = [&["send"], words].concat();
    let sent =
        outcome(spawn(sandbox, &words, Stdio::null(), File::create(sandbox.path(file)).unwrap().into()));
    assert!(sent.status.success(), "{words:?}: {}", sent.stderr);
}

/// `receive`, from a file of the sandbox.
fn receive(sandbox: &Sandbox, words: &[&str], file: &str) -> Output {
    let words = [&["receive"], words].concat();
    outcome(spawn(sandbox, &words, File::open(sandbox.path(file)).unwrap().into(), Stdio::piped()))
}

fn received(sandbox: &Sandbox, words: &[&str], file: &str) -> String {
    let received = receive(sandbox, words, file);
    assert!(received.status.success(), "{words:?}: {}", received.stderr);
    received.stdout
}

fn token(sandbox: &Sandbox, name: &str) -> Option<String> {
    let row = sandbox.json(&["get", "receive_resume_token", name])["properties"][0].clone();
    row["value"].as_str().map(str::to_owned)
}

fn names(sandbox: &Sandbox, pool: &str) -> Vec<String> {
    let all = sandbox.json(&["list", "-t", "all", pool]);
    let all = all["datasets"].as_array().unwrap();
    all.iter().map(|figures| figures["name"].as_str().unwrap().to_owned()).collect()
}

fn kill_server(sandbox: &Sandbox, pool: &str) {
    let pid = sandbox.json(&["status", pool])["pools"][0]["pid"].as_i64().unwrap();
    kill_to_the_end(i32::try_from(pid).unwrap());
}

fn assert_sound(sandbox: &Sandbox, pool: &str) {
    assert!(sandbox.ok(&["check", pool]).contains(": 0 errors"));
}

#[test]
fn between_pools_that_nobody_serves() {
    let sandbox = with_pools();
    sandbox.ok(&["snapshot", "tank/db@one"]);
    sandbox.ok(&["snapshot", "tank/db@two"]);
    send(&sandbox, &["tank/db@one"], "one");
    send(&sandbox, &["-i", "one", "tank/db@two"], "two");
    let told: Value = serde_json::from_str(&received(&sandbox, &["vault/copy", "--json"], "one")).unwrap();
    assert_eq!(told["name"], "vault/copy@one");
    assert_eq!(told["stream_bytes"], fs::metadata(sandbox.path("one")).unwrap().len());
    received(&sandbox, &["vault/copy"], "two");
    assert_eq!(names(&sandbox, "vault"), ["vault", "vault/copy", "vault/copy@one", "vault/copy@two"]);
    assert!(sandbox.ok(&["send", "-n", "tank/db@two"]).starts_with("would send about "));
    assert_eq!(token(&sandbox, "vault/copy"), None);
    // The engine's notes are not shown as properties.
    assert!(!sandbox.ok(&["get", "all", "vault/copy@one"]).contains("receive:"));
    assert_failure(&sandbox.run(&["set", "receive:origin=x", "vault/copy@one"]), 2, &["user property"]);
    ["tank", "vault"].iter().for_each(|pool| assert_sound(&sandbox, pool));
}

#[test]
fn mistakes_tell_what_to_do() {
    let sandbox = with_pools();
    sandbox.ok(&["snapshot", "tank/db@one"]);
    sandbox.ok(&["snapshot", "tank/db@two"]);
    fs::write(sandbox.path("noise"), noise(1, 5000)).unwrap();
    fs::write(sandbox.path("nothing"), "").unwrap();
    for (words, status, texts) in [
        (&["send", "tank/db"][..], 2, &["a snapshot is wanted"][..]),
        (&["send", "tank/db@none"], 1, &["there is no snapshot tank/db@none"]),
        (&["send", "-i", "none", "tank/db@one"], 1, &["there is no snapshot tank/db@none"]),
        (&["send", "-i", "two", "tank/db@one"], 1, &["is no snapshot that 'db@one' comes after"]),
        (&["send", "-i", "vault@x", "tank/db@one"], 2, &["different pools"]),
        (&["send", "--resume", "1-00"], 2, &["no token", "list -t partial"]),
        (&["send"], 2, &["required"]),
        (&["receive", "vault"], 2, &["vault is a pool", "vault/NAME"]),
        (&["receive", "vault/a@b"], 2, &["a dataset is wanted"]),
        (&["receive", "--abort", "vault/a"], 1, &["nothing was received in part into vault/a"]),
        (&["receive", "nopool/a"], 1, &["there is no pool \"nopool\""]),
        (&["diff", "tank/db", "tank/db@one"], 2, &["the older snapshot comes first"]),
        (&["diff", "tank/db@two", "tank/db@one"], 1, &["comes after"]),
        (&["diff", "tank/db@none", "tank/db"], 1, &["there is no snapshot tank/db@none"]),
    ] {
        assert_failure(&sandbox.run(words), status, texts);
    }
    assert_failure(&receive(&sandbox, &["vault/a"], "noise"), 1, &["it is not one that 'send' makes"]);
    assert_failure(&receive(&sandbox, &["vault/a"], "nothing"), 1, &["standard input is empty"]);
    send(&sandbox, &["tank/db@one"], "one");
    assert_failure(&receive(&sandbox, &["tank/db"], "one"), 1, &["there is a dataset 'db' already"]);
    assert_failure(&receive(&sandbox, &["vault/no/a"], "one"), 1, &["there is no dataset 'no'"]);
    assert_eq!(names(&sandbox, "vault"), ["vault"]);
}

/// `tank/db` with files, and two snapshots; mounted at `a`.
fn with_files() -> Sandbox {
    let sandbox = with_pools();
    sandbox.ok(&["mount", "tank/db", "a"]);
    for n in 0..10 {
        fs::write(sandbox.path(&format!("a/file{n}")), noise(n, 800_000)).unwrap();
    }
    sandbox.ok(&["snapshot", "tank/db@one"]);
    for n in 3..9 {
        fs::write(sandbox.path(&format!("a/file{n}")), noise(n + 50, 600_000)).unwrap();
    }
    fs::remove_file(sandbox.path("a/file1")).unwrap();
    sandbox.ok(&["snapshot", "tank/db@two"]);
    sandbox
}

fn same_files(sandbox: &Sandbox, one: &str, other: &str) -> bool {
    let of = |dir: &str| {
        let mut all: Vec<_> = fs::read_dir(sandbox.path(dir))
            .unwrap()
            .flatten()
            .map(|entry| (entry.file_name(), fs::read(entry.path()).unwrap_or_default()))
            .collect();
        all.sort();
        all
    };
    of(one) == of(other)
}

#[test]
fn between_servers_under_the_eyes_of_users() {
    if !can_mount() {
        return;
    }
    let sandbox = with_files();
    sandbox.ok(&["mount", "vault", "b"]);
    send(&sandbox, &["tank/db@one"], "one");
    send(&sandbox, &["-i", "one", "tank/db@two"], "two");
    received(&sandbox, &["vault/copy"], "one");
    sandbox.ok(&["mount", "vault/copy", "c"]);
    assert!(same_files(&sandbox, "a/.pagefold/snapshot/one", "c"));
    assert_failure(
        &receive(&sandbox, &["vault/copy"], "two"),
        1,
        &["vault/copy is mounted at", "pagefold unmount vault/copy"],
    );
    fs::write(sandbox.path("c/mine"), "mine").unwrap();
    sandbox.ok(&["unmount", "vault/copy"]);
    assert_failure(&receive(&sandbox, &["vault/copy"], "two"), 1, &["was changed since 'copy@one'", "force"]);
    received(&sandbox, &["--force", "vault/copy"], "two");
    sandbox.ok(&["mount", "vault/copy", "c"]);
    assert!(same_files(&sandbox, "a", "c"));
    assert!(same_files(&sandbox, "a/.pagefold/snapshot/one", "c/.pagefold/snapshot/one"));
    sandbox.ok(&["unmount", "-a"]);
    ["tank", "vault"].iter().for_each(|pool| assert_sound(&sandbox, pool));
}

#[test]
fn differences_are_told_as_files() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools();
    sandbox.ok(&["mount", "tank/db", "a"]);
    let path = |name: &str| sandbox.path(&format!("a/{name}"));
    fs::create_dir(path("dir")).unwrap();
    for name in ["dir/table", "old", "gone", "same"] {
        fs::write(path(name), noise(3, 100_000)).unwrap();
    }
    sandbox.ok(&["snapshot", "tank/db@one"]);
    let mut table = File::options().write(true).open(path("dir/table")).unwrap();
    table.write_all(&noise(9, 100)).unwrap();
    table.sync_all().unwrap();
    drop(table);
    fs::rename(path("old"), path("dir/new")).unwrap();
    fs::remove_file(path("gone")).unwrap();
    fs::write(path("fresh"), "x").unwrap();
    let expected = "M\t/dir/table\nR\t/old -> /dir/new\n+\t/fresh\n-\t/gone\n";
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    // Of the dataset as it is, with a server; nobody sees how.
    assert_eq!(sorted(&sandbox.ok(&["diff", "tank/db@one", "tank/db"])), sorted(expected));
    assert_eq!(names(&sandbox, "tank"), ["tank", "tank/db", "tank/db@one"]);
    sandbox.ok(&["snapshot", "tank/db@two"]);
    assert_eq!(sorted(&sandbox.ok(&["diff", "tank/db@one", "tank/db@two"])), sorted(expected));
    let told = sandbox.json(&["diff", "-r", "tank/db@one", "tank/db@two"]);
    let modified: Vec<Value> = told["differences"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|difference| difference["change"] == "modified")
        .cloned()
        .collect();
    let size = sandbox.json(&["du", "a/dir/table"])["recordsizes"][0]["record_size"].as_u64().unwrap();
    assert_eq!(modified.len(), 1);
    assert_eq!(modified[0]["ranges"], serde_json::json!([[0, size]]));
    assert!(
        sandbox.ok(&["diff", "-r", "tank/db@one", "tank/db"]).contains(&format!("\t/dir/table\t0-{size}\n"))
    );
    assert_eq!(sandbox.ok(&["diff", "tank/db@two", "tank/db"]), "");
    sandbox.ok(&["unmount", "tank"]);
    assert_eq!(sorted(&sandbox.ok(&["diff", "tank/db@one", "tank/db"])), sorted(expected));
    assert_sound(&sandbox, "tank");
}

fn files_below(dir: &std::path::Path, end: &str) -> Vec<std::path::PathBuf> {
    let found = fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path());
    found.filter(|path| path.to_string_lossy().ends_with(end)).collect()
}

#[test]
fn a_mounted_pool_is_backed_up_through_kills_and_comes_back_as_it_was() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools();
    sandbox.ok(&["mount", "tank/db", "a"]);
    fs::write(sandbox.path("a/noise"), noise(1, 36 << 20)).unwrap();
    fs::write(sandbox.path("a/text"), "a row of a table\n".repeat(100_000)).unwrap();
    fs::write(sandbox.path("key"), "horse battery\n").unwrap();
    let key = ["--key-file", "key"];
    assert_failure(&sandbox.run(&["backup", "init", "repo"]), 2, &["--key-file", "--unencrypted"]);
    for folder in ["nowhere", "a"] {
        let refused = sandbox.run(&[&["backup", "list", folder], &key[..]].concat());
        assert_failure(&refused, 1, &["make one: pagefold backup init", folder]);
    }
    sandbox.ok(&[&["backup", "init", "repo"], &key[..]].concat());
    assert_failure(&sandbox.run(&[&["backup", "init", "repo"], &key[..]].concat()), 1, &["already"]);

    // Killed when one pack is there; the server is, too.
    let words = [&["backup", "create", "tank/db", "--to", "repo"], &key[..]].concat();
    let mut child = spawn(&sandbox, &[&words[..], &["--rate", "8M"]].concat(), Stdio::null(), Stdio::piped());
    wait_until(|| {
        let journals = files_below(&sandbox.path("state/backup"), ".journal");
        journals.iter().any(|path| fs::read_to_string(path).unwrap().contains(" .\n"))
    });
    child.kill().unwrap();
    child.wait().unwrap();
    kill_server(&sandbox, "tank");
    assert_eq!(
        sandbox.json(&[&["backup", "list", "repo"], &key[..]].concat())["backups"],
        serde_json::json!([])
    );
    sandbox.run(&["unmount", "a"]);
    sandbox.ok(&["mount", "tank/db", "a"]);
    let told = sandbox.run(&words);
    assert!(told.status.success() && told.stderr.contains("interrupted"), "{}{}", told.stdout, told.stderr);
    // It is finished as it was, and there is one of the dataset as it is now.
    let lines: Vec<&str> = told.stdout.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("were there"), "{}", told.stdout);

    // A backup adds what changed, and no more.
    let first = sandbox.json(&[&["backup", "show", "repo", "tank/db"], &key[..]].concat());
    let mut changed = File::options().write(true).open(sandbox.path("a/noise")).unwrap();
    std::io::Seek::seek(&mut changed, std::io::SeekFrom::Start(5 << 20)).unwrap();
    changed.write_all(b"changed").unwrap();
    drop(changed);
    let second = sandbox.json(&words);
    assert_eq!((&second["created"]["since"], &second["created"]["packs"]), (&first["number"], &1.into()));
    assert!(second["created"]["backup"]["added_bytes"].as_u64().unwrap() < 300 << 10, "{second}");
    // A service without a home is warned, once, and served.
    let mut homeless = sandbox.command(&[&["backup", "list", "repo"], &key[..]].concat());
    let homeless: Output = homeless.env("PAGEFOLD_STATE_DIR", "/proc/pagefold").output().unwrap().into();
    assert!(homeless.status.success() && homeless.stdout.contains("tank/db"), "{}", homeless.stdout);
    assert_eq!(
        homeless.stderr.matches("pagefold: warning: nobody notices here").count(),
        1,
        "{}",
        homeless.stderr
    );

    let wrong = ["--key-command", "echo cow"];
    let refused = sandbox.run(&[&["backup", "check", "repo"], &wrong[..]].concat());
    assert_failure(&refused, 1, &["not that of the repository"]);

    // Into a pool without room for all of it, then with room.
    sandbox.ok(&["create", "small", "small.pf", "--size", "160M"]);
    sandbox.dir("c");
    sandbox.ok(&["mount", "small", "c"]);
    fs::write(sandbox.path("c/noise"), noise(2, 40 << 20)).unwrap();
    let words = [&["backup", "restore", "repo", "1", "small/db"], &key[..]].concat();
    assert_failure(&sandbox.run(&words), 1, &["no space left", "give the same command again"]);
    fs::remove_file(sandbox.path("c/noise")).unwrap();
    // The space is there at once.
    sandbox.ok(&words);
    sandbox.ok(&["unmount", "small"]);

    // Into another pool, which nobody serves: the first, then what the second has.
    let restore =
        |backup: &str| sandbox.json(&[&["backup", "restore", "repo", backup, "vault/db"], &key[..]].concat());
    restore("1");
    let restored = restore("3");
    assert_eq!(restored["since"], 1);
    assert!(restored["restored"]["pages"].as_u64().unwrap() < 20, "{restored}");
    sandbox.ok(&["mount", "vault/db", "b"]);
    let back = fs::read(sandbox.path("b/noise")).unwrap();
    assert!(back == fs::read(sandbox.path("a/noise")).unwrap() && back[5 << 20..].starts_with(b"changed"));
    assert_eq!(fs::read(sandbox.path("b/text")).unwrap(), fs::read(sandbox.path("a/text")).unwrap());
    for words in [
        &["backup", "check", "repo"][..],
        &["backup", "verify", "repo"],
        &["backup", "verify", "--packs", "repo"],
    ] {
        assert!(sandbox.ok(&[words, &key].concat()).contains(": 0 errors"));
    }
    let dry = sandbox.ok(&[&["backup", "prune", "repo", "--keep", "last=1", "-n"], &key[..]].concat());
    assert!(dry.starts_with("repo: ") && dry.contains(" would be forgotten, "), "{dry}");
    let done = sandbox.ok(&[&["backup", "prune", "repo", "--keep", "last=1", "--now"], &key[..]].concat());
    assert!(done.contains(" forgotten, ") && !done.contains("would be"), "{done}");
    let pack = files_below(&sandbox.path("repo/packs"), "").pop().unwrap();
    fs::write(&pack, "something else").unwrap();
    let damaged = sandbox.run(&[&["backup", "verify", "repo"], &key[..]].concat());
    assert_failure(&damaged, 1, &["repo has ", " error"]);
    ["tank", "vault"].iter().for_each(|pool| drop(sandbox.run(&["unmount", pool])));
}

#[test]
fn a_pool_at_rest_is_backed_up_and_restored_without_a_surprise() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools();
    sandbox.ok(&["mount", "tank/db", "a"]);
    fs::write(sandbox.path("a/noise"), noise(1, 36 << 20)).unwrap();
    sandbox.ok(&["unmount", "tank"]);
    sandbox.ok(&["backup", "init", "repo", "--unencrypted"]);
    let create = |name: &str| sandbox.run(&["backup", "create", name, "--to", "repo"]);
    // The pool is opened to be sent, and mounted to look for databases: one after the other.
    let told = create("tank/db");
    assert!(told.status.success() && told.stderr.is_empty(), "{}{}", told.stdout, told.stderr);
    // Nothing is looked for in a snapshot that does not exist.
    let refused = create("tank/db@nowhere");
    assert_failure(&refused, 1, &["there is no such snapshot", "pagefold list -t snapshot tank"]);
    assert!(!refused.stderr.contains("warning"), "{}", refused.stderr);
    // Under another name it is the same dataset.
    sandbox.ok(&["rename", "tank/db", "tank/data"]);
    let renamed = sandbox.json(&["backup", "create", "tank/data", "--to", "repo"]);
    assert_eq!(renamed["created"]["since"], 1, "{renamed}");
    assert!(renamed["created"]["backup"]["added_bytes"].as_u64().unwrap() < 1 << 20, "{renamed}");

    // A dataset that was restored is not restored again unless that is said.
    sandbox.ok(&["backup", "restore", "repo", "2", "vault/data"]);
    sandbox.ok(&["mount", "vault/data", "b"]);
    fs::remove_file(sandbox.path("b/noise")).unwrap();
    sandbox.ok(&["unmount", "vault"]);
    let again = sandbox.run(&["backup", "restore", "repo", "2", "vault/data"]);
    assert_failure(&again, 1, &["vault/data has backup 2 already", "pagefold rollback vault/data@backup-"]);
    let whole = sandbox.ok(&["backup", "restore-pool", "repo", "vault", "--into"]);
    assert!(whole.contains("backup 2; restored before, and left as it is now"), "{whole}");
    assert!(whole.contains("1 dataset restored"), "the other one: {whole}");
    sandbox.ok(&["backup", "restore", "repo", "2", "vault/data", "-F"]);
    sandbox.ok(&["mount", "vault/data", "b"]);
    assert!(fs::read(sandbox.path("b/noise")).unwrap() == noise(1, 36 << 20));
    sandbox.ok(&["unmount", "vault"]);

    // A snapshot of the same name and second is not taken for the one of the backup.
    sandbox.ok(&["dataset", "create", "tank/two"]);
    sandbox.ok(&["snapshot", "-r", "tank@x"]);
    sandbox.ok(&["backup", "create", "tank/two@x", "--to", "repo"]);
    sandbox.ok(&["mount", "tank/data", "a"]);
    fs::write(sandbox.path("a/later"), "later").unwrap();
    sandbox.ok(&["unmount", "tank"]);
    let other = sandbox.run(&["backup", "restore", "repo", "tank/two@x", "tank/data", "-F"]);
    assert_failure(&other, 1, &["there is a dataset 'data' already"]);
    sandbox.ok(&["mount", "tank/data", "a"]);
    assert_eq!(fs::read(sandbox.path("a/later")).unwrap(), b"later");
}

#[test]
fn a_dataset_whose_backup_cannot_be_read_yet_keeps_its_place_in_a_restored_pool() {
    if !can_mount() {
        return;
    }
    let sandbox = with_pools();
    sandbox.ok(&["dataset", "create", "-p", "tank/up/empty/below"]);
    sandbox.ok(&["mount", "tank/up", "a"]);
    fs::write(sandbox.path("a/noise"), noise(1, 4 << 20)).unwrap();
    sandbox.ok(&["unmount", "tank"]);
    sandbox.ok(&["backup", "init", "repo", "--unencrypted"]);
    sandbox.ok(&["backup", "create", "tank/up", "--to", "repo"]);
    let packs = files_below(&sandbox.path("repo/packs"), "");
    for name in ["tank/up/empty/below", "tank/db"] {
        sandbox.ok(&["backup", "create", name, "--to", "repo"]);
    }
    sandbox.dir("away");
    let away = |pack: &std::path::Path| sandbox.path("away").join(pack.file_name().unwrap());
    let take_away = || packs.iter().for_each(|pack| fs::rename(pack, away(pack)).unwrap());
    let bring_back = || packs.iter().for_each(|pack| fs::rename(away(pack), pack).unwrap());
    let restore = || sandbox.run(&["backup", "restore-pool", "repo", "vault", "--into"]);
    take_away();
    let told = restore();
    assert_failure(
        &told,
        1,
        &["packs/", "vault/up/empty/below: it is below vault/up", "restore-pool repo vault --into"],
    );
    assert!(told.stdout.contains("vault/db: as of"), "{}", told.stdout);
    assert!(!names(&sandbox, "vault").iter().any(|name| name == "vault/up"), "its name is free");
    // The same command goes on once the store has everything again.
    bring_back();
    let told = restore();
    assert!(
        told.status.success() && told.stdout.contains("2 datasets restored"),
        "{}{}",
        told.stdout,
        told.stderr
    );
    sandbox.ok(&["mount", "vault/up", "b"]);
    assert!(fs::read(sandbox.path("b/noise")).unwrap() == noise(1, 4 << 20));
    sandbox.ok(&["unmount", "vault"]);
    // If it never comes back, an empty one takes its place, and the others are restored.
    sandbox.ok(&["destroy", "-r", "vault/up"]);
    take_away();
    assert_failure(&restore(), 1, &["vault/up/empty/below: it is below vault/up"]);
    sandbox.run(&["receive", "--abort", "vault/up"]);
    sandbox.ok(&["dataset", "create", "vault/up"]);
    let told = restore();
    assert_eq!(told.status.code(), Some(1));
    assert!(told.stdout.contains("vault/up/empty/below: as of"), "{}", told.stdout);
    assert_sound(&sandbox, "vault");
}

#[test]
fn a_copy_that_is_older_says_how_it_takes_the_place_of_the_repository() {
    let sandbox = with_pools();
    sandbox.ok(&["backup", "init", "repo", "--unencrypted"]);
    sandbox.ok(&["backup", "create", "tank/db", "--to", "repo"]);
    sandbox.ok(&["backup", "create", "tank/db", "--to", "repo"]);
    let newest = files_below(&sandbox.path("repo/log"), "").pop().unwrap();
    fs::remove_file(newest.join("0000000000000002")).unwrap();
    let refused = sandbox.run(&["backup", "list", "repo"]);
    assert_failure(&refused, 1, &["gone back to an older one", "rm ", ".seen"]);
    let hint = refused.stderr.split("rm ").nth(1).unwrap().trim();
    fs::remove_file(hint).unwrap();
    assert!(sandbox.ok(&["backup", "list", "repo"]).contains("tank/db@backup-"));
    // The object that describes it has a copy.
    fs::remove_file(sandbox.path("repo/repository")).unwrap();
    let listed = sandbox.run(&["backup", "list", "repo"]);
    assert!(listed.status.success() && listed.stderr.contains("check --repair"), "{}", listed.stderr);
    sandbox.ok(&["backup", "check", "--repair", "repo"]);
    assert!(sandbox.ok(&["backup", "list", "repo"]).contains("tank/db@backup-"));
    // Without both, it is not made anew over what is there.
    fs::remove_file(sandbox.path("repo/repository")).unwrap();
    fs::remove_file(sandbox.path("repo/repository-copy")).unwrap();
    let refused = sandbox.run(&["backup", "list", "repo"]);
    assert_failure(&refused, 1, &["repository is missing"]);
    assert!(!refused.stderr.contains("init"), "{}", refused.stderr);
    assert_failure(&sandbox.run(&["backup", "init", "repo", "--unencrypted"]), 1, &["has lost its object"]);
}

#[test]
fn a_damaged_newest_commit_hides_no_other_backup_and_is_repaired() {
    let sandbox = with_pools();
    sandbox.ok(&["backup", "init", "repo", "--unencrypted"]);
    for _ in 0..2 {
        sandbox.ok(&["backup", "create", "tank/db", "--to", "repo"]);
    }
    let newest = files_below(&sandbox.path("repo/log"), "").pop().unwrap().join("0000000000000002");
    let mut bytes = fs::read(&newest).unwrap();
    bytes[100] ^= 4;
    fs::write(&newest, bytes).unwrap();

    let repair = "pagefold backup check --repair";
    let listed = sandbox.run(&["backup", "list", "-H", "repo"]);
    assert_failure(&listed, 1, &["0000000000000002 is damaged", repair]);
    assert_eq!(listed.stdout.lines().filter(|line| line.starts_with("1\t")).count(), 1, "{}", listed.stdout);
    assert_failure(&sandbox.run(&["backup", "verify", "repo"]), 1, &["repo has 1 error"]);
    let restored = sandbox.run(&["backup", "restore", "repo", "1", "vault/one"]);
    assert!(restored.status.success() && restored.stderr.contains("is damaged"), "{}", restored.stderr);
    let told = ["0000000000000002 is damaged", repair];
    assert_failure(&sandbox.run(&["backup", "restore", "repo", "2", "vault/two"]), 1, &told);
    assert_failure(&sandbox.run(&["backup", "create", "tank/db", "--to", "repo"]), 1, &told);
    assert_failure(&sandbox.run(&["backup", "prune", "repo"]), 1, &told);

    sandbox.ok(&["backup", "check", "--repair", "repo"]);
    sandbox.ok(&["backup", "create", "tank/db", "--to", "repo"]);
    let listed = sandbox.ok(&["backup", "list", "-H", "repo"]);
    assert_eq!(listed.lines().map(|line| &line[..2]).collect::<Vec<_>>(), ["1\t", "3\t"], "{listed}");
    sandbox.ok(&["backup", "verify", "repo"]);
}
