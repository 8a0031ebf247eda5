//! Answers to requests for snapshots, and for the directories above them.

use pagefold_fs::{Attr, DirEntry, Entry, FileKind, Fs, FsError, Ino, OpenFlags, Time};

use super::super::convert::{attr_out, entry_out, no_entry, opened, statfs_out, statx_out};
use super::super::directory::Listing;
use super::super::query::{answer_query, sized};
use super::super::{answer, failed, not_offered, read_of};
use super::{
    HIDDEN, INO_BITS, INO_MASK, NAME_VALID_SECS, SNAPSHOT_DIR, SNAPSHOTS, SYNTHETIC, SnapshotTree, is_live,
    node_id,
};
use crate::operation::{Operation, Query};
use crate::{Errno, Request, protocol as p};

/// Operations on a snapshot, or on the directories above: these only look, all others are refused.
#[derive(Clone, Copy)]
enum Inspection {
    Read { offset: u64, size: u32 },
    Query(Query),
    ReadDir { offset: u64, size: u32, plus: bool },
    Open { flags: u32 },
    Release,
    StatFs,
    Refused,
}

impl SnapshotTree {
    pub(super) fn answer(&self, request: Request, operation: Operation) {
        let node = request.ino();
        let operation = match operation {
            Operation::Forget { lookups } => {
                self.forget(node, lookups);
                return request.silent();
            }
            Operation::OpenDir | Operation::Flush => return request.error(Errno::NOSYS),
            Operation::NotOffered(code) => return not_offered(request, code),
            Operation::ReleaseDir | Operation::Sync { .. } | Operation::SyncDir => return request.ok(),
            Operation::Read { offset, size, .. } => Inspection::Read { offset, size },
            Operation::Query(query) => Inspection::Query(query),
            Operation::ReadDir { offset, size, plus } => Inspection::ReadDir { offset, size, plus },
            Operation::Open { flags, .. } => Inspection::Open { flags },
            Operation::Release { .. } => Inspection::Release,
            Operation::StatFs => Inspection::StatFs,
            Operation::Write(_)
            | Operation::Change(_)
            | Operation::Create(_)
            | Operation::SyncFs
            | Operation::BatchForget(_)
            | Operation::Interrupt { .. }
            | Operation::Init(_)
            | Operation::Destroy => Inspection::Refused,
        };
        let place = (node >> INO_BITS) as u16;
        if is_live(node) || place == SYNTHETIC {
            return self.above(request, operation);
        }
        match self.at(place) {
            Ok(fs) => self.within(&fs, place, request, operation),
            Err(error) => failed(request, &error),
        }
    }

    /// Carries out calls on files in a snapshot.
    fn within(&self, fs: &Fs, place: u16, request: Request, operation: Inspection) {
        let ino = Ino(request.ino() & INO_MASK);
        match operation {
            Inspection::Query(query) => self.query_within(fs, place, request, query),
            Inspection::Open { flags } => {
                let read_only = flags & libc::O_ACCMODE.cast_unsigned() == libc::O_RDONLY.cast_unsigned();
                if !read_only || flags & libc::O_TRUNC.cast_unsigned() != 0 {
                    return request.error(Errno::ROFS);
                }
                let how = OpenFlags { truncate: false, exclusive: false, kill_suid: false };
                let found = fs.open(ino, how);
                // This comes before the answer, after which the kernel may close it at once.
                if found.is_ok() {
                    self.opened(place);
                }
                answer(request, found, |_| opened(flags));
            }
            Inspection::Release => {
                fs.release(ino);
                self.closed(place);
                request.ok();
            }
            Inspection::Read { offset, size } => read_of(fs, ino, request, offset, size),
            Inspection::ReadDir { offset, size, plus } => list(fs, place, request, (offset, size), plus),
            Inspection::StatFs => answer(request, fs.statfs(), statfs_out),
            Inspection::Refused => request.error(Errno::ROFS),
        }
    }

    /// Answers a query, with node ids of this mount.
    fn query_within(&self, fs: &Fs, place: u16, request: Request, query: Query) {
        let ino = Ino(request.ino() & INO_MASK);
        let attributes =
            || fs.getattr(ino).and_then(|attr| Ok(Attr { ino: translated_ino(place, ino)?, ..attr }));
        match query {
            Query::Lookup { name } => {
                let found =
                    fs.lookup(ino, request.argument(name)).and_then(|entry| translated(place, &entry));
                match found.and_then(|entry| self.refer(place).map(|()| entry)) {
                    Err(FsError::NotFound) => request.answer(&no_entry()),
                    found => answer(request, found, entry_out),
                }
            }
            Query::Attributes => answer(request, attributes(), attr_out),
            Query::StatX { .. } => answer(request, attributes(), statx_out),
            Query::ReadLink | Query::GetXattr { .. } | Query::ListXattr { .. } | Query::Seek { .. } => {
                answer_query(fs, ino, request, query);
            }
        }
    }

