//! The server's answers to control requests.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pagefold_engine::pool::MemoryUse;
use pagefold_fs::Ino;

use super::mounted::{MountRequest, Mounted};
use super::server::{Attached, Server};
use crate::control::{
    FileUsage, Handler, MemoryFigures, MountFigures, PoolFigures, Reply, Request, UnmountMode,
};
use crate::failure::{Failure, Result};
use crate::{dataset_properties, datasets, engine_errors, models, names, pool_errors, pool_status, streams};

/// Largest number of inodes in one request.
const USAGE_INODES_MAX: usize = 16_384;

/// The handler of control requests for a server.
pub struct Answers(pub Arc<Server>);

impl Handler for Answers {
    fn handle(&self, request: Request) -> Reply {
        self.answer(request).unwrap_or_else(|failure| refusal(&failure))
    }

    fn stream(&self, request: Request, connection: &UnixStream) -> Reply {
        self.0.stream(&request, connection).unwrap_or_else(|failure| refusal(&failure))
    }
}

fn refusal(failure: &Failure) -> Reply {
    Reply::Error { what: failure.what().to_owned(), hint: failure.advice().map(str::to_owned) }
}

impl Answers {
    fn answer(&self, request: Request) -> Result<Reply> {
        let server = &self.0;
        Ok(match request {
            Request::Status {} => Reply::Status { figures: Box::new(server.figures()) },
            Request::Counters {} => {
                Reply::Counters { activity: pool_status::activity(&server.pool, server.age_ms()) }
            }
            Request::Models {} => Reply::Models { all: models::figures(&server.pool)? },
            Request::Properties { path } => Reply::Properties { values: server.properties(&path)? },
            Request::Set { path, name, value } => {
                server.set_property(&path, &name, &value)?;
                Reply::Done {}
            }
            Request::Datasets {} => Reply::Datasets {
                all: datasets::all(&server.pool, &|id| server.mounted_at(id))?,
                partials: streams::partials(&server.pool),
            },
            Request::Operation { operation } => Reply::Operation { outcome: server.perform(&operation)? },
            Request::Sync {} => {
                server.sync().map_err(Failure::new)?;
                Reply::Done {}
            }
            Request::Restart {} => {
                server.restart()?;
                Reply::Done {}
            }
            Request::Mount { path, dir, options } => {
                let options = server.mount_options(&options)?;
                match server.mount(&MountRequest { path, dir, options })? {
                    Attached::Mounted => Reply::Done {},
                    Attached::Ending => Reply::Ending {},
                    Attached::There(dir, device, read_only) => Reply::There { dir, device, read_only },
                    Attached::StillUsed(device) => Reply::Waiting { devices: vec![device] },
                }
            }
            Request::Unmount { devices, mode } => server.unmount(&devices, mode)?,
            Request::Events { after, wait_ms } => {
                let (events, lost) = server.ring.after(after, Duration::from_millis(wait_ms.into()));
                Reply::Events { events, lost }
            }
            Request::Usage { inodes, .. }
            | Request::Survey { inodes, .. }
            | Request::Codecs { inodes, .. }
            | Request::Recompress { inodes, .. }
                if inodes.len() > USAGE_INODES_MAX =>
            {
                return Err(Failure::new(format!("{} inodes are too many for one question", inodes.len())));
            }
            Request::Usage { device, inodes } => {
                let of = server.mount_of(device)?;
                Reply::Usage { files: inodes.into_iter().map(|ino| usage(&of, Ino(ino))).collect() }
            }
            Request::Survey { device, inodes } => {
                let of = server.mount_of(device)?;
                Reply::Survey { files: inodes.into_iter().map(|ino| server.survey(&of, Ino(ino))).collect() }
            }
            Request::Codecs { device, inodes, from } => {
                server.codecs(&*server.mount_of(device)?, &inodes, from)
            }
            Request::Recompress { device, inodes, from } => {
                server.recompress(&*server.mount_of(device)?, &inodes, from)
            }
            Request::ScrubStart { rate } => server.scrub_start(rate)?,
            Request::ScrubStop {} => server.scrub_stop()?,
            Request::TrimStart { rate } => server.trim_start(rate)?,
            Request::TrimStop {} => server.trim_stop()?,
            Request::Clear { device, now } => {
                let (devices, struck) = pool_errors::clear(&server.pool, device, now)?;
                Reply::Cleared { devices, struck }
            }
            Request::SendSize { what } => {
                Reply::Stream { expected_bytes: streams::expected(&server.pool, &what)? }
            }
            Request::Await { devices, wait_ms } => {
                server.await_end(&devices, Duration::from_millis(wait_ms.into()))?
            }
            Request::Remount { device, options, dry_run } => server.remount(device, &options, dry_run)?,
            Request::ReadOnly { device, on } => {
                server.mount_of(device)?.set_read_only(server, on)?;
                Reply::Done {}
            }
            Request::Send { .. }
            | Request::Receive { .. }
            | Request::Diff { .. }
            | Request::Rebase { .. }
            | Request::Rewrite { .. } => {
                return Err(Failure::new("that is answered at length"));
            }
        })
    }
}

