//! `basebackup`: makes a base backup of a snapshot, in PostgreSQL's own format.
//!
//! The crate [`pagefold_basebackup`] makes it of folders; these modules deal with snapshots and servers: [`source`]
//! finds what is backed up, [`view`] finds where its files can be read, [`server`] asks a server, [`temporary`] makes
//! snapshots that are destroyed again.

mod server;
mod source;
pub(super) mod temporary;
pub(super) mod view;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use pagefold_basebackup::compress::{Compression, Method};
use pagefold_basebackup::manifest::Checksums;
use pagefold_basebackup::{Done, Error, Format, Options, Start};
use pagefold_engine::walk::{self, WalkError};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::raw::shown;
use pagefold_server::{raw, units};
use rustix::io::Errno;
use serde_json::json;

use self::source::SourceSpec;
use self::temporary::Temporary;
use self::view::View;
use super::print_json;
use crate::args::{BaseFormat, Basebackup};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::table::printable;

/// Makes a base backup.
pub fn run(args: &Basebackup) -> Result<()> {
    let (interrupt, progress) = (Interrupt::default(), Progress::bytes("reading"));
    let report = |done, total| progress.at(done, total);
    let options = options(args, interrupt.flag(), &report)?;
    if let Some(folder) = &options.to {
        refuse_full(folder)?;
    }
    let wanted = SourceSpec::of(args)?;
    // The reader of standard output may go away.
    crate::ignore_sigpipe();
    interrupt.catch()?;
    view::unmount_left_behind()?;
    temporary::destroy_left_behind(&wanted.dataset)?;
    let told_server = args.server || args.dbname.is_some();
    let (snapshot, done) = match told_server {
        true => with_server(args, &wanted, &options)?,
        false => of_snapshot(args, &wanted, &options)?,
    };
    progress.finish();
    print_result(args, &snapshot, told_server, &done)
}

/// Returns an error of the crate as a failure with a hint.
fn failed(doing: &str, error: &Error) -> Failure {
    let text = format!("{doing}: {error}");
    match error {
        Error::NotEmpty(_) => Failure::new(text).hint(
            "a backup goes into an empty directory; tablespaces of plain files go elsewhere with -T OLD=NEW",
        ),
        Error::Invalid(_) => Failure::usage(text),
        _ => Failure::new(text),
    }
}

fn options<'a>(
    args: &Basebackup,
    stop: &'a AtomicBool,
    progress: &'a dyn Fn(u64, u64),
) -> Result<Options<'a>> {
    let wrong = |error: Error| Failure::usage(error.to_string());
    let compression: Compression = match (&args.compress, args.gzip) {
        (Some(text), _) => text.parse().map_err(wrong)?,
        (None, true) => "gzip".parse().map_err(wrong)?,
        (None, false) => Compression::NONE,
    };
    let to = match args.to.as_path() {
        out if out == Path::new("-") => None,
        to => Some(without_links(to)?),
    };
    let format = match args.format {
        BaseFormat::Tar => Format::Tar(compression),
        BaseFormat::Plain if compression.method != Method::None => {
            return Err(Failure::usage("plain files are not compressed").hint("archives are: -F tar"));
        }
        BaseFormat::Plain if to.is_none() => {
            let what = "plain files cannot be written to standard output";
            return Err(Failure::usage(what).hint("archives can: -F tar"));
        }
        BaseFormat::Plain => Format::Plain,
    };
    if args.label.contains(['\n', '\r']) {
        return Err(Failure::usage("a backup's label is one line"));
    }
    let checksums: Checksums = args.manifest_checksums.parse().map_err(wrong)?;
    Ok(Options {
        to,
        format,
        manifest: (!args.no_manifest).then_some(checksums),
        verify: !args.no_verify_checksums,
        sync: !args.no_sync,
        rate: args.rate.as_deref().map(units::parse_rate).transpose()?,
        stop,
        progress,
        warn: &|text| super::warn(&printable(text)),
    })
}

/// Returns the same place by a path without links. Fails if somebody else, who may want us to write elsewhere, could
/// have made a link on the way.
fn without_links(path: &Path) -> Result<PathBuf> {
    let failed = |error: &WalkError| Failure::new(format!("cannot write to {}: {error}", shown(path)));
    let absolute = std::path::absolute(path).context(|| format!("cannot resolve {}", shown(path)))?;
    for above in absolute.ancestors() {
        match walk::reach(above) {
            Ok(place) => {
                let below = absolute.strip_prefix(above).unwrap_or(Path::new(""));
                // Directories that are missing are made later.
                return Ok(if below.as_os_str().is_empty() {
                    place.path().to_owned()
                } else {
                    place.path().join(below)
                });
            }
            Err(error) if error.errno() == Errno::NOENT => {}
            Err(error) => return Err(failed(&error)),
        }
    }
    Err(Failure::new(format!("cannot write to {}", shown(path))))
}

