//! The server's answers to control requests.

use std::time::Duration;

use pagefold_fs::Ino;

use super::server::Server;
use crate::control::{FileUsage, Handler, MountFigures, PoolFigures, Reply, Request, UnmountMode};
use crate::failure::Failure;
use crate::pools;

/// Inodes accounted for in one request.
const USAGE_INODES_MAX: usize = 16_384;

impl Handler for Server {
    fn handle(&self, request: Request) -> Reply {
        match request {
            Request::Status {} => Reply::Status { figures: Box::new(self.figures()) },
            Request::Counters {} => Reply::Counters { activity: pools::activity(&self.pool, self.age_ms()) },
            Request::Properties {} => match pools::properties(&self.pool, &self.options.properties) {
                Ok(values) => Reply::Properties { values },
                Err(failure) => refusal(&failure),
            },
            Request::Set { name, value } => match self.set_property(&name, &value) {
                Ok(()) => Reply::Done {},
                Err(failure) => refusal(&failure),
            },
            Request::Sync {} => done(self.sync()),
            Request::Unmount { mode } => self.unmount(mode),
            Request::Events { after, wait_ms } => {
                let (events, lost) = self.ring.after(after, Duration::from_millis(wait_ms.into()));
                Reply::Events { events, lost }
            }
            Request::Usage { inodes } | Request::Survey { inodes } | Request::Fold { inodes, .. }
                if inodes.len() > USAGE_INODES_MAX =>
            {
                done(Err(format!("{} inodes are too many for one question", inodes.len())))
            }
            Request::Usage { inodes } => {
                Reply::Usage { files: inodes.into_iter().map(|ino| self.usage(Ino(ino))).collect() }
            }
            Request::Survey { inodes } => {
                Reply::Survey { files: inodes.into_iter().map(|ino| self.survey(Ino(ino))).collect() }
            }
            Request::Fold { inodes, from } => self.fold(&inodes, from),
        }
    }
}

impl Server {
    fn figures(&self) -> PoolFigures {
        let mount = MountFigures {
            dir: self.session.dir().to_owned(),
            read_only: self.read_only,
            pid: std::process::id(),
            since: self.since,
            transport: (if self.session.agreement().over_ring() { "io_uring" } else { "/dev/fuse" }).into(),
        };
        let mount = self.is_serving().then_some(mount);
        PoolFigures { mount, ..pools::figures(&self.pool.status()) }
    }

    fn age_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn unmount(&self, mode: UnmountMode) -> Reply {
        match self.detach(mode) {
            Ok(false) => Reply::Busy {},
            Ok(true) if mode == UnmountMode::Lazy => Reply::Done {},
            Ok(true) => done(self.wait_until_closed()),
            Err(what) => done(Err(what)),
        }
    }

    /// What one file takes; `None` for what is no regular file.
    fn usage(&self, ino: Ino) -> Option<FileUsage> {
        let attr = self.fs.getattr(ino).ok()?;
        let usage = self.fs.usage(ino).ok()?;
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
}

fn done(outcome: Result<(), String>) -> Reply {
    match outcome {
        Ok(()) => Reply::Done {},
        Err(what) => Reply::Error { what, hint: None },
    }
}

fn refusal(failure: &Failure) -> Reply {
    Reply::Error { what: failure.what().to_owned(), hint: failure.advice().map(str::to_owned) }
}
