//! `backup`: what a repository is asked for, and what it says. The streams from and to pools are those of `send` and `receive`.

mod attempts;
mod create;
mod replica;
pub(super) mod replicate;
mod restore_pool;
mod run;
mod standing;

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

use pagefold_backup::{
    Checked, Error, InitOptions, Keep, Location, Repacked, Repository, Secret, Seen, ServeOptions, Store,
    limits,
};
use pagefold_engine::pool::{Origin, Token};
use serde_json::json;

use super::print_json;
use super::send::receive_from;
use crate::args::{
    Access, Backup, BackupCheck, BackupForget, BackupInit, BackupList, BackupPrune, BackupRestore,
    BackupServe, BackupShow, BackupVerify,
};
use crate::failure::{Context, Failure, Result};
use crate::names::Name;
use crate::progress::Progress;
use crate::table::{Align, Table};
use crate::{datasets, names, places, units};

pub(super) use replica::{Behind, replicas};
pub(super) use standing::{Standing, standings};

/// A passphrase in the environment.
const PASSPHRASE: &str = "PAGEFOLD_BACKUP_PASSPHRASE";
/// Longest key file that is read.
const KEY_BYTES_MAX: u64 = 64 << 10;

/// Does what the command line asks of backups.
pub fn run(args: &Backup) -> Result<()> {
    match args {
        Backup::Init(args) => init(args),
        Backup::Create(args) => create::run(args),
        Backup::List(args) => list(args),
        Backup::Show(args) => show(args),
        Backup::Verify(args) => verify(args),
        Backup::Check(args) => check(args),
        Backup::Restore(args) => restore(args),
        Backup::RestorePool(args) => restore_pool::run(args),
        Backup::Forget(args) => forget(args),
        Backup::Prune(args) => prune(args),
        Backup::Serve(args) => serve(args),
        Backup::Run(args) => run::run(args),
    }
}

/// What the crate says, and what to do about it.
fn told(doing: impl std::fmt::Display, error: &Error) -> Failure {
    let failure = match error {
        Error::Invalid(_) => Failure::usage(format!("{doing}: {error}")),
        _ => Failure::new(format!("{doing}: {error}")),
    };
    match error {
        Error::Key(_) => {
            failure.hint(format!("give it with --key-file FILE, --key-command COMMAND or {PASSPHRASE}"))
        }
        Error::Damaged { .. } | Error::Missing { .. } => {
            failure.hint("see what else is damaged: pagefold backup check, pagefold backup verify")
        }
        Error::Connection { hint: Some(hint), .. } => failure.hint(hint),
        Error::UnsafeStore(_) => failure.hint("--single-writer vouches that there is only one writer"),
        _ => failure,
    }
}

fn secret(access: &Access) -> Result<Option<Secret>> {
    let bytes = if let Some(path) = &access.key_file {
        let mut bytes = Vec::new();
        let file = File::open(path).and_then(|file| file.take(KEY_BYTES_MAX).read_to_end(&mut bytes));
        file.context(|| format!("cannot read the key file {}", path.display()))?;
        bytes
    } else if let Some(command) = &access.key_command {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", command]).stdin(Stdio::null()).stderr(Stdio::inherit());
        let out = shell.output().context(|| "cannot run the key command".into())?;
        if !out.status.success() {
            return Err(Failure::new(format!("the key command failed: {}", out.status)));
        }
        out.stdout
    } else if let Some(text) = std::env::var_os(PASSPHRASE) {
        text.into_encoded_bytes()
    } else {
        return Ok(None);
    };
    let end = bytes.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r')).map_or(0, |last| last + 1);
    let secret = Secret::new(bytes.get(..end).unwrap_or_default().to_vec());
    secret.map(Some).map_err(|error| told("cannot use the key", &error))
}

fn store(repository: &str, access: &Access, make: bool) -> Result<Store> {
    // The environment may have these for other uses: a directory has neither.
    let remote = repository.contains("://");
    let only = |word: &Option<String>| word.clone().filter(|_| remote);
    let (endpoint, region) = (only(&access.endpoint), only(&access.region));
    let doing = || format!("cannot use the repository {repository}");
    let location =
        Location::parse(repository, endpoint.as_deref(), region.as_deref(), access.remote_command.as_deref());
    let location = location.map_err(|error| told(doing(), &error))?;
    Store::open(&location, make).map_err(|error| told(doing(), &error))
}

fn seen() -> Result<Seen> {
    Ok(Seen { folder: Some(places::state_dir()?.join("backup")) })
}

fn open(repository: &str, access: &Access) -> Result<Repository> {
    let store = store(repository, access, false)?;
    Repository::open(store, seen()?, secret(access)?.as_ref()).map_err(|error| {
        let failure = told(format!("cannot open the repository {repository}"), &error);
        match error {
            Error::NotFound(_) => failure.hint(format!("make one: pagefold backup init {repository}")),
            _ => failure,
        }
    })
}

