//! Finds pools on devices, and tells which of several copies is the pool.

use std::path::{Path, PathBuf};

use pagefold_engine::device::{FileDevice, OneDevice, OpenMode};
use pagefold_engine::pool::label::Label;
use pagefold_engine::pool::{self, FoundState, Relation};
use serde::{Serialize, Serializer};

use crate::answering::{self, Asked};
use crate::engine_errors::failed;
use crate::failure::{Context, Failure, Result};
use crate::raw::shown;
use crate::registry::{Known, Registry, paths_text};
use crate::{last_state, raw, registry, units};

/// A pool that was found on devices, or one of several copies of it.
#[derive(Clone, Debug, Serialize)]
pub struct FoundPool {
    /// Its name.
    pub name: String,
    /// Its unique number.
    pub guid: String,
    /// The devices that were found.
    #[serde(serialize_with = "raw::paths::serialize")]
    pub devices: Vec<PathBuf>,
    /// Number of devices that the pool has.
    pub expected: u16,
    /// `EXPORTED`, `CRASHED`, `INUSE`, `DEGRADED`, `INCOMPLETE`, `COPIES`, `OLD`, `APART`.
    #[serde(serialize_with = "state_as_text")]
    pub state: FoundState,
    /// True if it was exported, whatever its state.
    pub exported: bool,
    /// True if a process has it open.
    pub in_use: bool,
    /// Number of times that it was opened for writing, its creation included.
    pub openings: u64,
    /// Time at which it was opened last, in seconds since 1970.
    pub opened: u64,
    /// Number of its last checkpoint.
    pub checkpoint: u64,
    /// Other paths to its devices.
    #[serde(serialize_with = "raw::paths::serialize")]
    pub also: Vec<PathBuf>,
    /// Spares that were found.
    #[serde(serialize_with = "raw::paths::serialize")]
    pub spares: Vec<PathBuf>,
    /// True if its log device was not found, and nothing else that it needs is missing. If it is `INCOMPLETE`, the log
    /// device may have commits that no other device has.
    pub lacks_log_device: bool,
    /// True if nothing of it was found but its log device, or a device that was that once: no data lies on it.
    pub is_log_device: bool,
    /// Devices of which several identical copies were found.
    #[serde(serialize_with = "lists_of_paths")]
    pub alike: Vec<Vec<PathBuf>>,
    /// The reason why it cannot be imported, if there is one.
    pub problem: Option<String>,
    /// Advice about that.
    pub action: Option<String>,
}

fn lists_of_paths<S: Serializer>(
    lists: &[Vec<PathBuf>],
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    let texts = |list: &Vec<PathBuf>| list.iter().map(|path| raw::text(path)).collect::<Vec<_>>();
    serializer.collect_seq(lists.iter().map(texts))
}

impl FoundPool {
    fn new(found: pool::FoundPool) -> Result<Self> {
        let guid = found.guid.to_string();
        let mut state = found.state;
        let known = last_state::read(&guid)?;
        let relation = known.as_ref().map(|known| match found.has_come_to(&known.tables) {
            true => found.standing.relation(&known.standing),
            false => Relation::Before,
        });
        match relation {
            Some(Relation::Before) => state = FoundState::Old,
            Some(Relation::Apart) => state = FoundState::Apart,
            _ => {}
        }
        let mut new = Self {
            name: raw::printable(&found.name),
            guid,
            devices: found.devices,
            expected: found.expected,
            state,
            exported: found.exported,
            in_use: found.in_use,
            openings: found.standing.opening.id.number,
            opened: found.standing.opening.time,
            checkpoint: found.standing.generation,
            also: found.also,
            spares: found.spares,
            lacks_log_device: found.lacks_log_device,
            is_log_device: found.is_log_device,
            alike: found.alike,
            problem: None,
            action: None,
        };
        let formerly = found.formerly.map(|guid| guid.to_string());
        let went_on = match (relation, known) {
            (Some(Relation::Before | Relation::Apart), Some(noted)) => {
                Some(went_on(&new.guid, noted.at, &new.devices)?)
            }
            _ => None,
        };
        (new.problem, new.action) = new.explained(formerly.as_deref(), went_on.as_deref());
        Ok(new)
    }