impl Server {
    fn figures(&self) -> PoolFigures {
        let mounts: Vec<MountFigures> =
            self.mounts().iter().map(|mounted| self.mount_figures(mounted)).collect();
        let mounts = if self.is_serving() { mounts } else { Vec::new() };
        PoolFigures {
            pid: Some(std::process::id()),
            takeover: Some(self.handover.figures()),
            confinement: Some(self.confinement.clone()),
            memory: Some(memory(&self.pool.memory())),
            mount: mounts.iter().find(|mount| mount.path.is_empty()).or(mounts.first()).cloned(),
            mounts,
            ..pool_status::figures(&self.pool)
        }
    }

    fn mount_figures(&self, mounted: &Mounted) -> MountFigures {
        let path = self.pool.path_of(mounted.id).unwrap_or_default();
        let mut places = mounted.places().into_iter();
        let dir = places.next().unwrap_or_else(|| mounted.session.dir().to_owned());
        MountFigures {
            name: names::full(self.pool.name(), &path),
            path,
            dir,
            also_at: places.collect(),
            device: mounted.session.device_minor(),
            read_only: mounted.is_read_only(),
            pid: std::process::id(),
            since: mounted.since,
            transport: (if mounted.session.agreement().over_ring() { "io_uring" } else { "/dev/fuse" })
                .into(),
        }
    }

    fn scrub_start(&self, rate: u64) -> Result<Reply> {
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        self.pool.scrub_start(now, rate).map_err(|error| engine_errors::failed("cannot scrub", &error))?;
        Ok(Reply::Done {})
    }

    fn scrub_stop(&self) -> Result<Reply> {
        match self.pool.scrub_stop() {
            Ok(true) => Ok(Reply::Done {}),
            Ok(false) => Err(Failure::new("no scrub is under way")),
            Err(error) => Err(engine_errors::failed("cannot stop the scrub", &error)),
        }
    }

    fn trim_start(&self, rate: u64) -> Result<Reply> {
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        self.pool.trim_start(now, rate).map_err(|error| engine_errors::failed("cannot trim", &error))?;
        Ok(Reply::Done {})
    }

    fn trim_stop(&self) -> Result<Reply> {
        if self.pool.trim_stop() { Ok(Reply::Done {}) } else { Err(Failure::new("no trim is under way")) }
    }

    fn age_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the properties of a dataset or snapshot, with those that hold for its mount.
    fn properties(&self, path: &str) -> Result<Vec<crate::control::PropertyValue>> {
        let mounted = self
            .mounts()
            .into_iter()
            .find(|mounted| self.pool.path_of(mounted.id).is_some_and(|of| of == path));
        let mut temporary = mounted.map(|mounted| mounted.temporary()).unwrap_or_default();
        // The last of a name counts: a remount changes those of the whole pool here, and not in the mount's own options.
        temporary.extend(self.temporary.lock().iter().cloned());
        dataset_properties::all(&self.pool, path, &temporary)
    }

    fn unmount(&self, devices: &[u32], mode: UnmountMode) -> Result<Reply> {
        let all = self.mounts();
        let of =
            |mounted: &&Arc<Mounted>| devices.is_empty() || devices.contains(&mounted.session.device_minor());
        let mounts: Vec<Arc<Mounted>> = all.iter().filter(of).cloned().collect();
        Ok(match self.detach(&mounts, mode).map_err(Failure::new)? {
            Some(dir) => Reply::Busy { dir },
            None if mode == UnmountMode::Lazy => Reply::Done {},
            None if self.wait_until_gone(&mounts).map_err(Failure::new)? => Reply::Closed {},
            None if self.only_streams() => Reply::Streaming {},
            None => Reply::Done {},
        })
    }
}

fn memory(used: &MemoryUse) -> MemoryFigures {
    MemoryFigures {
        budget_bytes: used.budget_bytes,
        resident_bytes: used.resident_bytes,
        counted_bytes: used.counted_bytes(),
        records_bytes: used.records_bytes,
        pages_bytes: used.pages_bytes,
        nodes_bytes: used.nodes_bytes,
        changed_nodes_bytes: used.changed_nodes_bytes,
        directories_bytes: used.directories_bytes,
        models_bytes: used.models_bytes,
        accepted_bytes: used.accepted_bytes,
        journal_bytes: used.journal_bytes,
        segments_bytes: used.segments_bytes,
        catalogue_bytes: used.catalogue_bytes,
        device_buffers_bytes: used.device_buffers_bytes,
        inodes_bytes: used.inodes_bytes,
        requests_bytes: used.requests_bytes,
        other_bytes: used.other_bytes(),
        given_up_bytes: used.given_up_bytes,
    }
}

/// Returns the space that one file takes; `None` if it is no regular file.
fn usage(of: &Mounted, ino: Ino) -> Option<FileUsage> {
    let attr = of.fs.getattr(ino).ok()?;
    let usage = of.fs.usage(ino).ok()?;
    let pages_bytes = usage.pages.saturating_mul(attr.blksize.into());
    // The last page may reach beyond the end of the file.
    let end = attr.size.next_multiple_of(u64::from(attr.blksize).max(1));
    let tail = if pages_bytes >= end { end - attr.size } else { 0 };
    Some(FileUsage {
        size_bytes: attr.size,
        logical_bytes: pages_bytes.saturating_sub(tail),
        stored_bytes: usage.stored_bytes,
        record_size: attr.blksize,
    })
}
