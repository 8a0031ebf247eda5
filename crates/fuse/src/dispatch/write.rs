//! Carries out writes: applies them, makes them durable if that is asked for, and answers when the kernel has dropped
//! what it had cached of them.

use super::answer;
use super::convert::DIRECT_HANDLE;
use crate::coherence::{Coherence, Direct, Stale};
use crate::operation::Write;
use crate::protocol as p;
use crate::{Blocking, Request, Wait};
use pagefold_fs::{Fs, FsError, Ino, WriteFlags, Written};
use std::sync::Arc;

/// Everything that a write needs beside its request.
#[derive(Clone)]
pub(super) struct Writer {
    pub(super) fs: Arc<Fs>,
    pub(super) coherence: Arc<Coherence>,
    pub(super) blocking: Blocking,
    /// True if the kernel sends FSYNC after synchronous buffered writes by itself.
    pub(super) kernel_syncs: bool,
}

impl Writer {
    /// Writes. If the file was opened with O_SYNC or O_DSYNC (or pwritev2(2) asks for it), the data is made durable
    /// before the answer, unless the kernel sends FSYNC after the write by itself.
    pub(super) fn write(self, mut request: Request, write: Write) {
        let Write { offset, data, handle, flags, write_back, from_cache, kill_privileges } = write;
        let ino = Ino(request.ino());
        // O_APPEND needs nothing: the kernel holds the inode's lock and knows the size, so `offset` is the end.
        let how = WriteFlags { append: false, kill_suid: kill_privileges };
        let written = self.fs.write(ino, offset, request.argument(data), how);
        let has = |flag: i32| flags & flag.cast_unsigned() != 0;
        let direct = handle == DIRECT_HANDLE || has(libc::O_DIRECT);
        if direct {
            self.coherence.direct.used(ino.0);
        }
        let durable = has(libc::O_DSYNC) && !write_back && (direct || !self.kernel_syncs);
        let (fs, caller) = (Arc::clone(&self.fs), self.blocking.caller());
        let reply = move |mut request: Request, written: Result<Written, FsError>| match written {
            Ok(written) if durable => {
                request.park();
                fs.fsync_then((ino, true), caller, move |synced| {
                    answer(request, synced.map(|()| written), answered);
                });
            }
            written => answer(request, written, answered),
        };
        let len = written.as_ref().map_or(0, |done| done.len as u64);
        let write = Direct { ino: ino.0, offset, len, opened_direct: handle == DIRECT_HANDLE };
        if written.is_err() {
            reply(request, written);
        } else if !from_cache {
            self.in_time(request, write, move |request| reply(request, written));
        } else if !write_back && self.coherence.was_read_beside(request.sent(), &write) {
            // The mark is dropped, because the write must not wait for itself.
            request.unmark();
            let reply = move |request| reply(request, written);
            dropped(self.coherence, &self.blocking, request, write, reply);
        } else {
            reply(request, written);
        }
    }

    /// Calls `go_on` when the kernel has nothing cached any more that is older than `write`, which was applied.
    fn in_time(self, request: Request, write: Direct, go_on: impl FnOnce(Request) + Send + 'static) {
        match self.coherence.stale(request.sent(), &write) {
            Stale::Nothing => {}
            Stale::Attributes => self.coherence.drop_attributes(write.ino),
            Stale::Pages => return dropped(self.coherence, &self.blocking, request, write, go_on),
        }
        go_on(request);
    }
}

/// Calls `go_on`, which must not wait, when the kernel has dropped what it had cached of the range of `write`.
pub(super) fn dropped(
    coherence: Arc<Coherence>,
    blocking: &Blocking,
    request: Request,
    write: Direct,
    go_on: impl FnOnce(Request) + Send + 'static,
) {
    blocking.run(Wait::Drop, move || {
        coherence.drop_pages(&write);
        go_on(request);
    });
}

fn answered(written: &Written) -> p::WriteOut {
    p::WriteOut { size: written.len as u32, padding: 0 }
}
