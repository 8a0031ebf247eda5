//! Finds the value of a property for a dataset: what was set on it, on a dataset above it, or the default.

use std::collections::BTreeMap;

use pagefold_engine::pool::{Listed, Pool};

use crate::control::ValueSource;
use crate::engine_errors;
use crate::failure::Result;
use crate::names::{self, dataset_of};
use crate::props::{Property, Scope};

/// A value and its origin.
pub(crate) type Setting = (String, ValueSource);

/// The properties of a pool's datasets and snapshots.
pub(crate) trait PropertySource {
    /// Returns the name of the pool.
    fn pool(&self) -> &str;

    /// Returns the value that was set under `name` on the dataset or snapshot `path` itself.
    ///
    /// Errors: the dataset or snapshot does not exist.
    fn own(&self, path: &str, name: &str) -> Result<Option<String>>;
}

impl PropertySource for Pool {
    fn pool(&self) -> &str {
        self.name()
    }
    fn own(&self, path: &str, name: &str) -> Result<Option<String>> {
        let failed = |error| engine_errors::failed(format!("cannot read property {name}"), &error);
        self.property_of(path, name).map_err(failed)
    }
}

/// The properties as they were when the datasets and snapshots were listed, whatever has been destroyed since.
pub(crate) struct ListedProperties<'a> {
    pool: &'a str,
    listed: BTreeMap<&'a str, &'a BTreeMap<String, String>>,
}

impl<'a> ListedProperties<'a> {
    /// Creates it of all that a pool has.
    pub(crate) fn new(pool: &'a str, listed: &'a [Listed]) -> Self {
        let listed = listed.iter().map(|found| (found.path.as_str(), &found.properties)).collect();
        Self { pool, listed }
    }
}

impl PropertySource for ListedProperties<'_> {
    fn pool(&self) -> &str {
        self.pool
    }
    fn own(&self, path: &str, name: &str) -> Result<Option<String>> {
        // Those that are being received are not listed, and set nothing yet.
        Ok(self.listed.get(path).and_then(|found| found.get(name)).cloned())
    }
}

/// Returns the setting of `property` for the dataset or snapshot `path`.
///
/// Errors: the dataset or snapshot does not exist.
pub(crate) fn of(properties: &impl PropertySource, path: &str, property: &Property) -> Result<Setting> {
    let found = if property.scope == Scope::Own {
        let own = properties.own(path, property.name)?;
        own.filter(|value| value != property.default).map(|value| (value, ValueSource::Local))
    } else if property.scope == Scope::Pool && !path.is_empty() {
        let of_pool = properties.own("", property.name)?;
        of_pool.map(|value| (value, ValueSource::Inherited(properties.pool().to_owned())))
    } else {
        stored(properties, path, property.name)?
    };
    Ok(match found {
        Some((value, source @ ValueSource::Inherited(_))) if property.name == "mountpoint" => {
            (below(value, &source, properties.pool(), path), source)
        }
        Some(found) => found,
        None => (property.default.to_owned(), ValueSource::Default),
    })
}

/// Returns the value that was set under `name` on a dataset or snapshot, or on the nearest dataset above it.
pub(crate) fn stored(properties: &impl PropertySource, path: &str, name: &str) -> Result<Option<Setting>> {
    let mut at = Some(path);
    while let Some(here) = at {
        if let Some(value) = properties.own(here, name)? {
            let source = if here == path {
                ValueSource::Local
            } else {
                ValueSource::Inherited(names::full(properties.pool(), here))
            };
            return Ok(Some((value, source)));
        }
        at = if here.contains('@') { Some(dataset_of(here)) } else { names::parent(here) };
    }
    Ok(None)
}

/// Returns the mount point of a dataset that inherits one: below the inherited directory, by the rest of its name.
fn below(value: String, source: &ValueSource, pool: &str, path: &str) -> String {
    let ValueSource::Inherited(from) = source else { return value };
    let whole = names::full(pool, dataset_of(path));
    match whole.strip_prefix(from.as_str()) {
        Some(rest) if value != "none" => format!("{}{rest}", value.trim_end_matches('/')),
        _ => value,
    }
}
