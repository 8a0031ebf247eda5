//! All verbs, with the help of each.

use std::path::PathBuf;

use clap::Subcommand;
use clap_complete::Shell;

use super::{
    Analyze, Archive, Backup, Basebackup, BranchVerb, Check, Clear, Create, Dataset, Destroy, DeviceVerb,
    Diff, Du, Events, Export, Fold, Get, Hold, Holds, Import, Inherit, Iostat, List, MakeClone, Mount,
    Policy, Pools, Promote, Rebase, Receive, Reguid, Rename, Replicate, Reset, Restart, Rewrite, Rollback,
    Scrub, Send, Set, Snapshot, Status, Sync, Systemd, Trim, Unmount,
};

/// All verbs.
#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Create a pool on devices or files.
    #[command(
        after_long_help = "It prints how much the pool holds: about 73 % of its devices, less of a pool below 2 GiB. The rest is kept for cleaning
and checkpoints, so that both always work. Data take what is left of them after compression.

A log device gets each commit first, so that fsync waits for it and not for the devices that hold the data. It holds no data
itself, and at most 1 GiB of it is used. Everything that is written goes through it. See `pagefold add --help`.

Examples:
  pagefold create tank /dev/sdb
  pagefold create tank /dev/sdb /dev/sdc -o compression=zstd-3
  pagefold create tank ~/tank.pf --size 10G
  pagefold create tank mirror /dev/sdb /dev/sdc
  pagefold create tank mirror /dev/sdb /dev/sdc mirror /dev/sdd /dev/sde
  pagefold create tank mirror /dev/sdb /dev/sdc spare /dev/sdd
  pagefold create tank mirror /dev/sdb /dev/sdc log mirror /dev/sde /dev/sdf
  pagefold create tank /dev/sdb -o logicalcapacity=2x    df(1) shows twice that, before compression
  pagefold create -f tank /dev/sdb           even though it held something else"
    )]
    Create(Create),
    /// Destroy snapshots, datasets, or a whole pool: what is in them is lost.
    #[command(
        after_long_help = "Snapshots that are held or have clones are refused, and so is what is mounted. What was destroyed is freed in the
background. A dry run says what is in the way, and fails if the destruction would.

Examples:
  pagefold destroy tank/db@monday            a snapshot
  pagefold destroy tank/db@monday%friday     these and all in between
  pagefold destroy tank/db@%monday,friday    all up to monday, and friday
  pagefold destroy -r tank@monday            that of every dataset of the pool
  pagefold destroy -n tank/db@%              what would that free?
  pagefold destroy -r tank/test              a dataset with its snapshots and the datasets below
  pagefold destroy tank                      a pool: asks for the name again
  pagefold destroy -f tank                   does not ask; unmounts first if need be"
    )]
    Destroy(Destroy),
    /// Make, destroy, list and rename datasets: file systems that share a pool.
    #[command(
        subcommand,
        after_long_help = "Examples:
  pagefold dataset create tank/db
  pagefold dataset list tank
  pagefold dataset rename tank/db tank/old
  pagefold dataset destroy -r tank/old"
    )]
    Dataset(Dataset),
    /// Make snapshots: datasets as they are now, read-only, in constant time.
    #[command(
        after_long_help = "Everything that was accepted before is in it, and nothing that comes later. Several datasets' snapshots of one
name are of the same instant. It is durable when the command returns. Files are found below .pagefold/snapshot/NAME
of the dataset's mount.

Examples:
  pagefold snapshot tank/db@monday
  pagefold snapshot -r tank@monday           of all datasets of the pool, at one instant
  pagefold snapshot -o backup:keep=yes tank/db@release-7"
    )]
    Snapshot(Snapshot),
    /// Make a dataset that begins as a snapshot and shares what stays the same.
    #[command(after_long_help = "Examples:
  pagefold clone tank/db@monday tank/test
  pagefold clone -o mountpoint=/srv/test tank/db@monday tank/test")]
    Clone(MakeClone),
    /// Return a dataset to a snapshot: what came later is lost.
    #[command(after_long_help = "The dataset must not be mounted.

Examples:
  pagefold rollback tank/db@monday           the newest snapshot
  pagefold rollback -r tank/db@sunday        an older one; newer ones are destroyed")]
    Rollback(Rollback),
    /// Return a clone to the snapshot that it was made from: what was written in it is lost.
    #[command(
        after_long_help = "The clone must not be mounted. Its properties stay. What was written in it is freed in the background.

