//! `unmount`: ends mounts, and returns when all is durable; with a pool's last mount, when its server has closed the
//! pool and ended.

use std::path::PathBuf;
use std::time::Instant;

use pagefold_engine::pool::FoundState;
use pagefold_server::control::{Client, MountFigures, PoolFigures, Reply, Request, UnmountMode};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::mounts::{self, MountEntry};
use pagefold_server::names::{self, Name};
use pagefold_server::raw::shown;
use pagefold_server::registry::Registry;
use pagefold_server::{discovery, raw, timeouts};

use crate::args::Unmount;
use crate::unmounting::{self, UnmountOutcome};
use crate::{failures, mount_lookup, mount_users, progress, table, target};

/// The mounts of a pool that are to go.
#[derive(Clone, Debug)]
enum Which {
    /// Wherever they are: the mounts of a dataset, of its snapshots and of the datasets below it; or the mount of a
    /// snapshot.
    Named(Name),
    /// This mount, and none of the same dataset at another place.
    At(MountEntry),
}

/// The mounts that are to go: their places in this mount namespace, and the device numbers by which their servers know
/// them.
struct Chosen {
    devices: Vec<u32>,
    places: Vec<MountEntry>,
    /// Mounts that servers which died have left.
    dead: Vec<MountEntry>,
    /// True if nothing that is alive is meant, while the server has other mounts.
    only_dead: bool,
}

/// Unmounts what is named.
pub fn run(args: &Unmount) -> Result<()> {
    let mode = match (args.force, args.lazy) {
        (true, _) => UnmountMode::Force,
        (_, true) => UnmountMode::Lazy,
        _ => UnmountMode::Normal,
    };
    if args.all {
        return all(mode);
    }
    let word = args.target.as_deref().unwrap_or_default();
    one(&which(word)?, word, mode)
}

/// Unmounts everything. A mount that cannot go keeps no other from going.
fn all(mode: UnmountMode) -> Result<()> {
    let mut failures = failures::Failures::new();
    for (pool, client) in Client::each()? {
        failures.take(&pool, client.and_then(|mut client| whole_pool(&mut client, mode)));
    }
    // Mounts of pools that are not known here are somebody else's.
    let known = Registry::open()?.all()?;
    let is_known = |mount: &&MountEntry| known.iter().any(|known| known.name == mount.pool());
    for mount in mounts::ours()?.iter().rev().filter(is_known).filter(|mount| mounts::is_dead(mount)) {
        failures.take(mount.pool(), detach_dead(mount, AFTERWARDS));
    }
    failures.finish_all("unmounted")
}

/// Unmounts all mounts of a pool, or none.
pub fn whole_pool(client: &mut Client, mode: UnmountMode) -> Result<()> {
    let chosen = chosen(client, &Which::Named(Name::new(client.pool(), "")))?;
    end(client, &chosen, mode)
}

/// Unmounts a backup. There is nothing to make durable, and the process that reads the backup ends by itself.
fn backup(mount: &MountEntry, mode: UnmountMode) -> Result<()> {
    let places = std::slice::from_ref(mount);
    match mode {
        UnmountMode::Normal => leave(places),
        UnmountMode::Lazy => unmounting::unmount_all(places, true).map(drop),
        UnmountMode::Force => {
            use pagefold_fuse::{Here, Mounter as _, Unmount};
            Here.unmount(&mount.dir, Unmount::CutOff).map_err(|error| Failure::new(error.to_string()))
        }
    }
}

fn one(which: &Which, word: &str, mode: UnmountMode) -> Result<()> {
    if let Which::At(mount) = which
        && mounts::is_backup_source(&mount.source)
    {
        return backup(mount, mode);
    }
    let pool = match which {
        Which::Named(name) => name.pool.clone(),
        Which::At(mount) => mount.pool().to_owned(),
    };
    let started = Instant::now();
    let mut told = false;
    loop {
        if let Some(mut client) = target::connect(&pool)? {
            let chosen = match is_anothers(&mut client, which) {
                Ok(true) => Ok(None),
                Ok(false) => chosen(&mut client, which).map(Some),
                Err(failure) => Err(failure),
            };
            match chosen {
                Ok(Some(chosen)) => return end(&mut client, &chosen, mode),
                // The server may be about to know it.
                Ok(None) => {}
                // The server died just now.
                Err(_) if client.has_ended() => continue,
                Err(failure) => return Err(failure),
            }
        }
        let dead: Vec<MountEntry> =
            mounts::dead(&pool)?.into_iter().filter(|mount| is_chosen(mount, which)).collect();
        if !dead.is_empty() {
            return dead.iter().rev().try_for_each(|mount| detach_dead(mount, AFTERWARDS));
        }
        // The kernel takes a moment to notice that a server which answers no more has died.
        let there = mounts::ours()?.into_iter().find(|mount| is_chosen(mount, which));
        let Some(there) = there else { return not_mounted(word, &pool) };
        if started.elapsed() > timeouts::KERNEL {
            return Err(out_of_reach(&there));
        }
        if started.elapsed() > timeouts::TELL_AFTER && !std::mem::replace(&mut told, true) {
            eprintln!("pagefold: waiting: nobody answers for pool {pool}, mounted at {}", shown(&there.dir));
        }
        std::thread::sleep(timeouts::KERNEL_STEP);
    }
}

