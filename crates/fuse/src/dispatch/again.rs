//! Answers requests that an earlier process carried out and, because it died, did not answer.

use super::change::{entry, made_open};
use super::convert::{DIRECT_HANDLE, attr_out};
use super::write::dropped;
use super::{answer, done, failed};
use crate::coherence::{Coherence, Direct};
use crate::operation::{Change, Create, Operation, Write};
use crate::protocol as p;
use crate::{Blocking, Request};
use pagefold_engine::limits::ATOMIC_WRITE_MAX;
use pagefold_fs::{Fs, Ino};
use std::sync::Arc;

/// Answers a request without carrying it out again. `result` is what the file system noted: the inode that was made, or
/// the number of bytes that were copied.
pub(super) fn answer_done(
    fs: &Fs,
    (coherence, blocking): (Arc<Coherence>, &Blocking),
    request: Request,
    operation: Operation,
    result: u64,
) {
    // The request may have asked for durability. That is rare, and only code that is skipped here could tell: so
    // everything is made durable.
    if let Err(error) = fs.sync() {
        if let Operation::Create(Create::Temporary { .. }) = operation {
            fs.release(Ino(result));
        }
        return failed(request, &error);
    }
    let ino = Ino(request.ino());
    let made = (result != 0).then_some(Ino(result));
    tracing::info!(?request, "carried out before, and answered now");
    match operation {
        Operation::Write(Write { offset, data, handle, from_cache, .. }) => {
            let size = data.len().min(ATOMIC_WRITE_MAX as u32);
            let written = move |request: Request| request.answer(&p::WriteOut { size, padding: 0 });
            if from_cache {
                return written(request);
            }
            // Only the process that died knew which reads ran beside the write.
            let opened_direct = handle == DIRECT_HANDLE;
            let write = Direct { ino: ino.0, offset, len: size.into(), opened_direct };
            dropped(coherence, blocking, request, write, written);
        }
        Operation::Change(change) => answer_change(fs, request, change, result),
        Operation::Create(Create::Named { name, flags, .. }) => {
            let made = fs.entry_again(made, ino, request.argument(name), true);
            made_open(&coherence, request, made, flags);
        }
        Operation::Create(Create::Temporary { flags, .. }) => {
            // It is open since the mount was taken over.
            let made = fs.entry_again(made, ino, b"", false);
            made_open(&coherence, request, made, flags);
        }
        // These change nothing, so no process notes that it carried one out.
        Operation::Read { .. }
        | Operation::Query(_)
        | Operation::ReadDir { .. }
        | Operation::Open { .. }
        | Operation::Release { .. }
        | Operation::OpenDir
        | Operation::ReleaseDir
        | Operation::Flush
        | Operation::Sync { .. }
        | Operation::SyncDir
        | Operation::SyncFs
        | Operation::StatFs
        | Operation::Forget { .. }
        | Operation::BatchForget(_)
        | Operation::Interrupt { .. }
        | Operation::Init(_)
        | Operation::Destroy
        | Operation::NotOffered(_) => done(request, Ok(())),
    }
}

fn answer_change(fs: &Fs, request: Request, change: Change, result: u64) {
    let ino = Ino(request.ino());
    let made = (result != 0).then_some(Ino(result));
    match change {
        Change::Attributes(_) => answer(request, fs.getattr(ino), attr_out),
        Change::Symlink { name, .. }
        | Change::MakeNode { name, .. }
        | Change::MakeDir { name, .. }
        | Change::Link { new_name: name, .. } => {
            let made = fs.entry_again(made, ino, request.argument(name), false);
            entry(request, made);
        }
        Change::CopyFileRange { wide: false, .. } => {
            request.answer(&p::WriteOut { size: result as u32, padding: 0 });
        }
        Change::CopyFileRange { wide: true, .. } => {
            request.answer(&p::CopyFileRangeOut { bytes_copied: result });
        }
        // The answers to these say only that they were carried out.
        Change::Unlink { .. }
        | Change::RemoveDir { .. }
        | Change::Rename { .. }
        | Change::SetXattr { .. }
        | Change::RemoveXattr { .. }
        | Change::Allocate { .. } => done(request, Ok(())),
    }
}
