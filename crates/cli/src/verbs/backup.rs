//! `backup`: works with repositories of backups. The streams from and to pools are those of `send` and `receive`.

mod attempts;
mod clusters;
mod create;
mod mount;
mod plan;
mod point;
mod pruned;
mod replica;
pub(super) mod replicate;
mod restore;
mod restore_pool;
mod run;
mod status;

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pagefold_backup::{
    Checked, Error, InitOptions, Keep, Location, PrunedLogs, Repacked, Repository, Secret, Seen,
    ServeOptions, Service, Store, limits,
};
use pagefold_server::backups::PASSPHRASE;
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::units::counted;
use pagefold_server::{files, raw, units};
use serde_json::json;

use super::{archived_logs, print_json};
use crate::args::{
    Access, Backup, BackupCheck, BackupForget, BackupInit, BackupList, BackupPrune, BackupRestore,
    BackupServe, BackupShow, BackupVerify,
};
use crate::backup_errors;
use crate::progress::Progress;
use crate::table::{Align, Table};
use crate::verbs::warn;

pub(super) use replica::{Behind, replicas};
pub(super) use status::{BackupStatus, backup_statuses};

/// Largest number of bytes that are read of a key file.
const KEY_BYTES_MAX: u64 = 64 << 10;
/// Permissions of a directory by which others than its owner and group read or write there.
const OTHERS: u32 = 0o007;

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
        Backup::Mount(args) => mount::run(args),
        Backup::Mounts(args) => mount::list(args),
        Backup::Reader => crate::reader::run(),
    }
}

fn restore(args: &BackupRestore) -> Result<()> {
    let name = restore::dataset_of(args)?;
    match point::RecoveryTarget::of(args)? {
        Some(target) => point::restore(args, &name, target),
        None => restore::run(args, &name),
    }
}

fn secret(access: &Access) -> Result<Option<Secret>> {
    let secret = secret_bytes(access)?.map(Secret::new).transpose();
    secret.map_err(|error| backup_errors::failed("cannot use the key", &error))
}

/// Returns the passphrase or key, if there is one.
fn secret_bytes(access: &Access) -> Result<Option<Vec<u8>>> {
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
    Ok(Some(bytes.get(..end).unwrap_or_default().to_vec()))
}

fn store(repository: &str, access: &Access, make: bool) -> Result<Store> {
    let doing = || format!("cannot use the repository {repository}");
    let location = Location::parse(
        repository,
        access.endpoint.as_deref(),
        access.region.as_deref(),
        access.remote_command.as_deref(),
    );
    let location = location.map_err(|error| backup_errors::failed(doing(), &error))?;
    Store::open(&location, make).map_err(|error| not_opened(doing(), &error, repository))
}

/// A repository could not be opened; if it is not there or belongs to somebody else, the user is told what helps.
fn not_opened(doing: String, error: &Error, repository: &str) -> Failure {
    if matches!(error, Error::NoBucket) {
        return no_bucket(&doing, repository);
    }
    let failure = backup_errors::failed(doing, error);
    match error {
        Error::NotFound(_) => failure.hint(format!("make one: pagefold backup init {repository}")),
        Error::Invalid(_) | Error::Store { .. } if Service::of(repository).is_some_and(|service| service.credentials().is_none()) => {
            failure.hint(match Service::of(repository) {
                Some(Service::Azure) => "AZURE_STORAGE_ACCOUNT must name the account; AZURE_STORAGE_KEY has its key, unless the machine itself may use the container",
                Some(Service::Gcs) => "neither GOOGLE_APPLICATION_CREDENTIALS nor GOOGLE_SERVICE_ACCOUNT is set, so the machine itself must be allowed to use the bucket",
                Some(Service::S3) | None => "AWS_ACCESS_KEY_ID is not set, so the machine itself must be allowed to use the bucket",
            })
        }
        _ if error.is_denied() && !repository.contains("://") => {
            let closed = closed_directory(Path::new(repository));
            let closed = raw::shown(&closed);
            failure.hint(format!(
                "you may not enter {closed}; its owner lets a group in: chgrp GROUP {closed} && chmod 750 {closed}"
            ))
        }
        _ => failure,
    }
}

