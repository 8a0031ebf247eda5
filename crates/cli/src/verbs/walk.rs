//! Walks over all regular files below paths on mounted pools, grouped by the server that serves them.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pagefold_server::control::{Client, Reply, Request};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::mounts;
use pagefold_server::raw::shown;

use crate::progress::Progress;
use crate::target;

/// Number of files per call of the visitor.
const BATCH: usize = 4096;

/// A visitor of some files of one mount: it gets their server, their device number, and their names and inode numbers.
pub type Batch<'a> = &'a mut dyn FnMut(&mut Client, u32, Vec<(PathBuf, u64)>) -> Result<()>;

/// A walk over files, each once.
pub struct Walk<'a> {
    /// The server behind each device number.
    clients: HashMap<u64, Client>,
    /// Device and inode numbers that were met, so that a file with several names is met once.
    seen: HashSet<(u64, u64)>,
    progress: &'a Progress,
    /// Names that could not be looked at, and why.
    pub problems: Vec<String>,
}

impl<'a> Walk<'a> {
    /// A walk that counts files on `progress`.
    pub fn new(progress: &'a Progress) -> Self {
        Self { clients: HashMap::new(), seen: HashSet::new(), progress, problems: Vec::new() }
    }

    /// Visits everything at and below one path, on its own mount.
    pub fn path(&mut self, path: &Path, each: Batch<'_>) -> Result<()> {
        let metadata = fs::symlink_metadata(path)
            .context(|| format!("cannot look at {}", shown(path)))
            .map_err(|failure| of_a_pool(path, failure))?;
        let device = metadata.dev();
        if let Entry::Vacant(vacant) = self.clients.entry(device) {
            let mut client = target::server(target::mount_of(path)?.pool())?;
            // Data that was just written has no stored size yet.
            match client.ask_and_wait(&Request::Sync {})? {
                Reply::Done {} => {}
                _ => return Err(client.misunderstood()),
            }
            vacant.insert(client);
        }
        let mut batch = Vec::new();
        let mut stack = vec![(path.to_owned(), metadata)];
        while let Some((path, metadata)) = stack.pop() {
            if metadata.dev() != device {
                continue;
            }
            if metadata.is_dir() {
                self.children(&path, &mut stack);
            } else if metadata.is_file() && self.seen.insert((device, metadata.ino())) {
                self.progress.step(1);
                batch.push((path, metadata.ino()));
                if batch.len() == BATCH {
                    self.hand_on(device, &mut batch, each)?;
                }
            }
        }
        self.hand_on(device, &mut batch, each)
    }

    fn hand_on(&mut self, device: u64, batch: &mut Vec<(PathBuf, u64)>, each: Batch<'_>) -> Result<()> {
        match self.clients.get_mut(&device) {
            Some(client) if !batch.is_empty() => {
                each(client, rustix::fs::minor(device), std::mem::take(batch))
            }
            _ => Ok(()),
        }
    }

    fn children(&mut self, dir: &Path, stack: &mut Vec<(PathBuf, fs::Metadata)>) {
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) => return self.problems.push(format!("cannot list {}: {error}", shown(dir))),
        };
        for entry in entries {
            match entry.and_then(|entry| Ok((entry.path(), entry.metadata()?))) {
                Ok(child) => stack.push(child),
                // The file went away during the walk.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => self.problems.push(format!("cannot look into {}: {error}", shown(dir))),
            }
        }
    }
}

/// Adds a hint to the failure of a path: a word that is no path may be the name of a pool.
fn of_a_pool(path: &Path, failure: Failure) -> Failure {
    let name = path.to_str().unwrap_or_default();
    let dir = mounts::ours().unwrap_or_default().into_iter().find(|mount| mount.source == name);
    match dir {
        Some(mount) => failure.hint(format!("{name} is mounted at {0}: give {0}", shown(&mount.dir))),
        None => failure.hint("give a path on a mounted pool; see what is mounted: pagefold list"),
    }
}
