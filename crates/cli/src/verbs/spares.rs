//! Spares of a mounted pool: named when devices are added, removed, and told by `status`.

use std::path::{Path, PathBuf};

use pagefold_server::control::{DeviceFigures, PoolFigures, Request, SpareFigures};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::pools;
use pagefold_server::raw::{self, shown};

use super::devices::Asked;
use crate::args::DeviceOf;
use crate::table;

/// Word before spares.
const SPARE: &str = "spare";
/// Word before the devices of a mirror, which ends the spares.
const MIRROR: &str = "mirror";

/// Returns the words that name groups of devices, and the spares: those that follow the word `spare`, up to the next
/// mirror.
pub(super) fn split(words: &[PathBuf]) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let (mut devices, mut spares) = (Vec::new(), Vec::new());
    let mut of_spares = false;
    for (at, word) in words.iter().enumerate() {
        if word.as_os_str() == SPARE {
            if words.get(at + 1).is_none_or(|next| next.as_os_str() == MIRROR || next.as_os_str() == SPARE) {
                return Err(Failure::usage("no device follows the word spare")
                    .hint("for instance: mirror /dev/sdb /dev/sdc spare /dev/sdd"));
            }
            of_spares = true;
            continue;
        }
        of_spares &= word.as_os_str() != MIRROR;
        let list = if of_spares { &mut spares } else { &mut devices };
        list.push(word.clone());
    }
    Ok((devices, spares))
}

/// Removes a spare from its pool.
pub fn remove(args: &DeviceOf) -> Result<()> {
    let asked = Asked::of(&args.pool, "remove")?;
    let Some(spare) = find(&asked.figures, &args.device).cloned() else {
        return Err(not_a_spare(&asked.figures, &args.device));
    };
    let mut asked = asked;
    if let Some(stands) = spare.stands_for {
        let name = &asked.figures.name;
        return Err(Failure::new(format!(
            "{} stands in for {}",
            path_or_id(&spare),
            device_text(&asked.figures.devices, stands)
        ))
        .hint(format!(
            "give it back first: pagefold detach {name} {0}; or keep it for good: pagefold detach {name} {1}",
            path_or_id(&spare),
            device_text(&asked.figures.devices, stands)
        )));
    }
    asked.carry_out(&Request::RemoveSpare { id: spare.id.clone() })?;
    asked.remember(|devices| devices.retain(|path| *path != spare.path))
}

fn not_a_spare(pool: &PoolFigures, word: &Path) -> Failure {
    let failure =
        Failure::new(format!("{} is no spare of pool {}", table::printable(&raw::text(word)), pool.name));
    match pool.spares.as_slice() {
        [] => failure.hint("the pool has none"),
        spares => failure
            .hint(format!("its spares: {}", spares.iter().map(path_or_id).collect::<Vec<_>>().join(", "))),
    }
}

/// Gives a pool these spares, and has this machine remember them.
pub(super) fn add(asked: &Asked, paths: &[PathBuf]) -> Result<()> {
    let files = paths.iter().map(|path| pools::open_for_server(path)).collect::<Result<Vec<_>>>()?;
    asked.hand_over(&Request::AddSpares { paths: paths.to_owned() }, &files)?;
    asked.remember(|devices| {
        devices.retain(|path| !paths.contains(path));
        devices.extend_from_slice(paths);
    })
}

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

fn path_or_id(spare: &SpareFigures) -> String {
    if spare.path.as_os_str().is_empty() { spare.id.clone() } else { shown(&spare.path) }
}

/// Returns a device as messages name it: its path, or its number.
fn device_text(devices: &[DeviceFigures], number: u16) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<PathBuf> {
        words.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn spares_follow_their_word_up_to_the_next_mirror() {
        for (given, devices, spares) in [
            (&["a"][..], &["a"][..], &[][..]),
            (&["spare", "e"], &[], &["e"]),
            (&["mirror", "a", "b", "spare", "e", "f"], &["mirror", "a", "b"], &["e", "f"]),
            (&["spare", "e", "mirror", "a", "b", "spare", "f"], &["mirror", "a", "b"], &["e", "f"]),
            (&["./spare"], &["./spare"], &[]),
        ] {
            assert_eq!(split(&words(given)).unwrap(), (words(devices), words(spares)), "{given:?}");
        }
        for given in
            [&["spare"][..], &["a", "spare"], &["spare", "mirror", "a", "b"], &["spare", "spare", "a"]]
        {
            assert_eq!(split(&words(given)).unwrap_err().exit_status(), 2, "{given:?}");
        }
    }
}