/// Returns the failure of a repository in a bucket that does not exist.
fn no_bucket(doing: &str, repository: &str) -> Failure {
    let (scheme, rest) = repository.split_once("://").unwrap_or_default();
    let kind = if scheme == "az" { "container" } else { "bucket" };
    let name = rest.split('/').next().unwrap_or_default();
    Failure::new(format!("{doing}: there is no {kind} '{name}' in the store")).hint(format!(
        "make the {kind} with the store's own tools, or correct its name, --endpoint or the region; pagefold makes none"
    ))
}

/// Returns the directory on the way to a repository that the caller may not enter: what lies below it cannot be seen.
fn closed_directory(repository: &Path) -> PathBuf {
    repository.ancestors().find(|path| path.metadata().is_ok()).unwrap_or(repository).to_owned()
}

fn seen() -> Result<Seen> {
    Ok(Seen { folder: Some(files::state_dir()?.join("backup")) })
}

pub(super) fn open(repository: &str, access: &Access) -> Result<Repository> {
    open_with(repository, access, seen()?)
}

/// Opens a repository without remembering what this machine has seen of it: for callers that do not read its newest
/// commit.
pub(super) fn open_for_logs(repository: &str, access: &Access) -> Result<Repository> {
    open_with(repository, access, Seen::default())
}

fn open_with(repository: &str, access: &Access, seen: Seen) -> Result<Repository> {
    let store = store(repository, access, false)?;
    let doing = || format!("cannot open the repository {repository}");
    Repository::open(store, seen, secret(access)?.as_ref())
        .map_err(|error| not_opened(doing(), &error, repository))
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
    let unencrypted = options.secret.is_none();
    Repository::init(store, seen()?, &options).map_err(|error| match error {
        Error::NoBucket => no_bucket(&doing, &args.repository),
        error => backup_errors::failed(doing, &error),
    })?;
    let open =
        Path::new(&args.repository).metadata().is_ok_and(|meta| meta.permissions().mode() & OTHERS != 0);
    if unencrypted && open {
        warn(&format!(
            "it is not encrypted, and all users of this machine may enter it: chmod 700 {}",
            args.repository
        ));
    }
    Ok(())
}

fn list(args: &BackupList) -> Result<()> {
    let repository = open(&args.repository, &args.access)?;
    let backups = repository.backups();
    let failed = |error: Error| backup_errors::failed(format!("cannot list {}", args.repository), &error);
    let backups = backups.map_err(failed)?;
    print_backups(args, &repository, &backups)?;
    let mut checked = Checked::default();
    repository.check_log(&mut checked).map_err(failed)?;
    match checked.told.first() {
        None => Ok(()),
        Some(damage) => Err(log_failure(&args.repository, &damage.what)),
    }
}

/// Returns the failure of a verb that has told all backups that can be known, because there may have been more.
fn log_failure(name: &str, what: &str) -> Failure {
    Failure::new(format!("{name} may have listed more backups: {what}")).hint(format!(
        "bring it back from a copy of the repository; without one, go on from the newest intact commit: pagefold backup check --repair {name}"
    ))
}

fn print_backups(
    args: &BackupList,
    repository: &Repository,
    backups: &[pagefold_backup::Backup],
) -> Result<()> {
    let failed = |error: Error| backup_errors::failed(format!("cannot list {}", args.repository), &error);
    if args.output.json {
        let all: Vec<_> = backups.iter().map(figures).collect();
        let logs = repository.cluster_logs(backups).map_err(failed)?;
        print_json(&json!({ "repository": repository.id(), "backups": all, "logs": logs }))?;
        return archived_logs::check_histories(&logs);
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
    for backup in backups {
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
    // Scripts have `archive list`, and the columns that they read here stay as they were.
    if !args.output.script {
        let logs = repository.cluster_logs(backups).map_err(failed)?;
        let binlogs = repository.binlogs(backups).map_err(failed)?;
        if !logs.is_empty() || !binlogs.is_empty() {
            println!();
            archived_logs::print_all(&logs, &binlogs, &args.output);
        }
        archived_logs::check_histories(&logs)?;
    }
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
        "clusters": backup.clusters,
        "binlogs": backup.binlogs,
        "pool_guid": backup.origin.pool.to_string(),
    })
}

