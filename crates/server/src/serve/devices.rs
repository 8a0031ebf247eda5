//! Changes the devices of a pool while it is served.
//!
//! A confined server opens no device: whoever asks opens and locks it, and sends the descriptor. The supervisor keeps it
//! for the servers that follow.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::server::Server;
use super::streams::send_reply;
use crate::control::{DeviceChange, DevicePlace, MoveFigures, Reply, receive_descriptor};
use crate::failure::{Context, Failure, Result};
use crate::raw::shown;
use crate::{engine_errors, pools};
use pagefold_engine::Result as EngineResult;
use pagefold_engine::device::Device;
use pagefold_engine::limits::CHUNK_BYTES;
use pagefold_engine::pool::{Guid, MirrorChange, Shift};

const CANNOT_DETACH: &str = "cannot detach it";
const CANNOT_LEAVE: &str = "cannot take it offline";

/// Gives the pool a device, whose descriptor the client sends.
pub(super) fn add(
    server: &Server,
    path: &Path,
    place: DevicePlace,
    connection: &UnixStream,
) -> Result<Reply> {
    send_reply(connection, &Reply::Ready {})?;
    let file = receive(path, connection)?;
    let device = pools::adopt_device(server.pool.name(), path, &file, false)?;
    // A server that follows this one needs it from the instant on from which the pool knows it.
    server.handover.add_device(path, file)?;
    let added = match place {
        DevicePlace::Beside(number) => server.pool.attach(number, device, false),
        DevicePlace::InPlaceOf(number) => server.pool.attach(number, device, true),
        DevicePlace::Own => match server.pool.online_spare(&device) {
            Ok(false) => server.pool.online(device),
            done => done.map(|_| 0),
        },
    };
    if let Err(error) = added {
        let known = server.pool.device_status();
        if !known.iter().any(|device| device.path == *path && device.state.is_written()) {
            server.handover.remove_device(path);
        }
        return Err(engine_errors::failed(cannot_use(path), &error));
    }
    Ok(Reply::Done {})
}

/// Gives the pool spares, whose descriptors the client sends.
pub(super) fn add_spares(server: &Server, paths: &[PathBuf], connection: &UnixStream) -> Result<Reply> {
    send_reply(connection, &Reply::Ready {})?;
    let devices = receive_all(server, paths, connection)?;
    if let Err(error) = server.pool.add_spares(devices) {
        paths.iter().for_each(|path| server.handover.remove_device(path));
        return Err(engine_errors::failed("cannot add spares", &error));
    }
    Ok(Reply::Done {})
}

/// Removes a spare from the pool.
pub(super) fn remove_spare(server: &Server, id: &str) -> Result<Reply> {
    let id = u64::from_str_radix(id, 16).map_err(|_| Failure::new("that is no number of a spare"))?;
    server.pool.remove_spare(id).map_err(|error| engine_errors::failed("cannot remove it", &error))?;
    Ok(Reply::Done {})
}

/// Adds groups of devices, whose descriptors the client sends, to the pool.
pub(super) fn add_groups(
    server: &Server,
    paths: &[PathBuf],
    groups: &[usize],
    connection: &UnixStream,
) -> Result<Reply> {
    if groups.iter().sum::<usize>() != paths.len() {
        return Err(Failure::new("the groups have other devices than are sent"));
    }
    send_reply(connection, &Reply::Ready {})?;
    let mut rest = receive_all(server, paths, connection)?.into_iter();
    let groups = groups.iter().map(|members| rest.by_ref().take(*members).collect()).collect();
    added(server, paths, "cannot add devices", server.pool.add_groups(groups))
}

/// Gives the pool a log device, whose descriptors the client sends.
pub(super) fn add_log_device(server: &Server, paths: &[PathBuf], connection: &UnixStream) -> Result<Reply> {
    send_reply(connection, &Reply::Ready {})?;
    let devices = receive_all(server, paths, connection)?;
    added(server, paths, "cannot add a log device", server.pool.add_log_device(devices))
}

/// Replies whether devices were added. Those that were not are not kept.
fn added(server: &Server, paths: &[PathBuf], doing: &str, done: EngineResult<()>) -> Result<Reply> {
    if let Err(error) = done {
        // If their labels could be written, the next checkpoint may still make them count.
        let added = server.pool.device_status();
        let unused = paths.iter().filter(|path| !added.iter().any(|device| device.path == **path));
        unused.for_each(|path| server.handover.remove_device(path));
        return Err(engine_errors::failed(doing, &error));
    }
    Ok(Reply::Done {})
}

/// Receives devices, and gives them to the supervisor: a server that follows this one needs them from the instant on from
/// which the pool knows them.
fn receive_all(server: &Server, paths: &[PathBuf], connection: &UnixStream) -> Result<Vec<Arc<dyn Device>>> {
    let mut devices = Vec::new();
    let mut files = Vec::new();
    for path in paths {
        let file = receive(path, connection)?;
        devices.push(pools::adopt_device(server.pool.name(), path, &file, false)?);
        files.push((path, file));
    }
    files.into_iter().try_for_each(|(path, file)| server.handover.add_device(path, file))?;
    Ok(devices)
}

fn receive(path: &Path, connection: &UnixStream) -> Result<OwnedFd> {
    receive_descriptor(connection)
        .context(|| cannot_use(path))?
        .ok_or_else(|| Failure::new(format!("{}: no descriptor was sent", cannot_use(path))))
}

