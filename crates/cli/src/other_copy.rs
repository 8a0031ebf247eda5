//! A pool that was opened on other devices than those on which it is known: it was moved, or there are two copies of it.

use std::path::PathBuf;

use pagefold_server::discovery;
use pagefold_server::failure::Result;
use pagefold_server::raw::shown;
use pagefold_server::registry::{Known, Registry, paths_text};

/// Has the registry know a pool, which was just opened for writing, on the devices on which it was opened. Returns a
/// warning if the devices on which it was known before are still there and hold a copy of it.
pub fn follow(opened: &Known) -> Result<Option<String>> {
    let registry = Registry::open()?;
    let Some(before) = registry.all()?.into_iter().find(|known| known.guid == opened.guid) else {
        return Ok(None);
    };
    // Devices of a mirror that were not found are not forgotten.
    if before.devices.len() > opened.devices.len()
        || before.devices.iter().any(|path| opened.devices.contains(path))
    {
        return Ok(None);
    }
    let left = copies(&before, opened);
    registry.add(Known { altroot: before.altroot.clone(), ..opened.clone() })?;
    Ok((!left.is_empty()).then(|| warning(opened, &left)))
}

/// Returns the devices of `before` that are there and belong to the same pool, but are not the devices of `opened`.
fn copies(before: &Known, opened: &Known) -> Vec<PathBuf> {
    let there = before.devices.iter().filter(|path| path.exists());
    let paths: Vec<PathBuf> = opened.devices.iter().chain(there).cloned().collect();
    // The mount is made: devices that cannot be looked at are no reason to fail.
    let found = discovery::scan(&paths, &mut |_| ()).unwrap_or_default().pools;
    let others = found.into_iter().filter(|pool| {
        pool.guid == opened.guid && !pool.devices.iter().any(|path| opened.devices.contains(path))
    });
    others.flat_map(|pool| pool.devices).collect()
}

fn warning(opened: &Known, left: &[PathBuf]) -> String {
    let Known { name, guid, devices, .. } = opened;
    let own: Vec<String> = left.iter().map(|path| format!(" --device {}", shown(path))).collect();
    let back: Vec<String> = left.iter().map(|path| format!(" -d {}", shown(path))).collect();
    format!(
        "there are two copies of pool {name}: it was known on {left}, which is still there, and is {name} on {on} from now \
         on\n  the copy on {left} is an older one now, and is refused; to use it as a pool of its own: pagefold reguid{own}, \
         then pagefold import{back} {name} NEWNAME\n  to go back to it: pagefold unmount {name}, then pagefold import \
         --accept-older{back} {guid}",
        left = paths_text(left),
        on = paths_text(devices),
        own = own.concat(),
        back = back.concat(),
    )
}
