//! Answers requests that an earlier process carried out and, because it died, did not answer.

use super::convert::{DIRECT_HANDLE, attr_out};
use super::{answer, done, entry, failed, made_open};
use crate::coherence::{Coherence, Direct};
use crate::operation::Operation;
use crate::protocol as p;
use crate::{Errno, Request};
use pagefold_engine::limits::ATOMIC_WRITE_MAX;
use pagefold_fs::{Fs, Ino};

/// Answers a request without carrying it out again. `result` is what the file system noted: the inode that was made, or
/// the number of bytes that were copied.
pub(super) fn answer_done(fs: &Fs, coherence: &Coherence, request: Request, result: u64) {
    // The request may have asked for durability. That is rare, and only code that is skipped here could tell: so
    // everything is made durable.
    if let Err(error) = fs.sync() {
        return failed(request, &error);
    }
    let ino = Ino(request.ino());
    let made = (result != 0).then_some(Ino(result));
    tracing::info!(?request, "carried out before, and answered now");
    let Ok(operation) = request.operation() else { return request.error(Errno::INVAL) };
    match operation {
        Operation::Write { offset, data, handle, from_cache, .. } => {
            let size = data.len().min(ATOMIC_WRITE_MAX) as u32;
            // Only the process that died knew which reads ran beside the write.
            if !from_cache {
                let opened_direct = handle == DIRECT_HANDLE;
                coherence.drop_pages(&Direct { ino: ino.0, offset, len: size.into(), opened_direct });
            }
            request.answer(&p::WriteOut { size, padding: 0 });
        }
        Operation::SetAttributes(_) => answer(request, fs.getattr(ino), attr_out),
        Operation::Symlink { name, .. }
        | Operation::MakeNode { name, .. }
        | Operation::MakeDir { name, .. }
        | Operation::Link { new_name: name, .. } => {
            let made = fs.entry_again(made, ino, name, false);
            entry(request, made);
        }
        Operation::Create { name, flags, .. } => {
            let made = fs.entry_again(made, ino, name, true);
            made_open(coherence, request, made, flags);
        }
        Operation::TemporaryFile { flags, .. } => {
            let made = fs.entry_again(made, ino, b"", true);
            made_open(coherence, request, made, flags);
        }
        Operation::CopyFileRange { wide: false, .. } => {
            request.answer(&p::WriteOut { size: result as u32, padding: 0 });
        }
        Operation::CopyFileRange { wide: true, .. } => {
            request.answer(&p::CopyFileRangeOut { bytes_copied: result });
        }
        // The answers to other requests say only that they were carried out.
        _ => done(request, Ok(())),
    }
}
