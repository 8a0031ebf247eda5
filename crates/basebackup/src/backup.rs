//! Makes a backup: plans it, reads ahead, writes, and lists what it wrote.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::archives::Tar;
use crate::compress::Compression;
use crate::control::{self, Control};
use crate::error::{Error, Result};
use crate::limits::{NAP_MAX, WARNINGS_PER_FILE};
use crate::manifest::{Checksums, Manifest, Sum};
use crate::plain::Plain;
use crate::plan::{self, Archive, Attributes, Content, Item, Kind, Planner};
use crate::read::{self, Ahead, Chunk};
use crate::sink::{self, Sink};
use crate::tablespace::{self, Tablespace};
use crate::wal::{Range, Wal};

/// Largest number of bytes that are read of the version's file.
const VERSION_BYTES_MAX: u64 = 16;

/// The folders that are backed up. Nothing in them may change meanwhile.
#[derive(Clone, Debug)]
pub struct Source {
    /// The data directory.
    pub data: PathBuf,
    /// Its log, which need not lie below it.
    pub wal: PathBuf,
    /// Its tablespaces.
    pub tablespaces: Vec<Tablespace>,
}

/// The way in which recovery begins.
#[derive(Clone, Debug)]
pub enum Start {
    /// Recovery as after a crash.
    Crash,
    /// Recovery from a backup of which a server was told; these are its words.
    Server {
        /// Content of `backup_label`.
        label: String,
        /// Content of `tablespace_map`.
        tablespace_map: String,
        /// Part of the log from the begin to the end of the backup.
        wal: Range,
    },
}

/// The two forms of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Files, in directories.
    Plain,
    /// Archives.
    Tar(Compression),
}

/// Options for making a backup.
pub struct Options<'a> {
    /// Directory of the backup; `None` is standard output, for archives.
    pub to: Option<PathBuf>,
    /// Form of the backup.
    pub format: Format,
    /// Checksums of the manifest; `None` for no manifest.
    pub manifest: Option<Checksums>,
    /// True if checksums of pages are to be verified.
    pub verify: bool,
    /// True if everything is to be durable on return.
    pub sync: bool,
    /// Largest number of bytes that are read per second.
    pub rate: Option<u64>,
    /// Set by others when the backup is to stop.
    pub stop: &'a AtomicBool,
    /// Called with the number of bytes that have been read, and of all bytes.
    pub progress: &'a dyn Fn(u64, u64),
    /// Called with messages about what is left out, or wrong.
    pub warn: &'a dyn Fn(&str),
}

/// Figures of a backup that was made.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Done {
    /// Number of files, those of the log included.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Bytes of the backup.
    pub written_bytes: u64,
    /// Number of files whose pages' checksums were verified; 0 if pages have none, or if nobody asked for it.
    pub verified_files: u64,
    /// Number of pages whose checksum was wrong.
    pub wrong_pages: u64,
    /// Number of the cluster.
    pub system_identifier: u64,
    /// Timeline of the log that recovery needs.
    pub timeline: u32,
    /// Place where that log begins.
    pub start_lsn: String,
    /// Place where that log ends.
    pub end_lsn: String,
}

/// Makes a backup. After an error nothing of it is left.
pub fn make(source: &Source, start: &Start, options: &Options<'_>) -> Result<Done> {
    let control = Control::of(&source.data)?;
    let mut warnings = Vec::new();
    let (archives, wal) = plan(source, start, &control, options, &mut warnings)?;
    for warning in &warnings {
        (options.warn)(warning);
    }
    let mut sink: Box<dyn Sink> = match (options.format, &options.to) {
        (Format::Tar(compression), to) => Box::new(Tar::new(to.as_deref(), compression)?),
        (Format::Plain, Some(folder)) => Box::new(Plain::new(folder)?),
        (Format::Plain, None) => {
            return Err(Error::Invalid("plain files cannot be written to standard output".into()));
        }
    };
    let mut work = Work {
        options,
        total: archives.iter().map(Archive::bytes).sum(),
        read: 0,
        began: Instant::now(),
        manifest: options.manifest.map(|sums| (Manifest::new(), sums)),
        done: Done {
            files: 0,
            bytes: 0,
            written_bytes: 0,
            verified_files: 0,
            wrong_pages: 0,
            system_identifier: control.system,
            timeline: wal.timeline,
            start_lsn: control::lsn(wal.start),
            end_lsn: control::lsn(wal.end),
        },
    };
    std::thread::scope(|scope| {
        let ahead = Ahead::start(scope, &archives);
        archives.iter().try_for_each(|archive| work.archive(archive, &ahead, sink.as_mut()))
    })?;
    let attributes = archives.last().map(|archive| archive.attributes);
    let attributes = attributes.unwrap_or(Attributes { mode: 0o700, uid: 0, gid: 0, modified: 0 });
    let manifest = work.manifest.take().map(|(manifest, _)| manifest.finish(&wal));
    work.stop_if_asked()?;
    work.done.written_bytes = sink.finish(manifest.as_deref(), attributes, options.sync)?;
    Ok(work.done)
}