/// Returns the failure of a mount that is alive, and whose server listens at another place.
fn out_of_reach(mount: &MountEntry) -> Failure {
    let (source, dir) = (table::printable(&mount.source), shown(&mount.dir));
    Failure::new(format!("the server of {source}, mounted at {dir}, cannot be reached from here"))
        .hint(format!("somebody else mounted it, or with another PAGEFOLD_RUNTIME_DIR: let them unmount it, or: umount {dir}"))
}

/// Returns what a word means: a path if it is written as one, else the name of what is known, else a path. A word that
/// is the name of a dataset and also a mount point of another one is refused, since nobody can know which is meant.
fn which(word: &str) -> Result<Which> {
    let path = raw::path_of(word);
    let path = path.as_path();
    if target::is_path(word) || word.ends_with('/') {
        return mount_lookup::mount_at(path).map(Which::At);
    }
    let pool = word.split(['/', '@']).next().unwrap_or_default();
    let is_known = target::connect(pool)?.is_some()
        || mounts::ours()?.iter().any(|mount| mount.pool() == pool)
        || Registry::open()?.all()?.iter().any(|known| known.name == pool);
    let there = mount_lookup::mount_if_at(path)?;
    match (is_known, there) {
        (false, Some(mount)) => Ok(Which::At(mount)),
        (false, None) if path.symlink_metadata().is_ok() => mount_lookup::mount_at(path).map(Which::At),
        (false, None) => {
            let name = Name::parse(word)?;
            Registry::open()?.find(&name.pool)?;
            Ok(Which::Named(name))
        }
        (true, Some(mount)) if mount.source != word => Err(Failure::usage(format!(
            "{word} is the name of a dataset, and here the mount point of another one, {}",
            table::printable(&mount.source)
        ))
        .hint(format!("say which: pagefold unmount ./{word}, or pagefold unmount {}", mount.source))),
        (true, _) => Name::parse(word).map(Which::Named),
    }
}

fn is_chosen(mount: &MountEntry, which: &Which) -> bool {
    match which {
        Which::At(there) => mount.dir == there.dir,
        Which::Named(name) => {
            Name::parse(&mount.source).is_ok_and(|of| is_meant(&of.path, name) && of.pool == name.pool)
        }
    }
}

/// Returns whether the mount with this path below the pool goes with what is named: a snapshot goes alone.
fn is_meant(path: &str, name: &Name) -> bool {
    path == name.path || !name.is_snapshot() && names::is_within(path, &name.path)
}

/// Returns true if a mount that is meant lives, and is not one of this server's: another user may have a pool of the same
/// name.
fn is_anothers(client: &mut Client, which: &Which) -> Result<bool> {
    let Which::At(mount) = which else { return Ok(false) };
    let served: Vec<u32> = mounts_of(client)?.into_iter().map(|mount| mount.device).collect();
    Ok(is_unknown(mount, &served, &mounts::ours()?) && !mounts::is_dead(mount))
}

/// Returns true if a mount is there, and none of the device numbers that a server tells is its own.
fn is_unknown(mount: &MountEntry, served: &[u32], there: &[MountEntry]) -> bool {
    !served.contains(&mount.device.1) && there.iter().any(|other| other.id == mount.id)
}

