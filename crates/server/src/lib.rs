//! Pools and their servers: a server opens a pool and exports its datasets and snapshots to clients; this crate has
//! everything that is needed for that, but neither a command line nor a terminal.
//!
//! ```text
//! serve                 the server of a pool; its front ends (serve/export), of which FUSE is one
//! control               the control socket: its messages, the server's side and the client's
//! supervisor, mounter   the process above a server, which keeps what must outlive it; the one that mounts for it
//! confine, spawn        what each process gives up, and what it begins with
//! report                tells who started a process how the start went
//! operations, streams, rebase, incomplete   what can be done to datasets; datasets whose pages are still in a backup
//! pools, discovery, answering, registry, last_state   pools and their devices; those that answer; those that this machine
//!                       knows
//! startup               properties that must be known before a pool is opened
//! pool_status, dataset_figures, dataset_properties, models   figures and properties of pools and datasets
//! props, settings, mountopts   the one table of properties; the value that holds for a dataset; mount options
//! mounts, abandoned     the kernel's mounts; connections that nobody serves any more
//! retention, backups    which snapshots and backups are due by policy
//! pool_errors, event_log   errors with the names of files; events that outlive servers
//! engine_errors, failure   errors with advice
//! notices, stderr       lines for the user who waits; lines in the log of a process
//! files, allocator, timeouts   directories of small files; memory; bounds of waiting
//! names, suggest, raw, units   words and figures, as people read and write them
//! ```

#![deny(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "whoever starts a command prints; `stderr::write_line` is for logs, and does not panic where that fails"
)]

pub mod abandoned;
mod allocator;
pub mod answering;
pub mod backups;
pub mod cache_size;
pub mod confine;
pub mod control;
pub mod dataset_figures;
pub mod dataset_properties;
pub mod discovery;
pub mod engine_errors;
pub mod event_log;
pub mod failure;
pub mod files;
pub mod incomplete;
pub mod last_state;
pub mod models;
pub mod mounter;
pub mod mountopts;
pub mod mounts;
pub mod names;
pub mod notices;
pub mod operations;
pub mod passage;
pub mod pool_errors;
pub mod pool_status;
pub mod pools;
pub mod props;
pub mod raw;
pub mod rebase;
pub mod registry;
pub mod report;
pub mod retention;
pub mod serve;
mod settings;
pub mod spawn;
pub mod startup;
pub mod stderr;
pub mod streams;
pub mod suggest;
mod supervisor;
pub mod timeouts;
pub mod units;
