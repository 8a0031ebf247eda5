//! The log device of a mounted pool: what `add`, `remove` and `status` say of it.

use std::path::PathBuf;

use pagefold_engine::limits::DEVICE_BYTES_MIN;
use pagefold_server::control::{DeviceFigures, PoolFigures};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::raw::shown;
use pagefold_server::units;

/// Returns the devices of the log device.
pub(super) fn devices(pool: &PoolFigures) -> impl Iterator<Item = &DeviceFigures> {
    pool.devices.iter().filter(|device| device.log)
}

/// Returns true if a group is the log device.
pub(super) fn is_group(pool: &PoolFigures, group: u16) -> bool {
    devices(pool).any(|device| device.group == group)
}

/// Returns an error if a pool has a log device already.
pub(super) fn check_none(pool: &PoolFigures, new: &[PathBuf]) -> Result<()> {
    let Some(device) = devices(pool).next() else { return Ok(()) };
    let name = &pool.name;
    let there = match device.path.as_os_str().is_empty() {
        true => device.number.to_string(),
        false => shown(&device.path),
    };
    let new = new.first().map(|path| shown(path)).unwrap_or_default();
    Err(Failure::new(format!("pool {name} has a log device already: {there}")).hint(format!(
        "give that one a mirror: pagefold attach {name} {there} {new}; or remove it first: pagefold remove {name} {there}"
    )))
}

/// Returns what `add -n` says of a log device of devices with these sizes.
pub(super) fn plan(new: &[(PathBuf, u64)]) -> Result<String> {
    if let Some((path, _)) = new.iter().find(|(_, size)| *size < DEVICE_BYTES_MIN) {
        return Err(Failure::new(format!("{} is too small", shown(path)))
            .hint(format!("a pool needs devices of at least {}", units::size(DEVICE_BYTES_MIN))));
    }
    let names: Vec<String> = new.iter().map(|(path, _)| shown(path)).collect();
    let who = match names.as_slice() {
        [alone] => format!("{alone} would be the log device"),
        several => format!("{} would be the log device, as mirrors of each other", several.join(" and ")),
    };
    Ok(format!("{who}: commits would go to it first, and fsync would wait for no other device"))
}

/// Returns what is in use of it, for `status`.
pub(super) fn usage_text(pool: &PoolFigures, size: impl Fn(u64) -> String) -> Option<String> {
    let log = pool.log_device?;
    Some(format!(
        "{} used of {}, by commits that the other devices have yet to make durable",
        size(log.used_bytes),
        size(log.size_bytes)
    ))
}