    /// Returns what is wrong, and advice about it.
    fn explained(&self, formerly: Option<&str>, went_on: Option<&str>) -> (Option<String>, Option<String>) {
        let Self { name, guid, .. } = self;
        let devices: Vec<String> = self.devices.iter().map(|path| format!(" -d {}", shown(path))).collect();
        let devices = devices.concat();
        let own = devices.replace(" -d ", " --device ");
        let as_own = format!("to use it as a pool of its own: pagefold reguid{own}");
        let (problem, action) = match self.state {
            FoundState::Exported | FoundState::NotExported | FoundState::InUse => return (None, None),
            FoundState::Degraded if self.lacks_log_device => (
                "its log device was not found; it can be used without it, and then goes on without it".into(),
                format!("if it is there, say where: pagefold import -d DIR {name}"),
            ),
            FoundState::Incomplete if self.lacks_log_device => (
                "its log device was not found, and may have commits that no other device has".into(),
                format!(
                    "connect it, or tell where it is: pagefold import -d DIR {name}; or give these commits up: pagefold import --accept-loss{devices} {guid}"
                ),
            ),
            FoundState::Degraded => {
                let few = format!("{} of its {} devices were found", self.devices.len(), self.expected);
                (
                    format!("{few}; it can be used without the others"),
                    format!("if they are there, say where: pagefold import -d DIR {name}"),
                )
            }
            FoundState::Incomplete if self.is_log_device => (
                "only its log device was found, on which no data lies".into(),
                format!(
                    "connect the others, or tell where they are: pagefold import -d DIR {guid}; if that pool is no more, the device can be used anew: pagefold create -f NAME DEVICE"
                ),
            ),
            FoundState::Incomplete => {
                let few = match self.devices.len() < usize::from(self.expected) {
                    true => format!("only {} of its {} devices were found", self.devices.len(), self.expected),
                    false => "of a mirror only devices were found that are older copies, or were still being filled".into(),
                };
                match formerly {
                    Some(formerly) => (
                        format!("{few}; its GUID was {formerly} before"),
                        format!(
                            "if changing that was interrupted, go on: pagefold reguid{own} and --device for each of the others"
                        ),
                    ),
                    None => (
                        few,
                        format!("connect the others, or tell where they are: pagefold import -d DIR {name}"),
                    ),
                }
            }
            FoundState::Copies => {
                let alike: Vec<String> = self.alike.iter().map(|paths| paths_text(paths)).collect();
                (
                    format!("these are copies that are alike: {}", alike.join("; ")),
                    format!("say which by its devices: pagefold import{devices} {guid}"),
                )
            }
            FoundState::Old | FoundState::Apart if self.is_log_device => (
                "it was the log device, and the pool goes on without it: no data lies on it".into(),
                format!("to use it so again: pagefold add -f {name} log DEVICE"),
            ),
            FoundState::Old => (
                went_on.map_or_else(
                    || "an older copy: the pool went on, on other devices that were found".into(),
                    |went_on| format!("an older copy: the pool went on {went_on}"),
                ),
                format!(
                    "{as_own}; to go back to it for good: pagefold import --accept-older{devices} {guid}"
                ),
            ),
            FoundState::Apart => match went_on {
                Some(went_on) => (
                    format!("a copy that went on by itself: the pool went on {went_on}"),
                    format!(
                        "{as_own}; to use it instead of the other one: pagefold import --accept-older{devices} {guid}"
                    ),
                ),
                None => (
                    "one of several copies that went on, each by itself".into(),
                    format!("say which by its devices: pagefold import{devices} {guid}; {as_own}"),
                ),
            },
        };
        (Some(problem), Some(action))
    }

    /// Returns true if each of its devices was found, and only once; or if it does not need those that were not found. With
    /// `accept_loss` it does not need its log device.
    pub fn is_whole(&self, accept_loss: bool) -> bool {
        let suffices = self.state != FoundState::Incomplete || accept_loss && self.lacks_log_device;
        suffices && self.alike.is_empty()
    }

    /// Returns true unless it is known to be an older copy of the pool, or a copy that went on by itself.
    pub fn is_current(&self) -> bool {
        !matches!(self.state, FoundState::Old | FoundState::Apart)
    }

    /// Returns its devices, and then its spares.
    pub fn all_devices(&self) -> Vec<PathBuf> {
        self.devices.iter().chain(&self.spares).cloned().collect()
    }

    /// Returns its entry for the registry. The pool stays adopted if it was before and was used here, since whoever
    /// made these devices had the pool then. A copy that went on by itself is not adopted.
    pub fn known(&self) -> Result<Known> {
        let before = Registry::open()?.of_guid(&self.guid)?;
        let trusted = last_state::read(&self.guid)?.is_some() && self.state != FoundState::Apart;
        Ok(Known {
            name: self.name.clone(),
            guid: self.guid.clone(),
            devices: self.all_devices(),
            adopted: trusted && before.is_some_and(|before| before.adopted),
            altroot: None,
        })
    }

    /// Of identical copies, chooses the one at `path`.
    fn choose(&mut self, path: &Path) {
        let group = self.alike.iter().position(|group| group.iter().any(|one| one == path));
        let Some(group) = group.map(|at| self.alike.remove(at)) else { return };
        if let Some(device) = self.devices.iter_mut().find(|device| group.contains(device)) {
            path.clone_into(device);
        }
    }
}

fn state_as_text<S: Serializer>(state: &FoundState, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str(state_text(*state))
}

