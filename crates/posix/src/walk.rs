//! Compares everything in two trees.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::fs::{self, FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::observe::{View, view};
use crate::side::list;

/// Bytes of a file that are compared at once.
const BLOCK_BYTES: usize = 4096;

/// Files of one tree below a directory, by path, with everything that is compared.
type Tree = BTreeMap<Vec<u8>, Node>;

#[derive(Debug, PartialEq, Eq)]
struct Node {
    view: View,
    /// Kind that the listing tells.
    listed: String,
    /// Target of a symbolic link.
    target: Vec<u8>,
    /// Extended attributes, ACLs among them.
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Blocks that are not zero: number and content.
    blocks: BTreeMap<u64, Vec<u8>>,
    /// The first path with the same inode.
    same_as: Vec<u8>,
}

/// Compares two directories with all that is below them; times only if `times` is true. If it is not, files may be
/// mapped, and are synced first: when the kernel asks a FUSE server for the next data, it has not told the server of
/// pages that were stored into.
///
/// # Errors
/// The first difference, or a call that failed.
pub fn compare(subject: &Path, reference: &Path, times: bool) -> Result<()> {
    let (subject, reference) = (tree(subject, !times)?, tree(reference, !times)?);
    for (path, node) in &reference {
        let Some(other) = subject.get(path) else {
            bail!("at the end: {} is missing", path.escape_ascii());
        };
        let same_view = if times {
            node.view == other.view
        } else {
            node.view.without_times() == other.view.without_times()
        };
        let same_rest = node.listed == other.listed
            && node.target == other.target
            && node.xattrs == other.xattrs
            && node.same_as == other.same_as;
        if !same_view || !same_rest {
            bail!("at the end: {}: {}, but ext4 {}", path.escape_ascii(), tell(other), tell(node));
        }
        if let Some(block) = difference(&node.blocks, &other.blocks) {
            bail!("at the end: {}: content differs at byte {block}", path.escape_ascii());
        }
    }
    if let Some(path) = subject.keys().find(|path| !reference.contains_key(*path)) {
        bail!("at the end: {} is not on ext4", path.escape_ascii());
    }
    Ok(())
}

fn tell(node: &Node) -> String {
    let xattrs: Vec<_> = node
        .xattrs
        .iter()
        .map(|(name, value)| format!("{}={}", name.escape_ascii(), value.escape_ascii()))
        .collect();
    format!(
        "{:?} listed {} to {} same as {} xattrs {xattrs:?}",
        node.view,
        node.listed,
        node.target.escape_ascii(),
        node.same_as.escape_ascii()
    )
}

/// Returns the offset in bytes of the first block that differs.
fn difference(a: &BTreeMap<u64, Vec<u8>>, b: &BTreeMap<u64, Vec<u8>>) -> Option<u64> {
    let one = a.iter().find(|(block, bytes)| b.get(block) != Some(bytes)).map(|(block, _)| *block);
    let other = b.keys().find(|block| !a.contains_key(block)).copied();
    one.into_iter().chain(other).min()
}

fn tree(dir: &Path, sync: bool) -> Result<Tree> {
    let mut tree = Tree::new();
    let mut seen = BTreeMap::new();
    let root = fs::open(dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    visit(&root, &mut Vec::new(), dir.as_os_str().as_bytes(), &mut tree, &mut seen, sync)?;
    Ok(tree)
}

fn visit(
    dir: &OwnedFd,
    path: &mut Vec<u8>,
    root: &[u8],
    tree: &mut Tree,
    seen: &mut BTreeMap<u64, Vec<u8>>,
    sync: bool,
) -> Result<()> {
    for (name, listed) in list(dir.as_fd()).context("list a directory")? {
        if name == b"." || name == b".." {
            continue;
        }
        let before = path.len();
        path.extend([b"/", &name[..]].concat());
        let told = || path.escape_ascii().to_string();
        let view = view(dir.as_fd(), &name, false, true).with_context(|| format!("stat {}", told()))?;
        let whole = [root, path].concat();
        let mut node = Node {
            listed,
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            blocks: BTreeMap::new(),
            same_as: seen.entry(view.ino()).or_insert_with(|| path.clone()).clone(),
            view,
        };
        // Extended attributes are left out if the path is longer than a call takes.
        if whole.len() < 4096 {
            node.xattrs = xattrs(&whole).with_context(|| format!("attributes of {}", told()))?;
        }
        let kind = node.view.kind();
        match kind {
            FileType::Symlink => node.target = fs::readlinkat(dir, &name[..], Vec::new())?.into_bytes(),
            FileType::RegularFile => {
                node.blocks = blocks(dir.as_fd(), &name, sync).with_context(|| format!("read {}", told()))?;
            }
            _ => {}
        }
        tree.insert(path.clone(), node);
        if kind == FileType::Directory {
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let below = fs::openat(dir, &name[..], flags, Mode::empty())?;
            visit(&below, path, root, tree, seen, sync)?;
        }
        path.truncate(before);
    }
    Ok(())
}

fn xattrs(path: &[u8]) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; 65536];
    let len = fs::llistxattr(path, &mut names[..])?;
    let mut value = vec![0; 65536];
    let mut found = BTreeMap::new();
    for name in names[..len].split(|&b| b == 0).filter(|name| !name.is_empty()) {
        let len = fs::lgetxattr(path, name, &mut value[..])
            .with_context(|| format!("{} is listed", name.escape_ascii()))?;
        found.insert(name.to_vec(), value[..len].to_vec());
    }
    Ok(found)
}

/// Reads the blocks that are not zero. Holes, as the file system tells them, are skipped: if one hides data, the other
/// side has more blocks.
fn blocks(dir: BorrowedFd<'_>, name: &[u8], sync: bool) -> Result<BTreeMap<u64, Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = fs::openat(dir, name, flags, Mode::empty())?;
    if sync {
        fs::fdatasync(&fd)?;
    }
    let mut found = BTreeMap::new();
    let mut buffer = vec![0; 64 * BLOCK_BYTES];
    let mut at = 0;
    loop {
        at = match fs::seek(&fd, SeekFrom::Data(at)) {
            Ok(data) => data / BLOCK_BYTES as u64 * BLOCK_BYTES as u64,
            Err(Errno::NXIO) => return Ok(found),
            Err(errno) => return Err(errno.into()),
        };
        let end = fs::seek(&fd, SeekFrom::Hole(at))?.max(at + 1);
        while at < end {
            let len = rustix::io::pread(&fd, &mut buffer[..], at)?;
            if len == 0 {
                return Ok(found);
            }
            for (block, bytes) in (at..).step_by(BLOCK_BYTES).zip(buffer[..len].chunks(BLOCK_BYTES)) {
                if block < end && bytes.iter().any(|&b| b != 0) {
                    found.insert(block, bytes.to_vec());
                }
            }
            at += len as u64;
        }
        at = end;
    }
}
