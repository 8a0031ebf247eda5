//! Finds the source of a backup: a dataset or snapshot, the data directory in it, and its tablespaces.

use std::path::{Path, PathBuf};

use pagefold_basebackup::tablespace::{self, Tablespace};
use pagefold_basebackup::{Error, Source};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::names::Name;
use pagefold_server::{mounts, raw};

use super::view::View;
use super::{failed, shown, without_links};
use crate::args::{BaseFormat, Basebackup};
use crate::table::printable;
use crate::verbs::branch::data;
use crate::verbs::branch::record::Product;
use crate::{datasets, target};

/// The dataset, snapshot and data directory that the command line names.
pub struct SourceSpec {
    /// The dataset.
    pub dataset: Name,
    /// The snapshot, if one was named.
    pub snapshot: Option<Name>,
    /// The data directory relative to the dataset's root, if it was named.
    pub data: Option<String>,
}

impl SourceSpec {
    /// Resolves the names on the command line; the dataset or snapshot exists.
    pub fn of(args: &Basebackup) -> Result<Self> {
        let (name, below) = named(&args.source)?;
        let data = match (&args.data, below) {
            (Some(data), Some(below)) => Some(format!("{below}/{data}")),
            (Some(data), None) => Some(data.clone()),
            (None, below) => below,
        };
        let figures = datasets::find(&name)?;
        let dataset = Name::new(&name.pool, name.dataset());
        Ok(Self { dataset, snapshot: figures.is_snapshot.then_some(name), data })
    }

    /// Returns the directory at which the dataset is mounted.
    pub fn live(&self) -> Result<PathBuf> {
        datasets::find(&self.dataset)?.mounted.ok_or_else(|| {
            Failure::new(format!("{} is not mounted, so no server runs on it", self.dataset))
                .hint("without --server and --dbname it is backed up as it is")
        })
    }

    /// Returns all directories by which a server may know the dataset's root.
    fn roots(&self) -> Result<Vec<PathBuf>> {
        let name = self.dataset.to_string();
        let figures = datasets::find(&self.dataset)?;
        let by_property = (figures.mountpoint != "none").then(|| raw::path_of(&figures.mountpoint));
        let mounted =
            mounts::ours()?.into_iter().filter(|mount| mount.source == name && mount.root == Path::new("/"));
        let all = mounted.map(|mount| mount.dir).chain(figures.mounted).chain(by_property);
        // Each directory counts as it was said, and without links.
        Ok(all.flat_map(|dir| [std::fs::canonicalize(&dir).ok(), Some(dir)]).flatten().collect())
    }
}

/// Parses a word into a dataset or snapshot, and the directory in it that the word names, if any.
fn named(word: &str) -> Result<(Name, Option<String>)> {
    let path = raw::path_of(word);
    let pool = word.split(['/', '@']).next().unwrap_or_default();
    if !target::is_path(word) && (target::known(pool).is_ok() || !path.exists()) {
        return Ok((Name::parse(word)?, None));
    }
    let mount = target::mount_of(&path)?;
    let name = Name::parse(&mount.source)?;
    let real = std::fs::canonicalize(&path).context(|| format!("cannot resolve {}", shown(&path)))?;
    let below = real.strip_prefix(&mount.dir).map_err(|_| {
        Failure::new(format!("{} cannot be found from the mount {} on", shown(&path), shown(&mount.dir)))
            .hint(format!("name the dataset, and the directory in it: {name} --data DIR"))
    })?;
    // The mount may show only a directory of the dataset, bound elsewhere.
    let inner = mount.root.strip_prefix("/").unwrap_or(&mount.root).join(below);
    let text = inner
        .to_str()
        .ok_or_else(|| Failure::new(format!("{} has a name that is not UTF-8", shown(&path))))?;
    let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty()).collect();
    match parts.as_slice() {
        [".pagefold", "snapshot", snapshot, rest @ ..] if !name.is_snapshot() => {
            let path = format!("{}@{snapshot}", name.path);
            Ok((Name::new(&name.pool, &path), (!rest.is_empty()).then(|| rest.join("/"))))
        }
        [] => Ok((name, None)),
        _ => Ok((name, Some(parts.join("/")))),
    }
}