/// Fails if the folder is not empty; this is checked before a snapshot is made.
fn refuse_full(folder: &Path) -> Result<()> {
    match std::fs::read_dir(folder).map(|mut entries| entries.next().is_some()) {
        Ok(false) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Ok(true) => Err(Failure::new(format!("{} is not empty", shown(folder)))
            .hint("a backup goes into an empty directory, or one that is not there yet")),
        Err(error) => Err(Failure::new(format!("cannot write a backup to {}: {error}", shown(folder)))),
    }
}

/// Backs up a snapshot without asking a server; returns the snapshot's name.
fn of_snapshot(args: &Basebackup, wanted: &SourceSpec, options: &Options<'_>) -> Result<(String, Done)> {
    let made = match &wanted.snapshot {
        Some(_) => None,
        None => Some(Temporary::make(&wanted.dataset, "")?),
    };
    let snapshot = match (&wanted.snapshot, &made) {
        (Some(snapshot), _) => snapshot.clone(),
        (None, Some(made)) => made.name.clone(),
        (None, None) => return Err(Failure::new("there is no snapshot to make a backup of")),
    };
    let view = View::of(&snapshot)?;
    let data = source::data_of(&snapshot, &view.root, wanted.data.as_deref())?;
    let source = source::resolve(args, wanted, &view, &data, None)?;
    let done = make(&snapshot.to_string(), &source, &Start::Crash, options)?;
    Ok((snapshot.to_string(), done))
}

/// Makes a backup of which the running server is told: its files are those of an instant between start and stop, and
/// its log is that of an instant after the stop.
fn with_server(args: &Basebackup, wanted: &SourceSpec, options: &Options<'_>) -> Result<(String, Done)> {
    if let Some(snapshot) = &wanted.snapshot {
        return Err(Failure::usage(format!("{snapshot} is a snapshot, and no server runs on it"))
            .hint("without --server and --dbname it is backed up as it is"));
    }
    let live = wanted.live()?;
    let relative = source::data_of(&wanted.dataset, &live, wanted.data.as_deref())?;
    let mut session = server::Session::open(args, &live, &relative)?;
    session.start(&args.label)?;
    let files = Temporary::make(&wanted.dataset, "")?;
    let stopped = session.stop()?;
    let log = Temporary::make(&wanted.dataset, "-log")?;
    let (view, log_view) = (View::of(&files.name)?, View::of(&log.name)?);
    let source = source::resolve(args, wanted, &view, &relative, Some(&log_view))?;
    stopped.check(&source.data)?;
    let name = files.name.to_string();
    let done = make(&name, &source, &stopped.start()?, options)?;
    Ok((name, done))
}

fn make(
    name: &str,
    source: &pagefold_basebackup::Source,
    start: &Start,
    options: &Options<'_>,
) -> Result<Done> {
    let made = pagefold_basebackup::make(source, start, options);
    made.map_err(|error| failed(&format!("cannot make a base backup of {name}"), &error))
}

fn print_result(args: &Basebackup, snapshot: &str, told_server: bool, done: &Done) -> Result<()> {
    let to = shown(&args.to);
    if args.json {
        let mut json = json!({ "basebackup": done, "snapshot": snapshot, "server": told_server });
        if let Some(fields) = json.as_object_mut() {
            fields.insert("to".into(), raw::text(&args.to).into());
        }
        // Standard output may carry the archive.
        if args.to == Path::new("-") { eprintln!("{json:#}") } else { print_json(&json)? }
    } else {
        eprintln!(
            "{snapshot}: {}, {}, in {} at {to}; the log from {} to {}",
            units::counted(done.files, "file"),
            units::size(done.bytes),
            units::size(done.written_bytes),
            done.start_lsn,
            done.end_lsn
        );
    }
    if done.wrong_pages > 0 {
        return Err(Failure::new(format!(
            "the checksums of {} are wrong: the database is damaged; the backup was made and kept",
            units::counted(done.wrong_pages, "page")
        ))
        .hint("look at the relations that were named (pg_amcheck), or restore an older backup"));
    }
    Ok(())
}