/// Returns a state as it is printed.
pub fn state_text(state: FoundState) -> &'static str {
    match state {
        FoundState::Exported => "EXPORTED",
        FoundState::NotExported => "CRASHED",
        FoundState::InUse => "INUSE",
        FoundState::Degraded => "DEGRADED",
        FoundState::Incomplete => "INCOMPLETE",
        FoundState::Copies => "COPIES",
        FoundState::Old => "OLD",
        FoundState::Apart => "APART",
    }
}

/// Returns a text that tells until when the pool with this GUID is known to have gone on, and on which devices if not
/// on these.
pub(crate) fn went_on(guid: &str, noted: u64, devices: &[PathBuf]) -> Result<String> {
    let known = Registry::open()?.of_guid(guid)?.filter(|known| known.devices != devices);
    let on = known.map_or_else(String::new, |known| format!(", on {}", paths_text(&known.devices)));
    Ok(format!("until {}{on}", units::utc(noted)))
}

/// Findings of a search.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// The pools.
    pub pools: Vec<FoundPool>,
    /// Block devices that were left out, since they did not answer.
    pub silent: Vec<PathBuf>,
}

/// Events of a search.
#[derive(Clone, Copy, Debug)]
pub enum SearchEvent<'a> {
    /// A device was looked at.
    Looked,
    /// This device has not answered for some seconds, and is waited for.
    Waiting(&'a Path),
}

/// Finds pools on the devices and in the directories given, or on all block devices if none are given.
pub fn scan(paths: &[PathBuf], watch: &mut dyn FnMut(SearchEvent<'_>)) -> Result<Search> {
    let named = paths;
    let paths = if named.is_empty() { block_devices()? } else { named.to_vec() };
    let paths: Vec<PathBuf> = paths.iter().map(|path| registry::absolute(path)).collect::<Result<_>>()?;
    let cannot = |error| failed("cannot look for pools", &error);
    let all = pool::candidates(&paths).map_err(cannot)?;
    let Asked { answered, silent } = answering::ask(all, &mut |device| watch(SearchEvent::Waiting(device)))?;
    let found = pool::scan(&answered, &mut |_| watch(SearchEvent::Looked)).map_err(cannot)?;
    if let ([], [device], [_], []) = (found.as_slice(), paths.as_slice(), named, silent.as_slice())
        && !device.is_dir()
    {
        return Err(why_no_pool(device));
    }
    Ok(Search { pools: found.into_iter().map(FoundPool::new).collect::<Result<_>>()?, silent })
}

/// Returns all block devices that the kernel knows (`/proc/partitions`: major, minor, blocks, name).
pub fn block_devices() -> Result<Vec<PathBuf>> {
    let text =
        std::fs::read_to_string("/proc/partitions").context(|| "cannot read /proc/partitions".into())?;
    let names = text.lines().skip(1).filter_map(|line| line.split_whitespace().nth(3));
    Ok(names.map(|name| Path::new("/dev").join(name)).filter(|path| path.exists()).collect())
}

/// Finds the pool that a device belongs to, with its other devices if they lie in the same directory.
pub fn identify(device: &Path) -> Result<FoundPool> {
    let of = |paths: &[PathBuf]| -> Result<Vec<pool::FoundPool>> {
        pool::scan(paths, &mut |_| ())
            .map_err(|error| failed(format!("cannot look at {}", shown(device)), &error))
    };
    let Some(found) = of(&[device.to_owned()])?.into_iter().next() else {
        return Err(why_no_pool(device));
    };
    if !matches!(found.state, FoundState::Incomplete | FoundState::Degraded) {
        return FoundPool::new(found);
    }
    // The device itself comes first: of several paths to one device the first counts.
    let beside =
        device.parent().map(|dir| of(&[device.to_owned(), dir.to_owned()])).transpose()?.unwrap_or_default();
    let has = |other: &pool::FoundPool| {
        other.guid == found.guid
            && other.devices.iter().chain(other.alike.iter().flatten()).any(|one| one == device)
    };
    let mut found = FoundPool::new(beside.into_iter().find(has).unwrap_or(found))?;
    found.choose(device);
    if found.alike.is_empty() {
        return Ok(found);
    }
    let alike: Vec<String> = found.alike.iter().map(|paths| paths_text(paths)).collect();
    Err(Failure::new(format!(
        "pool {} has other devices of which there are copies that are alike: {}",
        found.name,
        alike.join("; ")
    ))
    .hint(format!(
        "name all of its devices: pagefold import -d {} -d OTHER {}",
        shown(device),
        found.guid
    )))
}

/// Returns an error that tells why no pool was found on a device.
fn why_no_pool(device: &Path) -> Failure {
    let read =
        FileDevice::open(device, OpenMode::Unlocked).and_then(|opened| Label::read(OneDevice::of(&opened)));
    match read {
        Err(error) => failed(format!("cannot use {}", shown(device)), &error),
        Ok(label) => Failure::new(format!(
            "{} belongs to pool {}, but has no whole superblock",
            shown(device),
            raw::printable(&label.name)
        ))
        .hint("give a copy of the device, or another device of the pool"),
    }
}
