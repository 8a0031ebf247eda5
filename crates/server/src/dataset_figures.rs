//! Figures of datasets and snapshots of an open pool.

use std::path::PathBuf;

use pagefold_engine::pool::Pool;

use crate::backups::BACKUP;
use crate::control::DatasetFigures;
use crate::dataset_properties::{self, UsedBelow};
use crate::failure::Result;
use crate::settings::{self, ListedProperties};
use crate::{engine_errors, names, props};

/// Returns the figures of all datasets and snapshots of an open pool as they are at one moment, by name. `mounted`
/// returns where the one with a number is mounted.
pub fn all(pool: &Pool, mounted: &dyn Fn(u64) -> Option<PathBuf>) -> Result<Vec<DatasetFigures>> {
    let listed = pool.list().map_err(|error| engine_errors::failed("cannot list the datasets", &error))?;
    let status = pool.status();
    let mountpoint = props::find("mountpoint")?;
    let backup = props::find(BACKUP)?;
    let name = |path: &String| names::full(&status.name, path);
    let properties = ListedProperties::new(&status.name, &listed);
    let used_below = UsedBelow::new(&listed);
    let mut all = Vec::with_capacity(listed.len());
    for found in &listed {
        let children = if found.is_snapshot { 0 } else { used_below.of(&found.path) };
        all.push(DatasetFigures {
            name: name(&found.path),
            path: found.path.clone(),
            is_snapshot: found.is_snapshot,
            used_bytes: if found.path.is_empty() { status.used_bytes } else { found.used_bytes + children },
            available_bytes: match found.is_snapshot {
                true => None,
                false => Some(dataset_properties::accepted_bytes(&properties, found)?),
            },
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
                settings::of(&properties, &found.path, mountpoint)?.0
            },
            backup: match found.is_snapshot {
                true => String::new(),
                false => settings::of(&properties, &found.path, backup)?.0,
            },
            mounted: mounted(found.id),
        });
    }
    Ok(all)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use pagefold_engine::device::{Device, SimDevice};
    use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, create_on};

    use super::*;

    #[test]
    fn what_is_destroyed_meanwhile_is_still_listed() {
        let devices = vec![Arc::new(SimDevice::new(160 << 20, 3)) as Arc<dyn Device>];
        let options = CreateOptions { force: false, created: 0, guid: Guid(*b"datasets that go") };
        create_on("tank", &devices, &options).unwrap();
        let pool = Pool::open_on(devices, &OpenOptions::default()).unwrap();
        ["db", "db/log"].iter().for_each(|path| pool.create_dataset(path, 1).unwrap());
        pool.set_property_of("db", "mountpoint", Some("/srv/db")).unwrap();
        let id = pool.listed("db").unwrap().id;
        let destroyed = Cell::new(false);
        let figures = all(&pool, &|of| {
            if of == id {
                ["db/log", "db"].iter().for_each(|path| pool.destroy_dataset(path).unwrap());
                destroyed.set(true);
            }
            None
        });
        assert!(destroyed.get());
        let places: Vec<_> =
            figures.unwrap().into_iter().map(|found| (found.name, found.mountpoint)).collect();
        let places: Vec<_> = places.iter().map(|(name, place)| (name.as_str(), place.as_str())).collect();
        assert_eq!(places, [("tank", "none"), ("tank/db", "/srv/db"), ("tank/db/log", "/srv/db/log")]);
    }
}
