//! Carries out calls that only read names and attributes, list directories, or look for data.

use super::convert::{attr_out, entry_out, no_entry, statx_out};
use super::directory::Listing;
use super::{answer, failed};
use crate::operation::Query;
use crate::protocol as p;
use crate::{Errno, Request};
use pagefold_fs::{Fs, FsError, Ino, Seek};

/// Answers a query about `ino`.
pub(super) fn answer_query(fs: &Fs, ino: Ino, request: Request, query: Query) {
    match query {
        Query::Lookup { name } => match fs.lookup(ino, request.argument(name)) {
            Err(FsError::NotFound) => request.answer(&no_entry()),
            found => answer(request, found, entry_out),
        },
        Query::Attributes => answer(request, fs.getattr(ino), attr_out),
        Query::StatX { .. } => answer(request, fs.getattr(ino), statx_out),
        Query::ReadLink => read_link(fs, ino, request),
        Query::GetXattr { name, size } => {
            let value = fs.getxattr(ino, request.argument(name));
            sized(request, value, size);
        }
        Query::ListXattr { size } => {
            let names = fs.listxattr(ino).map(|names| listed_to(request.uid(), names));
            sized(request, names, size);
        }
        Query::Seek { offset, whence } => {
            let found = match whence.cast_signed() {
                libc::SEEK_DATA => fs.seek(ino, offset, Seek::Data),
                libc::SEEK_HOLE => fs.seek(ino, offset, Seek::Hole),
                _ => Err(FsError::Invalid("whence of lseek(2)")),
            };
            answer(request, found, |&offset| p::LseekOut { offset });
        }
    }
}

fn read_link(fs: &Fs, ino: Ino, request: Request) {
    match fs.readlink(ino) {
        Ok(target) => request.bytes(&target),
        Err(error) => failed(request, &error),
    }
}

/// Lists a directory from `offset` on, in `size` bytes.
pub(super) fn list(fs: &Fs, mut request: Request, (offset, size): (u64, u32), plus: bool) {
    let ino = Ino(request.ino());
    let mut listing = Listing::new(request.payload(size as usize));
    let result = if plus {
        fs.readdirplus(ino, offset, &mut |entry, found| listing.push_plus(entry, found))
    } else {
        fs.readdir(ino, offset, &mut |entry| listing.push(entry))
    };
    let used = listing.used();
    match result {
        Ok(()) => request.payload_filled(used),
        // Entries that were listed are references given, so they must reach the kernel; it meets the error at its next
        // call.
        Err(_) if used > 0 => request.payload_filled(used),
        Err(error) => failed(request, &error),
    }
}

/// Returns the names of attributes that a user may see: `trusted.*` is for root alone, and the kernel does not filter
/// these names.
fn listed_to(uid: u32, names: Vec<u8>) -> Vec<u8> {
    if uid == 0 {
        return names;
    }
    let told = names.split_inclusive(|&b| b == 0).filter(|name| !name.starts_with(b"trusted."));
    told.flatten().copied().collect()
}

/// Answers with bytes, of which the caller can take `size`; a `size` of zero asks for their number.
pub(super) fn sized(request: Request, value: Result<Vec<u8>, FsError>, size: u32) {
    match value {
        Err(error) => failed(request, &error),
        Ok(value) if size == 0 => request.answer(&p::GetxattrOut { size: value.len() as u32, padding: 0 }),
        Ok(value) if value.len() > size as usize => request.error(Errno::RANGE),
        Ok(value) => request.bytes(&value),
    }
}
