//! The facts about a branch, as user properties of its dataset.

use pagefold_server::control::PropertyValue;
use pagefold_server::failure::{Failure, Result};
use pagefold_server::registry;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

use crate::args::ServerOptions;
use crate::table::printable;

use super::local;

/// Property of a snapshot that was made for a branch; its value is the path of the branch.
pub const OWN: &str = "branch:own";
const DATABASE: &str = "branch:database";
const VERSION: &str = "branch:version";
const DATA: &str = "branch:data";
const PORT: &str = "branch:port";
const LSN: &str = "branch:lsn";
const CHECKPOINT_LSN: &str = "branch:checkpoint-lsn";
const SYSTEM: &str = "branch:system";
/// Property in which earlier versions kept how a server is started. A pool no longer says that.
pub const OPTIONS: &str = "branch:options";
/// Property that says that the mount point was made for the branch.
pub const MADE_DIR: &str = "branch:made-mountpoint";

/// The product whose data a branch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Product {
    /// PostgreSQL.
    PostgreSql,
    /// MariaDB.
    MariaDb,
}

impl Product {
    /// Returns the word by which it is stored.
    pub fn word(self) -> &'static str {
        match self {
            Self::PostgreSql => "postgresql",
            Self::MariaDb => "mariadb",
        }
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::PostgreSql => "PostgreSQL",
            Self::MariaDb => "MariaDB",
        }
    }
}

/// Place of a database in its log, as far as it was read and verified.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Position {
    /// Place where recovery begins to read, in the product's notation.
    pub lsn: Option<String>,
    /// Place of the last checkpoint's record; PostgreSQL only.
    pub checkpoint_lsn: Option<String>,
    /// Number of the cluster; PostgreSQL only.
    pub system: Option<String>,
}

/// How the server is started, as far as the user said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// Folder of the server's programs.
    #[serde(skip_serializing_if = "Option::is_none", with = "pagefold_server::raw::maybe_path")]
    pub bindir: Option<PathBuf>,
    /// Configuration file.
    #[serde(skip_serializing_if = "Option::is_none", with = "pagefold_server::raw::maybe_path")]
    pub config: Option<PathBuf>,
    /// User as which the server may run, beside those of database packages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Settings of the form `name=value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<String>,
}

impl Options {
    /// Takes over what the command line says.
    ///
    /// Errors: a setting is not of the form `name=value`; a path does not exist.
    pub fn update(&mut self, args: &ServerOptions) -> Result<()> {
        let absolute = |path: &PathBuf| registry::absolute(path);
        if let Some(bindir) = &args.bindir {
            self.bindir = Some(absolute(bindir)?);
        }
        if let Some(config) = &args.config {
            self.config = Some(absolute(config)?);
        }
        if let Some(user) = &args.user {
            self.user = Some(user.clone());
        }
        for setting in &args.settings {
            let name = setting.split_once('=').map(|(name, _)| name).filter(|name| is_setting(name));
            let Some(name) = name else {
                return Err(Failure::usage(format!(
                    "\"{}\" is not of the form NAME=VALUE",
                    printable(setting)
                ))
                .hint("settings are those of the database server, e.g. --set shared_buffers=1GB"));
            };
            self.settings.retain(|known| known.split('=').next() != Some(name));
            self.settings.push(setting.clone());
        }
        Ok(())
    }

    /// Returns true if the user has set this.
    pub fn sets(&self, name: &str) -> bool {
        self.settings.iter().any(|setting| setting.split('=').next() == Some(name))
    }
}

/// Returns true if `name` can be the name of a setting.
fn is_setting(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
}

/// Everything that is known of a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Product whose data it is.
    pub product: Product,
    /// Version of the data, as the data says; `-` if it does not say.
    pub version: String,
    /// Path of the data directory, relative to the dataset's root.
    pub data: String,
    /// TCP port of the server.
    pub port: u16,
    /// Place of the snapshot in the log.
    pub position: Position,
    /// How the server is started.
    pub options: Options,
    /// True if the mount point was made for the branch.
    pub made_mountpoint: bool,
}