/// Returns the path of the data directory relative to a root: the one that was named, or the only one.
pub fn data_of(name: &Name, root: &Path, wanted: Option<&str>) -> Result<String> {
    let none = |place: &str| {
        Failure::new(format!(
            "there is no database of PostgreSQL in {name}{place}: no PG_VERSION beside global/pg_control"
        ))
    };
    if let Some(wanted) = wanted {
        let relative = data::normal(wanted)?;
        let has = |file: &str| root.join(&relative).join(file).is_file();
        return match has("PG_VERSION") && has("global/pg_control") {
            true => Ok(relative),
            false => Err(none(&format!(", in {}", printable(wanted)))),
        };
    }
    let all = data::find(root)?;
    let mut found: Vec<String> = all
        .into_iter()
        .filter(|found| found.product == Product::PostgreSql)
        .map(|found| found.relative)
        .collect();
    match (found.pop(), found.is_empty()) {
        (Some(only), true) => Ok(only),
        (None, _) => Err(none("").hint("name its directory from the dataset's root on: --data DIR")),
        (Some(last), false) => {
            let first = found.first().cloned().unwrap_or_default();
            found.push(last);
            let names: Vec<String> = found.iter().map(|path| printable(path)).collect();
            Err(Failure::new(format!("{name} has {} databases: {}", names.len(), names.join(", ")))
                .hint(format!("say which: --data {}", printable(&first))))
        }
    }
}

/// Returns the folders of a backup in the snapshot that `view` shows; the log comes from `log`, if that is given.
pub fn resolve(
    args: &Basebackup,
    wanted: &SourceSpec,
    view: &View,
    relative: &str,
    log: Option<&View>,
) -> Result<Source> {
    let data = view.root.join(relative);
    let roots = wanted.roots()?;
    let tablespaces = tablespaces(args, wanted, view, &data, &roots)?;
    let log = log.unwrap_or(view);
    let wal = log.root.join(relative).join("pg_wal");
    let wal = match std::fs::read_link(&wal) {
        Err(_) => wal,
        Ok(link) => within(&log.root, &wal, &link, &roots).ok_or_else(|| {
            outside(&wanted.dataset, &format!("the database's log lies at {}", shown(&link)))
        })?,
    };
    Ok(Source { data, wal, tablespaces })
}

fn tablespaces(
    args: &Basebackup,
    wanted: &SourceSpec,
    view: &View,
    data: &Path,
    roots: &[PathBuf],
) -> Result<Vec<Tablespace>> {
    let mut moved = args.tablespace_mapping.iter().map(|word| mapping(word)).collect::<Result<Vec<_>>>()?;
    let links =
        tablespace::links(data).map_err(|error: Error| failed("cannot find the tablespaces", &error))?;
    let (mut all, mut without_place) = (Vec::new(), None);
    for (oid, target) in links {
        let link = data.join(tablespace::FOLDER).join(oid.to_string());
        let folder = within(&view.root, &link, &target, roots).ok_or_else(|| {
            outside(&wanted.dataset, &format!("tablespace {oid} lies at {}", shown(&target)))
        })?;
        let places = places(&target, &view.root, &folder, roots);
        let place = moved.iter().position(|(old, _)| places.contains(old));
        let restored = match place {
            Some(place) => without_links(&moved.swap_remove(place).1)?,
            // Without a mapping the tablespace keeps its place.
            None if target.is_absolute() || args.format == BaseFormat::Tar => target.clone(),
            None => {
                without_place.get_or_insert_with(|| unplaced(oid, &target, &places));
                continue;
            }
        };
        all.push(Tablespace { oid, target, folder, restored, moved: place.is_some() });
    }
    if let Some((old, _)) = moved.first() {
        return Err(Failure::usage(format!("there is no tablespace at {}", shown(old))));
    }
    without_place.map_or(Ok(all), Err)
}

/// Returns the absolute paths by which a tablespace is known: its link's target, or, if that is relative, its place
/// wherever the dataset has its root, and else from the dataset's root on.
fn places(target: &Path, root: &Path, folder: &Path, live: &[PathBuf]) -> Vec<PathBuf> {
    if target.is_absolute() {
        return vec![target.to_owned()];
    }
    let root = std::fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
    let below = folder.strip_prefix(root).unwrap_or(folder);
    let slash = PathBuf::from("/");
    let roots = if live.is_empty() { std::slice::from_ref(&slash) } else { live };
    roots.iter().map(|root| root.join(below)).collect()
}

/// Returns the failure of a backup whose relative link would lead a server to files that the backup did not write.
fn unplaced(oid: u32, target: &Path, places: &[PathBuf]) -> Failure {
    let old = places.first().map_or_else(String::new, |place| shown(place));
    Failure::new(format!(
        "the link of tablespace {oid} is relative ({}), and plain files need another place for it",
        shown(target)
    ))
    .hint(format!("say where its files go: -T {old}=NEW"))
}