    /// Carries out calls on the directories above the snapshots, and the lookup in the root that leads there.
    fn above(&self, mut request: Request, operation: Inspection) {
        let node = request.ino();
        match operation {
            Inspection::Query(query) => self.query_above(request, query),
            Inspection::ReadDir { offset, size, plus } => {
                let mut listing = Listing::new(request.payload(size as usize));
                self.list_above(node, offset, plus, &mut listing);
                let used = listing.used();
                request.payload_filled(used);
            }
            Inspection::StatFs => request.answer(&p::StatfsOut::default()),
            Inspection::Read { .. } | Inspection::Open { .. } | Inspection::Release | Inspection::Refused => {
                request.error(Errno::ROFS);
            }
        }
    }

    fn query_above(&self, request: Request, query: Query) {
        let node = request.ino();
        match query {
            Query::Lookup { name } => match self.lookup_above(node, request.argument(name)) {
                Err(FsError::NotFound) => request.answer(&p::EntryOut::default()),
                found => answer(request, found, |found| *found),
            },
            // The attributes must not be cached for any time: snapshots come and go without the kernel.
            Query::Attributes => {
                request.answer(&p::AttrOut { attr_valid: 0, ..attr_out(&self.directory(node)) });
            }
            Query::StatX { .. } => {
                request.answer(&p::StatxOut { attr_valid: 0, ..statx_out(&self.directory(node)) });
            }
            Query::GetXattr { .. } => request.error(Errno::NODATA),
            Query::ListXattr { size } => sized(request, Ok(Vec::new()), size),
            Query::ReadLink | Query::Seek { .. } => request.error(Errno::ROFS),
        }
    }

    fn lookup_above(&self, node: u64, name: &[u8]) -> Result<p::EntryOut, FsError> {
        let of = |node: u64| {
            let attr = self.directory(node);
            p::EntryOut { attr_valid: 0, ..entry_out(&Entry { ino: attr.ino, generation: 0, attr }) }
        };
        match node {
            SNAPSHOTS => {
                let number = self.snapshots.find(name).ok_or(FsError::NotFound)?;
                let (place, fs) = self.enter(number)?;
                let entry = fs.lookup(Ino::ROOT, b".").and_then(|entry| translated(place, &entry));
                let entry = entry.inspect_err(|_| self.forgotten(place, 1))?;
                Ok(p::EntryOut { entry_valid: NAME_VALID_SECS, ..entry_out(&entry) })
            }
            HIDDEN if name == SNAPSHOT_DIR.as_bytes() => Ok(of(SNAPSHOTS)),
            HIDDEN => Err(FsError::NotFound),
            _ => Ok(of(HIDDEN)),
        }
    }

    fn list_above(&self, node: u64, offset: u64, plus: bool, listing: &mut Listing<'_>) {
        let parent = if node == SNAPSHOTS { HIDDEN } else { Ino::ROOT.0 };
        let mut entries = vec![(1, node, ".".to_owned()), (2, parent, "..".to_owned())];
        if node == SNAPSHOTS {
            // Numbers are never used twice, so that they tell where a listing goes on.
            let of = |(number, name): (u64, String)| (number.saturating_add(2), SNAPSHOTS, name);
            entries.extend(self.snapshots.list().into_iter().map(of));
        } else {
            entries.push((3, SNAPSHOTS, SNAPSHOT_DIR.to_owned()));
        }
        for (cookie, ino, name) in entries.iter().filter(|(cookie, _, _)| *cookie > offset) {
            let (ino, kind) = (Ino(*ino), FileKind::Directory);
            let entry = DirEntry { ino, cookie: *cookie, kind, name: name.as_bytes() };
            let fits = if plus { listing.push_plus(&entry, None) } else { listing.push(&entry) };
            if !fits {
                return;
            }
        }
    }
}

/// Returns the attributes of a directory above the snapshots.
pub(super) fn directory(node: u64, time: Time) -> Attr {
    Attr {
        ino: Ino(node),
        kind: FileKind::Directory,
        perm: 0o555,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        blksize: 4096,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        capable: false,
    }
}

/// Returns an answer of a snapshot's file system with node ids of this mount.
fn translated(place: u16, entry: &Entry) -> Result<Entry, FsError> {
    let ino = translated_ino(place, entry.ino)?;
    Ok(Entry { ino, attr: Attr { ino, ..entry.attr }, ..*entry })
}

fn translated_ino(place: u16, ino: Ino) -> Result<Ino, FsError> {
    if is_live(ino.0) {
        Ok(Ino(node_id(place, ino.0)))
    } else {
        Err(FsError::Unsupported("so large an inode number"))
    }
}

pub(super) fn list(fs: &Fs, place: u16, mut request: Request, (offset, size): (u64, u32), plus: bool) {
    let ino = Ino(request.ino() & INO_MASK);
    let mut listing = Listing::new(request.payload(size as usize));
    let here = |entry: &DirEntry<'_>| Ino(node_id(place, entry.ino.0 & INO_MASK));
    // Attributes are not returned with the names: a caller that wants them asks for them, and the others hold no
    // references.
    let result = fs.readdir(ino, offset, &mut |entry| {
        let ino = here(entry);
        let entry = DirEntry { ino, cookie: entry.cookie, kind: entry.kind, name: entry.name };
        if plus { listing.push_plus(&entry, None) } else { listing.push(&entry) }
    });
    let used = listing.used();
    match result {
        Err(error) if used == 0 => failed(request, &error),
        _ => request.payload_filled(used),
    }
}