fn init(args: &BackupInit) -> Result<()> {
    let secret = secret(&args.access)?.filter(|_| !args.unencrypted);
    let doing = format!("cannot make a repository at {}", args.repository);
    if secret.is_none() && !args.unencrypted {
        return Err(Failure::usage(format!("{doing}: there is no passphrase or key to encrypt it with"))
            .hint(format!(
                "give one with --key-file FILE, --key-command COMMAND or {PASSPHRASE}, or say --unencrypted"
            )));
    }
    let store = store(&args.repository, &args.access, true)?;
    let options = InitOptions { secret, created: units::now(), single_writer: args.single_writer };
    Repository::init(store, seen()?, &options).map(drop).map_err(|error| told(doing, &error))
}

fn pipe() -> Result<(PipeReader, PipeWriter)> {
    std::io::pipe().context(|| "cannot make a pipe".into())
}

fn as_file(end: impl Into<OwnedFd>) -> File {
    File::from(end.into())
}

fn list(args: &BackupList) -> Result<()> {
    let repository = open(&args.repository, &args.access)?;
    let backups = repository.backups();
    let backups = backups.map_err(|error| told(format!("cannot list {}", args.repository), &error))?;
    if args.output.json {
        let all: Vec<_> = backups.iter().map(figures).collect();
        return print_json(&json!({ "repository": repository.id(), "backups": all }));
    }
    let exact = args.output.exact || args.output.script;
    let size = |bytes: u64| if exact { bytes.to_string() } else { units::size(bytes) };
    let time = |seconds: u64| if exact { seconds.to_string() } else { units::utc(seconds) };
    let mut table = Table::new(&[
        ("BACKUP", Align::Right),
        ("NAME", Align::Left),
        ("STORED", Align::Right),
        ("ADDED", Align::Right),
        ("SNAPSHOT MADE", Align::Left),
        ("BACKED UP", Align::Left),
    ]);
    for backup in &backups {
        table.row(vec![
            backup.number.to_string(),
            backup.name(),
            size(backup.totals.record_bytes),
            size(backup.added_bytes),
            time(backup.origin.created),
            time(backup.made),
        ]);
    }
    table.print(args.output.script);
    Ok(())
}

fn figures(backup: &pagefold_backup::Backup) -> serde_json::Value {
    json!({
        "number": backup.number,
        "name": backup.name(),
        "created": backup.origin.created,
        "made": backup.made,
        "values": backup.totals.values,
        "pages": backup.totals.pages,
        "record_bytes": backup.totals.record_bytes,
        "added_bytes": backup.added_bytes,
        "packs": backup.packs,
        "pool_guid": backup.origin.pool.to_string(),
    })
}

fn show(args: &BackupShow) -> Result<()> {
    let repository = open(&args.repository, &args.access)?;
    let backup = repository.find(&args.backup);
    let backup = backup.map_err(|error| told(format!("cannot show {}", args.backup), &error))?;
    if args.output.json {
        return print_json(&figures(&backup));
    }
    let exact = args.output.exact || args.output.script;
    let size = |bytes: u64| if exact { bytes.to_string() } else { units::size(bytes) };
    let time = |seconds: u64| if exact { seconds.to_string() } else { units::utc(seconds) };
    let mut table = Table::new(&[("PROPERTY", Align::Left), ("VALUE", Align::Left)]);
    for (name, value) in [
        ("backup", backup.number.to_string()),
        ("name", backup.name()),
        ("pool", backup.origin.pool.to_string()),
        ("created", time(backup.origin.created)),
        ("made", time(backup.made)),
        ("pages", backup.totals.pages.to_string()),
        ("values", backup.totals.values.to_string()),
        ("stored", size(backup.totals.record_bytes)),
        ("added", size(backup.added_bytes)),
        ("packs", backup.packs.to_string()),
    ] {
        table.row(vec![name.into(), value]);
    }
    table.print(args.output.script);
    Ok(())
}

/// A share as people write it: `5%`.
fn share(text: &str) -> Result<f64> {
    let share = text.strip_suffix('%').and_then(|text| text.trim().parse::<f64>().ok());
    let share = share.filter(|share| *share > 0.0 && *share <= 100.0).map(|share| share / 100.0);
    share.ok_or_else(|| Failure::usage(format!("\"{text}\" is no share")).hint("it is written as 5%"))
}

