//! Properties of datasets and snapshots, as a pool that is open has them.

use std::collections::{BTreeSet, HashMap};

use pagefold_engine::Error;
use pagefold_engine::limits::{ATOMIC_WRITE_MAX, RECORDSIZE_DEFAULT, RECORDSIZE_MAX};
use pagefold_engine::pool::{Listed, Pool, Status};

use crate::control::{PropertyValue, ValueSource};
use crate::engine_errors::{failed, no_such_dataset};
use crate::failure::{Failure, Result};
use crate::names;
use crate::props::{self, PROPERTIES, Scope};
use crate::settings::{self, PropertySource};
use crate::{startup, units};

/// Sets a property; `None` clears it, so that the inherited value holds.
pub fn set_one(pool: &Pool, path: &str, name: &str, value: Option<&str>) -> Result<()> {
    let of = names::full(pool.name(), path);
    refuse_engines(name, &of)?;
    startup::check_pair(pool, name, value)?;
    pool.set_property_of(path, name, value).map_err(|error| match error {
        Error::NotFound(_) => no_such_dataset(&of, &error),
        error => failed(format!("cannot set {name} of {of}"), &error),
    })
}

/// Returns an error if only the engine sets the property, on the dataset or snapshot `of`.
pub(crate) fn refuse_engines(name: &str, of: &str) -> Result<()> {
    if props::is_engines(name) {
        return Err(Failure::new(format!("cannot set {name} of {of}: it is the engine's own")));
    }
    Ok(())
}

/// Returns all properties of a dataset or snapshot of an open pool. Those in `temporary` hold for its mount.
pub fn all(pool: &Pool, path: &str, temporary: &[(&'static str, String)]) -> Result<Vec<PropertyValue>> {
    let name = names::full(pool.name(), path);
    let token = pool.partial(path).map(|partial| PropertyValue {
        name: props::RESUME_TOKEN.into(),
        value: partial.token.to_string(),
        source: ValueSource::None,
    });
    let listed = match (pool.listed(path), token.clone()) {
        // Of a dataset that is being received for the first time, only the token is known.
        (Err(Error::NotFound(_)), Some(token)) => return Ok(vec![token]),
        (listed, _) => listed.map_err(|error| no_such_dataset(&name, &error))?,
    };
    let available_bytes = if listed.is_snapshot { 0 } else { accepted_bytes(pool, &listed)? };
    let listed = Listed { available_bytes, ..listed };
    let all = pool.list().map_err(|error| failed("cannot list the datasets", &error))?;
    let below_bytes = if listed.is_snapshot { 0 } else { UsedBelow::new(&all).of(path) };
    let status = pool.status();
    let mut values = Vec::new();
    for property in PROPERTIES {
        let name = property.name.to_owned();
        if listed.is_snapshot && property.scope == Scope::Own {
            continue;
        }
        let temporary = temporary.iter().rev().find(|(temporary, _)| *temporary == property.name);
        let (value, source) = match temporary {
            Some((_, value)) => (value.clone(), ValueSource::Temporary),
            None if property.settable() => settings::of(pool, path, property)?,
            None => match computed(property.name, &listed, below_bytes, &status) {
                Some(value) => (value, ValueSource::None),
                None => continue,
            },
        };
        values.push(PropertyValue { name, value, source });
    }
    values.extend(token);
    values.extend(user_properties(pool, path)?);
    Ok(values)
}

/// Returns the bytes that new files of a dataset certainly get, whatever is in them.
pub(crate) fn accepted_bytes(properties: &impl PropertySource, listed: &Listed) -> Result<u64> {
    let (value, _) = settings::of(properties, &listed.path, props::find("recordsize")?)?;
    let recordsize = match value.as_str() {
        "auto" => RECORDSIZE_DEFAULT,
        size => u32::try_from(units::parse_size(size)?).unwrap_or(RECORDSIZE_MAX),
    };
    Ok(pagefold_engine::dataset::accepted_bytes(listed.available_bytes, recordsize))
}

/// Returns the user properties of a dataset or snapshot, its own and inherited ones.
fn user_properties(pool: &Pool, path: &str) -> Result<Vec<PropertyValue>> {
    let mut names = BTreeSet::new();
    let mut at = Some(path);
    while let Some(here) = at {
        let listed = pool.listed(here).map_err(|error| failed("cannot read properties", &error))?;
        names.extend(listed.properties.into_keys().filter(|name| props::is_user(name)));
        at = if here.contains('@') { Some(names::dataset_of(here)) } else { names::parent(here) };
    }
    let mut values = Vec::new();
    for name in names {
        if let Some((value, source)) = settings::stored(pool, path, &name)? {
            values.push(PropertyValue { name, value, source });
        }
    }
    Ok(values)
}

/// Returns the exact value of a computed property; `None` if this dataset or snapshot does not have it.
fn computed(name: &str, listed: &Listed, below_bytes: u64, status: &Status) -> Option<String> {
    let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
    let is_pool = listed.path.is_empty();
    Some(match name {
        "used" if is_pool => status.used_bytes.to_string(),
        "used" => (listed.used_bytes + below_bytes).to_string(),
        "available" if !listed.is_snapshot => listed.available_bytes.to_string(),
        "referenced" => listed.referenced_bytes.to_string(),
        "logicalused" => listed.logical_bytes.to_string(),
        "usedbysnapshots" if !listed.is_snapshot => listed.snapshots_bytes.to_string(),
        "written" => listed.written_bytes.to_string(),
        "origin" if !listed.is_snapshot => {
            listed.origin.as_ref().map_or_else(|| "-".into(), |origin| names::full(&status.name, origin))
        }
        "clones" if listed.is_snapshot && !listed.clones.is_empty() => {
            let seen = listed.clones.iter().filter(|path| !names::is_hidden(path));
            let clones: Vec<String> = seen.map(|path| names::full(&status.name, path)).collect();
            clones.join(",")
        }
        "userrefs" if listed.is_snapshot => listed.holds.len().to_string(),
        "type" => (if listed.is_snapshot { "snapshot" } else { "filesystem" }).into(),
        "compressratio" if is_pool => ratio(units::ratio(status.logical_bytes, status.physical_bytes)),
        "compressratio" => ratio(units::ratio(listed.logical_bytes, listed.physical_bytes)),
        "atomicwrite" => ATOMIC_WRITE_MAX.to_string(),
        "physicalused" if is_pool => status.allocated_bytes.to_string(),
        "waf" if is_pool => {
            ratio((status.totals.accepted_bytes > 0).then(|| status.totals.write_amplification()))
        }
        "guid" if is_pool => status.guid.to_string(),
        "version" if is_pool => status.version.to_string(),
        "creation" if is_pool => status.created.to_string(),
        "creation" => listed.created.to_string(),
        _ => return None,
    })
}

/// Bytes that the datasets below each dataset hold.
pub(crate) struct UsedBelow<'a>(HashMap<&'a str, u64>);

impl<'a> UsedBelow<'a> {
    /// Adds them up for all datasets of a pool.
    pub(crate) fn new(listed: &'a [Listed]) -> Self {
        let mut below = HashMap::new();
        for dataset in listed.iter().filter(|found| !found.is_snapshot) {
            let mut above = names::parent(&dataset.path);
            while let Some(path) = above {
                *below.entry(path).or_default() += dataset.used_bytes;
                above = names::parent(path);
            }
        }
        Self(below)
    }

    /// Returns those below the dataset `path`.
    pub(crate) fn of(&self, path: &str) -> u64 {
        self.0.get(path).copied().unwrap_or_default()
    }
}