Examples:
  pagefold reset tank/test
  pagefold reset -r tank/test                snapshots of the clone's own are destroyed"
    )]
    Reset(Reset),
    /// Move a clone onto a newer snapshot of the dataset that it was made from, with what was changed in it.
    #[command(
        after_long_help = "Files that were changed in the clone are brought over; all others are as in the snapshot, and share its space. A file, or a
name in a directory, that was changed on both sides is a conflict: all of them are listed, the exit status is 1, and nothing
has changed. The clone must not be mounted. Its properties stay.

Examples:
  pagefold rebase tank/test tank/db@tuesday
  pagefold rebase -r tank/test tank/db@tuesday    snapshots of the clone's own are destroyed
  pagefold diff tank/db@monday tank/test          what was changed in the clone?"
    )]
    Rebase(Rebase),
    /// Make a clone the owner of the snapshots that it shares with the dataset it comes from.
    #[command(after_long_help = "That dataset becomes the clone, and can be destroyed.

Examples:
  pagefold promote tank/test")]
    Promote(Promote),
    /// Rename a dataset, with those below it, or a snapshot.
    #[command(after_long_help = "What is mounted is refused.

Examples:
  pagefold rename tank/db tank/old
  pagefold rename tank/db@monday before-upgrade")]
    Rename(Rename),
    /// Keep snapshots from being destroyed.
    #[command(after_long_help = "Examples:
  pagefold hold audit tank/db@monday
  pagefold hold -r audit tank@monday         and that of every dataset below")]
    Hold(Hold),
    /// Show or set which snapshots the server makes and keeps by itself.
    #[command(
        after_long_help = "While the pool is served, a snapshot is made at the begin of each period that the policy names, in UTC, of all datasets
concerned at one instant, and the oldest are removed: only those that were made by policy, and are neither held nor have
clones nor are mounted. What was missed while the pool was not served is not made up for, but one is made at once. A
pool that is 90 % full gets none, which is told by `pagefold events`. Of a period that is not named none is made,
and none removed; N=0 removes all of it. It is the property `policy`, which datasets below inherit.

Examples:
  pagefold policy tank/db hourly=24,daily=7,monthly=12
  pagefold policy tank/db/scratch none
  pagefold policy -r tank                    what holds for which dataset?
  pagefold inherit policy tank/db/scratch    as of the dataset above again"
    )]
    Policy(Policy),
    /// End a hold on snapshots.
    #[command(after_long_help = "Examples:
  pagefold release audit tank/db@monday")]
    Release(Hold),
    /// Show what holds snapshots.
    #[command(after_long_help = "Examples:
  pagefold holds tank/db@monday
  pagefold holds -r tank@monday --json")]
    Holds(Holds),
    /// Make, list, start, stop, reset and delete branches: writable copies of databases, each with a server of its own.
    #[command(
        subcommand,
        after_long_help = "A branch is a clone of a snapshot of a dataset with a PostgreSQL or MariaDB database in it, and a server that is started
on it on its own port. It is made in constant time, beside a server that goes on, and takes the space of what becomes
different.

Examples:
  pagefold branch create tank/prod feature-x --start
  pagefold branch list
  pagefold branch reset --latest tank/feature-x
  pagefold branch delete tank/feature-x"
    )]
    Branch(BranchVerb),
    /// Write a snapshot, or what changed since another one, to standard output.
    #[command(
        after_long_help = "Pages travel as they are stored: compressed, with the models that they need, each checksum verified; nothing is coded
again. A stream is a file like others: keep it, or give it to `pagefold receive` here or elsewhere, which verifies
all of it before anything of it is seen. The pool may be mounted, or not.

Examples:
  pagefold send tank/db@monday > db.stream
  pagefold send tank/db@monday | ssh backup pagefold receive vault/db
  pagefold send -i monday tank/db@tuesday | ssh backup pagefold receive vault/db
  pagefold send -n -i tank/db@monday tank/db@tuesday    how much would that be?

When it was interrupted, the receiver keeps what came and knows how to go on:
  token=$(ssh backup pagefold get -Hp receive_resume_token vault/db | cut -f 3)
  pagefold send --resume $token | ssh backup pagefold receive vault/db"
    )]
    Send(Send),
    /// Make a dataset, or its next snapshot, of what `send` wrote, from standard input.
    #[command(
        after_long_help = "A stream of a whole snapshot makes a new dataset; one of what changed since a snapshot is received into a dataset that