/// Returns the mounts that are meant, as the server and the kernel know them.
fn chosen(client: &mut Client, which: &Which) -> Result<Chosen> {
    let mounts = mounts_of(client)?;
    let dead = left_by_the_dead(client.pool(), &mounts, which)?;
    let only_dead = |devices: &[u32]| devices.is_empty() && !dead.is_empty() && !mounts.is_empty();
    match which {
        Which::At(_) if !dead.is_empty() => {
            let (devices, places) = (Vec::new(), Vec::new());
            Ok(Chosen { only_dead: only_dead(&devices), devices, places, dead })
        }
        Which::At(mount) => {
            let (devices, places) = (vec![mount.device.1], vec![mount.clone()]);
            Ok(Chosen { devices, places, dead, only_dead: false })
        }
        Which::Named(name) => {
            let meant = mounts.iter().filter(|mount| is_meant(&mount.path, name));
            let devices: Vec<u32> = meant.map(|mount| mount.device).collect();
            // umount(8) may have been run before; then all that is left is to wait for the end.
            if devices.is_empty() && !mounts.is_empty() && dead.is_empty() {
                return Err(Failure::new(format!("{name} is not mounted"))
                    .hint(format!("see what is: pagefold status {}", name.pool)));
            }
            let places = mounts::of_devices(&devices)?;
            Ok(Chosen { only_dead: only_dead(&devices), devices, places, dead })
        }
    }
}

/// Returns the mounts that are meant and that servers which died have left. Those of the server that runs now live.
fn left_by_the_dead(pool: &str, served: &[MountFigures], which: &Which) -> Result<Vec<MountEntry>> {
    let is_served = |mount: &MountEntry| served.iter().any(|served| served.device == mount.device.1);
    let left = mounts::ours()?.into_iter().filter(|mount| mount.pool() == pool && !is_served(mount));
    Ok(left.filter(|mount| is_chosen(mount, which) && mounts::is_dead(mount)).collect())
}

/// Detaches what servers that died have left mounted of these datasets and snapshots.
pub fn detach_left(names: &[String]) -> Result<()> {
    let left = mounts::ours()?.into_iter().filter(|mount| names.contains(&mount.source));
    let dead: Vec<MountEntry> = left.filter(mounts::is_dead).collect();
    dead.iter().rev().try_for_each(|mount| detach_dead(mount, ""))
}

fn mounts_of(client: &mut Client) -> Result<Vec<MountFigures>> {
    figures(client).map(|figures| figures.mounts)
}

fn figures(client: &mut Client) -> Result<PoolFigures> {
    match client.ask(&Request::Status {})? {
        Reply::Status { figures } => Ok(*figures),
        _ => Err(client.misunderstood()),
    }
}

fn end(client: &mut Client, chosen: &Chosen, mode: UnmountMode) -> Result<()> {
    let Chosen { devices, places, dead, only_dead } = chosen;
    dead.iter().rev().try_for_each(|mount| detach_dead(mount, ""))?;
    if *only_dead {
        return Ok(());
    }
    let others: Vec<MountEntry> =
        mounts::of_devices(devices)?.into_iter().filter(|mount| !places.contains(mount)).collect();
    match mode {
        // All places share one connection to the server: only the last one may end it.
        UnmountMode::Force if others.is_empty() => cut_off(client, devices),
        UnmountMode::Force | UnmountMode::Lazy => {
            unmounting::unmount_all(places, true)?;
            if let (UnmountMode::Force, Some(other)) = (mode, others.first()) {
                eprintln!(
                    "pagefold: {} stays mounted at {}: who had files open here goes on with them",
                    table::printable(&other.source),
                    shown(&other.dir)
                );
            }
            Ok(())
        }
        UnmountMode::Normal => {
            if places.is_empty() {
                refuse_elsewhere(client.pool(), devices)?;
            }
            // The server may have ended by the time the last mount is gone.
            let before = figures(client)?;
            leave(places)?;
            let settled = settle(client, devices, &others);
            if settled.is_err() && client.is_lost() {
                ended_before(client, devices, &before)
            } else {
                settled
            }
        }
    }
}

/// Fails if the mounts are only in other mount namespaces, where nothing that is done here changes them.
fn refuse_elsewhere(pool: &str, devices: &[u32]) -> Result<()> {
    let elsewhere: Vec<mount_users::MountUser> =
        devices.iter().flat_map(|device| mount_users::elsewhere((0, *device))).collect();
    let Some(pid) = elsewhere.iter().find_map(|user| user.pid) else { return Ok(()) };
    Err(Failure::new(format!("pool {pool} is not mounted in this mount namespace, but in another")).hint(format!(
        "it is held by\n{}\n  unmount it there: nsenter --mount --target {pid} pagefold unmount {pool}; or have its users get errors: pagefold unmount --force {pool}",
        mount_users::text(&elsewhere)
    )))
}