fn show(args: &BackupShow) -> Result<()> {
    let repository = open(&args.repository, &args.access)?;
    let backup = repository.find(&args.backup);
    let backup =
        backup.map_err(|error| backup_errors::failed(format!("cannot show {}", args.backup), &error))?;
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

/// Parses a share as people write it: `5%`.
fn share(text: &str) -> Result<f64> {
    let share = text.strip_suffix('%').and_then(|text| text.trim().parse::<f64>().ok());
    let share = share.filter(|share| *share > 0.0 && *share <= 100.0).map(|share| share / 100.0);
    share.ok_or_else(|| Failure::usage(format!("\"{text}\" is no share")).hint("it is written as 5%"))
}

fn verify(args: &BackupVerify) -> Result<()> {
    let share = args.sample.as_deref().map(share).transpose()?.unwrap_or(1.0);
    let repository = open(&args.repository, &args.access)?;
    let failed = |error: Error| backup_errors::failed(format!("cannot verify {}", args.repository), &error);
    let backups = match args.backups.as_slice() {
        [] => repository.backups().map_err(failed)?,
        some => some.iter().map(|word| repository.find(word)).collect::<Result<_, _>>().map_err(failed)?,
    };
    let progress = Progress::flow("verifying");
    let total: u64 = backups.iter().map(|backup| backup.totals.record_bytes).max().unwrap_or_default();
    let mut watch = |done: u64| progress.at(done, total.max(done));
    // Each run draws another sample.
    let salt = units::now();
    let checked = match args.packs {
        true => repository.verify_packs(&backups, share, salt, &mut watch),
        false => repository.verify(&backups, share, salt, &mut watch),
    };
    let mut checked = checked.map_err(failed)?;
    if args.backups.is_empty() {
        repository.check_log(&mut checked).map_err(failed)?;
        let mut watch = |done: u64| progress.at(total + done, total + done);
        repository.verify_logs(share, salt, &mut checked, &mut watch).map_err(failed)?;
    }
    progress.finish();
    print_result(&args.repository, &checked, args.json)
}

fn check(args: &BackupCheck) -> Result<()> {
    let repository = open(&args.repository, &args.access)?;
    if args.repair {
        let repaired = repository.repair_log().map_err(|error| not_repaired(&args.repository, &error))?;
        repaired.iter().for_each(|what| eprintln!("gone on without it: {what}"));
        let failed = |error| backup_errors::failed(format!("cannot repair {}", args.repository), &error);
        let written = repository.repair_description().map_err(failed)?;
        written.iter().for_each(|what| eprintln!("written anew: {what}"));
    }
    let checked = repository.check();
    let checked = checked
        .map_err(|error| backup_errors::failed(format!("cannot check {}", args.repository), &error))?;
    print_result(&args.repository, &checked, args.json)
}

fn not_repaired(name: &str, error: &Error) -> Failure {
    let doing = format!("cannot repair {name}");
    match error {
        Error::Damaged { .. } | Error::Missing { .. } => Failure::new(format!("{doing}: {error}")).hint(
            "no commit is intact, so nothing tells the backups: bring one back from a copy, or make a new repository elsewhere",
        ),
        _ => backup_errors::failed(doing, error),
    }
}

/// Tells what was read and what is wrong; fails if anything is wrong.
fn print_result(name: &str, checked: &Checked, json: bool) -> Result<()> {
    if json {
        print_json(&json!(checked))?;
    } else {
        for damage in &checked.told {
            match damage.backup {
                0 => println!("{}", damage.what),
                number => println!("backup {number}: {}", damage.what),
            }
        }
        println!(
            "{name}: {}; {}, {}, {}, {} ({}), {} of logs ({})",
            counted(checked.damages, "error"),
            counted(checked.backups, "backup"),
            counted(checked.packs, "pack"),
            counted(checked.chunks, "chunk"),
            counted(checked.records, "record"),
            units::size(checked.record_bytes),
            counted(checked.log_files, "file"),
            units::size(checked.log_bytes)
        );
    }
    match checked.damages {
        0 => Ok(()),
        count => Err(Failure::new(format!("{name} has {}", counted(count, "error")))
            .hint("what was backed up since can be restored if it needs nothing of this; make a new backup elsewhere")),
    }
}

fn forget(args: &BackupForget) -> Result<()> {
    let repository = open(&args.repository, &args.access)?;
    let forgotten = repository.forget(&args.backups);
    forgotten.map_err(|error| {
        backup_errors::failed(format!("cannot forget backups of {}", args.repository), &error)
    })
}

fn prune(args: &BackupPrune) -> Result<()> {
    let failed = |error: Error| backup_errors::failed(format!("cannot prune {}", args.repository), &error);
    let keep: Option<Keep> = args.keep.as_deref().map(str::parse).transpose().map_err(failed)?;
    let repository = open(&args.repository, &args.access)?;
    let bound = match args.repack.as_deref() {
        None => limits::REPACK_BYTES,
        Some("none") => 0,
        Some(text) => units::parse_size(text)?,
    };
    if !args.dry_run
        && let Err(failure) = pruned::note(&args.repository)
    {
        warn(&format!("backups by policy do not know of this prune: {failure}"));
    }
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
        "{}: {} {}forgotten, {} deleted ({}), {} left to the next prune ({})",
        args.repository,
        counted(pruned.forgotten.len() as u64, "backup"),
        would_be(args.dry_run),
        counted(pruned.deleted_packs, "pack"),
        units::size(pruned.deleted_bytes),
        pruned.condemned_packs,
        units::size(pruned.condemned_bytes)
    );
    if repacked.packs > 0 {
        println!("{}: {}", args.repository, repacked_text(&repacked, args.dry_run));
    }
    print_logs(&args.repository, &pruned.logs, args.dry_run);
    Ok(())
}