has that snapshot as its newest, and was not changed since. Nothing is to be seen before all has come and was
verified; then dataset and snapshot are there at once. Until then the dataset is as it was; it must not be mounted.

Within one pool, that has to be mounted: its server does both then.

What comes of a stream that is interrupted is kept. `pagefold list -t partial` shows it, with the token for
`pagefold send --resume`.

Examples:
  pagefold receive vault/db < db.stream
  pagefold send -i monday tank/db@tuesday | pagefold receive vault/db
  pagefold receive --force vault/db < db.stream      gives up what was changed in vault/db
  pagefold receive --abort vault/db                  gives up what was received in part"
    )]
    #[command(visible_alias = "recv")]
    Receive(Receive),
    /// Back up snapshots to a directory or an object store, and restore them.
    #[command(
        subcommand,
        after_long_help = "Backups are incremental for ever, and each can be restored without the others. Encrypted repositories are opened by a
passphrase or key: --key-file, --key-command, or PAGEFOLD_BACKUP_PASSPHRASE.

Examples:
  pagefold backup init /mnt/backup/tank
  pagefold backup create tank/db --to /mnt/backup/tank
  pagefold backup list /mnt/backup/tank
  pagefold backup restore /mnt/backup/tank tank/db tank/restored
  pagefold backup prune /mnt/backup/tank --keep hourly=24,daily=7"
    )]
    Backup(Backup),
    /// Archive the log of a database in a repository of backups, and fetch it for recovery.
    #[command(
        subcommand,
        after_long_help = "With it, and backups of the dataset, a database can be restored to any point in time: pagefold backup restore --to-time.

Examples:
  pagefold archive push /mnt/backup/tank %p         as archive_command
  pagefold archive fetch /mnt/backup/tank %f %p     as restore_command
  pagefold archive follow /mnt/backup/tank /srv/db --as shop
  pagefold archive list /mnt/backup/tank"
    )]
    Archive(Archive),
    /// Keep a repository some seconds behind a dataset, for as long as this runs.
    #[command(
        after_long_help = "A backup is made again and again, of what has changed, and takes the place of the one before. Where nothing has changed, the
repository is asked for nothing. A store that cannot be reached delays it, and nothing else; it goes on by itself. One snapshot is held
meanwhile, which is given up when the pool gets nearly full: then the whole dataset is compared. `pagefold status` tells how far behind it
is, and `status -x` takes that for a problem when it is more than was wanted.

As a service, by the dataset's property:

  pagefold set backup=s3://bucket/tank,every=10s tank/db
  systemctl enable --now pagefold-replicate@$(systemd-escape tank/db)

Examples:
  pagefold replicate tank/db /mnt/backup/tank --every 10s
  pagefold replicate tank/db s3://bucket/tank --every 1m --keep hourly=24
  pagefold replicate --end tank/db           it is not wanted any more"
    )]
    Replicate(Replicate),
    /// Make a base backup of a PostgreSQL database, in the format of pg_basebackup.
    #[command(
        after_long_help = "The files are those of a snapshot: one that is named, or one that is made of the dataset as it is now, and is destroyed
afterwards. No server is needed and none is disturbed; the backup recovers as after a power cut. With --dbname or
--server the server that runs is told to start and to stop a backup, which takes a checkpoint; the backup then has
its backup_label. Either way the log that recovery needs is in it, and pg_verifybackup verifies it.

Checksums of pages are verified. Where one is wrong the backup is made and kept, and the exit status is 1.

Examples:
  pagefold basebackup tank/db -D /mnt/backup/db                      files
  pagefold basebackup tank/db@monday -D /mnt/backup/db -F tar -Z zstd
  pagefold basebackup /srv/pg/main -D /mnt/db -F tar -Z zstd:level=6,workers=4
  pagefold basebackup tank/db -D - -F tar -Z lz4 | ssh host 'cat > db.tar.lz4'
  pagefold basebackup tank/db -D /mnt/backup/db -F tar -z --server   the server is told"
    )]
    Basebackup(Box<Basebackup>),
    /// Show which files differ between a snapshot and a later one, or the dataset as it is.
    #[command(
        after_long_help = "A line for each: + created, - removed, M modified, R renamed; then its path from the dataset's root on. What both
versions share is not read. Times of access and of change are no differences.

