//! The verbs: one module for each, or for a few that belong together.

mod analyze;
mod archive;
mod archived_logs;
mod backup;
mod basebackup;
mod branch;
mod check;
mod clear;
mod create;
mod dataset;
mod destroy;
mod devices;
mod diff;
mod du;
mod events;
mod export;
mod fold;
mod import;
mod iostat;
mod layout;
mod list;
mod log_device;
mod manual;
mod models;
mod mount;
mod mount_all;
mod policy;
mod properties;
mod rebase;
mod reguid;
mod remount;
mod restart;
mod rewrite;
mod scrub;
mod send;
mod show;
mod spares;
mod sync;
mod systemd;
mod trim;
mod unmount;
mod walk;

use std::ffi::OsString;
use std::io::Write;

use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::serve::events::tell_warnings;
use pagefold_server::stderr;

use crate::args::{Backup, Cli, Mount, Verb};

/// Returns the exit status of a command line that failed.
pub fn exit_status(words: &[OsString], failure: &Failure) -> u8 {
    archive::exit_status(words, failure)
}

/// Does what the command line asks.
pub fn run(cli: Cli) -> Result<()> {
    if matches!(
        cli.verb,
        Verb::Mount(Mount { dry_run: false, .. })
            | Verb::Unmount(_)
            | Verb::Status(_)
            | Verb::Import(_)
            | Verb::Export(_)
    ) {
        // Nothing below may wait for a server that will not answer.
        pagefold_server::abandoned::abort_all();
    }
    // A server and a reader log.
    if !matches!(cli.verb, Verb::Serve(_) | Verb::Backup(Backup::Reader)) {
        tell_warnings(warn);
    }
    match cli.verb {
        Verb::Create(args) => create::run(&args),
        Verb::Destroy(args) => destroy::run(&args),
        Verb::Dataset(args) => dataset::run(&args),
        Verb::Snapshot(args) => dataset::snapshot(&args),
        Verb::Clone(args) => dataset::clone_of(&args),
        Verb::Rollback(args) => dataset::rollback(&args),
        Verb::Reset(args) => dataset::reset(&args),
        Verb::Policy(args) => policy::run(args),
        Verb::Rebase(args) => rebase::run(&args),
        Verb::Promote(args) => dataset::promote(&args),
        Verb::Rename(args) => dataset::rename(&args),
        Verb::Hold(args) => dataset::hold(&args, false),
        Verb::Release(args) => dataset::hold(&args, true),
        Verb::Holds(args) => dataset::holds(&args),
        Verb::Branch(args) => branch::run(&args),
        Verb::Send(args) => send::send(&args),
        Verb::Receive(args) => send::receive(&args),
        Verb::Archive(args) => archive::run(&args),
        Verb::Backup(args) => backup::run(&args),
        Verb::Replicate(args) => backup::replicate::run(&args),
        Verb::Basebackup(args) => basebackup::run(&args),
        Verb::Diff(args) => diff::run(&args),
        Verb::Import(args) => import::run(&args),
        Verb::Reguid(args) => reguid::run(&args),
        Verb::Export(args) => export::run(&args),
        Verb::Mount(args) if args.all => mount_all::run(&args),
        Verb::Mount(args) => mount::run(&args),
        Verb::Unmount(args) => unmount::run(&args),
        Verb::Restart(args) => restart::run(&args),
        Verb::Sync(args) => sync::run(&args),
        Verb::List(args) => list::run(&args),
        Verb::Status(args) if args.models => models::status(&args),
        Verb::Status(args) => show::status(&args),
        Verb::Df(args) => show::df(&args),
        Verb::Iostat(args) => iostat::run(&args),
        Verb::Events(args) => events::run(&args),
        Verb::Get(args) => properties::get(&args),
        Verb::Set(args) => properties::set(&args),
        Verb::Inherit(args) => properties::inherit(&args),
        Verb::Du(args) => du::run(&args),
        Verb::Analyze(args) => analyze::run(&args),
        Verb::Fold(args) => fold::run(&args),
        Verb::Rewrite(args) => rewrite::run(&args),
        Verb::Scrub(args) => scrub::run(&args),
        Verb::Trim(args) => trim::run(&args),
        Verb::Check(args) => check::run(&args),
        Verb::Device(verb) => devices::run(&verb),
        Verb::Clear(args) => clear::run(&args),
        Verb::Systemd(args) => systemd::run(&args),
        Verb::Generator { dirs } => dirs.first().map_or(Ok(()), |dir| crate::boot::generate(dir)),
        Verb::Completion { shell } => manual::completion(shell),
        Verb::Man { dir } => manual::write(&dir),
        Verb::Serve(args) => crate::serve::run(&args),
        Verb::ReadDevices { devices } => pagefold_server::answering::answer(&devices),
        Verb::Probe { devices } => {
            println!("{}", pagefold_server::startup::probe(&devices)?);
            Ok(())
        }
    }
}

/// Prints a warning.
fn warn(text: &str) {
    stderr::write_line(&format!("warning: {text}"));
}

/// Prints a value as JSON.
fn print_json(value: &serde_json::Value) -> Result<()> {
    let text = serde_json::to_string_pretty(&pagefold_server::raw::printed(value.clone()))
        .context(|| "cannot print".into())?;
    writeln!(std::io::stdout(), "{text}").context(|| "cannot print".into())
}