fn outside(dataset: &Name, what: &str) -> Failure {
    Failure::new(format!("{what}, which is not in {dataset}")).hint(
        "a snapshot of one dataset has nothing of others: pg_basebackup can back this database up, or move all of it into one dataset",
    )
}

fn mapping(word: &str) -> Result<(PathBuf, PathBuf)> {
    let parts = word.split_once('=').map(|(old, new)| (raw::path_of(old), raw::path_of(new)));
    parts.filter(|(old, new)| old.is_absolute() && new.is_absolute()).ok_or_else(|| {
        Failure::usage(format!("\"{}\" is no mapping of a tablespace", printable(word)))
            .hint("it is written OLD=NEW, both from / on")
    })
}

/// Returns the place in a snapshot to which a link leads that a server follows in the live dataset; `None` if it leads
/// out of the snapshot.
fn within(root: &Path, link: &Path, target: &Path, live: &[PathBuf]) -> Option<PathBuf> {
    let inside = if target.is_absolute() {
        let real = std::fs::canonicalize(target).ok();
        let below =
            |path: &Path| live.iter().find_map(|live| path.strip_prefix(live).ok()).map(Path::to_owned);
        root.join(below(target).or_else(|| below(&real?))?)
    } else {
        link.parent()?.join(target)
    };
    // Links on the way are followed as long as they stay in the snapshot.
    let (found, root) = (std::fs::canonicalize(inside).ok()?, std::fs::canonicalize(root).ok()?);
    (found.starts_with(root) && found.is_dir()).then_some(found)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_within_the_snapshot_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (root, live) = (dir.path().join("snapshot"), PathBuf::from("/nowhere/live"));
        fs::create_dir_all(root.join("spaces/one")).unwrap();
        fs::create_dir_all(root.join("data/pg_tblspc")).unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        symlink(dir.path().join("outside"), root.join("spaces/out")).unwrap();
        let link = root.join("data/pg_tblspc/16384");
        let to = |target: &str| within(&root, &link, Path::new(target), std::slice::from_ref(&live));
        let one = fs::canonicalize(root.join("spaces/one")).unwrap();
        assert_eq!(to("/nowhere/live/spaces/one"), Some(one.clone()));
        assert_eq!(to("../../spaces/one"), Some(one));
        for target in [
            "/nowhere/spaces/one",
            "/nowhere/live/spaces/none",
            "/nowhere/live/spaces/out",
            "/nowhere/live/../outside",
            "../../../outside",
        ] {
            assert_eq!(to(target), None, "{target}");
        }
    }

    #[test]
    fn a_tablespace_is_known_by_absolute_paths() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let folder = root.join("spaces/one");
        let of = |target: &str, live: &[&str]| {
            let live: Vec<PathBuf> = live.iter().map(PathBuf::from).collect();
            places(Path::new(target), &root, &folder, &live)
        };
        assert_eq!(of("/srv/db/spaces/one", &["/mnt"]), [Path::new("/srv/db/spaces/one")]);
        let live = ["/mnt/db", "/srv/db"];
        assert_eq!(of("../../spaces/one", &live), live.map(|live| Path::new(live).join("spaces/one")));
        assert_eq!(of("../../spaces/one", &[]), [Path::new("/spaces/one")]);
    }

    #[test]
    fn the_only_database_of_postgres_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let name = Name::parse("tank/db").unwrap();
        let touch = |path: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "15").unwrap();
        };
        assert!(
            data_of(&name, dir.path(), None).unwrap_err().to_string().contains("no database of PostgreSQL")
        );
        touch("maria/ibdata1");
        touch("15/main/PG_VERSION");
        touch("15/main/global/pg_control");
        assert_eq!(data_of(&name, dir.path(), None).unwrap(), "15/main");
        touch("16/main/PG_VERSION");
        touch("16/main/global/pg_control");
        let failure = data_of(&name, dir.path(), None).unwrap_err().to_string();
        assert!(
            failure.contains("2 databases: 15/main, 16/main") && failure.contains("--data 15/main"),
            "{failure}"
        );
        assert_eq!(data_of(&name, dir.path(), Some("/16/main/")).unwrap(), "16/main");
        assert!(data_of(&name, dir.path(), Some("maria")).is_err());
        assert_eq!(data_of(&name, dir.path(), Some("../x")).unwrap_err().exit_status(), 2);
    }

    #[test]
    fn mappings_are_two_absolute_paths() {
        assert_eq!(mapping("/a=/b").unwrap(), ("/a".into(), "/b".into()));
        assert!(mapping("/a").is_err() && mapping("a=/b").is_err() && mapping("/a=b").is_err());
    }
}