With --ranges, M has a third column: which bytes may be others, in whole pages, as FIRST-END; END is not among them.

Examples:
  pagefold diff tank/db@monday tank/db@tuesday
  pagefold diff tank/db@monday tank/db               as it is now
  pagefold diff --ranges --json tank/db@monday tank/db"
    )]
    Diff(Diff),
    /// Find pools on devices and remember them.
    #[command(
        after_long_help = "Without a pool's name, shows what could be imported: each copy by itself, with its state and what to do.

  EXPORTED, CRASHED   can be imported; after a crash, the first mount recovers it
  INUSE               a process has it open
  INCOMPLETE          some of its devices were not found
  COPIES              devices were found in several copies that are alike
  OLD                 an older copy: the pool went on, on other devices
  APART               a copy that went on by itself, as others did

By name or GUID the pool is imported that went on; where nothing tells which that is, none. With -d DEVICE only that device is looked at. Mount
points that a pool says are obeyed if it was made here, or imported with --adopt, or below the directory of -R.

A device that does not answer is waited for, and told of, for 30 seconds, and left out then: the exit status is 1, unless the pool that was named is
imported all the same.

Examples:
  pagefold import                            what is on this machine's devices?
  pagefold import -d /srv/pools              what is in the files of this directory?
  pagefold import -d /srv/pools tank         remember tank, so that `mount tank` finds it
  pagefold import -d /dev/sdc tank old       the pool on this device, which is named old from now on
  pagefold import -R /mnt tank               its mount points are below /mnt
  pagefold import --adopt tank               made elsewhere, and trusted: its mount points are obeyed
  pagefold import -a                         all that are found
  pagefold import --accept-older -d tank.pf tank   go back to an older copy
  pagefold import --accept-loss tank         give up what lies behind damage to its log, or what only a lost log device had"
    )]
    Import(Import),
    /// Make a copy of a pool a pool of its own, with another GUID.
    #[command(
        after_long_help = "For copies of devices (cp, dd, snapshots of volumes) that are to be used beside the pool that they were made of. The pool must not be
mounted. If it is interrupted, it is gone on with by the same command.

Examples:
  pagefold reguid --device monday.pf         then: pagefold import -d monday.pf tank monday
  pagefold reguid tank                       the pool that is known as tank"
    )]
    Reguid(Reguid),
    /// Close a pool cleanly and forget it.
    #[command(
        after_long_help = "A mounted pool is unmounted first: all of it, or nothing if one of its mounts is in use.

Examples:
  pagefold export tank"
    )]
    Export(Export),
    /// Mount a pool's own dataset, another dataset, or a snapshot.
    #[command(after_long_help = mount_help())]
    Mount(Mount),
    /// Unmount; with the last mount of a pool, close the pool cleanly.
    #[command(
        visible_alias = "umount",
        after_long_help = "Returns when everything is on the devices and, after the last mount of a pool, its server has ended. A directory has to be a
mount point: below one nothing is unmounted. Of several mounts all go, or none does; who uses what cannot go is told.
What is waited for is told after a second. umount(8) is as good: what was written before it is on the devices when it returns.

Examples:
  pagefold unmount /var/lib/postgresql       what is mounted there, and no other place of the same dataset
  pagefold unmount tank/db                   with its snapshots and the datasets below
  pagefold unmount tank                      all of the pool
  pagefold unmount -a                        all pools; one that is in use keeps no other from going
  pagefold unmount --lazy tank               detach now, close when the last user is gone"
    )]
    Unmount(Unmount),
    /// Let another server go on with a pool's mounts, of the program as it is on disk now.
    #[command(
        after_long_help = "For upgrades: nothing is unmounted, no program sees an error, and nothing that was written is lost. Requests wait
for a moment, about a second. It takes mounts with takeover=on (or auto, where requests do not travel over io_uring):
over io_uring what is under way would be lost with the server.

Examples:
  pagefold restart tank"
    )]
    Restart(Restart),
    /// Make everything written so far durable.
    #[command(after_long_help = "Like sync(2), which the kernel does not pass on to FUSE file systems.

Examples:
  pagefold sync tank
  pagefold sync /var/lib/postgresql
  pagefold sync                              all mounted pools")]
    Sync(Sync),
    /// List pools, datasets, snapshots.
    #[command(
        after_long_help = "USED of a dataset is what it, its snapshots and the datasets below it hold; of a snapshot, what is freed if it alone is
