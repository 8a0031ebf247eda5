//! Finds the files below some paths.

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Path of the file.
    pub path: PathBuf,
    /// Length of the file in bytes when it was found.
    pub size_bytes: u64,
}

/// Finds the regular files at and below `paths`, each once however many names it has. Symbolic links below the paths
/// are not followed, and other file systems are not entered. Problems are returned in the second list, and what they
/// concern is left out. `step` is called for each file.
///
/// # Errors
/// If one of `paths` itself cannot be read.
pub fn walk(paths: &[PathBuf], mut step: impl FnMut()) -> io::Result<(Vec<Found>, Vec<String>)> {
    let (mut found, mut problems, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
    for path in paths {
        let metadata = std::fs::metadata(path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        let device = metadata.dev();
        let mut stack = vec![(path.clone(), metadata)];
        while let Some((path, metadata)) = stack.pop() {
            if metadata.dev() != device {
                problems.push(format!("{} is another file system", path.display()));
            } else if metadata.is_dir() {
                children(&path, &mut stack, &mut problems);
            } else if metadata.is_file() && seen.insert((device, metadata.ino())) {
                step();
                found.push(Found { path, size_bytes: metadata.len() });
            } else if metadata.is_symlink() && path.is_dir() {
                problems.push(format!("{} is a link, and was not followed", path.display()));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((found, problems))
}

fn children(dir: &Path, stack: &mut Vec<(PathBuf, std::fs::Metadata)>, problems: &mut Vec<String>) {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => return problems.push(format!("cannot list {}: {error}", dir.display())),
    };
    for entry in entries {
        match entry.and_then(|entry| Ok((entry.path(), entry.metadata()?))) {
            Ok(child) => stack.push(child),
            // A database in use deletes files all the time.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => problems.push(format!("cannot look into {}: {error}", dir.display())),
        }
    }
}
