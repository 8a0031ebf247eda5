//! The command line of `backup`.

mod mount;
mod restore;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Output;

pub use mount::{BackupMount, BackupMounts, BackupServe};
pub use restore::{BackupRestore, BackupRestorePool, RecoveryAction};

/// See [`super::Verb::Backup`].
#[derive(Subcommand, Debug)]
pub enum Backup {
    /// Make a repository.
    #[command(after_long_help = "Examples:
  pagefold backup init /mnt/backup/tank
  pagefold backup init s3://bucket/tank --key-file /etc/pagefold/backup.key")]
    Init(BackupInit),
    /// Back up a snapshot, or a dataset as it is now.
    #[command(
        after_long_help = "Only what the repository does not have yet is copied, as it is stored. Of a dataset, a snapshot is made, and kept so that the
next backup need not look further; the one before it is destroyed. What was interrupted is gone on with.

Examples:
  pagefold backup create tank/db --to /mnt/backup/tank
  pagefold backup create tank/db@monday --to s3://bucket/tank --rate 50M"
    )]
    Create(BackupCreate),
    /// List the backups of a repository.
    #[command(after_long_help = "Examples:
  pagefold backup list /mnt/backup/tank")]
    List(BackupList),
    /// Show one backup: a number, POOL/DATASET@SNAPSHOT, or POOL/DATASET for the newest.
    #[command(after_long_help = "Examples:
  pagefold backup show /mnt/backup/tank tank/db")]
    Show(BackupShow),
    /// Read backups back and verify every record, or a sample.
    #[command(after_long_help = "Examples:
  pagefold backup verify /mnt/backup/tank
  pagefold backup verify s3://bucket/tank --sample 5%")]
    Verify(BackupVerify),
    /// Look whether the log and all manifests are sound and all packs are there. Reads no records.
    #[command(
        after_long_help = "If the newest commits of the log are damaged or missing, the backups that the newest intact one lists can still be
listed, verified, mounted and restored, but nothing is written. If you have a copy of the damaged objects, bring them
back. If not, --repair goes on from the newest intact commit: what the damaged ones did (mostly a backup, or a prune) is
lost, and the other backups stay.

Examples:
  pagefold backup check s3://bucket/tank
  pagefold backup check --repair s3://bucket/tank"
    )]
    Check(BackupCheck),
    /// Restore a backup into a dataset: a new one, or one whose newest snapshot is an older backup's.
    #[command(
        after_long_help = "The dataset gets the backup's snapshot. If its newest snapshot is in the repository too, only what differs is read; what was
changed in it since is given up with --force alone. It must not be mounted. Nothing is to be seen before all has come
and was verified. What was interrupted is gone on with.

With --to-time, --to-lsn or --to-latest a database is restored to a point in time, by the log that `archive push` or `archive follow` has stored: the newest backup from before is
restored into a new dataset. A PostgreSQL is set up to recover when it is started; a MariaDB has recovered already. --start mounts the dataset and starts the
server, as a database of its own.

Examples:
  pagefold backup restore /mnt/backup/tank tank/db tank/restored
  pagefold backup restore s3://bucket/tank tank/db@monday other/db
  pagefold backup restore /mnt/b tank/db tank/then --to-time '2026-11-25 18:00Z'
  pagefold backup restore /mnt/b tank/db tank/then --to-lsn 0/3000000 --start"
    )]
    Restore(Box<BackupRestore>),
    /// Make a pool, and restore the newest backup of every dataset of a pool into it.
    #[command(
        after_long_help = "For the machine that comes after one that is gone. Datasets get the names that they had, and the properties that were set on them when
they were backed up, mount points among them; nothing is mounted. `backup` is not set again: it would write into the repository. Files of a
pool's own dataset are restored into a dataset of the new pool, `restored` (`restored-2` if a dataset has that name). Each dataset
is as of its own newest backup; when that was is told.

What was interrupted is gone on with by --into, which takes a pool that is there.

Examples:
  pagefold backup restore-pool s3://bucket/tank tank /dev/sdb
  pagefold backup restore-pool /mnt/b copy ~/copy.pf --size 9G --from tank"
    )]
    RestorePool(BackupRestorePool),
    /// Forget backups. What only they need is deleted by prunes.
    #[command(after_long_help = "Examples:
  pagefold backup forget /mnt/backup/tank 17 18")]
    Forget(BackupForget),
    /// Delete what no backup needs, having forgotten backups by age.
    #[command(
        after_long_help = "Of each dataset, and of each hour, day and so on, the newest backup is kept, for as many hours and days as are named. Pools
of the same name are told apart by their GUIDs. What
nothing needs is deleted by the prune after the one that finds it, so that backups and restores that are under way
lose nothing. --now deletes it at once, and is for when there are none.

