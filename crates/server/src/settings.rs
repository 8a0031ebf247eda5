//! Finds the value of a property for a dataset: what was set on it, on a dataset above it, or the default.

use pagefold_engine::pool::Pool;

use crate::control::ValueSource;
use crate::engine_errors;
use crate::failure::Result;
use crate::names::{self, dataset_of};
use crate::props::{Property, Scope};

/// A value and its origin.
pub(crate) type Setting = (String, ValueSource);

/// Returns the setting of `property` for the dataset or snapshot `path`.
///
/// Errors: the dataset or snapshot does not exist.
pub(crate) fn of(pool: &Pool, path: &str, property: &Property) -> Result<Setting> {
    let found = if property.scope == Scope::Own {
        let own = pool.property_of(path, property.name);
        let own = own.map_err(|error| {
            engine_errors::failed(format!("cannot read property {}", property.name), &error)
        })?;
        own.filter(|value| value != property.default).map(|value| (value, ValueSource::Local))
    } else if property.scope == Scope::Pool && !path.is_empty() {
        let of_pool = stored(pool, "", property.name)?;
        of_pool.map(|(value, _)| (value, ValueSource::Inherited(pool.name().to_owned())))
    } else {
        stored(pool, path, property.name)?
    };
    Ok(match found {
        Some((value, source @ ValueSource::Inherited(_))) if property.name == "mountpoint" => {
            (below(value, &source, pool.name(), path), source)
        }
        Some(found) => found,
        None => (property.default.to_owned(), ValueSource::Default),
    })
}

/// Returns the value that was set under `name` on a dataset or snapshot, or on the nearest dataset above it.
pub(crate) fn stored(pool: &Pool, path: &str, name: &str) -> Result<Option<Setting>> {
    let failed = |error| engine_errors::failed(format!("cannot read property {name}"), &error);
    let mut at = Some(path);
    while let Some(here) = at {
        if let Some(value) = pool.property_of(here, name).map_err(failed)? {
            let source = if here == path {
                ValueSource::Local
            } else {
                ValueSource::Inherited(names::full(pool.name(), here))
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
