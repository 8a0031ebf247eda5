//! Names of datasets and snapshots as people write them: `POOL`, `POOL/DATASET`, `POOL/DATASET@SNAPSHOT`.

use std::fmt;

use crate::failure::{Failure, Result};
use crate::raw::printable;
use crate::{files, raw};

/// A dataset or snapshot. The pool's own dataset has the pool's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// Name of the pool.
    pub pool: String,
    /// Path below the pool, as the engine has it: `db`, `db@monday`, `@monday`; empty for the pool's own dataset.
    pub path: String,
}

impl Name {
    /// Returns the name of the dataset or snapshot with `path` below `pool`.
    pub fn new(pool: &str, path: &str) -> Self {
        Self { pool: pool.to_owned(), path: path.to_owned() }
    }

    /// Parses a name. The dataset or snapshot need not exist.
    ///
    /// Errors: the pool's part cannot be a pool's name, or a part is empty.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Failure::usage(format!("\"{}\" is no name of a dataset or snapshot", printable(text))).hint(
                "they are written POOL/DATASET and POOL/DATASET@SNAPSHOT; POOL is the pool's own dataset",
            )
        };
        let end = text.find(['/', '@']).unwrap_or(text.len());
        let (pool, path) = text.split_at(end);
        files::check_pool_name(pool)?;
        let path = path.strip_prefix('/').unwrap_or(path);
        let (dataset, snapshot) = path.split_once('@').map_or((path, None), |(of, name)| (of, Some(name)));
        let empty = |part: &str| part.is_empty();
        let bad_dataset = !dataset.is_empty() && dataset.split('/').any(empty);
        let bad_snapshot = snapshot.is_some_and(|name| name.is_empty() || name.contains(['@', '/']));
        if raw::is_ours(text)
            || bad_dataset
            || bad_snapshot
            || is_hidden(text)
            || text.ends_with('/')
            || text.contains("/@")
        {
            return Err(wrong());
        }
        Ok(Self::new(pool, path))
    }

    /// Returns true for the name of a snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.path.contains('@')
    }

    /// Returns the dataset's part of the path; all of it for a dataset.
    pub fn dataset(&self) -> &str {
        dataset_of(&self.path)
    }

    /// Returns true if it names `dataset`, a snapshot of it, or anything below.
    pub fn is_within(&self, dataset: &str) -> bool {
        is_within(&self.path, dataset)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&full(&self.pool, &self.path))
    }
}

/// First character of names that are internal to the pool: datasets that are being received.
pub(crate) const HIDDEN: char = '%';

/// Returns true if only the engine knows a dataset of this name.
pub fn is_hidden(dataset: &str) -> bool {
    dataset.contains(HIDDEN)
}

/// Returns the whole name of the dataset or snapshot with `path` below `pool`.
pub fn full(pool: &str, path: &str) -> String {
    if path.is_empty() || path.starts_with('@') { format!("{pool}{path}") } else { format!("{pool}/{path}") }
}

/// Returns the dataset's part of a path below the pool.
pub fn dataset_of(path: &str) -> &str {
    path.split('@').next().unwrap_or_default()
}

/// Returns true if `path` is `dataset`, a snapshot of it, or anything below it.
pub fn is_within(path: &str, dataset: &str) -> bool {
    let of = dataset_of(path);
    dataset.is_empty()
        || of.strip_prefix(dataset).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the dataset above; `None` for the pool's own.
pub fn parent(dataset: &str) -> Option<&str> {
    match dataset.rsplit_once('/') {
        Some((parent, _)) => Some(parent),
        None if dataset.is_empty() => None,
        None => Some(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for (text, pool, path) in [
            ("tank", "tank", ""),
            ("tank/db", "tank", "db"),
            ("tank/db/prod@a:b", "tank", "db/prod@a:b"),
            ("tank@monday", "tank", "@monday"),
        ] {
            let name = Name::parse(text).unwrap();
            assert_eq!(
                (name.pool.as_str(), name.path.as_str(), name.to_string().as_str()),
                (pool, path, text)
            );
        }
        for text in [
            "",
            "/",
            "tank/",
            "tank/%a",
            "tank//a",
            "tank@",
            "tank/@a",
            "tank/a@b@c",
            "tank/a@b/c",
            "1x/a",
            "a b",
        ] {
            assert_eq!(Name::parse(text).map_err(|f| f.exit_status()), Err(2), "{text}");
        }
    }

    #[test]
    fn what_lies_within_what() {
        assert!(is_within("db", "db") && is_within("db@a", "db") && is_within("db/prod@a", "db"));
        assert!(is_within("db", "") && is_within("@a", ""));
        assert!(!is_within("dbx", "db") && !is_within("", "db") && !is_within("@a", "db"));
        assert_eq!((parent("a/b"), parent("a"), parent("")), (Some("a"), Some(""), None));
    }
}
