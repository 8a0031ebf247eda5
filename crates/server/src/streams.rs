//! Sends and receives streams of snapshots, and compares versions, on a pool that is served and on one that is opened
//! for a moment.

use std::io::{Read, Write};

use pagefold_engine::Error;
use pagefold_engine::pool::{Partial, Pool, ReceiveOptions, Source, Token, Transfer};
use pagefold_fs::FileKind;
use pagefold_fs::diff::{Fate, FileDifference};

pub use crate::control::{Difference, PartialFigures, Sendable, Transferred};
use crate::failure::{Context, Failure, Result};
use crate::{engine_errors, incomplete, names, raw, units};

/// Function that is called after each frame with the progress of a stream.
pub(crate) type ProgressFn<'a> = &'a mut dyn FnMut(&Transfer);

fn transferred(name: String, transfer: &Transfer) -> Transferred {
    Transferred {
        name,
        stream_bytes: transfer.stream_bytes,
        record_bytes: transfer.record_bytes,
        pages: transfer.pages,
        values: transfer.values,
    }
}

/// Calls `work` with the contents of a stream, as the engine names them; errors get names for people.
fn with_source<T>(
    pool: &Pool,
    what: &Sendable,
    work: impl FnOnce(&Source<'_>) -> pagefold_engine::Result<T>,
) -> Result<T> {
    match what {
        Sendable::Snapshot { path, from } => {
            let name = names::full(pool.name(), path);
            for path in [Some(path), from.as_ref()].into_iter().flatten() {
                incomplete::refuse(pool, path, "send")?;
            }
            work(&Source::Snapshot { path, from: from.as_deref() }).map_err(|error| {
                let missing = [Some(path), from.as_ref()].into_iter().flatten();
                let missing = missing.map(String::as_str).find(|path| pool.version(path).is_err());
                match (&error, missing) {
                    (Error::NotFound(_), Some(path)) => {
                        engine_errors::no_such_dataset(&names::full(pool.name(), path), &error)
                    }
                    _ => failed(format!("cannot send {name}"), &error),
                }
            })
        }
        Sendable::Resume { token } => {
            let parsed: Token = parse_token(token)?;
            work(&Source::Resume(&parsed)).map_err(|error| {
                failed(format!("cannot go on with a stream of pool {}", pool.name()), &error)
            })
        }
    }
}

/// Parses the token that `receive_resume_token` shows.
pub fn parse_token(text: &str) -> Result<Token> {
    text.parse().map_err(|error: Error| {
        Failure::usage(reason(&error).map_or_else(|| error.to_string(), str::to_owned))
            .hint("see which there are: pagefold list -t partial")
    })
}

/// Converts an error of the engine to a failure, without the engine's prefix if that adds nothing.
fn failed(doing: String, error: &Error) -> Failure {
    match reason(error) {
        Some(why) => Failure::new(format!("{doing}: {why}")),
        None => engine_errors::failed(doing, error),
    }
}

/// Returns the text of a refusal, without the engine's prefix; `None` for any other error.
fn reason(error: &Error) -> Option<&str> {
    match error {
        Error::Busy(why) | Error::Exists(why) | Error::NotFound(why) | Error::Invalid(why) => Some(why),
        _ => None,
    }
}

/// Returns the approximate number of stored bytes of the pages that a stream would have.
pub fn expected(pool: &Pool, what: &Sendable) -> Result<u64> {
    with_source(pool, what, |source| pool.send_size(source))
}

/// Writes a stream.
pub fn send(pool: &Pool, what: &Sendable, out: &mut dyn Write, watch: ProgressFn<'_>) -> Result<Transferred> {
    let name = match what {
        Sendable::Snapshot { path, .. } => names::full(pool.name(), path),
        Sendable::Resume { .. } => pool.name().to_owned(),
    };
    let sent = with_source(pool, what, |source| pool.send(source, out, watch))?;
    Ok(transferred(name, &sent))
}

/// Receives a stream into a dataset that nobody uses. If it is interrupted, the received part is kept.
pub fn receive(
    pool: &Pool,
    path: &str,
    force: bool,
    input: &mut dyn Read,
    watch: ProgressFn<'_>,
) -> Result<Transferred> {
    let created = units::now();
    let options = ReceiveOptions { created, keep: true, force };
    match pool.receive(path, &options, input, watch) {
        Ok(received) => {
            let snapshots = pool.version(path).map(|dataset| pool.snapshots_of(dataset.id));
            let newest = snapshots.ok().and_then(|mut all| all.pop());
            let name = newest.map_or_else(|| path.to_owned(), |(_, name)| format!("{path}@{name}"));
            Ok(transferred(names::full(pool.name(), &name), &received))
        }
        Err(error) => Err(not_received(pool, path, &error)),
    }
}

fn not_received(pool: &Pool, path: &str, error: &Error) -> Failure {
    let name = names::full(pool.name(), path);
    let doing = format!("cannot receive into {name}");
    // The stream is damaged, not the pool.
    let failure = match error {
        Error::Corrupt { .. } => Failure::new(format!("{doing}: {error}"))
            .hint("nothing of it is to be seen in the pool; send the snapshot again"),
        error => failed(doing, error),
    };
    match pool.partial(path) {
        Some(partial) => failure.hint(format!(
            "what came is kept: go on with `pagefold send --resume {} | pagefold receive {name}`,\n  or give it up: \
             pagefold receive --abort {name}",
            partial.token
        )),
        None => failure,
    }
}

/// Returns the datasets of which a part was received.
pub fn partials(pool: &Pool) -> Vec<PartialFigures> {
    let figures = |partial: Partial| PartialFigures {
        name: names::full(pool.name(), &partial.path),
        used_bytes: partial.stored_bytes,
        receive_resume_token: partial.token.to_string(),
        path: partial.path,
    };
    pool.partials().into_iter().map(figures).collect()
}

/// Writes the differences of the file systems of two versions, a [`Difference`] per line, as JSON.
pub fn diff(pool: &Pool, old: &str, new: &str, ranges: bool, out: &mut dyn Write) -> Result<()> {
    let (old_name, new_name) = (names::full(pool.name(), old), names::full(pool.name(), new));
    let created = units::now();
    [old, new].into_iter().try_for_each(|path| incomplete::refuse(pool, path, "compare"))?;
    let doing = || format!("cannot compare {old_name} with {new_name}");
    let comparison = pool.compare_versions(old, new, created).map_err(|error| {
        let missing = [old, new].into_iter().find(|path| pool.version(path).is_err());
        match (&error, missing) {
            (Error::NotFound(_), Some(path)) => {
                engine_errors::no_such_dataset(&names::full(pool.name(), path), &error)
            }
            _ => failed(doing(), &error),
        }
    })?;
    let found =
        pagefold_fs::diff::diff(comparison.older(), comparison.newer(), comparison.differences(), ranges)
            .context(doing)?;
    drop(comparison);
    for difference in &found {
        let mut line = serde_json::to_vec(&as_difference(difference)).context(doing)?;
        line.push(b'\n');
        out.write_all(&line).context(doing)?;
    }
    Ok(())
}

fn as_difference(difference: &FileDifference) -> Difference {
    let path = |path: &[u8]| format!("/{}", raw::text_of(path));
    let (change, from) = match &difference.fate {
        Fate::Created => ("created", None),
        Fate::Removed => ("removed", None),
        Fate::Renamed { from } => ("renamed", Some(path(from))),
        Fate::Modified => ("modified", None),
    };
    Difference {
        change: change.into(),
        path: path(&difference.path),
        from,
        kind: kind(difference.kind).into(),
        ranges: difference.ranges.iter().map(|range| (range.start, range.end)).collect(),
    }
}

fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "char device",
        FileKind::BlockDevice => "block device",
    }
}
