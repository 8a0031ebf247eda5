//! The `pagefold` program: pools, mounts and their servers.
//!
//! ```text
//! verbs, args, help     one module per verb; the command line, from which help, man pages and completions are made
//! serve, control        the server of a pool, and its socket
//! supervisor, mounter   the process above a server, which keeps what must outlive it; the one that mounts for it
//! reader, incomplete    the process that reads a backup; datasets whose pages are still in one
//! confine, spawn        what each process gives up, and what it begins with
//! operations, streams, rebase, datasets   what can be done to datasets, on a pool that is served or opened briefly
//! pools, discovery, registry, last_state, signature   pools and their devices; those that this machine knows
//! pool_status, dataset_properties   figures of a pool; properties of datasets and snapshots
//! props, settings, mountopts   the one table of properties; the value that holds for a dataset; mount options
//! startup, boot, fstab, mount_helper   what must be known before a pool is opened; systemd and mount(8)
//! mounts, mount_lookup, unmounting, mount_users   the kernel's mounts: finds one, takes several away, names users
//! mountpoint, bind_mount   directories to mount on; a second mount of a dataset
//! retention, backups    which snapshots and backups are due by policy
//! pool_errors, event_log   errors with the names of files; events that outlive servers
//! engine_errors, backup_errors   errors of the engine and of repositories, with advice
//! failure, failures     the error of a verb; what failed while others went on
//! stderr, timeouts      lines on standard error, of processes that outlive a full disc; bounds of waiting
//! names, target, suggest, raw, timestamp, units, table, progress   words and figures, as people read and write them
//! files, file_lock, allocator, models   directories of small files; locks of files; memory; lists of models
//! ```

#![allow(unreachable_pub, reason = "a program has no outside: pub says that other modules use it")]

mod abandoned;
mod allocator;
// Its comments are the text of --help: [OPTION] is no link there.
#[allow(rustdoc::broken_intra_doc_links)]
mod args;
mod backup_errors;
mod backups;
mod bind_mount;
mod boot;
mod confine;
mod control;
mod dataset_properties;
mod datasets;
mod discovery;
mod engine_errors;
mod event_log;
mod failure;
mod failures;
mod file_lock;
mod files;
mod fstab;
mod help;
mod incomplete;
mod last_state;
mod models;
mod mount_helper;
mod mount_lookup;
mod mount_users;
mod mounter;
mod mountopts;
mod mountpoint;
mod mounts;
mod names;
mod operations;
mod pool_errors;
mod pool_status;
mod pools;
mod progress;
mod props;
mod raw;
mod reader;
mod rebase;
mod registry;
mod retention;
mod serve;
mod settings;
mod signature;
mod spawn;
mod startup;
mod stderr;
mod streams;
mod suggest;
mod supervisor;
mod table;
mod target;
mod timeouts;
mod timestamp;
mod units;
mod unmounting;
mod verbs;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};

use crate::args::Cli;
use crate::failure::{Failure, Result};

fn main() -> ExitCode {
    restore_sigpipe();
    hear_of_children();
    let words: Vec<OsString> = std::env::args_os().collect();
    let outcome = match mount_helper::translate(&words) {
        Some(translated) => translated.and_then(|words| parse(&words)),
        None => parse(&words),
    };
    match outcome.and_then(|cli| cli.map_or(Ok(()), verbs::run)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            stderr::write_line(&failure.to_string());
            ExitCode::from(verbs::exit_status(&words, &failure))
        }
    }
}

/// Restores the default for SIGCHLD. A parent that ignores it passes that on; then we could not wait for our own
/// children.
fn hear_of_children() {
    // SAFETY: no other thread exists yet, and the default disposition runs no code of ours.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
}

/// Restores the default for SIGPIPE: a reader that has seen enough (`pagefold list | head -1`) ends us quietly, as it
/// does other programs. Servers ignore the signal again, because their clients may go away at any time.
fn restore_sigpipe() {
    // SAFETY: no other thread exists yet, and the default disposition runs no code of ours.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

/// Ignores SIGPIPE, so that a reader that goes away causes an error like others: for servers, and where advice is to be
/// given.
fn ignore_sigpipe() {
    // SAFETY: ignoring a signal runs no code of ours.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
    }
}

/// Parses the command line; `None` if help or the version was asked for and has been printed.
fn parse(words: &[OsString]) -> Result<Option<Cli>> {
    let parsed = any_bytes(help::in_columns(Cli::command())).try_get_matches_from(words);
    let error = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => return Ok(Some(cli)),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // If standard output is closed, nothing can be done about it.
            let _ = error.print();
            Ok(None)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            std::process::exit(2);
        }
        kind => {
            let text = error.render().to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end().to_owned();
            let failure = Failure::usage(text);
            Err(if kind == ErrorKind::InvalidSubcommand { failure.hint(verbs_text()) } else { failure })
        }
    }
}

/// Lets words that may be names have any bytes ([`raw`]).
fn any_bytes(command: clap::Command) -> clap::Command {
    let plain = ValueParser::string().type_id();
    let command = command.mut_args(|arg| {
        let is_text = arg.get_value_parser().type_id() == plain && arg.get_possible_values().is_empty();
        let word = OsStringValueParser::new().map(|word: OsString| raw::text_of(word.as_bytes()));
        if is_text { arg.value_parser(word) } else { arg }
    });
    command.mut_subcommands(any_bytes)
}

fn verbs_text() -> String {
    let command = Cli::command();
    let names: Vec<&str> =
        command.get_subcommands().filter(|verb| !verb.is_hide_set()).map(clap::Command::get_name).collect();
    format!("verbs: {}", names.join(", "))
}
