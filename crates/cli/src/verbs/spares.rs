//! Spares of a mounted pool: finds the one that is named, and tells of them.

use std::path::Path;

use pagefold_server::control::{DeviceFigures, PoolFigures, SpareFigures};
use pagefold_server::raw::{self, shown};

/// Returns the spare that a word names, by path or number.
pub(super) fn find<'a>(pool: &'a PoolFigures, word: &Path) -> Option<&'a SpareFigures> {
    let resolved = std::fs::canonicalize(word).ok();
    let is_it =
        |path: &Path| path == word || resolved.is_some() && std::fs::canonicalize(path).ok() == resolved;
    let by_path = pool.spares.iter().find(|spare| !spare.path.as_os_str().is_empty() && is_it(&spare.path));
    by_path.or_else(|| pool.spares.iter().find(|spare| word.as_os_str() == spare.id.as_str()))
}

/// Returns true if a device is a spare that stands in for another one.
pub(super) fn is_spare(pool: &PoolFigures, device: u16) -> bool {
    pool.spares.iter().any(|spare| spare.device == Some(device))
}

/// Returns the spare that stands in for a device.
pub(super) fn stand_in(pool: &PoolFigures, device: u16) -> Option<&SpareFigures> {
    pool.spares.iter().find(|spare| spare.stands_for == Some(device))
}

/// Returns a spare as messages name it: its path, or its number.
pub(super) fn path_or_id(spare: &SpareFigures) -> String {
    if spare.path.as_os_str().is_empty() { spare.id.clone() } else { shown(&spare.path) }
}

/// Returns a device as messages name it: its path, or its number.
pub(super) fn device_text(devices: &[DeviceFigures], number: u16) -> String {
    let found = devices.iter().find(|device| device.number == number);
    let found = found.filter(|device| !device.path.as_os_str().is_empty());
    found.map_or_else(|| number.to_string(), |device| shown(&device.path))
}

/// Returns what `status` says of a device beside its state, if it is a spare.
pub(super) fn note(pool: &PoolFigures, device: u16) -> String {
    let stands =
        pool.spares.iter().find(|spare| spare.device == Some(device)).and_then(|spare| spare.stands_for);
    stands.map_or_else(String::new, |of| format!(", for {}", device_text(&pool.devices, of)))
}

/// Returns the name and the state of a spare, for `status`.
pub(super) fn row(pool: &PoolFigures, spare: &SpareFigures) -> (String, String) {
    let name = if spare.path.as_os_str().is_empty() { spare.id.clone() } else { raw::text(&spare.path) };
    let stands = spare.stands_for.map(|of| format!(", for {}", device_text(&pool.devices, of)));
    (name, format!("{}{}", spare.state, stands.unwrap_or_default()))
}

/// Returns what to do about a device for which a spare stands in, if there is one of this state.
pub(super) fn advice(pool: &PoolFigures, state: &str) -> Option<String> {
    let mut devices = pool.devices.iter().filter(|device| device.state == state);
    let (device, spare) = devices.find_map(|device| Some((device, stand_in(pool, device.number)?)))?;
    let (name, path) = (&pool.name, device_text(&pool.devices, device.number));
    let mended = match state {
        "ONLINE" => format!("pagefold clear {name} {path}"),
        "MISSING" => format!("pagefold online {name} DEVICE"),
        _ => format!("pagefold online {name} {path}"),
    };
    Some(format!(
        "{} stands in for {path}: put another device in its place, pagefold replace {name} {path} DEVICE; or, once it is mended: {mended}; or keep the spare for good: pagefold detach {name} {path}",
        path_or_id(spare)
    ))
}