fn verify(args: &BackupVerify) -> Result<()> {
    let share = args.sample.as_deref().map(share).transpose()?.unwrap_or(1.0);
    let repository = open(&args.repository, &args.access)?;
    let failed = |error: Error| told(format!("cannot verify {}", args.repository), &error);
    let backups = match args.backups.as_slice() {
        [] => repository.backups().map_err(failed)?,
        some => some.iter().map(|word| repository.find(word)).collect::<Result<_, _>>().map_err(failed)?,
    };
    let progress = Progress::flow("verifying");
    let total: u64 = backups.iter().map(|backup| backup.totals.record_bytes).max().unwrap_or_default();
    let mut watch = |done: u64| progress.at(done, total.max(done));
    // Another share each time.
    let salt = units::now();
    let checked = match args.packs {
        true => repository.verify_packs(&backups, share, salt, &mut watch),
        false => repository.verify(&backups, share, salt, &mut watch),
    };
    progress.finish();
    tell(&args.repository, &checked.map_err(failed)?, args.json)
}

fn check(args: &BackupCheck) -> Result<()> {
    let repository = open(&args.repository, &args.access)?;
    let checked = repository.check();
    let checked = checked.map_err(|error| told(format!("cannot check {}", args.repository), &error))?;
    tell(&args.repository, &checked, args.json)
}

/// Tells what was read and what is wrong; that fails.
fn tell(name: &str, checked: &Checked, json: bool) -> Result<()> {
    if json {
        print_json(&json!(checked))?;
    } else {
        for damage in &checked.told {
            println!("backup {}: {}", damage.backup, damage.what);
        }
        println!(
            "{name}: {} errors; {} backups, {} packs, {} chunks, {} records ({})",
            checked.damages,
            checked.backups,
            checked.packs,
            checked.chunks,
            checked.records,
            units::size(checked.record_bytes)
        );
    }
    match checked.damages {
        0 => Ok(()),
        count => Err(Failure::new(format!("{name} has {count} errors"))
            .hint("what was backed up since can be restored if it needs nothing of this; make a new backup elsewhere")),
    }
}

fn restore(args: &BackupRestore) -> Result<()> {
    let name = super::dataset::dataset(&args.dataset)?;
    if name.path.is_empty() {
        return Err(Failure::usage(format!("{name} is a pool, not a dataset"))
            .hint(format!("backups are restored into datasets: {name}/NAME")));
    }
    let repository = open(&args.repository, &args.access)?;
    let backup = repository.find(&args.backup);
    let backup =
        backup.map_err(|error| told(format!("cannot restore {} into {name}", args.backup), &error))?;
    let Restoring { restored, received, since } =
        restore_one(&repository, &args.backup, &backup, &name, args.force)?;
    if args.json {
        return print_json(&json!({
            "backup": figures(&backup),
            "since": since.map(|since| since.number),
            "restored": restored,
            "received": received,
            "requests": repository.store().requests(),
        }));
    }
    println!(
        "{name}: restored backup {}, {} in {} pages{}",
        backup.number,
        units::size(restored.record_bytes),
        restored.pages,
        since.map_or_else(String::new, |since| format!(", on top of backup {}", since.number))
    );
    Ok(())
}

/// The outcome of a restore at both ends, and the backup that it came on top of.
struct Restoring {
    restored: pagefold_backup::Restored,
    received: crate::control::Transferred,
    since: Option<pagefold_backup::Backup>,
}

/// Restores a backup, which the user calls `word`, into a dataset; goes on with what was interrupted.
fn restore_one(
    repository: &Repository,
    word: &str,
    backup: &pagefold_backup::Backup,
    name: &Name,
    force: bool,
) -> Result<Restoring> {
    let doing = || format!("cannot restore {word} into {name}");
    let failed = |error: Error| told(doing(), &error);
    let backups = repository.backups().map_err(failed)?;
    let by_origin = |origin: &Origin| backups.iter().find(|backup| backup.origin == *origin).cloned();
    // What an earlier restore has brought is gone on with.
    let partial = datasets::partials_of(&name.pool)?.into_iter().find(|partial| partial.path == name.path);
    let token: Option<Token> = partial.and_then(|partial| partial.receive_resume_token.parse().ok());
    let begun = token.filter(|token| token.to == backup.origin);
    let (since, after) = match begun {
        Some(token) => {
            let since = token.from.as_ref().map(|from| {
                by_origin(from).ok_or_else(|| {
                    Failure::new(format!("{}: the backup on top of which it was begun is gone", doing()))
                        .hint(format!("give up what came: pagefold receive --abort {name}"))
                })
            });
            (since.transpose()?, token.after())
        }
        None => (newest_backup(name, &backups)?, None),
    };
    let (reader, writer) = pipe()?;
    crate::ignore_sigpipe();
    let (received, restored) = std::thread::scope(|scope| {
        let since = since.as_ref();
        let restoring = scope.spawn(move || {
            let mut out = std::io::BufWriter::with_capacity(1 << 20, writer);
            let restored = repository.restore(backup, since, after, &mut out, &mut |_, _| {});
            out.flush().ok();
            restored
        });
        let received = receive_from(name, force, as_file(reader));
        (received, restoring.join())
    });
    let restored = restored.map_err(|_| Failure::new(format!("{}: it ended by a bug", doing())))?;
    match (received, restored) {
        (Ok(received), Ok(restored)) => Ok(Restoring { restored, received, since }),
        // Where the store or an object failed, the pool only knows that the stream has ended.
        (Err(failure), Err(Error::Stream(_)) | Ok(_)) => Err(failure),
        (_, Err(error)) => Err(failed(error)),
    }
}