/// Unmounts at once: users of the mounts get errors from now on.
fn cut_off(client: &mut Client, devices: &[u32]) -> Result<()> {
    let request = Request::Unmount { devices: devices.to_vec(), mode: UnmountMode::Force };
    match client.ask_telling(&request, None, &mut waiting(client.pool(), client.named(), devices))? {
        Reply::Done {} => Ok(()),
        Reply::Closed {} => client.wait_for_end(),
        Reply::Streaming {} => {
            streaming(client.pool());
            Ok(())
        }
        _ => Err(client.misunderstood()),
    }
}

/// Unmounts what nobody uses, all of it or nothing. A mount that is busy, but held by no process, is tried again for a
/// while.
fn leave(places: &[MountEntry]) -> Result<()> {
    let started = Instant::now();
    loop {
        let busy = match unmounting::unmount_all(places, false)? {
            UnmountOutcome::Gone => return Ok(()),
            UnmountOutcome::Busy(busy) => busy,
            UnmountOutcome::Half(gone, busy) => return Err(unmounting::half_done(&gone, &busy, &who(&busy))),
        };
        let users = mount_users::of(&busy);
        if users.iter().any(|user| !user.passes) || started.elapsed() > timeouts::KERNEL {
            let hint = advice(places, &busy, &who(&busy));
            return Err(Failure::new(format!("{} is in use", shown(&busy.dir))).hint(hint));
        }
        std::thread::sleep(timeouts::KERNEL_STEP);
    }
}

fn who(busy: &MountEntry) -> String {
    match mount_users::of(busy).as_slice() {
        [] => "no process of yours holds it: somebody else's does, or another mount namespace".to_owned(),
        some => format!("it is held by\n{}", mount_users::text(some)),
    }
}

fn advice(places: &[MountEntry], busy: &MountEntry, who: &str) -> String {
    let stays = if places.len() > 1 { "\n  nothing was unmounted: all stays as it was" } else { "" };
    let name = table::printable(&busy.source);
    format!(
        "{who}{stays}\n  end what uses it, or detach it: pagefold unmount --lazy {name} (--force: users get errors)"
    )
}

/// Waits until all that was written is durable, and until mounts that nobody can reach any more have ended; after the
/// last one, until the pool is closed.
fn settle(client: &mut Client, devices: &[u32], others: &[MountEntry]) -> Result<()> {
    if let Some(other) = others.first() {
        let Reply::Done {} = client.ask_and_wait(&Request::Sync {})? else {
            return Err(client.misunderstood());
        };
        eprintln!("pagefold: {} stays mounted at {}", table::printable(&other.source), shown(&other.dir));
        return Ok(());
    }
    let mut tell = waiting(client.pool(), client.named(), devices);
    let mut patience = timeouts::END_OF_MOUNT;
    loop {
        let wait_ms = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
        let request = Request::Await { devices: devices.to_vec(), wait_ms };
        match client.ask_telling(&request, Some(patience), &mut tell) {
            Ok(Reply::Done {}) => return Ok(()),
            Ok(Reply::Closed {}) => return client.wait_for_end(),
            Ok(Reply::Streaming {}) => {
                streaming(client.pool());
                return Ok(());
            }
            // No mount is left: the pool is being made durable, or closed, which takes as long as its devices do.
            Ok(Reply::Waiting { devices }) if devices.is_empty() && patience < timeouts::CLOSING => {
                patience = timeouts::CLOSING;
            }
            Ok(Reply::Waiting { devices }) => return Err(has_not_ended(client, &devices)),
            Ok(_) => return Err(client.misunderstood()),
            Err(failure) => return Err(failure),
        }
    }
}

/// Decides what happened when the server ended before it could be asked to report the end of the mounts. Either it has
/// closed the pool, which the devices show; or it died, and another may have gone on.
fn ended_before(client: &Client, devices: &[u32], before: &PoolFigures) -> Result<()> {
    client.wait_for_end()?;
    let pool = client.pool();
    if let Some(mut next) = target::connect(pool)? {
        return settle(&mut next, devices, &[]);
    }
    if before.mounts.iter().all(|mount| mount.read_only) {
        return Ok(());
    }
    // A device of a mirror may be gone.
    let paths = before.devices.iter().map(|device| device.path.clone()).filter(|path| path.exists());
    let found = progress::scan(&paths.collect::<Vec<PathBuf>>())?;
    let found = found.pools.iter().find(|found| found.guid == before.guid);
    if found.is_some_and(|found| found.state == FoundState::Degraded && found.exported) {
        return Ok(());
    }
    match found.map(|found| found.state) {
        // In use means that somebody has opened the pool since.
        Some(FoundState::Exported | FoundState::InUse) => Ok(()),
        state => Err(Failure::new(format!(
            "the server of pool {pool} ended, and did not close it ({})",
            state.map_or("it is not found", discovery::state_text)
        ))
        .hint(
            "what was synced is there, and what came after may be lost; mounting the pool again recovers it",
        )),
    }
}

