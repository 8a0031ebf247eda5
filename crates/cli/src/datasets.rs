//! Datasets and snapshots as the verbs need them, of a pool that is served or opened for a moment.

use pagefold_server::control::{Client, PropertyValue, Reply, Request};
use pagefold_server::failure::Result;
use pagefold_server::names::Name;
use pagefold_server::operations::{self, NoMounts, Operation, OperationResult};
use pagefold_server::registry::{Known, Registry};
use pagefold_server::{dataset_figures, dataset_properties, engine_errors, pools, streams};

use crate::target;

pub use pagefold_server::control::{DatasetFigures, PartialFigures};

/// Returns the figures of all datasets and snapshots of a pool, from its server or from its devices.
pub fn of_pool(pool: &str) -> Result<Vec<DatasetFigures>> {
    Ok(with_partials(pool)?.0)
}

/// Returns the datasets of a pool of which a part was received.
pub fn partials_of(pool: &str) -> Result<Vec<PartialFigures>> {
    Ok(with_partials(pool)?.1)
}

fn with_partials(pool: &str) -> Result<(Vec<DatasetFigures>, Vec<PartialFigures>)> {
    target::ask_or_look(pool, asked, |known| {
        pools::look_offline(known, |pool| {
            Ok((dataset_figures::all(pool, &|_| None)?, streams::partials(pool)))
        })
    })
}

fn asked(client: &mut Client) -> Result<(Vec<DatasetFigures>, Vec<PartialFigures>)> {
    match client.ask(&Request::Datasets {})? {
        Reply::Datasets { all, partials } => Ok((all, partials)),
        _ => Err(client.misunderstood()),
    }
}

/// Returns the properties of a dataset or snapshot as its server tells them.
pub fn properties_asked(client: &mut Client, path: &str) -> Result<Vec<PropertyValue>> {
    match client.ask(&Request::Properties { path: path.to_owned() })? {
        Reply::Properties { values } => Ok(values),
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
    if let Some(mut client) = target::connect(pool)? {
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
