//! The command line of `basebackup`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// The two forms of a base backup.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BaseFormat {
    /// Files, in a directory that a server can be started on.
    #[default]
    #[value(alias = "p")]
    Plain,
    /// base.tar, and an archive for each tablespace.
    #[value(alias = "t")]
    Tar,
}

/// See [`super::Verb::Basebackup`].
#[derive(Args, Debug)]
pub struct Basebackup {
    /// POOL/DATASET as it is now, POOL/DATASET@SNAPSHOT, or a directory on a mount.
    pub source: String,
    /// Where it goes: a directory that is empty or is made, or - for standard output (with -F tar).
    #[arg(short = 'D', long, value_name = "DIR")]
    pub to: PathBuf,
    /// Its form: files, or archives.
    #[arg(
        short = 'F',
        long,
        value_enum,
        default_value_t,
        hide_possible_values = true,
        value_name = "plain|tar"
    )]
    pub format: BaseFormat,
    /// Of archives: none, gzip, lz4 or zstd, as zstd:9 or zstd:level=9,workers=4. Workers are all cores if left out.
    #[arg(short = 'Z', long, value_name = "METHOD[:DETAIL]")]
    pub compress: Option<String>,
    /// As --compress gzip.
    #[arg(short = 'z', long, conflicts_with = "compress")]
    pub gzip: bool,
    /// The data directory, from the dataset's root on, where there are several.
    #[arg(long, alias = "pgdata", value_name = "DIR")]
    pub data: Option<String>,
    /// Tell the running server, which psql finds by this: "host=/tmp port=5433 user=backup".
    #[arg(short = 'd', long, value_name = "CONNINFO")]
    pub dbname: Option<String>,
    /// Tell the running server, which its lock file in the data directory leads to.
    #[arg(long)]
    pub server: bool,
    /// The user that psql runs as, where the data belongs to one who is there for other things than databases.
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// The label that the server gives the backup.
    #[arg(short = 'l', long, default_value = "pagefold basebackup")]
    pub label: String,
    /// Plain files of the tablespace at OLD go to NEW; archives lead there (may be repeated).
    #[arg(short = 'T', long, value_name = "OLD=NEW")]
    pub tablespace_mapping: Vec<String>,
    /// Read so many bytes per second at most: 50M.
    #[arg(short, long)]
    pub rate: Option<String>,
    /// Write no backup_manifest.
    #[arg(long)]
    pub no_manifest: bool,
    /// Checksums of files in the manifest: NONE, CRC32C or SHA256.
    #[arg(long, value_name = "KIND", default_value = "CRC32C", conflicts_with = "no_manifest")]
    pub manifest_checksums: String,
    /// Do not verify the checksums of pages.
    #[arg(long)]
    pub no_verify_checksums: bool,
    /// Return before all of it is on disc.
    #[arg(short = 'N', long)]
    pub no_sync: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
