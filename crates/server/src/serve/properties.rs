//! Properties that hold for the whole pool or a mount: passes them on when they change.

use std::sync::Arc;

use pagefold_engine::dataset::{LogicalCapacity, PrimaryCache};
use pagefold_engine::pool::{DEVICE_RULES, Pool};
use parking_lot::Mutex;

use super::budget::CacheBudget;
use super::exports::Exports;
use crate::control::{PropertyValue, ValueSource};
use crate::failure::{Failure, Result};
use crate::{dataset_properties, props, settings};

/// The properties of an open pool.
pub(super) struct Properties {
    pool: Arc<Pool>,
    exports: Arc<Exports>,
    /// Properties of the whole pool that hold while it is open.
    temporary: Mutex<Vec<(&'static str, String)>>,
    cache_budget: Arc<CacheBudget>,
}

impl Properties {
    /// Creates those of a pool, with the ones that hold while it is open.
    pub(super) fn new(
        pool: Arc<Pool>,
        exports: Arc<Exports>,
        temporary: Vec<(&'static str, String)>,
    ) -> Self {
        let cache_budget = Arc::new(CacheBudget::new(Arc::clone(&pool)));
        Self { pool, exports, temporary: Mutex::new(temporary), cache_budget }
    }

    /// Returns the budget of the caches, which the property `cache` sets.
    pub(super) fn cache_budget(&self) -> Arc<CacheBudget> {
        Arc::clone(&self.cache_budget)
    }

    /// Returns the properties of a dataset or snapshot, with those that hold for its mount.
    pub(super) fn of(&self, path: &str) -> Result<Vec<PropertyValue>> {
        let mounted = self
            .exports
            .all()
            .into_iter()
            .find(|mounted| self.pool.path_of(mounted.id).is_some_and(|of| of == path));
        let mut temporary = mounted.map(|mounted| mounted.temporary()).unwrap_or_default();
        // The last of a name counts: a remount changes those of the whole pool here, and not in the mount's own options.
        temporary.extend(self.temporary.lock().iter().cloned());
        dataset_properties::all(&self.pool, path, &temporary)
    }

    /// Sets a property of the whole pool that holds while it is open. `note` gets all of them.
    pub(super) fn set_temporary(
        &self,
        property: &'static str,
        value: &str,
        note: impl FnOnce(&[(&'static str, String)]),
    ) -> Result<()> {
        let mut temporary = self.temporary.lock();
        temporary.retain(|(name, _)| *name != property);
        temporary.push((property, value.to_owned()));
        note(&temporary);
        drop(temporary);
        self.obey_all()
    }

    /// Applies to the mounts a property of datasets that was changed.
    pub(super) fn obey_in_mounts(&self, name: &str) -> Result<()> {
        for mounted in self.exports.all() {
            let Some(of) = self.pool.path_of(mounted.id) else { continue };
            if let Ok(property) = props::find(name) {
                mounted.take_effect(name, &settings::of(&*self.pool, &of, property)?.0)?;
            }
        }
        Ok(())
    }

    /// Passes to the engine the properties that hold for the whole pool, and the `compression` that its datasets
    /// inherit. A value that a later version of the program has set does not keep the pool from being used.
    pub(super) fn obey_all(&self) -> Result<()> {
        let temporary = self.temporary.lock().clone();
        let values = dataset_properties::all(&self.pool, "", &temporary)?;
        let own = ["compression", "primarycache", "autotrim", "autoexpand", "cache", LogicalCapacity::NAME];
        for name in own.into_iter().chain(DEVICE_RULES) {
            let found = values.iter().find(|value| value.name == name && value.source != ValueSource::None);
            if let Some(value) = found
                && let Err(failure) = self.obey_for_pool(name, &value.value)
            {
                tracing::error!(%failure, "the pool goes on as if it were not set");
            }
        }
        Ok(())
    }

    fn obey_for_pool(&self, name: &str, value: &str) -> Result<()> {
        let unknown = || {
            Failure::new(format!(
                "the pool's property {name} has the value \"{value}\", which is unknown here"
            ))
        };
        match name {
            "compression" => self.pool.set_compression(value.parse().map_err(|_| unknown())?),
            "autotrim" => self.pool.set_autotrim(value == "on"),
            "autoexpand" => self.pool.set_autoexpand(value == "on"),
            _ if DEVICE_RULES.contains(&name) => {
                self.pool.set_device_rule(name, value).map_err(|_| unknown())?;
            }
            LogicalCapacity::NAME => {
                self.pool.set_logical_capacity(value.parse().map_err(|_| unknown())?);
            }
            "cache" => self.cache_budget.set(value.parse().map_err(|()| unknown())?),
            _ => self.pool.set_primary_cache(match value {
                "all" => PrimaryCache::All,
                "metadata" => PrimaryCache::Metadata,
                "none" => PrimaryCache::None,
                _ => return Err(unknown()),
            }),
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use pagefold_engine::device::{Device, SimDevice};
    use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, create_on};

    use super::*;

    /// The pool could not be mounted, and so the value not be changed.
    #[test]
    fn a_value_of_a_later_version_keeps_nobody_from_the_pool() {
        let devices = vec![Arc::new(SimDevice::new(160 << 20, 3)) as Arc<dyn Device>];
        let options = CreateOptions { force: false, created: 100, guid: Guid([7; 16]) };
        create_on("tank", &devices, &options).unwrap();
        let pool = Pool::open_on(devices, &OpenOptions::default()).unwrap();
        pool.set_property("compression", Some("page-later")).unwrap();
        pool.set_property("primarycache", Some("some")).unwrap();
        let exports = Arc::new(Exports::new(Arc::clone(&pool)));
        Properties::new(Arc::clone(&pool), exports, Vec::new()).obey_all().unwrap();
    }
}