/// Plans all archives, that of the data directory last, and the log that recovery needs.
fn plan(
    source: &Source,
    start: &Start,
    control: &Control,
    options: &Options<'_>,
    warnings: &mut Vec<String>,
) -> Result<(Vec<Archive>, Range)> {
    check_unlabelled(&source.data, control)?;
    let log = Wal::open(&source.wal, control)?;
    let range = match start {
        Start::Crash => log.after_crash(control)?,
        Start::Server { wal, .. } => log.between(wal.timeline, wal.start, wal.end)?,
    };
    let version = sink::small_file(&source.data.join("PG_VERSION"), VERSION_BYTES_MAX)?;
    let version = String::from_utf8_lossy(&version).trim().to_owned();
    if options.to.is_none() && !source.tablespaces.is_empty() {
        return Err(Error::Invalid(
            "a database with tablespaces becomes several archives, and standard output takes one".into(),
        ));
    }
    // With a label the server recovers whatever the state says.
    let keeps_unlogged = control.is_shut_down && matches!(start, Start::Crash);
    let mut planner = Planner { control, verify: options.verify, keeps_unlogged, warnings };
    let mut archives = Vec::new();
    for tablespace in &source.tablespaces {
        let items = planner.tablespace(tablespace, &version)?;
        let attributes = attributes_of(&tablespace.folder)?;
        archives.push(Archive { tablespace: Some(tablespace.clone()), attributes, items });
    }
    let attributes = attributes_of(&source.data)?;
    let mut items = labels(start, &source.tablespaces, attributes, options.format);
    items.extend(planner.data(&source.data)?);
    for tablespace in &source.tablespaces {
        items.extend(tablespace_link(tablespace, start, attributes, options.format));
    }
    items.extend(plan::wal(&source.wal, attributes, &log, &log.files(&range)?)?);
    let path = source.data.join(control::FILE);
    let metadata = std::fs::symlink_metadata(&path).map_err(Error::io("look at", &path))?;
    items.push(Item {
        path: control::FILE.into(),
        attributes: Attributes::of(&metadata),
        kind: Kind::File {
            content: Content::File { path, bytes: metadata.len(), pages: None },
            listed: true,
        },
    });
    archives.push(Archive { tablespace: None, attributes, items });
    Ok((archives, range))
}

/// Fails if the data directory is itself a backup that no server has recovered yet: its files are not in their final
/// state.
fn check_unlabelled(data: &Path, control: &Control) -> Result<()> {
    let label = data.join("backup_label");
    match std::fs::symlink_metadata(&label) {
        Ok(_) => Err(Error::Unsuited(format!(
            "{} is a backup itself, which no server has been started on yet: {} is there",
            data.display(),
            label.display()
        ))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if control.is_unfinished_backup {
                return Err(Error::Unsuited(format!(
                    "{} is a backup itself, whose recovery has not come to its end yet",
                    data.display()
                )));
            }
            Ok(())
        }
        Err(error) => Err(Error::io("look at", &label)(error)),
    }
}

fn attributes_of(folder: &Path) -> Result<Attributes> {
    std::fs::metadata(folder).map(|found| Attributes::of(&found)).map_err(Error::io("look at", folder))
}

/// Returns the files with the server's own words about the backup.
fn labels(start: &Start, tablespaces: &[Tablespace], folder: Attributes, format: Format) -> Vec<Item> {
    let Start::Server { label, tablespace_map, .. } = start else { return Vec::new() };
    let attributes = Attributes { mode: folder.mode & 0o660, ..folder };
    let file = |path: &str, text: &str| Item {
        path: path.into(),
        attributes,
        kind: Kind::File { content: Content::Known(text.as_bytes().to_vec()), listed: true },
    };
    let mut items = vec![file("backup_label", label)];
    // The plain format has the links themselves.
    if matches!(format, Format::Tar(_)) && !tablespace_map.is_empty() {
        items.push(file("tablespace_map", &tablespace::moved_map(tablespace_map, tablespaces)));
    }
    items
}

