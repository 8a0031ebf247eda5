//! `branch create`.

use std::path::{Path, PathBuf};

use pagefold_engine::walk;
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::names::{self, Name};
use pagefold_server::operations::Operation;
use pagefold_server::{raw, retention};
use rustix::io::Errno;

use super::data::{self, DataDir};
use super::record::{MADE_DIR, Options, Position, Product, Record};
use super::settings::Settings;
use super::{branch_name, list, mariadb, ports, postgres, process, server, turn, unfinished};
use crate::args::CreateBranch;
use crate::datasets::{self, DatasetFigures};
use crate::interrupt::Interrupt;

/// Parts of a branch that have been made so far, so that they can be undone.
#[derive(Default)]
struct PartialBranch {
    snapshot: Option<Name>,
    dataset: Option<Name>,
    mounted: bool,
    dir: Option<PathBuf>,
}

/// Makes a branch.
pub fn run(args: &CreateBranch) -> Result<()> {
    let source = Name::parse(&args.source)?;
    let name = branch_name(&source, &args.name)?;
    let mut options = Options::default();
    options.update(&args.server)?;
    let turn = turn::of(&name)?;
    unfinished::tidy(&turn, &name)?;
    let figures = datasets::find(&source)?;
    refuse_taken(&name)?;
    let place = BranchMountpoint::choose(&figures, &name, args.mountpoint.as_deref())?;
    let interrupt = Interrupt::default();
    interrupt.catch()?;
    let mut made = PartialBranch::default();
    let done = make(args, &source, &name, &place, options, &mut made, &interrupt);
    if let Err(failure) = done.and_then(|()| interrupt.release()) {
        made.undo();
        return Err(failure);
    }
    let branch = super::find(&name)?;
    if args.start {
        let started = server::start(&name, &branch.record, &server::data_of(&branch)?);
        started.map_err(|failure| {
            let advice = failure.advice().unwrap_or_default();
            let there = format!("the branch is there; try again: pagefold branch start {name}");
            Failure::new(failure.what()).hint(format!("{there}\n  {advice}"))
        })?;
    }
    list::print_one(&branch, args.json)
}

fn refuse_taken(name: &Name) -> Result<()> {
    if datasets::of_pool(&name.pool)?.iter().any(|figures| figures.path == name.path) {
        return Err(Failure::new(format!("there is a dataset {name} already")).hint(format!(
            "choose another name, or a whole one: {}/NAME",
            names::full(&name.pool, names::parent(&name.path).unwrap_or_default())
        )));
    }
    Ok(())
}

/// The place where a branch is to be mounted.
struct BranchMountpoint {
    /// Value to be set as the branch's property; `None` if the inherited value holds.
    property: Option<String>,
    dir: PathBuf,
    /// True if somebody chose it here, now or by mounting the source. Otherwise the pool says it, and is obeyed if it
    /// was adopted.
    said: bool,
}

impl BranchMountpoint {
    /// Chooses the place: as it was said, or by the property that the branch inherits, or beside its source.
    fn choose(of: &DatasetFigures, name: &Name, said: Option<&Path>) -> Result<Self> {
        let last = name.path.rsplit('/').next().unwrap_or(&name.path);
        let all = datasets::of_pool(&name.pool)?;
        let set = |dir: PathBuf, said| Self { property: Some(raw::text(&dir)), dir, said };
        let place = if let Some(dir) = said {
            set(std::path::absolute(dir).context(|| format!("cannot resolve {}", dir.display()))?, true)
        } else {
            let of_path = |path: &str| all.iter().find(|figures| figures.path == path);
            let source = of_path(names::dataset_of(&of.path));
            let above = names::parent(&name.path).and_then(of_path);
            let inherited = above.filter(|above| above.mountpoint != "none");
            let inherited = inherited.map(|above| raw::path_of(&above.mountpoint).join(last));
            // The place must not lie in the source: the directory would be made there.
            match inherited
                .filter(|dir| !source.is_some_and(|source| dir.starts_with(raw::path_of(&source.mountpoint))))
            {
                Some(dir) => Self { property: None, dir, said: false },
                None => {
                    let mounted = source.is_some_and(|source| source.mounted.is_some());
                    set(beside(source, name, last)?, mounted)
                }
            }
        };
        match walk::reach(&place.dir).and_then(|dir| dir.is_empty()) {
            Ok(true) => Ok(place),
            Ok(false) => Err(Failure::new(format!(
                "{} is not empty: {name} cannot be mounted there",
                place.dir.display()
            ))
            .hint("say where else: --mountpoint DIR")),
            Err(error) if error.errno() == Errno::NOENT => Ok(place),
            Err(error) => {
                Err(Failure::new(format!("{name} cannot be mounted at {}: {error}", place.dir.display()))
                    .hint("say where else: --mountpoint DIR"))
            }
        }
    }
}

