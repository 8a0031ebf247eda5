//! Datasets and snapshots as the verbs need them, of a pool that is served or opened for a moment.

use std::path::PathBuf;

use pagefold_engine::pool::Pool;

use crate::backups::BACKUP;
use crate::control::{Client, PropertyValue, Reply, Request};
pub use crate::control::{DatasetFigures, PartialFigures};
use crate::failure::Result;
use crate::names::{self, Name};
use crate::operations::{self, NoMounts, Operation, OperationResult};
use crate::registry::{Known, Registry};
use crate::{dataset_properties, engine_errors, pools, props, settings, streams};

/// Returns the figures of all datasets and snapshots of an open pool, by name. `mounted` returns where the one with a
/// number is mounted.
pub fn all(pool: &Pool, mounted: &dyn Fn(u64) -> Option<PathBuf>) -> Result<Vec<DatasetFigures>> {
    let listed = pool.list().map_err(|error| engine_errors::failed("cannot list the datasets", &error))?;
    let status = pool.status();
    let mountpoint = props::find("mountpoint")?;
    let backup = props::find(BACKUP)?;
    let name = |path: &String| names::full(&status.name, path);
    let mut all = Vec::with_capacity(listed.len());
    for found in &listed {
        let children =
            if found.is_snapshot { 0 } else { dataset_properties::used_below(&listed, &found.path) };
        all.push(DatasetFigures {
            name: name(&found.path),
            path: found.path.clone(),
            is_snapshot: found.is_snapshot,
            used_bytes: if found.path.is_empty() { status.used_bytes } else { found.used_bytes + children },
            available_bytes: (!found.is_snapshot).then_some(found.available_bytes),
            referenced_bytes: found.referenced_bytes,
            logical_bytes: found.logical_bytes,
            physical_bytes: found.physical_bytes,
            used_by_dataset_bytes: found.used_bytes.saturating_sub(found.snapshots_bytes),
            used_by_snapshots_bytes: found.snapshots_bytes,
            used_by_children_bytes: children,
            written_bytes: found.written_bytes,
            created: if found.path.is_empty() { status.created } else { found.created },
            origin: found.origin.as_ref().map(name),
            clones: found.clones.iter().filter(|path| !names::is_hidden(path)).map(name).collect(),
            holds: found.holds.clone(),
            mountpoint: if found.is_snapshot {
                "-".into()
            } else {
                settings::of(pool, &found.path, mountpoint)?.0
            },
            backup: match found.is_snapshot {
                true => String::new(),
                false => settings::of(pool, &found.path, backup)?.0,
            },
            mounted: mounted(found.id),
        });
    }
    Ok(all)
}

/// Returns the figures of all datasets and snapshots of a pool, from its server or from its devices.
pub fn of_pool(pool: &str) -> Result<Vec<DatasetFigures>> {
    Ok(with_partials(pool)?.0)
}

/// Returns the datasets of a pool of which a part was received.
pub fn partials_of(pool: &str) -> Result<Vec<PartialFigures>> {
    Ok(with_partials(pool)?.1)
}

fn with_partials(pool: &str) -> Result<(Vec<DatasetFigures>, Vec<PartialFigures>)> {
    if let Some(mut client) = crate::target::connect(pool)? {
        return asked(&mut client);
    }
    let known = Registry::open()?.find(pool)?;
    pools::look_offline(&known, |pool| Ok((all(pool, &|_| None)?, streams::partials(pool))))
}

fn asked(client: &mut Client) -> Result<(Vec<DatasetFigures>, Vec<PartialFigures>)> {
    match client.ask(&Request::Datasets {})? {
        Reply::Datasets { all, partials } => Ok((all, partials)),
        _ => Err(client.misunderstood()),
    }
}

/// Returns all properties of a dataset or snapshot of a pool that is not mounted.
pub fn properties_offline(known: &Known, path: &str) -> Result<Vec<PropertyValue>> {
    pools::look_offline(known, |pool| dataset_properties::all(pool, path, &[]))
}

/// Returns the figures of the dataset or snapshot with this name.
pub fn find(name: &Name) -> Result<DatasetFigures> {
    let found = of_pool(&name.pool)?.into_iter().find(|figures| figures.path == name.path);
    found.ok_or_else(|| {
        engine_errors::no_such_dataset(&name.to_string(), &pagefold_engine::Error::NotFound(String::new()))
    })
}

/// Has a pool's server carry out an operation, or opens the pool and does it if the pool is not mounted.
pub fn perform(pool: &str, operation: Operation) -> Result<OperationResult> {
    if let Some(mut client) = crate::target::connect(pool)? {
        return match client.ask_and_wait(&Request::Operation { operation })? {
            Reply::Operation { outcome } => Ok(outcome),
            _ => Err(client.misunderstood()),
        };
    }
    let known = Registry::open()?.find(pool)?;
    pools::with_offline(&known, |pool| {
        let outcome = operations::perform(pool, &operation, &NoMounts)?;
        operations::free_all(pool)?;
        Ok(outcome)
    })
}
