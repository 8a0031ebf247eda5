//! `create -n`: says which pool would be made, what would be lost, and what it could lose later.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use pagefold_engine::device::OpenMode;
use pagefold_server::control::{DeviceFigures, PoolFigures, SpareFigures};
use pagefold_server::failure::{Context, Result};
use pagefold_server::pools::Layout;
use pagefold_server::raw::shown;
use pagefold_server::{pools, registry, units};

use super::{Wanted, room_text};
use crate::args::Create;
use crate::verbs::devices::mirror_name;
use crate::verbs::show::print_layout;

/// A device of the pool that would be made.
struct NewDevice {
    path: PathBuf,
    size_bytes: u64,
    is_file: bool,
}

/// The devices of a pool that would be made.
struct NewDevices {
    groups: Vec<Vec<NewDevice>>,
    spares: Vec<NewDevice>,
    log: Vec<NewDevice>,
}

/// Prints the pool that would be made.
pub(super) fn print(args: &Create, wanted: &Wanted) -> Result<()> {
    let missing = wanted.seen.missing.iter().map(|path| absolute(path)).collect::<Result<Vec<_>>>()?;
    let layout =
        wanted.layout.map(|path| match wanted.seen.missing.iter().any(|missing| missing == path) {
            true => absolute(path),
            false => registry::absolute(path),
        })?;
    let bytes_of = |path: &Path| match missing.iter().any(|missing| missing == path) {
        true => Ok(wanted.size.unwrap_or_default()),
        // As it is opened when the pool is made: a device that is in use is refused.
        false => pools::bytes_of(&args.pool, path, OpenMode::ReadWrite),
    };
    let new = pools::rehearse(&args.pool, &layout, &wanted.properties, &bytes_of)?;
    let devices = NewDevices::of(&layout, &bytes_of)?;
    print_layout(&devices.figures(&missing));
    for path in &missing {
        let size = units::size(wanted.size.unwrap_or_default());
        println!("{} would be made, as a file of {size} that takes space as it is filled", shown(path));
    }
    wanted.seen.lost_texts().for_each(|text| println!("{text}"));
    let existing = devices.all().filter(|device| !missing.contains(&device.path));
    let existing: Vec<String> = existing.map(|device| shown(&device.path)).collect();
    if !existing.is_empty() && !args.no_trim {
        println!("{} would be told first to hold nothing (-K leaves that out)", existing.join(", "));
    }
    for (property, value) in &wanted.properties {
        println!("{}={value} would be set", property.name);
    }
    devices.risks().iter().for_each(|risk| println!("risk: {risk}"));
    println!("{}", room_text(&args.pool, "would have ", &new));
    println!("nothing is to be copied: it would take a moment; nothing was changed");
    Ok(())
}

/// Returns the path of a file that is yet to be made, as the pool would know it.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).context(|| format!("cannot resolve {}", shown(path)))
}

impl NewDevices {
    fn of(layout: &Layout, bytes_of: &dyn Fn(&Path) -> Result<u64>) -> Result<Self> {
        let device = |path: &PathBuf| {
            let is_file = !fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
            Ok(NewDevice { path: path.clone(), size_bytes: bytes_of(path)?, is_file })
        };
        let all = |paths: &Vec<PathBuf>| paths.iter().map(device).collect::<Result<Vec<_>>>();
        let groups = layout.groups.iter().map(all).collect::<Result<_>>()?;
        Ok(Self { groups, spares: all(&layout.spares)?, log: all(&layout.log)? })
    }

    /// Returns all of them: those that hold data, then the log device, then spares.
    fn all(&self) -> impl Iterator<Item = &NewDevice> {
        self.groups.iter().flatten().chain(&self.log).chain(&self.spares)
    }

    /// Returns the groups, the log device among them.
    fn with_log(&self) -> impl Iterator<Item = &Vec<NewDevice>> {
        self.groups.iter().chain(Some(&self.log).filter(|log| !log.is_empty()))
    }

