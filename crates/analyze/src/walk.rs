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

/// The files at and below some paths.
#[derive(Debug, Default)]
pub struct Walked {
    /// The regular files, each once however many names it has, in order of paths.
    pub files: Vec<Found>,
    /// Sentences about symbolic links: where what they lead to is not among the files.
    pub notes: Vec<String>,
    /// Sentences about what could not be looked at, and is left out.
    pub problems: Vec<String>,
}

/// Finds the regular files at and below `paths`. A path that is a symbolic link is followed; links below the paths are
/// noted, not followed, and other file systems are not entered. `step` is called for each file.
///
/// # Errors
/// If one of `paths` itself cannot be read.
pub fn walk(paths: &[PathBuf], mut step: impl FnMut()) -> io::Result<Walked> {
    let (mut walked, mut seen, mut file_links) = (Walked::default(), HashSet::new(), 0_u64);
    for path in paths {
        let metadata = std::fs::metadata(path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        let device = metadata.dev();
        let mut stack = vec![(path.clone(), metadata)];
        while let Some((path, metadata)) = stack.pop() {
            if metadata.dev() != device {
                walked.problems.push(format!("{} is another file system", path.display()));
            } else if metadata.is_dir() {
                children(&path, &mut stack, &mut walked.problems);
            } else if metadata.is_file() && seen.insert((device, metadata.ino())) {
                step();
                walked.files.push(Found { path, size_bytes: metadata.len() });
            } else if metadata.is_symlink() && path.is_dir() {
                walked
                    .notes
                    .push(format!("{} is a link to a directory, and was not followed", path.display()));
            } else if metadata.is_symlink() && path.is_file() {
                file_links += 1;
            }
        }
    }
    walked.notes.extend(match file_links {
        0 => None,
        1 => Some("1 link to a file was not followed".to_owned()),
        links => Some(format!("{links} links to files were not followed")),
    });
    walked.files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(walked)
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
