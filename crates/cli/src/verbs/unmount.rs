//! `unmount`: ends mounts, and returns when all is durable; with the last of a pool, when its server has closed it and ended.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::args::Unmount;
use crate::control::{Client, MountFigures, Reply, Request, UnmountMode};
use crate::failure::{Failure, Result};
use crate::holders::Holder;
use crate::mounts::{self, MountEntry};
use crate::names::Name;
use crate::{holders, raw, target};

/// How many processes that keep a mount busy are listed.
const HOLDERS_SHOWN: usize = 10;
/// How long a mount that no process holds is waited for.
const KERNEL_PATIENCE: Duration = Duration::from_secs(5);
/// How often it is tried meanwhile.
const KERNEL_STEP: Duration = Duration::from_millis(50);

/// Which of a pool's mounts.
enum Which {
    /// A dataset's, with those of its snapshots and of the datasets below it; or a snapshot's.
    Named(Name),
    /// The one that is there.
    At(PathBuf),
}

/// Unmounts.
pub fn run(args: &Unmount) -> Result<()> {
    let mode = match (args.force, args.lazy) {
        (true, _) => UnmountMode::Force,
        (_, true) => UnmountMode::Lazy,
        _ => UnmountMode::Normal,
    };
    if args.all {
        return Client::all()?.iter_mut().try_for_each(|client| end(client, &[], mode));
    }
    let word = args.target.as_deref().unwrap_or_default();
    let name = match target::name(word) {
        Err(_) if raw::path_of(word).is_dir() => {
            return Err(Failure::new(format!("nothing of a pool is mounted at {word}"))
                .hint("see what is: pagefold status"));
        }
        other => other?,
    };
    let which = match target::mount_of(&raw::path_of(word)) {
        Ok(mount) if Name::parse(word).ok().as_ref() != Some(&name) => Which::At(mount.dir),
        _ => Which::Named(name.clone()),
    };
    let started = Instant::now();
    loop {
        if let Some(mut client) = target::connect(&name.pool)? {
            match chosen(&mut client, &which) {
                // It died just now.
                Err(_) if client.has_ended() => continue,
                chosen => return end(&mut client, &chosen?, mode),
            }
        }
        let dead: Vec<MountEntry> =
            mounts::dead(&name.pool)?.into_iter().filter(|mount| is_chosen(mount, &which)).collect();
        if !dead.is_empty() {
            return dead.iter().rev().try_for_each(detach_dead);
        }
        // The kernel takes a moment to see that a server has died who answers no more.
        let is_there = mounts::ours()?.iter().any(|mount| is_chosen(mount, &which));
        if !is_there || started.elapsed() > KERNEL_PATIENCE {
            return not_mounted(word, &name.pool);
        }
        std::thread::sleep(KERNEL_STEP);
    }
}

fn is_chosen(mount: &MountEntry, which: &Which) -> bool {
    match which {
        Which::At(dir) => mount.dir == *dir,
        Which::Named(name) => {
            Name::parse(&mount.source).is_ok_and(|of| of == *name || of.is_within(&name.path))
        }
    }
}

/// Device numbers of the mounts that are meant.
fn chosen(client: &mut Client, which: &Which) -> Result<Vec<u32>> {
    let mounts = mounts_of(client)?;
    let found: Vec<u32> = match which {
        Which::Named(name) => {
            let of = |mount: &&MountFigures| {
                mount.path == name.path
                    || !name.is_snapshot() && crate::names::is_within(&mount.path, &name.path)
            };
            mounts.iter().filter(of).map(|mount| mount.device).collect()
        }
        Which::At(dir) => {
            // A bind mount has another directory, and the same device.
            let entry = mounts::ours()?.into_iter().rev().find(|mount| mount.dir == *dir);
            entry.map(|entry| entry.device.1).into_iter().collect()
        }
    };
    match (which, found.is_empty()) {
        // umount(8) may have come before; what is left is to wait for the end.
        (_, true) if mounts.is_empty() => Ok(found),
        (Which::Named(name), true) => Err(Failure::new(format!("{name} is not mounted"))
            .hint(format!("see what is: pagefold status {}", name.pool))),
        _ => Ok(found),
    }
}

fn mounts_of(client: &mut Client) -> Result<Vec<MountFigures>> {
    match client.ask(&Request::Status {})? {
        Reply::Status { figures } => Ok(figures.mounts),
        _ => Err(client.misunderstood()),
    }
}

/// Has a server unmount what has these device numbers (none: all), and waits for its end if that was the last. What no process
/// holds is asked for again for a while: the kernel lets go of the files of a process that used io_uring only after its end.
pub fn end(client: &mut Client, devices: &[u32], mode: UnmountMode) -> Result<()> {
    let started = Instant::now();
    loop {
        let request = Request::Unmount { devices: devices.to_vec(), mode };
        let at = match client.ask_and_wait(&request)? {
            Reply::Done {} => return Ok(()),
            Reply::Closed {} => return client.wait_for_end(),
            Reply::Streaming {} => {
                eprintln!(
                    "pagefold: pool {} stays open until what is being sent or received has ended",
                    client.pool()
                );
                return Ok(());
            }
            Reply::Busy { dir } => dir,
            _ => return Err(client.misunderstood()),
        };
        let ours = mounts::ours()?;
        let Some(mount) = ours.iter().find(|mount| mount.dir == at) else {
            std::thread::sleep(KERNEL_STEP);
            continue;
        };
        let holders = holders::of(mount);
        if !holders.is_empty() || started.elapsed() > KERNEL_PATIENCE {
            return Err(busy(mount, &holders));
        }
        std::thread::sleep(KERNEL_STEP);
    }
}

fn busy(mount: &MountEntry, holders: &[Holder]) -> Failure {
    let (dir, name) = (mount.dir.display(), &mount.source);
    let who = match holders {
        [] => "no process of yours holds it: somebody else's does, or another mount namespace".to_owned(),
        some => format!("it is held by\n{}", holders::text(some, HOLDERS_SHOWN)),
    };
    Failure::new(format!("{dir} is in use")).hint(format!(
        "{who}\n  end what uses it, or detach it: pagefold unmount --lazy {name} (--force: users get errors)"
    ))
}

/// Nothing of a pool is mounted; or its server is dead, or nobody knows it.
fn not_mounted(word: &str, pool: &str) -> Result<()> {
    match target::server(word) {
        Err(failure) if crate::mounts::dead(pool)?.is_empty() && target::known(pool).is_ok() => {
            Err(Failure::new(failure.what()).hint("see what is mounted: pagefold list"))
        }
        other => other.map(drop),
    }
}

/// A mount whose server is gone has nothing to close: it is only taken out of the mount table. The pool
/// recovers when it is mounted again.
fn detach_dead(mount: &MountEntry) -> Result<()> {
    pagefold_fuse::unmount(&mount.dir, true).map_err(|error| Failure::new(error.to_string()))?;
    eprintln!(
        "pagefold: the server of pool {0} had died; its mount at {1} is detached, and the pool recovers when it is mounted again",
        mount.pool(),
        mount.dir.display()
    );
    Ok(())
}
