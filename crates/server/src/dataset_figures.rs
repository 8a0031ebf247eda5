//! Figures of datasets and snapshots of an open pool.

use std::path::PathBuf;

use pagefold_engine::pool::Pool;

use crate::backups::BACKUP;
use crate::control::DatasetFigures;
use crate::failure::Result;
use crate::{dataset_properties, engine_errors, names, props, settings};

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
            available_bytes: match found.is_snapshot {
                true => None,
                false => Some(dataset_properties::accepted_bytes(pool, found)?),
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
