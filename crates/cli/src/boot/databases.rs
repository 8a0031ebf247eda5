//! Finds the databases of this machine that systemd starts, and their data directories.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Largest size of a configuration file in bytes; longer files are skipped.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Largest number of links that are followed, as in the kernel.
const LINKS_MAX: usize = 40;
/// Directories of unit files, in the order in which they are searched.
const UNIT_DIRS: [&str; 4] =
    ["etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"];
/// Configuration of MariaDB and MySQL: files and directories of files, in the order in which they are read.
const MYSQL_CONFIG: [&str; 6] = [
    "etc/my.cnf",
    "etc/my.cnf.d",
    "etc/mysql/my.cnf",
    "etc/mysql/conf.d",
    "etc/mysql/mysql.conf.d",
    "etc/mysql/mariadb.conf.d",
];
/// Units of MariaDB and MySQL; the first that is a file, and not a link to another unit, counts.
const MYSQL_UNITS: [&str; 3] = ["mariadb.service", "mysql.service", "mysqld.service"];

/// A database that a unit starts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Database {
    /// Name of the unit.
    pub unit: String,
    /// The data directory, without links as far as they can be followed.
    pub data: PathBuf,
}

/// Returns all databases found below `root`. Files that cannot be read are skipped: this runs early at boot, and must
/// not stop it.
pub fn find(root: &Path) -> Vec<Database> {
    let mut found = clusters(root);
    let has_clusters = !found.is_empty();
    found.extend(mysql(root));
    if !has_clusters {
        found.extend(postgresql(root));
    }
    for database in &mut found {
        database.data = resolved(root, &database.data);
    }
    found.sort();
    found
}

/// Returns Debian's clusters. Each has a configuration and the unit `postgresql@VERSION-CLUSTER.service`.
fn clusters(root: &Path) -> Vec<Database> {
    let mut found = Vec::new();
    for version in entries(&root.join("etc/postgresql")) {
        for cluster in entries(&version) {
            let (Some(version), Some(name)) = (name_of(&version), name_of(&cluster)) else { continue };
            let Some(text) = read(&cluster.join("postgresql.conf")) else { continue };
            let data = setting(&text, "data_directory").map(PathBuf::from);
            let data = data.unwrap_or_else(|| format!("/var/lib/postgresql/{version}/{name}").into());
            found.push(Database { unit: format!("postgresql@{version}-{name}.service"), data });
        }
    }
    found
}

/// Returns the server of other systems, whose unit names the data directory.
fn postgresql(root: &Path) -> Option<Database> {
    let unit = "postgresql.service";
    let text = read(&unit_file(root, unit)?)?;
    let words = text.lines().filter_map(|line| line.trim().strip_prefix("Environment="));
    let data = words.filter_map(|words| words.trim_matches('"').strip_prefix("PGDATA=")).next_back()?;
    Some(Database { unit: unit.into(), data: data.into() })
}

fn mysql(root: &Path) -> Option<Database> {
    let unit = MYSQL_UNITS.iter().find(|unit| unit_file(root, unit).is_some())?;
    let files = MYSQL_CONFIG.iter().map(|path| root.join(path)).flat_map(|path| match path.is_dir() {
        true => entries(&path),
        false => vec![path],
    });
    let texts = files.filter(|path| path.extension().is_some_and(|extension| extension == "cnf"));
    let data = texts.filter_map(|path| setting(&read(&path)?, "datadir")).next_back();
    Some(Database { unit: (*unit).into(), data: data.unwrap_or_else(|| "/var/lib/mysql".into()).into() })
}

/// Returns the file of a unit that is installed, unless it is a link, which is another name of another unit.
fn unit_file(root: &Path, unit: &str) -> Option<PathBuf> {
    let path = UNIT_DIRS
        .iter()
        .map(|dir| root.join(dir).join(unit))
        .find(|path| path.is_symlink() || path.exists())?;
    (path.is_file() && !path.is_symlink()).then_some(path)
}

/// Returns the last absolute path that a setting `name = value` or `name value` has, quoted or not; a comment may
/// follow it.
fn setting(text: &str, name: &str) -> Option<String> {
    let of_line = |line: &str| {
        let rest = line.trim_start().strip_prefix(name)?;
        if !rest.starts_with(|c: char| c == '=' || c.is_whitespace()) {
            return None;
        }
        let rest = rest.trim_start();
        let rest = rest.strip_prefix('=').unwrap_or(rest).trim_start();
        let value = match rest.chars().next()? {
            quote @ ('\'' | '"') => rest[1..].split(quote).next()?,
            _ => rest.split(|c: char| c == '#' || c.is_whitespace()).next()?,
        };
        value.starts_with('/').then(|| value.to_owned())
    };
    text.lines().filter_map(of_line).next_back()
}