/// Stops using a device; then others may open it. With `release` it is not in use anyway.
pub(super) fn offline(server: &Server, number: u16, release: bool) -> Result<Reply> {
    let path = path_of(server, number)?;
    if !release {
        told(&path, CANNOT_LEAVE, server.pool.offline(number))?;
    }
    told(&path, CANNOT_LEAVE, server.pool.close_device(number))?;
    server.handover.remove_device(&path);
    Ok(Reply::Done {})
}

/// Lets the pool use all of a device, which has grown.
pub(super) fn grow(server: &Server, number: u16) -> Result<Reply> {
    let path = path_of(server, number)?;
    told(&path, "cannot use more of it", server.pool.take_up_growth(Some(number)).map(|_| ()))?;
    Ok(Reply::Done {})
}

/// Begins to remove a group of devices. The log device leaves at once.
pub(super) fn remove_group(server: &Server, group: u16) -> Result<Reply> {
    told(&group_path(server, group), "cannot remove it", server.pool.remove_group(group))?;
    Ok(Reply::Done {})
}

/// Ends the removal of a group of devices before it is gone.
pub(super) fn keep_group(server: &Server, group: u16) -> Result<Reply> {
    told(&group_path(server, group), "cannot keep it", server.pool.keep_group(group))?;
    Ok(Reply::Done {})
}

fn group_path(server: &Server, group: u16) -> PathBuf {
    let all = server.pool.device_status();
    all.into_iter().find(|device| device.group == group).map(|device| device.path).unwrap_or_default()
}

/// Begins to balance the pool, or tells what that would move.
pub(super) fn balance(server: &Server, dry_run: bool) -> Result<Reply> {
    let doing = "cannot balance the pool";
    let chunks = server.pool.planned_balance();
    let of = |Shift { from, onto, chunks }: &Shift| {
        let (from, onto, bytes) = (*from, *onto, chunks * CHUNK_BYTES);
        MoveFigures { from, onto, bytes }
    };
    let moves: Vec<MoveFigures> = chunks.iter().map(of).collect();
    let is_uneven = match dry_run {
        true => !moves.is_empty(),
        false => server.pool.balance().map_err(|error| engine_errors::failed(doing, &error))?,
    };
    Ok(Reply::Balance { is_uneven, moves })
}

/// Ends a balance.
pub(super) fn stop_balance(server: &Server) -> Result<Reply> {
    let doing = "cannot stop balancing the pool";
    server.pool.stop_balance().map_err(|error| engine_errors::failed(doing, &error))?;
    Ok(Reply::Done {})
}

/// Makes one device of each mirror a device of a new pool, or tells which these would be.
pub(super) fn split(server: &Server, name: &str, numbers: &[u16], dry_run: bool) -> Result<Reply> {
    let failed = |error| engine_errors::failed("cannot split the pool", &error);
    if dry_run {
        let chosen = server.pool.planned_split(numbers).map_err(failed)?;
        let devices = chosen.into_iter().map(|number| path_of(server, number)).collect::<Result<_>>()?;
        return Ok(Reply::Split { guid: String::new(), devices });
    }
    let guid = Guid(pools::random()?);
    let devices = server.pool.split(name, guid, numbers).map_err(failed)?;
    Ok(Reply::Split { guid: guid.to_string(), devices })
}

/// Tells what a change would copy. Errors are the change's own.
pub(super) fn plan(server: &Server, change: &DeviceChange) -> Result<Reply> {
    let (doing, planned) = match change {
        DeviceChange::Give { place, path, size_bytes } => {
            let (beside, replace) = match *place {
                DevicePlace::Beside(number) => (number, false),
                DevicePlace::InPlaceOf(number) => (number, true),
                DevicePlace::Own => {
                    return Err(Failure::new("a device that comes back is named by its number"));
                }
            };
            let planned = MirrorChange::Attach { beside, path, size_bytes: *size_bytes, replace };
            (cannot_use(path), planned)
        }
        DeviceChange::Detach(number) => {
            (about(server, *number, CANNOT_DETACH)?, MirrorChange::Detach(*number))
        }
        DeviceChange::Offline(number) => {
            (about(server, *number, CANNOT_LEAVE)?, MirrorChange::Offline(*number))
        }
        DeviceChange::Online(number) => {
            (cannot_use(&path_of(server, *number)?), MirrorChange::Online(*number))
        }
    };
    let copied_bytes =
        server.pool.planned_change(planned).map_err(|error| engine_errors::failed(doing, &error))?;
    Ok(Reply::Planned { copied_bytes })
}

fn about(server: &Server, number: u16, doing: &str) -> Result<String> {
    Ok(with_path(&path_of(server, number)?, doing))
}

fn cannot_use(path: &Path) -> String {
    format!("cannot use {}", shown(path))
}

/// Removes a device from its mirror.
pub(super) fn detach(server: &Server, number: u16) -> Result<Reply> {
    let path = path_of(server, number)?;
    told(&path, CANNOT_DETACH, server.pool.detach(number))?;
    Ok(Reply::Done {})
}

fn path_of(server: &Server, number: u16) -> Result<std::path::PathBuf> {
    let all = server.pool.device_status();
    let found = all.into_iter().find(|device| device.number == number);
    found
        .map(|device| device.path)
        .ok_or_else(|| Failure::new(format!("the pool has no device number {number}")))
}

fn told(path: &Path, doing: &str, done: EngineResult<()>) -> Result<()> {
    done.map_err(|error| engine_errors::failed(with_path(path, doing), &error))
}

fn with_path(path: &Path, doing: &str) -> String {
    if path.as_os_str().is_empty() { doing.into() } else { format!("{}: {doing}", shown(path)) }
}
