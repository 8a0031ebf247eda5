//! The server's answers to control requests.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pagefold_engine::pool::MemoryUse;

use super::export::{MountRequest, VersionFile};
use super::exports::Attached;
use super::mounted::Mounted;
use super::server::Server;
use super::{devices, recompress, remount, rewriting};
use crate::control::{
    FileRewrite, FileUsage, Handler, MemoryFigures, MountFigures, PoolFigures, Reply, Request, UnmountMode,
};
use crate::failure::{Failure, Result};
use crate::operations::Mounts;
use crate::{dataset_figures, engine_errors, models, names, pool_errors, pool_status, raw, streams, units};

/// Largest number of inodes in one request.
const USAGE_INODES_MAX: usize = 16_384;

/// The handler of control requests for a server.
pub(crate) struct Answers(pub Arc<Server>);

impl Handler for Answers {
    fn handle(&self, request: Request) -> Reply {
        self.answer(request).unwrap_or_else(|failure| refusal(&failure))
    }

    fn stream(&self, request: Request, connection: &UnixStream) -> Reply {
        self.answer_stream(&request, connection).unwrap_or_else(|failure| refusal(&failure))
    }
}

fn refusal(failure: &Failure) -> Reply {
    Reply::Error { what: failure.what().to_owned(), hint: failure.advice().map(str::to_owned) }
}

impl Answers {
    fn answer(&self, request: Request) -> Result<Reply> {
        let server = &self.0;
        Ok(match request {
            Request::Status {} => Reply::Status { figures: Box::new(self.figures()) },
            Request::Counters {} => {
                Reply::Counters { activity: pool_status::activity(&server.pool, self.age_ms()) }
            }
            Request::Models {} => Reply::Models { all: models::figures(&server.pool)? },
            Request::Properties { path } => Reply::Properties { values: server.properties.of(&path)? },
            Request::Set { path, name, value } => {
                server.set_property(&path, &name, &value)?;
                Reply::Done {}
            }
            Request::Datasets {} => Reply::Datasets {
                all: dataset_figures::all(&server.pool, &|id| server.exports.mounted_at(id))?,
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
            Request::Unmount { devices, mode } => self.unmount(&devices, mode)?,
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
                let of = server.exports.of(device)?;
                Reply::Usage { files: inodes.into_iter().map(|ino| usage(&of, ino)).collect() }
            }
            Request::Survey { device, inodes } => {
                let of = server.exports.of(device)?;
                Reply::Survey {
                    files: inodes.into_iter().map(|ino| recompress::survey(&server.pool, &of, ino)).collect(),
                }
            }
            Request::Codecs { device, inodes, from } => {
                recompress::codecs(&server.pool, &*server.exports.of(device)?, &inodes, from)
            }
            Request::Recompress { device, inodes, from } => {
                recompress::recompress(&server.pool, &*server.exports.of(device)?, &inodes, from)?
            }
            Request::ScrubStart { rate } => self.scrub_start(rate)?,
            Request::ScrubStop {} => self.scrub_stop()?,
            Request::TrimStart { rate } => self.trim_start(rate)?,
            Request::TrimStop {} => self.trim_stop()?,
            Request::Clear { device, now } => {
                let (devices, struck) = pool_errors::clear(&server.pool, device, now)?;
                Reply::Cleared { devices, struck }
            }
            Request::OfflineDevice { device, release } => devices::offline(server, device, release)?,
            Request::GrowDevice { device } => devices::grow(server, device)?,
            Request::RemoveGroup { group } => devices::remove_group(server, group)?,
            Request::KeepGroup { group } => devices::keep_group(server, group)?,
            Request::Balance { dry_run } => devices::balance(server, dry_run)?,
            Request::StopBalance {} => devices::stop_balance(server)?,
            Request::Split { name, devices, dry_run } => devices::split(server, &name, &devices, dry_run)?,
            Request::PlanChange { change } => devices::plan(server, &change)?,
            Request::DetachDevice { device } => devices::detach(server, device)?,
            Request::RemoveSpare { id } => devices::remove_spare(server, &id)?,
            Request::SendSize { what } => {
                Reply::Stream { expected_bytes: streams::expected(&server.pool, &what)? }
            }
            Request::Await { devices, wait_ms } => {
                server.exports.await_end(&devices, Duration::from_millis(wait_ms.into()))?
            }
            Request::Remount { device, options, dry_run } => {
                remount::remount(server, device, &options, dry_run)?
            }
            Request::ReadOnly { device, on } => {
                server.exports.of(device)?.set_read_only(&server.pool, on)?;
                Reply::Done {}
            }
            Request::Send { .. }
            | Request::AddDevice { .. }
            | Request::AddGroups { .. }
            | Request::AddSpares { .. }
            | Request::AddLogDevice { .. }
            | Request::Receive { .. }
            | Request::Diff { .. }
            | Request::Rebase { .. }
            | Request::Rewrite { .. } => {
                return Err(Failure::new("that is answered at length"));
            }
        })
    }
}