/// Returns the words before what was done, if it was not.
fn would_be(dry_run: bool) -> &'static str {
    if dry_run { "would be " } else { "" }
}

/// Tells of archived logs that were deleted or left, if there are any.
fn print_logs(name: &str, logs: &PrunedLogs, dry_run: bool) {
    if logs.deleted_files + logs.left_files > 0 {
        println!(
            "{name}: {} of logs {}deleted ({}), {} left to the next prune",
            counted(logs.deleted_files, "file"),
            would_be(dry_run),
            units::size(logs.deleted_bytes),
            logs.left_files
        );
    }
    if let Some(first) = logs.unknown_backups.first() {
        println!(
            "{name}: no file of a log is deleted: it is not known which databases are in {}, among them {first}",
            counted(logs.unknown_backups.len() as u64, "backup")
        );
    }
}

/// Returns in words which packs were emptied.
fn repacked_text(repacked: &Repacked, dry_run: bool) -> String {
    let (packs, new_packs) = (counted(repacked.packs, "pack"), repacked.new_packs);
    let backups = counted(repacked.backups, "backup");
    let freed = units::size(repacked.freed_bytes);
    if dry_run {
        return format!("about {packs} would be emptied ({freed})");
    }
    let (read, written) = (units::size(repacked.read_bytes), units::size(repacked.written_bytes));
    format!(
        "{packs} emptied ({freed}, left to the prune after the next) into {new_packs}; {read} read, {written} written, manifests of {backups} anew"
    )
}

/// Serves the client at the other end of standard input and output.
fn serve(args: &BackupServe) -> Result<()> {
    // A client that goes away is an error like others: what it had sent is finished.
    crate::ignore_sigpipe();
    let options = ServeOptions { restrict: args.restrict.clone(), append_only: args.append_only };
    let output = std::io::stdout().as_fd().try_clone_to_owned();
    let output = File::from(output.context(|| "cannot use standard output".into())?);
    pagefold_backup::serve(&options, std::io::stdin().lock(), output)
        .map_err(|error| backup_errors::failed("cannot serve backups", &error))
}