/// Returns a directory beside that of the dataset of which the branch is made.
fn beside(of: Option<&DatasetFigures>, name: &Name, last: &str) -> Result<PathBuf> {
    let dir = of.and_then(|of| {
        let by_property = (of.mountpoint != "none").then(|| raw::path_of(&of.mountpoint));
        let dir = of.mounted.clone().or(by_property)?;
        let beside = format!("{}-{last}", dir.file_name()?.to_str()?);
        Some(dir.with_file_name(beside))
    });
    dir.ok_or_else(|| {
        Failure::usage(format!("where is {name} to be mounted?")).hint("say it: --mountpoint DIR")
    })
}

/// Makes snapshot, clone and mount, and records what is found there. Fails between two steps if a signal has come.
fn make(
    args: &CreateBranch,
    source: &Name,
    name: &Name,
    place: &BranchMountpoint,
    options: Options,
    made: &mut PartialBranch,
    interrupt: &Interrupt,
) -> Result<()> {
    let snapshot = if source.is_snapshot() {
        source.clone()
    } else {
        let own = super::own_snapshot(source, &name.path, unfinished::CREATE)?;
        made.snapshot = Some(own.clone());
        own
    };
    interrupt.check()?;
    // Snapshots by an inherited policy would be in the way of the branch's reset and its end; so would those of
    // backups.
    let none = |name: &str| (name.to_owned(), "none".to_owned());
    let mut properties = vec![none(retention::POLICY), none(pagefold_server::backups::BACKUP)];
    properties.push(unfinished::mark(unfinished::CREATE));
    let makes_dir = walk::reach(&place.dir).is_err();
    properties.extend(makes_dir.then(|| (MADE_DIR.to_owned(), "yes".to_owned())));
    properties.extend(place.property.iter().map(|dir| ("mountpoint".to_owned(), dir.clone())));
    datasets::perform(
        &name.pool,
        Operation::Clone { snapshot: snapshot.path, path: name.path.clone(), properties },
    )?;
    made.dataset = Some(name.clone());
    interrupt.check()?;
    made.dir = makes_dir.then(|| place.dir.clone());
    let dir = super::mount(name, place.said.then_some(&place.dir))?;
    made.mounted = true;
    interrupt.check()?;
    let found = data::choose(source, &dir, args.data.as_deref())?;
    let turn = ports::turn()?;
    let port = match args.server.port {
        Some(port) => port,
        None => ports::choose(&turn, found.product)?,
    };
    let data = found.relative;
    let record = look(
        &dir,
        Record {
            product: found.product,
            version: "-".into(),
            data,
            port,
            position: Position::default(),
            options,
            made_mountpoint: makes_dir,
        },
    )?;
    super::store(name, &record)?;
    unfinished::finish(made.snapshot.iter().chain([name]))
}

/// Looks at the data directory of a branch that has just been made: which version it has, and where it is in its log.
/// Removes what it says of the server whose copy it is.
pub fn look(mount: &Path, mut record: Record) -> Result<Record> {
    let data = DataDir::open(mount, &record.data)?;
    if let Some(pid) = process::server_of(&data) {
        return Err(Failure::new(format!("process {pid} works in {} already", data.path.display())));
    }
    server::check(&record, &data)?;
    match record.product {
        Product::PostgreSql => {
            record.version = postgres::version(&data)?.to_string();
            record.position = postgres::position(&data, &record.options)?;
            postgres::settle(&data)?;
        }
        Product::MariaDb => {
            (record.version, record.position) = mariadb::version_and_position(&data)?;
            mariadb::settle(&data)?;
        }
    }
    Ok(record)
}

impl PartialBranch {
    /// Undoes it, newest first. A step that fails is reported, and the rest is undone all the same.
    fn undo(self) {
        let told = |outcome: Result<()>| {
            if let Err(failure) = outcome {
                eprintln!("pagefold: not undone: {failure}");
            }
        };
        if let Some(name) = self.dataset {
            told(Settings::open().and_then(|settings| settings.set(&name, &Options::default())));
            if self.mounted {
                told(super::unmount(&name));
            }
            if let Some(dir) = self.dir {
                told(data::remove_dir(&dir).context(|| format!("cannot remove {}", dir.display())));
            }
            told(super::destroy(&name.pool, vec![name.path], false));
        }
        if let Some(snapshot) = self.snapshot {
            told(super::destroy(&snapshot.pool, vec![snapshot.path], false));
        }
    }
}