Packs of which less than half is needed, and small ones where there are many, are emptied: what is needed of them is copied
into new ones. --repack says how much is copied at most.

Examples:
  pagefold backup prune /mnt/backup/tank --keep hourly=24,daily=7,monthly=12
  pagefold backup prune -n /mnt/backup/tank --keep last=3    what would that delete?"
    )]
    Prune(BackupPrune),
    /// Give a client on another host a repository of this one, over standard input and output.
    #[command(
        after_long_help = "It is what ssh://HOST/DIRECTORY starts on HOST. For a user whose key may do that and nothing else, name it in
~/.ssh/authorized_keys: whatever the client asks for, it gets a directory at or below the one that is restricted to.

  command=\"pagefold backup serve --restrict /srv\",restrict ssh-ed25519 AAAA...

Examples:
  pagefold backup serve --restrict /srv/backups
  pagefold backup serve --restrict /srv/backups/tank --append-only"
    )]
    Serve(BackupServe),
    /// Make the backups that are due by policy.
    #[command(
        after_long_help = "A policy is the property `backup` of a dataset, which those below it inherit. All pools that are mounted are looked at, or those that
are named. What fails does not keep the others, and is told at the end and by `pagefold status`. A repository whose policies
say what to keep is pruned once a day: of each dataset goes what its own policy does not keep.

It is called every few minutes by a timer: systemctl enable --now pagefold-backup.timer

Examples:
  pagefold set backup=/mnt/backup/tank,every=1h,hourly=24,daily=7 tank/db
  pagefold backup run
  pagefold backup run --now tank    whether they are due or not"
    )]
    Run(BackupRun),
    /// Mount a backup without restoring it: read-only, or as a dataset that is written to.
    #[command(
        after_long_help = "At a directory it is read-only, and needs no pool: what is read comes from the repository when it is read.

As a dataset of a pool it is written to. The dataset is there in seconds with all names, and its pages come when they are read, or by
--hydrate all of them; what was read or written stays. When all has come it is a dataset like others, and the repository is not needed
any more. Until then it is mounted only while the backup can be read: this command goes on where it was.

Where the repository does not answer, who reads waits for --patience seconds; then it is an I/O error, until the repository is back.

Examples:
  pagefold backup mount /mnt/backup/tank tank/db /mnt/db
  pagefold backup mount s3://bucket/tank tank/db tank/again /srv/db --hydrate
  pagefold backup mounts
  pagefold unmount /mnt/db"
    )]
    Mount(BackupMount),
    /// List the backups that are being read for mounts.
    #[command(after_long_help = "Examples:
  pagefold backup mounts")]
    Mounts(BackupMounts),
    /// Read a backup for mounts; what `backup mount` starts.
    #[command(hide = true)]
    Reader,
}

/// A repository, and what opens it.
#[derive(Args, Debug)]
pub struct Access {
    /// URL of the store that has the bucket, if it is not the provider's own [env: AWS_ENDPOINT_URL, GOOGLE_BASE_URL,
    /// AZURE_STORAGE_ENDPOINT]. Credentials and more come from the environment: AWS_ACCESS_KEY_ID, GOOGLE_SERVICE_ACCOUNT,
    /// AZURE_STORAGE_ACCOUNT and so on.
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// Region of an S3 store [env: AWS_REGION].
    #[arg(long)]
    pub region: Option<String>,
    /// Pagefold's name on the host of ssh://..., in words of a shell [default: pagefold].
    #[arg(long, value_name = "COMMAND", env = "PAGEFOLD_BACKUP_REMOTE_COMMAND")]
    pub remote_command: Option<String>,
    /// The passphrase or key is what this file has; a line's end at its end is not part of it.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// It is what this command prints.
    #[arg(long, value_name = "COMMAND", conflicts_with = "key_file")]
    pub key_command: Option<String>,
}

/// See [`Backup::Init`].
#[derive(Args, Debug)]
pub struct BackupInit {
    /// A directory, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or ssh://[USER@]HOST[:PORT]/DIRECTORY.
    pub repository: String,
    /// Make it without encryption.
    #[arg(long, conflicts_with_all = ["key_file", "key_command"])]
    pub unencrypted: bool,
    /// Take a store that lets two writers overwrite each other: there will be only one.
    #[arg(long)]
    pub single_writer: bool,
    /// How it is opened.
    #[command(flatten)]
    pub access: Access,
}