destroyed. REFER is all that it refers to, shared or not; USEDSNAP what only its snapshots hold; WRITTEN what was
written since the snapshot before. All are stored (compressed) bytes. For several snapshots: pagefold destroy -n.

The state of a pool that cannot be opened is UNAVAIL. That of a pool whose server does not answer within 10 seconds is SILENT.

Examples:
  pagefold list
  pagefold list -t dataset                   datasets of all pools
  pagefold list -t snapshot tank/db
  pagefold list -t all -p --json tank
  pagefold list -Hp tank                     tabs and exact numbers, for scripts
  pagefold list --json"
    )]
    List(List),
    /// Show the state of pools: devices, errors, caches, what to do.
    #[command(after_long_help = "Examples:
  pagefold status
  pagefold status -x                         only pools with something wrong, or full by 95 %; exit status 1 if there are any
  pagefold status tank --json")]
    Status(Status),
    /// Show what mounted pools and their devices read and write, and why.
    #[command(
        after_long_help = "The first report counts from when the pool was opened; each later one over its interval. Requests and bytes are those
that devices were asked for, so in a mirror each member's count; a pool's are the sum.

Each request is of one class, by what it is for:
  SYNCR    sync_read: reads that somebody waits for
  LOG      log: commits, and the flushes that make them durable
  ASYNCR   async_read: reads in the background, as of learning, streams, checkpoints
  ASYNCW   async_write: what checkpoints write and flush; labels; what readers repair
  CLEAN    cleaning: what is moved to make room
  RECOMP   recompression: what is coded again
  FILL     filling: what is copied to a device of a mirror
  SCRUB    scrub: what scrubs read and repair
  TRIM     discard: what devices are told is free

WAIT (-l) is the mean time from when a request was made to its end; that of a class leaves flushes out. HEDGED (-l) is how
many reads of a device of a mirror took so long that another one was asked, too, and WON how many of them that one answered
first. With -q, NOW is how
many requests are under way, and PEND how many wait for their turns: reads that somebody waits for, commits and checkpoints
never do, and the others have the less of a device the more these would feel it. -w counts requests by their time: less than BELOW, and not less than half of it.

With --causes, what is written to devices, by cause: pages_full and pages_delta (pages, compressed, in full or as changes of what they
were), models (which code pages), trees and checkpoints (metadata), log_framing (headers, operations and padding of the
log), fold (what is cleaned or coded again). Their sum is device_write; divided by application_write it is the
property waf. pages_by_model are among pages_full.

rewritten_database and rewritten_other are those of pages_full and pages_delta whose page had been stored before: pages that
begin as those of PostgreSQL's relations and InnoDB's indexes do, and all others, logs above all. P50 and P90: half and nine
tenths of their records have at most so many bytes (told exactly to an eighth); --json has the whole histogram.

Examples:
  pagefold iostat
  pagefold iostat tank 1                     every second until interrupted
  pagefold iostat -vl tank 5                 each device, and how long it takes
  pagefold iostat -yq 0.5                    what waits and is under way, twice a second
  pagefold iostat -w tank                    how many requests took how long
  pagefold iostat tank 5 12                  every 5 seconds, 12 times"
    )]
    Iostat(Iostat),
    /// Show what a mounted pool's server has logged.
    #[command(after_long_help = "Examples:
  pagefold events tank
  pagefold events -f tank                    and go on as more happens
  pagefold events --level warn tank --json")]
    Events(Events),
    /// Show properties.
    #[command(after_long_help = crate::help::properties() + "
Examples:
  pagefold get all tank
  pagefold get -r mountpoint tank            and of all datasets and snapshots below
  pagefold get compression,compressratio tank
  pagefold get -Hp used /var/lib/postgresql")]
    Get(Get),
    /// Set a property.
    #[command(after_long_help = crate::help::properties() + "