impl Record {
    /// Returns the record that a dataset's properties and this machine's settings make; `None` if the dataset is no
    /// branch.
    ///
    /// Errors: the properties contradict themselves.
    pub fn of(values: &[PropertyValue], options: Options) -> Result<Option<Self>> {
        let Some(word) = local(values, DATABASE) else { return Ok(None) };
        let text = |name: &str| local(values, name).map(str::to_owned);
        let wrong = |name: &str| {
            Failure::new(format!("the property {name} of a branch is not what it was made with"))
                .hint("destroy the dataset (pagefold destroy) and make the branch anew")
        };
        let product = match word {
            "postgresql" => Product::PostgreSql,
            "mariadb" => Product::MariaDb,
            _ => return Err(wrong(DATABASE)),
        };
        let port = text(PORT).and_then(|port| port.parse().ok()).filter(|port| *port >= 1024);
        Ok(Some(Self {
            product,
            version: text(VERSION).unwrap_or_else(|| "-".into()),
            data: text(DATA).ok_or_else(|| wrong(DATA))?,
            port: port.ok_or_else(|| wrong(PORT))?,
            position: Position { lsn: text(LSN), checkpoint_lsn: text(CHECKPOINT_LSN), system: text(SYSTEM) },
            options,
            made_mountpoint: text(MADE_DIR).is_some(),
        }))
    }

    /// Returns the record as properties. The one that makes the dataset a branch comes last.
    pub fn properties(&self) -> Vec<(String, String)> {
        let mut all =
            vec![(VERSION, self.version.clone()), (DATA, self.data.clone()), (PORT, self.port.to_string())];
        let Position { lsn, checkpoint_lsn, system } = self.position.clone();
        let known = [(LSN, lsn), (CHECKPOINT_LSN, checkpoint_lsn), (SYSTEM, system)];
        all.extend(known.into_iter().filter_map(|(name, value)| Some((name, value?))));
        if self.made_mountpoint {
            all.push((MADE_DIR, "yes".into()));
        }
        all.push((DATABASE, self.product.word().into()));
        all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_server::control::ValueSource;

    fn stored(record: &Record, source: &ValueSource) -> Vec<PropertyValue> {
        let value = |(name, value)| PropertyValue { name, value, source: source.clone() };
        record.properties().into_iter().map(value).collect()
    }

    fn sample() -> Record {
        let mut options = Options::default();
        let settings = vec!["work_mem=1MB".into(), "a.b=x=y".into(), "work_mem=2MB".into()];
        options.update(&ServerOptions { settings, ..ServerOptions::default() }).unwrap();
        Record {
            product: Product::PostgreSql,
            version: "15".into(),
            data: "15/main".into(),
            port: 15_432,
            position: Position { lsn: Some("0/1500718".into()), ..Position::default() },
            options,
            made_mountpoint: true,
        }
    }

    #[test]
    fn a_record_comes_back_from_its_properties() {
        let record = sample();
        assert_eq!(record.options.settings, ["a.b=x=y", "work_mem=2MB"]);
        assert_eq!(
            Record::of(&stored(&record, &ValueSource::Local), record.options.clone()).unwrap().unwrap(),
            record
        );
    }

    #[test]
    fn datasets_below_a_branch_are_none() {
        let inherited = ValueSource::Inherited("tank/feature-x".into());
        assert_eq!(Record::of(&stored(&sample(), &inherited), Options::default()).unwrap(), None);
    }

    #[test]
    fn what_was_changed_by_hand_is_refused() {
        for (name, value) in [(PORT, "80"), (PORT, "x"), (DATABASE, "oracle")] {
            let mut values = stored(&sample(), &ValueSource::Local);
            values.iter_mut().find(|found| found.name == name).unwrap().value = value.into();
            assert!(
                Record::of(&values, Options::default()).unwrap_err().to_string().contains(name),
                "{name}={value}"
            );
        }
    }

    #[test]
    fn a_pool_does_not_say_how_a_server_is_started() {
        let mut values = stored(&sample(), &ValueSource::Local);
        let value = r#"{"bindir":"/srv/evil","settings":["x=1"],"user":"alice"}"#.to_owned();
        values.push(PropertyValue { name: OPTIONS.into(), value, source: ValueSource::Local });
        let record = Record::of(&values, Options::default()).unwrap().unwrap();
        assert_eq!(record.options, Options::default());
    }

    #[test]
    fn settings_have_a_name() {
        for word in ["", "x", "=1", "a b=1", "-c=1"] {
            let args = ServerOptions { settings: vec![word.into()], ..ServerOptions::default() };
            assert_eq!(Options::default().update(&args).unwrap_err().exit_status(), 2, "{word}");
        }
    }
}