fn streaming(pool: &str) {
    eprintln!("pagefold: pool {pool} stays open until what is being sent or received has ended");
}

/// Returns a closure that prints what is waited for.
pub fn waiting(pool: &str, server: String, devices: &[u32]) -> impl FnMut() + use<> {
    let (pool, devices) = (pool.to_owned(), devices.to_vec());
    move || match keeping(&devices).as_slice() {
        [] => eprintln!("pagefold: waiting: the server of pool {pool}{server} writes what it has in memory"),
        some => eprintln!(
            "pagefold: waiting: what was unmounted of pool {pool} is still in use:\n{}",
            mount_users::text(some)
        ),
    }
}

/// Returns who keeps file systems alive that were unmounted here.
pub fn keeping(devices: &[u32]) -> Vec<mount_users::MountUser> {
    let mut keeping = Vec::new();
    for device in devices {
        keeping.extend(mount_users::elsewhere((0, *device)));
        keeping.extend(mount_users::of_device((0, *device)));
    }
    keeping
}

fn has_not_ended(client: &Client, devices: &[u32]) -> Failure {
    let pool = client.pool();
    let server = client.named();
    if devices.is_empty() {
        return Failure::new(format!(
            "pool {pool} is not closed after {} s, and what was written last may not be durable yet",
            timeouts::CLOSING.as_secs()
        ))
        .hint(format!("its server{server} goes on; its log may say what with: pagefold events {pool}"));
    }
    let keeping = keeping(devices);
    let who = if keeping.is_empty() {
        "no process of yours is seen to use it: somebody else's does, or the kernel".to_owned()
    } else {
        format!("it is used by\n{}", mount_users::text(&keeping))
    };
    let failure = Failure::new(format!(
        "pool {pool} is unmounted here, and stays open: what was unmounted is still in use after {} s",
        timeouts::END_OF_MOUNT.as_secs()
    ));
    failure.hint(format!(
        "{who}\n  it is closed when that ends; or now, and users get errors: pagefold unmount --force {pool}"
    ))
}

/// Returns the failure that nothing of a pool is mounted, that its server is dead, or that nobody knows it.
fn not_mounted(word: &str, pool: &str) -> Result<()> {
    match target::server(word) {
        Err(failure) if pagefold_server::mounts::dead(pool)?.is_empty() && target::known(pool).is_ok() => {
            Err(Failure::new(failure.what()).hint("see what is mounted: pagefold list"))
        }
        other => other.map(drop),
    }
}

/// Text about a pool that no server has opened since its server died.
const AFTERWARDS: &str = ", and the pool recovers when it is mounted again";

/// Detaches a mount whose server is gone: there is nothing to close, so it is only taken out of the mount table. The
/// text says what becomes of the pool.
fn detach_dead(mount: &MountEntry, afterwards: &str) -> Result<()> {
    pagefold_fuse::unmount(&mount.dir, true).map_err(|error| Failure::new(error.to_string()))?;
    eprintln!(
        "pagefold: the server of pool {} had died; its mount at {} is detached{afterwards}",
        mount.pool(),
        shown(&mount.dir)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_of_another_server_is_none_of_those_that_this_one_ends() {
        let mount = |id: u64, device: u32| MountEntry {
            id,
            parent: 1,
            root: "/".into(),
            device: (0, device),
            dir: "/home/user/mnt".into(),
            fs_type: mounts::FS_TYPE.into(),
            source: "tank".into(),
            options: String::new(),
        };
        let (theirs, ours) = (mount(7, 70), mount(8, 80));
        let there = [theirs.clone(), ours.clone()];
        assert!(is_unknown(&theirs, &[80], &there) && is_unknown(&theirs, &[], &there));
        assert!(!is_unknown(&ours, &[80], &there));
        // It was taken away meanwhile: its end is waited for.
        assert!(!is_unknown(&ours, &[], &[theirs]));
    }
}
