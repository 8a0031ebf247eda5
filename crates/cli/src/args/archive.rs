//! The command line of `archive`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Access, Output};

/// See [`super::Verb::Archive`].
#[derive(Subcommand, Debug)]
pub enum Archive {
    /// Store a file of the log: PostgreSQL's archive_command.
    #[command(
        after_long_help = "When it succeeds, the file is durable in the repository. A file that is there already, with the same content, is a success; with another
content it is an error, and the first one stays. Which cluster it belongs to is read from the segment, or from global/pg_control of the
data directory, in which the server runs it.

Examples:
  archive_command = 'pagefold archive push --key-file /srv/key s3://tank %p'
  pagefold archive push /mnt/backup/tank pg_wal/000000010000000000000003"
    )]
    Push(ArchivePush),
    /// Fetch a file of the log: PostgreSQL's restore_command.
    #[command(
        after_long_help = "The exit status is 1 if there is no such file, and 254 for everything else that goes wrong: recovery then stops, where it would take 1 for the end
of the archive.

Examples:
  restore_command = 'pagefold archive fetch --key-file /srv/key s3://tank %f %p'
  pagefold archive fetch /mnt/backup/tank 000000010000000000000003 ./segment"
    )]
    Fetch(ArchiveFetch),
    /// Archive the binary log of a MariaDB server, for as long as this runs.
    #[command(
        after_long_help = "The log is archived while the server writes it: at most TIME after a transaction was committed, it is durable in the repository. Run it as the
server's user, under systemd for instance; it can be killed at any time, and goes on where it ended. If the server has purged a file that was not
archived yet, or another log is archived under this name, it says so and ends.

Examples:
  pagefold archive follow /mnt/backup/tank /srv/db --as shop
  pagefold archive follow s3://b/tank /srv/db/bin.index --as shop --every 10s"
    )]
    Follow(ArchiveFollow),
    /// List how far each backup can be restored, and where segments are missing.
    #[command(after_long_help = "Examples:
  pagefold archive list /mnt/backup/tank
  pagefold archive list s3://bucket/tank --json")]
    List(ArchiveList),
}

/// See [`Archive::Push`].
#[derive(Args, Debug)]
pub struct ArchivePush {
    /// A directory, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or ssh://[USER@]HOST[:PORT]/DIRECTORY.
    pub repository: String,
    /// The file: %p.
    pub file: PathBuf,
    /// The cluster's number, where neither file nor data directory tells it.
    #[arg(long, value_name = "N")]
    pub system: Option<u64>,
    /// How it is opened.
    #[command(flatten)]
    pub access: Access,
}

/// See [`Archive::Fetch`].
#[derive(Args, Debug)]
pub struct ArchiveFetch {
    /// A directory, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or ssh://[USER@]HOST[:PORT]/DIRECTORY.
    pub repository: String,
    /// The file's name: %f.
    pub name: String,
    /// Where it goes: %p.
    pub to: PathBuf,
    /// The cluster's number, where it is not run in the data directory.
    #[arg(long, value_name = "N")]
    pub system: Option<u64>,
    /// How it is opened.
    #[command(flatten)]
    pub access: Access,
}

/// See [`Archive::Follow`].
#[derive(Args, Debug)]
pub struct ArchiveFollow {
    /// A directory, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or ssh://[USER@]HOST[:PORT]/DIRECTORY.
    pub repository: String,
    /// The server's data directory, or the list of its binary logs: NAME.index.
    pub log: PathBuf,
    /// Name of the log in the repository: each server has another one.
    #[arg(long = "as", value_name = "NAME")]
    pub name: String,
    /// How far it may be behind: 10s, 1m.
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub every: String,
    /// Archive what there is, and end.
    #[arg(long)]
    pub once: bool,
    /// How it is opened.
    #[command(flatten)]
    pub access: Access,
}

/// See [`Archive::List`].
#[derive(Args, Debug)]
pub struct ArchiveList {
    /// A directory, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or ssh://[USER@]HOST[:PORT]/DIRECTORY.
    pub repository: String,
    /// How it is opened.
    #[command(flatten)]
    pub access: Access,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}