/// Returns the link to a tablespace, unless the server makes it from `tablespace_map`, which it reads beside a label
/// only.
fn tablespace_link(of: &Tablespace, start: &Start, attributes: Attributes, format: Format) -> Option<Item> {
    let target = match (format, start) {
        (Format::Plain, _) => of.restored.as_path(),
        (Format::Tar(_), Start::Crash) => of.unpacked(),
        (Format::Tar(_), Start::Server { .. }) => return None,
    };
    let path = Path::new(tablespace::FOLDER).join(of.oid.to_string());
    Some(Item {
        path,
        attributes: Attributes { mode: 0o777, ..attributes },
        kind: Kind::Link(target.to_owned()),
    })
}

struct Work<'a> {
    options: &'a Options<'a>,
    /// Bytes of all files; `read` counts those that have been read.
    total: u64,
    read: u64,
    began: Instant,
    manifest: Option<(Manifest, Checksums)>,
    done: Done,
}

impl Work<'_> {
    fn stop_if_asked(&self) -> Result<()> {
        if self.options.stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    fn archive(&mut self, archive: &Archive, ahead: &Ahead, sink: &mut dyn Sink) -> Result<()> {
        sink.begin(archive)?;
        for item in &archive.items {
            self.stop_if_asked()?;
            match &item.kind {
                Kind::Directory => sink.directory(&item.path, item.attributes)?,
                Kind::Link(target) => sink.link(&item.path, target, item.attributes)?,
                Kind::File { content, listed } => {
                    let listed_as = match &archive.tablespace {
                        Some(of) => Path::new(tablespace::FOLDER).join(of.oid.to_string()).join(&item.path),
                        None => item.path.clone(),
                    };
                    self.file(item, content, listed.then_some(&listed_as), ahead, sink)?;
                }
            }
        }
        sink.end()
    }

    fn file(
        &mut self,
        item: &Item,
        content: &Content,
        listed_as: Option<&PathBuf>,
        ahead: &Ahead,
        sink: &mut dyn Sink,
    ) -> Result<()> {
        let mut sum = Sum::new(self.manifest.as_ref().map_or(Checksums::None, |(_, sums)| *sums));
        let bytes = match content {
            Content::Known(bytes) => {
                sink.file(&item.path, bytes.len() as u64, item.attributes)?;
                sum.update(bytes);
                sink.write(bytes)?;
                bytes.len() as u64
            }
            Content::File { path, bytes, pages } => {
                sink.file(&item.path, *bytes, item.attributes)?;
                let mut wrong = 0;
                for _part in read::parts(*bytes) {
                    let chunk = ahead.next(path)?;
                    if listed_as.is_some() {
                        sum.update(&chunk.bytes);
                    }
                    sink.write(&chunk.bytes)?;
                    self.tell_wrong(path, &chunk, &mut wrong);
                    self.pace(chunk.bytes.len() as u64)?;
                }
                if let Some(pages) = pages {
                    self.done.verified_files += 1;
                    if !bytes.is_multiple_of(pages.page_bytes.into()) {
                        let path = path.display();
                        (self.options.warn)(&format!(
                            "{path} does not end with a whole page, and that part is not verified"
                        ));
                    }
                }
                *bytes
            }
        };
        sink.end_file()?;
        self.done.files += 1;
        self.done.bytes += bytes;
        if let (Some((manifest, _)), Some(path)) = (&mut self.manifest, listed_as) {
            manifest.add(path, bytes, item.attributes.modified, sum);
        }
        Ok(())
    }

    fn tell_wrong(&mut self, path: &Path, chunk: &Chunk, before: &mut u64) {
        for (block, stored, right) in &chunk.wrong {
            *before += 1;
            if *before <= WARNINGS_PER_FILE {
                let path = path.display();
                (self.options.warn)(&format!(
                    "{path}, block {block}: its checksum is {stored:04X}, and ought to be {right:04X}"
                ));
            } else if *before == WARNINGS_PER_FILE + 1 {
                (self.options.warn)(&format!("{}: further blocks of it are not told", path.display()));
            }
            self.done.wrong_pages += 1;
        }
    }

    /// Counts bytes that were read, and pauses if the rate is exceeded.
    fn pace(&mut self, bytes: u64) -> Result<()> {
        self.read += bytes;
        let read = self.read;
        (self.options.progress)(read, self.total);
        self.stop_if_asked()?;
        let Some(rate) = self.options.rate.filter(|rate| *rate > 0) else { return Ok(()) };
        let due = Duration::from_secs_f64(read as f64 / rate as f64);
        while let Some(rest) = due.checked_sub(self.began.elapsed()).filter(|rest| !rest.is_zero()) {
            std::thread::sleep(rest.min(NAP_MAX));
            self.stop_if_asked()?;
        }
        Ok(())
    }
}