/// Resolves symbolic links in a path as far as it exists: what is not mounted yet cannot be followed.
fn resolved(root: &Path, path: &Path) -> PathBuf {
    let mut done = PathBuf::from("/");
    let mut rest: Vec<PathBuf> = vec![path.to_owned()];
    let mut links = 0;
    while let Some(next) = rest.pop() {
        let mut parts = next.components();
        let Some(part) = parts.next() else { continue };
        rest.push(parts.as_path().to_owned());
        match part {
            Component::RootDir => done = PathBuf::from("/"),
            Component::ParentDir => drop(done.pop()),
            Component::Normal(name) => {
                let at = done.join(name);
                let below = at.strip_prefix("/").unwrap_or(&at);
                match fs::read_link(root.join(below)) {
                    Ok(target) if links < LINKS_MAX => {
                        links += 1;
                        rest.push(target);
                    }
                    _ => done = at,
                }
            }
            Component::CurDir | Component::Prefix(_) => {}
        }
    }
    done
}

/// Returns the paths of a directory's entries, sorted by name.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let Ok(found) = fs::read_dir(dir) else { return Vec::new() };
    let mut all: BTreeMap<_, _> = found.flatten().map(|entry| (entry.file_name(), entry.path())).collect();
    all.retain(|name, _| !name.is_empty());
    all.into_values().collect()
}

fn name_of(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    // Other characters cannot be part of a unit's name.
    name.chars().all(|c| c.is_ascii_alphanumeric() || "._-:".contains(c)).then(|| name.to_owned())
}

fn read(path: &Path) -> Option<String> {
    let small =
        fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() <= FILE_BYTES_MAX);
    small.then(|| fs::read(path).ok()).flatten().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn databases_of_debian() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        put(root, "etc/postgresql/15/main/postgresql.conf", "data_directory = '/srv/tank/pg' # here\n");
        put(root, "etc/postgresql/16/other/postgresql.conf", "#data_directory = '/no'\nport = 5433\n");
        put(root, "etc/postgresql/16/empty/start.conf", "auto\n");
        put(root, "usr/lib/systemd/system/mariadb.service", "[Unit]\n");
        std::os::unix::fs::symlink("mariadb.service", root.join("usr/lib/systemd/system/mysql.service"))
            .unwrap();
        put(
            root,
            "etc/mysql/mariadb.conf.d/50-server.cnf",
            "[mysqld]\n#datadir = /no\ndatadir=/srv/tank/my\n",
        );
        let unit = |unit: &str, data: &str| Database { unit: unit.into(), data: data.into() };
        let all = [
            unit("mariadb.service", "/srv/tank/my"),
            unit("postgresql@15-main.service", "/srv/tank/pg"),
            unit("postgresql@16-other.service", "/var/lib/postgresql/16/other"),
        ];
        assert_eq!(find(root), all);
        // The data directory is a link to a directory that is not mounted yet.
        fs::create_dir_all(root.join("var/lib/postgresql/16")).unwrap();
        std::os::unix::fs::symlink("../../../../srv/vault/./pg", root.join("var/lib/postgresql/16/other"))
            .unwrap();
        assert_eq!(find(root)[2].data, Path::new("/srv/vault/pg"));
    }

    #[test]
    fn a_server_of_its_own_unit() {
        let dir = tempfile::tempdir().unwrap();
        put(
            dir.path(),
            "etc/systemd/system/postgresql.service",
            "[Service]\nEnvironment=PGDATA=/srv/tank/pg\n",
        );
        let found = find(dir.path());
        assert_eq!(found, [Database { unit: "postgresql.service".into(), data: "/srv/tank/pg".into() }]);
    }

    #[test]
    fn nothing_there_is_nothing_found() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(find(dir.path()), []);
        // Following links that lead in a circle ends.
        std::os::unix::fs::symlink("b", dir.path().join("a")).unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("b")).unwrap();
        assert!(resolved(dir.path(), Path::new("/a/c")).ends_with("c"));
    }
}
