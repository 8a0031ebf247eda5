//! The `pagefold` program: pools, mounts and their servers.
//!
//! It parses arguments, asks and prints. What it does to pools is done by `pagefold_server`, in this process or in the
//! server that has the pool.
//!
//! ```text
//! verbs, args, help     one module per verb; the command line, from which help, man pages and completions are made
//! serve, plan           starts as a server; finds the pool and the directory of a mount
//! reader                the process that reads a backup
//! datasets, target      datasets of a pool, from its server or its devices; pools and datasets as words name them
//! boot, fstab, mount_helper   systemd and mount(8)
//! mount_lookup, unmounting, mount_users   the kernel's mounts: finds one, takes several away, names users
//! mountpoint, bind_mount   directories to mount on; a second mount of a dataset
//! backup_errors, failures   errors of repositories, with advice; what failed while others went on
//! other_copy            a pool on other devices than those on which it is known
//! timestamp, table, progress   times, tables and progress, as people read them
//! signature, file_lock, interrupt, allocator   what else is on a device; locks of files; signals; the allocator
//! ```

#![allow(unreachable_pub, reason = "a program has no outside: pub says that other modules use it")]

mod allocator;
// Its comments are the text of --help: [OPTION] is no link there.
#[allow(rustdoc::broken_intra_doc_links)]
mod args;
mod backup_errors;
mod bind_mount;
mod boot;
mod datasets;
mod failures;
mod file_lock;
mod fstab;
mod help;
mod interrupt;
mod mount_helper;
mod mount_lookup;
mod mount_users;
mod mountpoint;
mod other_copy;
mod place_flags;
mod plan;
mod progress;
mod reader;
mod serve;
mod signature;
mod table;
mod target;
mod timestamp;
mod unmounting;
mod verbs;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::{notices, raw, stderr};

use crate::args::Cli;

fn main() -> ExitCode {
    restore_sigpipe();
    hear_of_children();
    notices::print_with(stderr::write_line);
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
    let command = help::in_columns(Cli::command());
    // Making the lists takes time, and nobody else sees them.
    let asks_for_all =
        words.get(1).is_none_or(|word| ["-h", "--help", "help"].iter().any(|help| word == help));
    let command = if asks_for_all { help::by_topic(command) } else { command };
    let parsed = any_bytes(command).try_get_matches_from(words);
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