Examples:
  pagefold set compression=zstd-3 tank
  pagefold set compression=lz4 tank/logs
  pagefold set recordsize=8K sync=always tank/db
  pagefold set logicalcapacity=2x tank       df(1) shows what the pool holds at 2:1
  pagefold set mountpoint=/srv backup:keep=yes tank")]
    Set(Set),
    /// Clear a property, so that what a dataset above has, or the default, holds again.
    #[command(after_long_help = "Examples:
  pagefold inherit recordsize tank/db")]
    Inherit(Inherit),
    /// Show what files take: logical and stored size, page size, ratio.
    #[command(after_long_help = "Examples:
  pagefold du /var/lib/postgresql
  pagefold du -s /var/lib/postgresql/*       one line for each argument
  pagefold du -a --sort ratio /var/lib/postgresql
  pagefold du --codecs /var/lib/postgresql   records and bytes by codec, as compsize has them
  pagefold du --pages --sort stored /var/lib/postgresql/15/main/base")]
    Du(Du),
    /// Predict what files would take on a pool, from samples, beside generic codecs.
    #[command(
        after_long_help = "The files are only read, may be in use, and need not lie on Pagefold; neither a pool nor root is needed.
Ratios are those of what files hold: holes and zeros are on neither side. A path that is a symbolic link is followed. Links
below the paths are not, and a note says so: give what they lead to (pg_wal, tablespaces) as further paths. Other file
systems below the paths are left out, with an error at the end.

Examples:
  pagefold analyze /var/lib/postgresql/15/main
  pagefold analyze -a --sort stored /var/lib/mysql
  pagefold analyze --compression zstd-3 /srv/data
  pagefold analyze --html report.html /var/lib/postgresql"
    )]
    Analyze(Analyze),
    /// Code what is stored again, with the present property `compression` and the models that there are by now.
    #[command(
        after_long_help = "Online, and without unsharing anything: what snapshots and clones share stays shared and takes less for all of
them. Each file's pages are coded as its setting says now: its attribute user.pagefold.compression, or the property of
its dataset. Pages never become longer: after compression=lz4 or off, only new pages are stored so. The few MiB that were
written last may be left as they are. Interrupted, it keeps what it did; a crash undoes the last second of it at most.

Examples:
  pagefold fold tank                         everything in a mounted pool
  pagefold fold /var/lib/postgresql/15/main/base
  pagefold fold --rate 50M tank              at most 50 MiB (before compression) per second"
    )]
    Fold(Fold),
    /// Give files that have data another recordsize, while they are in use.
    #[command(
        after_long_help = "Online: databases may go on reading and writing. A file is copied a piece at a time, in records of the new size, and
what changes meanwhile is changed in the copy as well; then the file has the copy's records, from one instant to the
next. Until then it takes its space twice. Snapshots and clones keep the old records, and nothing of theirs changes.
Interrupted, or after a crash, a file is as it was or rewritten, and a copy that was not finished is freed. A file
without data gets the recordsize with its first data. The property recordsize is for new files: pagefold set
recordsize=8K tank/db.

Examples:
  pagefold rewrite --recordsize 8K /srv/tank/pg/base/5/16384
  pagefold rewrite --recordsize 16K -r /srv/tank/mysql
  pagefold rewrite --recordsize 64K --rate 50M /srv/tank/archive.tar    at most 50 MiB per second"
    )]
    Rewrite(Rewrite),
    /// Show space of mounted pools: logical, physical, ratio, free, days until full, write amplification.
    #[command(
        after_long_help = "FULL IN is when the pool is full if it grows as it did in the last four weeks (two days, as long as there is less
than a week of history); - without a day of history, and for a pool that does not grow. A pool remembers what it held over
mounts and crashes. What df(1) shows is told in bytes before compression with the property logicalcapacity.

Examples:
  pagefold df
  pagefold df /var/lib/postgresql
  pagefold df --json"
    )]
    Df(Pools),
    /// Read and verify everything in a mounted pool, in the background; what snapshots hold is included.
    #[command(
        after_long_help = "It takes half of one thread's time while the pool is idle, and an eighth while it is not. It goes on
after an unmount. Damage is counted by `status` and told by `events`.

Examples:
  pagefold scrub tank
  pagefold scrub tank --rate 50M             read at most 50 MiB per second
  pagefold scrub tank --wait                 and fail if anything is damaged
  pagefold scrub tank --stop                 the next one goes on from there
  pagefold scrub tank --status"
    )]
    Scrub(Scrub),
    /// Tell the devices of a mounted pool what is free, in the background: thin volumes, sparse files and drives use it for something else.
    #[command(
        after_long_help = "Block devices get discards, sparse files holes. What snapshots hold is not free, nor is what lies beside live records in a
chunk of 4M: `pagefold fold` packs these together. What a device was told of is not told again while the pool is mounted.
What is freed later is told by the next trim, or by the way with autotrim=on.

Examples:
  pagefold trim tank
  pagefold trim tank --rate 200M             tell of at most 200 MiB per second
  pagefold trim tank --wait
  pagefold trim -n tank                      tell nobody, and print how much it would be
  pagefold trim tank --stop
  pagefold trim tank --status"
    )]
    Trim(Trim),
    /// Read everything in a pool that is not mounted and verify it; repairs nothing.
    #[command(after_long_help = "Examples:
  pagefold check tank
  pagefold check ~/tank.pf                  a pool that was not imported")]
    Check(Check),
    /// Change which devices a pool has, and uses.
    #[command(flatten)]
    Device(DeviceVerb),
    /// Forget the errors that were counted of a pool, or of one of its devices, and say which they were.
    #[command(
        after_long_help = "Errors are counted when they are met, by device and by file, and kept in the pool; `pagefold status` shows them. What is
still damaged is counted again when it is read.

Examples:
  pagefold clear tank
  pagefold clear tank /dev/sdb               of one device"
    )]
    Clear(Clear),
    /// Have systemd start and stop pools, and the databases on them, in the right order.
    #[command(
        subcommand,
        after_long_help = "A pool that has its mountpoint property set is mounted at boot by its service:

  pagefold set mountpoint=/srv/tank tank
  systemctl enable --now pagefold@tank

The service counts as a local file system: whatever systemd starts later in the boot comes
after it, databases too, and is stopped before it. It takes its options from the pool
(pagefold get cache,takeover,io_uring tank). `install` adds what only the pools know: the
devices that each waits for; and that PostgreSQL's clusters and MariaDB with data on a pool
do not start when it could not be mounted.

Pools in /etc/fstab need no service and no `install`: the generator that is installed with
pagefold tells systemd their devices and databases at each boot. With nofail in
/etc/fstab nothing else waits for the mount, but for the databases on it. Devices behind
the network take _netdev in /etc/fstab, not the service.

Examples:
  pagefold systemd show
  pagefold systemd install && systemctl daemon-reload
  pagefold systemd remove"
    )]
    Systemd(Systemd),
    /// Print a completion script for a shell.
    #[command(after_long_help = "Examples:
  pagefold completion bash > /etc/bash_completion.d/pagefold
  pagefold completion fish > ~/.config/fish/completions/pagefold.fish")]
    Completion {
        /// The shell.
        shell: Shell,
    },
    /// Serve a mounted pool in the foreground; what `mount` starts, and systemd.
    #[command(hide = true)]
    Serve(Mount),
    /// Print the properties that a server has to know before it opens its pool; what `mount` starts.
    #[command(hide = true)]
    Probe {
        /// All of the pool's devices.
        #[arg(required = true)]
        devices: Vec<PathBuf>,
    },
    /// Print the numbers of the devices that answer; what `import` starts.
    #[command(hide = true)]
    ReadDevices {
        /// The devices.
        #[arg(required = true)]
        devices: Vec<PathBuf>,
    },
    /// Write drop-ins at boot; what systemd starts as its generator.
    #[command(hide = true)]
    Generator {
        /// Where to, early and late.
        #[arg(required = true, num_args = 1..=3)]
        dirs: Vec<PathBuf>,
    },
    /// Write the manual pages into a directory.
    #[command(hide = true)]
    Man {
        /// Where to.
        dir: PathBuf,
    },
}

fn mount_help() -> String {
    format!(
        "A mount point that does not exist is made if its parent does, which is told. Nobody but root can write to it while nothing is
mounted on it.

Options (-o, separated by commas):\n{}
Examples:
  pagefold mount tank /var/lib/postgresql
  pagefold mount tank                        where its mountpoint property says
  pagefold mount tank/db /var/lib/mysql      another dataset of the same pool
  pagefold mount tank/db@monday /mnt         a snapshot, read-only
  pagefold mount -a                          all that have a mountpoint property
  pagefold mount -a tank                     those of this pool
  pagefold mount ~/tank.pf ~/db              a pool in a file, without root
  pagefold mount -o ro,cache=2G tank /mnt
  pagefold mount tank /srv/also              a second place of what is mounted: the same file system
  pagefold mount -o remount,ro /mnt          other options while it is in use
  mount -t pagefold tank /mnt                the same, by mount(8)
  tank /var/lib/postgresql pagefold defaults,nofail 0 0    in /etc/fstab",
        crate::help::mount_options()
    )
}