    /// Returns the devices as figures of the pool would tell them.
    fn figures(&self, missing: &[PathBuf]) -> PoolFigures {
        let mut figures = PoolFigures::default();
        let numbered = (0..).zip(self.with_log());
        for (group, devices) in numbered {
            for device in devices {
                let state = if missing.contains(&device.path) { "NEW FILE" } else { "NEW" };
                figures.devices.push(DeviceFigures {
                    number: figures.devices.len() as u16,
                    group,
                    state: state.into(),
                    log: usize::from(group) == self.groups.len(),
                    path: device.path.clone(),
                    size_bytes: device.size_bytes,
                    ..DeviceFigures::default()
                });
            }
        }
        let spare = |device: &NewDevice| SpareFigures {
            state: if missing.contains(&device.path) { "NEW FILE" } else { "NEW" }.into(),
            path: device.path.clone(),
            size_bytes: device.size_bytes,
            ..SpareFigures::default()
        };
        figures.spares = self.spares.iter().map(spare).collect();
        figures
    }

    /// Returns what could be lost, and what is of no use.
    fn risks(&self) -> Vec<String> {
        let mut risks = Vec::new();
        let alone: Vec<String> = self.groups.iter().filter_map(|group| only(group)).collect();
        match alone.as_slice() {
            [] => {}
            [one] => risks.push(format!("{one} would have no mirror: what lies on it would be lost with it")),
            several => risks.push(format!(
                "{} would have no mirrors: the pool would be lost with any one of them",
                several.join(", ")
            )),
        }
        if let Some(log) = only(&self.log) {
            risks.push(format!(
                "{log} would have no mirror: commits that only it has would be lost if it failed together with a crash"
            ));
        }
        for (number, group) in (0..).zip(self.with_log()).filter(|(_, group)| group.len() > 1) {
            risks.extend(unused(&mirror_name(number), group));
            risks.extend(shared_disc(group).map(|(one, other, disc)| {
                format!(
                    "{one} and {other} of {} lie on {disc}, and would be lost together",
                    mirror_name(number)
                )
            }));
        }
        risks.extend(self.spares.iter().filter_map(|spare| self.not_for(spare)));
        risks
    }

    /// Returns a text about a spare that is too small for some mirrors.
    fn not_for(&self, spare: &NewDevice) -> Option<String> {
        let needs_more = |group: &Vec<NewDevice>| smallest(group) > spare.size_bytes;
        let count = self.groups.iter().filter(|group| needs_more(group)).count() as u64;
        (count > 0).then(|| {
            format!(
                "{} is smaller than what {} of {} use, and could not step in there",
                shown(&spare.path),
                count,
                units::counted(self.groups.len() as u64, "device or mirror")
            )
        })
    }
}

fn only(group: &[NewDevice]) -> Option<String> {
    if let [alone] = group { Some(shown(&alone.path)) } else { None }
}

fn smallest(group: &[NewDevice]) -> u64 {
    group.iter().map(|device| device.size_bytes).min().unwrap_or_default()
}

/// Returns a text about what a mirror does not use of its larger devices.
fn unused(name: &str, group: &[NewDevice]) -> Option<String> {
    let used = smallest(group);
    let larger = group.iter().filter(|device| device.size_bytes > used);
    let larger: Vec<String> = larger
        .map(|device| format!("{} of {}", units::size(device.size_bytes - used), shown(&device.path)))
        .collect();
    (!larger.is_empty()).then(|| {
        format!("{name} would be as large as its smallest device: {} would not be used", larger.join(", "))
    })
}

/// Returns two devices that fail together, as far as can be seen, and what they both lie on.
fn shared_disc(group: &[NewDevice]) -> Option<(String, String, String)> {
    let discs: Vec<Option<Disc>> = group.iter().map(Disc::of).collect();
    for (at, one) in group.iter().enumerate() {
        for (other, there) in group.iter().enumerate().skip(at + 1) {
            if let (Some(Some(first)), Some(Some(second))) = (discs.get(at), discs.get(other))
                && first == second
            {
                return Some((shown(&one.path), shown(&there.path), first.text()));
            }
        }
    }
    None
}