/// See [`Backup::Create`].
#[derive(Args, Debug)]
pub struct BackupCreate {
    /// POOL/DATASET@NAME, or POOL/DATASET.
    pub source: String,
    /// The repository: a directory, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or ssh://[USER@]HOST[:PORT]/DIRECTORY.
    #[arg(long, value_name = "REPO")]
    pub to: String,
    /// Upload so many bytes per second at most: 50M.
    #[arg(long)]
    pub rate: Option<String>,
    /// How it is opened.
    #[command(flatten)]
    pub access: Access,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// See [`Backup::List`].
#[derive(Args, Debug)]
pub struct BackupList {
    /// A directory, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or ssh://[USER@]HOST[:PORT]/DIRECTORY.
    pub repository: String,
    /// How it is opened.
    #[command(flatten)]
    pub access: Access,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// See [`Backup::Show`].
#[derive(Args, Debug)]
pub struct BackupShow {
    /// A directory, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or ssh://[USER@]HOST[:PORT]/DIRECTORY.
    pub repository: String,
    /// The backup.
    pub backup: String,
    /// How it is opened.
    #[command(flatten)]
    pub access: Access,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// See [`Backup::Verify`].
#[derive(Args, Debug)]
pub struct BackupVerify {
    /// A directory, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or ssh://[USER@]HOST[:PORT]/DIRECTORY.
    pub repository: String,
    /// The backups; all if left out.
    pub backups: Vec<String>,
    /// A share of it, drawn by chance each time: 5%.
    #[arg(long, value_name = "SHARE")]
    pub sample: Option<String>,
    /// Read whole packs, each by one request, and not record by record.
    #[arg(long)]
    pub packs: bool,
    /// How it is opened.
    #[command(flatten)]
    pub access: Access,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// See [`Backup::Check`].
#[derive(Args, Debug)]
pub struct BackupCheck {
    /// A directory, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or ssh://[USER@]HOST[:PORT]/DIRECTORY.
    pub repository: String,
    /// First go on from the newest intact commit, if commits behind it are damaged or missing: what they did is lost. Also
    /// write the object that describes the repository anew from its copy, and the copy from the object.
    #[arg(long)]
    pub repair: bool,
    /// How it is opened.
    #[command(flatten)]
    pub access: Access,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// See [`super::Verb::Replicate`].
#[derive(Args, Debug)]
pub struct Replicate {
    /// POOL/DATASET, or POOL.
    pub dataset: String,
    /// The repository; what the dataset's property `backup` says if left out.
    pub repository: Option<String>,
    /// How far it may be behind: 10s, 1m [default: 10s, or what the property says].
    #[arg(long, value_name = "TIME", requires = "repository")]
    pub every: Option<String>,
    /// Backups of the dataset that are kept beside the newest: hourly=24,daily=7 and so on; all others go, whoever made them. If left out, a backup replaces the one that was made before it here, and all others stay.
    #[arg(long, requires = "repository")]
    pub keep: Option<String>,
    /// Upload so many bytes per second at most: 50M.
    #[arg(long, requires = "repository")]
    pub rate: Option<String>,
    /// Do it once, and end.
    #[arg(long)]
    pub once: bool,
    /// End it for good: the snapshot goes, and `pagefold status` does not tell of it any more. Backups stay.
    #[arg(long, conflicts_with_all = ["repository", "once"])]
    pub end: bool,
    /// How it is opened.
    #[command(flatten)]
    pub access: Access,
}

/// See [`Backup::Forget`].
#[derive(Args, Debug)]
pub struct BackupForget {
    /// A directory, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or ssh://[USER@]HOST[:PORT]/DIRECTORY.
    pub repository: String,
    /// Numbers of backups.
    #[arg(required = true)]
    pub backups: Vec<u64>,
    /// How it is opened.
    #[command(flatten)]
    pub access: Access,
}

/// See [`Backup::Prune`].
#[derive(Args, Debug)]
pub struct BackupPrune {
    /// A directory, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or ssh://[USER@]HOST[:PORT]/DIRECTORY.
    pub repository: String,
    /// Backups that are kept: last=N, hourly=N, daily=N, weekly=N, monthly=N, yearly=N, with commas between. All if left out.
    #[arg(long)]
    pub keep: Option<String>,
    /// Copy so many bytes at most out of packs that are mostly dead: 500M, none [default: 1G].
    #[arg(long, value_name = "SIZE")]
    pub repack: Option<String>,
    /// Delete at once: no backup or restore is under way.
    #[arg(long)]
    pub now: bool,
    /// Change nothing, and tell what would be.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// How it is opened.
    #[command(flatten)]
    pub access: Access,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// See [`Backup::Run`].
#[derive(Args, Debug)]
pub struct BackupRun {
    /// The pools; all that are mounted if left out.
    pub pools: Vec<String>,
    /// Make all backups, and prune, whether due or not.
    #[arg(long)]
    pub now: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