/// Logs how a stream has ended. A rewrite is told in words that its user knows.
fn log_end(request: &Request, done: &Result<Reply>) {
    match (request, done) {
        (Request::Rewrite { what }, done) => {
            let FileRewrite { path, recordsize, .. } = what;
            let (file, recordsize) = (raw::shown(path), units::size((*recordsize).into()));
            match done {
                Ok(_) => tracing::info!(file, recordsize, "a file was rewritten"),
                Err(failure) => {
                    tracing::warn!(file, recordsize, reason = failure.what(), "a file was not rewritten");
                }
            }
        }
        (request, Ok(_)) => tracing::info!(?request, "done"),
        (request, Err(failure)) => tracing::warn!(?request, failure = failure.what(), "failed"),
    }
}

impl Answers {
    /// Carries out a request for which [`Request::is_stream`] is true; returns the last reply.
    fn answer_stream(&self, request: &Request, connection: &UnixStream) -> Result<Reply> {
        let streaming = self.0.streaming();
        let done = match request {
            Request::Send { what } => streaming.send(what, connection),
            Request::Receive { path, force } => streaming.receive(path, *force, connection),
            Request::Diff { old, new, ranges } => streaming.diff((old, new), *ranges, connection),
            Request::Rebase { what } => streaming.rebase(what, connection),
            Request::Rewrite { what } => rewriting::rewrite(streaming, what, connection),
            Request::AddDevice { path, place } => devices::add(&self.0, path, *place, connection),
            Request::AddSpares { paths } => devices::add_spares(&self.0, paths, connection),
            Request::AddLogDevice { paths } => devices::add_log_device(&self.0, paths, connection),
            Request::AddGroups { paths, groups } => devices::add_groups(&self.0, paths, groups, connection),
            _ => Err(Failure::new("that is no stream")),
        };
        log_end(request, &done);
        done
    }

    fn figures(&self) -> PoolFigures {
        let server = &self.0;
        let mounts: Vec<MountFigures> =
            server.exports.all().iter().map(|mounted| self.mount_figures(mounted)).collect();
        let mounts = if server.exports.is_serving() { mounts } else { Vec::new() };
        PoolFigures {
            pid: Some(std::process::id()),
            takeover: Some(server.handover.figures()),
            confinement: Some(server.confinement.clone()),
            memory: Some(memory(&server.pool.memory())),
            mount: mounts.iter().find(|mount| mount.path.is_empty()).or(mounts.first()).cloned(),
            mounts,
            ..pool_status::figures(&server.pool)
        }
    }

    fn mount_figures(&self, mounted: &Mounted) -> MountFigures {
        let path = self.0.pool.path_of(mounted.id).unwrap_or_default();
        let mut places = mounted.places().into_iter();
        let detached = places.len() == 0;
        let dir = places.next().unwrap_or_else(|| mounted.export.place().to_owned());
        MountFigures {
            name: names::full(self.0.pool.name(), &path),
            path,
            dir,
            also_at: places.collect(),
            detached,
            device: mounted.export.device(),
            read_only: mounted.is_read_only(),
            pid: std::process::id(),
            since: mounted.since,
            transport: mounted.export.transport().into(),
        }
    }

    fn scrub_start(&self, rate: u64) -> Result<Reply> {
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        self.0.pool.scrub_start(now, rate).map_err(|error| engine_errors::failed("cannot scrub", &error))?;
        Ok(Reply::Done {})
    }

    fn scrub_stop(&self) -> Result<Reply> {
        match self.0.pool.scrub_stop() {
            Ok(true) => Ok(Reply::Done {}),
            Ok(false) => Err(Failure::new("no scrub is under way")),
            Err(error) => Err(engine_errors::failed("cannot stop the scrub", &error)),
        }
    }

    fn trim_start(&self, rate: u64) -> Result<Reply> {
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        self.0.pool.trim_start(now, rate).map_err(|error| engine_errors::failed("cannot trim", &error))?;
        Ok(Reply::Done {})
    }

    fn trim_stop(&self) -> Result<Reply> {
        if self.0.pool.trim_stop() { Ok(Reply::Done {}) } else { Err(Failure::new("no trim is under way")) }
    }

    fn age_ms(&self) -> u64 {
        u64::try_from(self.0.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn unmount(&self, devices: &[u32], mode: UnmountMode) -> Result<Reply> {
        let server = &self.0;
        let all = server.exports.all();
        let of = |mounted: &&Arc<Mounted>| devices.is_empty() || devices.contains(&mounted.export.device());
        let mounts: Vec<Arc<Mounted>> = all.iter().filter(of).cloned().collect();
        Ok(match server.detach(&mounts, mode).map_err(Failure::new)? {
            Some(dir) => Reply::Busy { dir },
            None if mode == UnmountMode::Lazy => Reply::Done {},
            None if server.exports.wait_until_gone(&mounts).map_err(Failure::new)? => Reply::Closed {},
            None if server.exports.only_streams() => Reply::Streaming {},
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
fn usage(of: &Mounted, ino: u64) -> Option<FileUsage> {
    let VersionFile { fs, ino, .. } = of.file(ino)?;
    let attr = fs.getattr(ino).ok()?;
    let usage = fs.usage(ino).ok()?;
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