/// A disc, or else a file system, that a device lies on.
#[derive(PartialEq, Eq)]
enum Disc {
    /// The disc of a block device, or of a partition.
    Whole(String),
    /// The file system of a file whose disc is not to be seen.
    FileSystem(u64),
}

impl Disc {
    /// Finds what a device lies on; `None` if that cannot be seen.
    fn of(device: &NewDevice) -> Option<Self> {
        let found = fs::metadata(&device.path).or_else(|_| fs::metadata(folder_of(&device.path))).ok()?;
        if !device.is_file {
            return disc_name(found.rdev()).map(Self::Whole);
        }
        Some(disc_name(found.dev()).map_or(Self::FileSystem(found.dev()), Self::Whole))
    }

    fn text(&self) -> String {
        match self {
            Self::Whole(name) => format!("one disc ({name})"),
            Self::FileSystem(_) => "one file system".into(),
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// Returns the name of the disc that a block device is, or is a partition of; `None` if there is no such block device.
fn disc_name(device: u64) -> Option<String> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let place = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let disc = if place.join("partition").exists() { place.parent()? } else { &place };
    Some(disc.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(path: &str, mib: u64) -> NewDevice {
        NewDevice { path: path.into(), size_bytes: mib << 20, is_file: true }
    }

    /// Files in folders that do not exist lie on nothing that is known.
    fn devices(groups: &[&[u64]], log: &[u64], spares: &[u64]) -> NewDevices {
        let mut number = 0;
        let mut of = |sizes: &[u64]| -> Vec<NewDevice> {
            let new = |mib: &u64| {
                number += 1;
                device(&format!("/nowhere/{number}"), *mib)
            };
            sizes.iter().map(new).collect()
        };
        let groups = groups.iter().map(|sizes| of(sizes)).collect();
        NewDevices { groups, log: of(log), spares: of(spares) }
    }

    #[track_caller]
    fn risks(devices: &NewDevices, wanted: &[&str]) {
        let found = devices.risks();
        assert_eq!(found.len(), wanted.len(), "{found:?}");
        for (found, wanted) in found.iter().zip(wanted) {
            assert!(found.contains(wanted), "{found}");
        }
    }

    #[test]
    fn what_could_be_lost_is_told() {
        risks(&devices(&[&[200, 200]], &[], &[]), &[]);
        risks(&devices(&[&[200]], &[], &[]), &["/nowhere/1 would have no mirror: what lies on it"]);
        risks(
            &devices(&[&[200], &[300]], &[], &[]),
            &["/nowhere/1, /nowhere/2 would have no mirrors: the pool"],
        );
        risks(&devices(&[&[200, 200]], &[150], &[]), &["/nowhere/3 would have no mirror: commits"]);
        risks(&devices(&[&[200, 200]], &[150, 150], &[]), &[]);
    }

    #[test]
    fn what_is_of_no_use_is_told() {
        risks(
            &devices(&[&[200, 300, 250]], &[], &[]),
            &["100M of /nowhere/2, 50.0M of /nowhere/3 would not be used"],
        );
        risks(&devices(&[&[200, 200]], &[150, 160], &[]), &["mirror-1 would be as large"]);
        risks(
            &devices(&[&[200, 200], &[300, 300]], &[], &[200, 300]),
            &["/nowhere/5 is smaller than what 1 of 2"],
        );
    }

    #[test]
    fn devices_on_one_disc_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let here = |name: &str| device(folder.path().join(name).to_str().unwrap(), 200);
        let new =
            NewDevices { groups: vec![vec![here("a"), here("b")]], log: Vec::new(), spares: Vec::new() };
        risks(&new, &["would be lost together"]);
        let apart = NewDevices { groups: vec![vec![here("a")], vec![here("b")]], ..new };
        risks(&apart, &["would have no mirrors"]);
    }
}