/// The backup of the newest snapshot of the dataset, if it has one.
fn newest_backup(
    name: &Name,
    backups: &[pagefold_backup::Backup],
) -> Result<Option<pagefold_backup::Backup>> {
    let all = datasets::of_pool(&name.pool)?;
    let of_dataset = |path: &str| names::dataset_of(path) == name.path && path.contains('@');
    let newest = all.iter().rfind(|figures| of_dataset(&figures.path));
    let Some((_, newest)) = newest.and_then(|figures| figures.path.split_once('@')) else { return Ok(None) };
    // Of this name, and of the same time: what names a snapshot in all pools is compared by who receives.
    let created = all
        .iter()
        .find(|figures| figures.path == format!("{}@{newest}", name.path))
        .map(|figures| figures.created);
    Ok(backups
        .iter()
        .rev()
        .find(|backup| backup.snapshot == newest && Some(backup.origin.created) == created)
        .cloned())
}

fn forget(args: &BackupForget) -> Result<()> {
    let repository = open(&args.repository, &args.access)?;
    let forgotten = repository.forget(&args.backups);
    forgotten.map_err(|error| told(format!("cannot forget backups of {}", args.repository), &error))
}

fn prune(args: &BackupPrune) -> Result<()> {
    let failed = |error: Error| told(format!("cannot prune {}", args.repository), &error);
    let keep: Option<Keep> = args.keep.as_deref().map(str::parse).transpose().map_err(failed)?;
    let repository = open(&args.repository, &args.access)?;
    let bound = match args.repack.as_deref() {
        None => limits::REPACK_BYTES,
        Some("none") => 0,
        Some(text) => units::parse_size(text)?,
    };
    let mut pruned = repository.prune(keep.as_ref(), args.now, args.dry_run).map_err(failed)?;
    let repacked = match bound {
        0 => Repacked::default(),
        bound => repository.repack(bound, args.dry_run).map_err(failed)?,
    };
    if args.now && repacked.packs > 0 && !args.dry_run {
        let emptied = repository.prune(None, true, false).map_err(failed)?;
        pruned.deleted_packs += emptied.deleted_packs;
        pruned.deleted_bytes += emptied.deleted_bytes;
    }
    if args.json {
        let mut told = json!(pruned);
        told["repacked"] = json!(repacked);
        return print_json(&told);
    }
    println!(
        "{}: {} backups forgotten, {} packs deleted ({}), {} left to the next prune ({})",
        args.repository,
        pruned.forgotten.len(),
        pruned.deleted_packs,
        units::size(pruned.deleted_bytes),
        pruned.condemned_packs,
        units::size(pruned.condemned_bytes)
    );
    if repacked.packs > 0 {
        println!("{}: {}", args.repository, repacked_text(&repacked, args.dry_run));
    }
    Ok(())
}

/// Packs that were emptied, in words.
fn repacked_text(repacked: &Repacked, dry_run: bool) -> String {
    let Repacked { packs, new_packs, backups, .. } = repacked;
    let freed = units::size(repacked.freed_bytes);
    if dry_run {
        return format!("about {packs} packs would be emptied ({freed})");
    }
    let (read, written) = (units::size(repacked.read_bytes), units::size(repacked.written_bytes));
    format!(
        "{packs} packs emptied ({freed}, left to the prune after the next) into {new_packs}; {read} read, {written} written, manifests of {backups} backups anew"
    )
}

/// Serves who is at the other end of standard input and output.
fn serve(args: &BackupServe) -> Result<()> {
    // A client that goes away is an error like others: what it had sent is finished.
    crate::ignore_sigpipe();
    let options = ServeOptions { restrict: args.restrict.clone(), append_only: args.append_only };
    let output = std::io::stdout().as_fd().try_clone_to_owned();
    let output = File::from(output.context(|| "cannot use standard output".into())?);
    pagefold_backup::serve(&options, std::io::stdin().lock(), output)
        .map_err(|error| told("cannot serve backups", &error))
}
