//! `add`, `attach`, `detach`, `split`, `remove`, `balance`, `replace`, `offline`, `online`: change which devices a mounted pool has, and uses.
//!
//! A server opens no devices; so they are opened here, and given to it.

mod balance;
mod filling;
mod plan;
mod removal;
mod split;
mod time;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use pagefold_server::control::{
    Client, DeviceFigures, DevicePlace, FillFigures, PoolFigures, Reply, Request, SpareFigures,
};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::pools::{Held, Layout};
use pagefold_server::raw::{self, shown};
use pagefold_server::registry::{self, Known, Registry};
use pagefold_server::{pools, units};

pub(super) use balance::balance_text;
use filling::Progressed;
pub(super) use removal::{mirror_name, removal_text};

use super::create::{NewFiles, Seen, file_bytes, look};
use super::{layout, log_device, spares};
use crate::args::{Add, Attach, Detach, DeviceOf, DeviceVerb, GivenDevice, Online, Replace};
use crate::progress::Progress;
use crate::{table, target};

/// Interval between two requests for the progress of a filling that is waited for.
const POLL: Duration = Duration::from_millis(200);

/// Runs a verb.
pub fn run(verb: &DeviceVerb) -> Result<()> {
    match verb {
        DeviceVerb::Add(args) => add(args),
        DeviceVerb::Attach(args) => attach(args),
        DeviceVerb::Detach(args) => detach(args),
        DeviceVerb::Split(args) => split::split(args),
        DeviceVerb::Remove(args) => removal::remove(args),
        DeviceVerb::Balance(args) => balance::balance(args),
        DeviceVerb::Replace(args) => replace(args),
        DeviceVerb::Offline(args) => offline(args),
        DeviceVerb::Online(args) => online(args),
    }
}

/// Adds devices, or mirrors of several, or spares, or a log device to a pool.
fn add(args: &Add) -> Result<()> {
    let asked = Asked::of(&args.pool, "add")?;
    let size = file_bytes(args.size.as_deref())?;
    let new = layout::parse(&args.devices)?;
    asked.check_as_safe(&new.groups, args.force)?;
    let named = new.all();
    for path in &named {
        asked.check_new(path)?;
    }
    if !new.log.is_empty() {
        log_device::check_none(&asked.figures, &new.log)?;
    }
    let seen = look(&named, size, args.force, &|held| asked.is_left_over(held))?;
    if args.dry_run {
        seen.lost_texts().for_each(|text| println!("{text}"));
        return asked.print_growth(&new, size);
    }
    let made = NewFiles::make(&seen.missing, size)?;
    let new = new.map(registry::absolute)?;
    let mut added = Ok(());
    if !new.groups.is_empty() {
        let groups = new.groups.iter().map(Vec::len).collect();
        let paths = new.groups.concat();
        added = asked.add(&paths, &Request::AddGroups { paths: paths.clone(), groups });
    }
    if added.is_ok() && !new.log.is_empty() {
        added = asked.add(&new.log, &Request::AddLogDevice { paths: new.log.clone() });
    }
    if added.is_ok() && !new.spares.is_empty() {
        added = asked.add(&new.spares, &Request::AddSpares { paths: new.spares.clone() });
    }
    // If the server has died meanwhile, they may be of the pool: then it cannot be mounted without them.
    if added.is_ok() || asked.may_have(&new.all()) {
        made.stay();
    }
    added
}

/// Gives a device a mirror.
fn attach(args: &Attach) -> Result<()> {
    let mut asked = Asked::of(&args.pool, "attach")?;
    let beside = asked.device(&args.device)?;
    if args.given.dry_run {
        return asked.plan_attach(&beside, &args.new, &args.given);
    }
    asked.give_new(&args.new, &args.given, DevicePlace::Beside(beside.number))
}

/// Puts a new device in the place of another one.
fn replace(args: &Replace) -> Result<()> {
    let mut asked = Asked::of(&args.pool, "replace")?;
    let old = asked.device(&args.device)?;
    if args.given.dry_run {
        return asked.plan_replace(&old, &args.new, &args.given);
    }
    asked.give_new(&args.new, &args.given, DevicePlace::InPlaceOf(old.number))?;
    if spares::is_spare(&asked.figures, old.number) {
        return Ok(());
    }
    // If nobody waits, this machine remembers it a while longer, and passes over it when the pool is mounted.
    if asked.figures.devices.iter().any(|device| device.path == old.path) {
        return Ok(());
    }
    asked.remember(|devices| devices.retain(|path| *path != old.path))
}

/// Removes a device from its mirror.
fn detach(args: &Detach) -> Result<()> {
    let mut asked = Asked::of(&args.pool, "detach")?;
    let device = asked.device(&args.device)?;
    let goes_back = spares::is_spare(&asked.figures, device.number);
    if !args.force {
        asked.check_not_scrubbed(&device)?;
    }
    if args.dry_run {
        return asked.plan_detach(&device, goes_back);
    }
    asked.carry_out(&Request::DetachDevice { device: device.number })?;
    if goes_back {
        return Ok(());
    }
    asked.remember(|devices| devices.retain(|path| *path != device.path))
}

/// Stops using a device.
fn offline(args: &DeviceOf) -> Result<()> {
    let mut asked = Asked::of(&args.pool, "offline")?;
    let device = asked.device(&args.device)?;
    if args.dry_run {
        return asked.plan_offline(&device);
    }
    asked.carry_out(&Request::OfflineDevice { device: device.number, release: false })
}

/// Uses a device again.
fn online(args: &Online) -> Result<()> {
    let mut asked = Asked::of(&args.pool, "online")?;
    let path = registry::absolute(&args.device)?;
    let device = asked.find(&args.device);
    let in_use = device.as_ref().is_some_and(|device| matches!(device.state.as_str(), "ONLINE" | "FILLING"));
    if in_use && !args.expand {
        return Err(Failure::new(format!("{} is in use already", shown(&path))).hint(format!(
            "to use what it has grown by: pagefold online -e {} {}",
            asked.figures.name,
            shown(&path)
        )));
    }
    let is_ready = |spare: &&SpareFigures| spare.state == "AVAIL";
    if let Some(spare) = spares::find(&asked.figures, &args.device).filter(is_ready) {
        return Err(Failure::new(format!("{} is a spare that can step in", shown(&spare.path))));
    }
    if args.dry_run {
        return asked.plan_online(device.as_ref(), &path);
    }
    if !in_use {
        if let Some(device) = device {
            // The server may hold it still, since it was left out.
            asked.carry_out(&Request::OfflineDevice { device: device.number, release: true })?;
        }
        asked.give(&path, DevicePlace::Own, args.wait)?;
    }
    if args.expand { asked.expand(&args.device) } else { Ok(()) }
}

/// A pool that is served, with its server.
struct Asked {
    client: Client,
    figures: PoolFigures,
}

impl Asked {
    fn of(pool: &str, verb: &str) -> Result<Self> {
        let mut client = target::server(&target::whole_pool(pool, verb)?)?;
        let figures = status(&mut client)?;
        Ok(Self { client, figures })
    }

    /// Returns the device that a word names, by path or number.
    fn find(&self, word: &Path) -> Option<DeviceFigures> {
        let resolved = std::fs::canonicalize(word).ok();
        let is_it =
            |path: &Path| path == word || resolved.is_some() && std::fs::canonicalize(path).ok() == resolved;
        let devices = &self.figures.devices;
        let number = word.to_str().and_then(|word| word.parse::<u16>().ok());
        let by_path =
            devices.iter().find(|device| !device.path.as_os_str().is_empty() && is_it(&device.path));
        by_path.or_else(|| devices.iter().find(|device| Some(device.number) == number)).cloned()
    }

    fn device(&self, word: &Path) -> Result<DeviceFigures> {
        self.find(word).ok_or_else(|| {
            let named = |device: &DeviceFigures| match device.path.as_os_str().is_empty() {
                true => format!("{} (missing)", device.number),
                false => table::printable(&raw::text(&device.path)),
            };
            let devices: Vec<String> = self.figures.devices.iter().map(named).collect();
            Failure::new(format!(
                "{} is no device of pool {}",
                table::printable(&raw::text(word)),
                self.figures.name
            ))
            .hint(format!("its devices: {}", devices.join(", ")))
        })
    }

    /// Lets the pool use all of a device, and says how large it is.
    fn expand(&mut self, word: &Path) -> Result<()> {
        self.figures = status(&mut self.client)?;
        let before = self.figures.capacity_bytes;
        let device = self.device(word)?.number;
        self.carry_out(&Request::GrowDevice { device })?;
        self.figures = status(&mut self.client)?;
        let (name, after) = (&self.figures.name, self.figures.capacity_bytes);
        if after > before {
            println!(
                "{name} has room for {}, {} more than before",
                units::size(after),
                units::size(after - before)
            );
        } else {
            println!("{name} uses all of it already, or as much as the smallest device of its mirror has");
        }
        Ok(())
    }

    fn carry_out(&mut self, request: &Request) -> Result<()> {
        match self.client.ask_and_wait(request)? {
            Reply::Done {} => Ok(()),
            _ => Err(self.client.misunderstood()),
        }
    }

    /// Gives the pool these devices, and has this machine remember them.
    fn add(&self, paths: &[PathBuf], request: &Request) -> Result<()> {
        let files = paths.iter().map(|path| pools::open_for_server(path)).collect::<Result<Vec<_>>>()?;
        // This comes first: if this command, or the server, ends while the pool gets them, they are found all the same. That
        // more are known than the pool has does no harm.
        let mut known = Vec::new();
        self.remember(|devices| {
            known.clone_from(devices);
            devices.extend(paths.iter().filter(|path| !known.contains(path)).cloned());
        })?;
        self.hand_over(request, &files).or_else(|failure| {
            if !self.may_have(paths) {
                let is_new = |path: &PathBuf| paths.contains(path) && !known.contains(path);
                self.remember(|devices| devices.retain(|path| !is_new(path)))?;
            }
            Err(failure)
        })
    }

    /// Returns true unless the server of the pool says that it has none of these devices.
    fn may_have(&self, paths: &[PathBuf]) -> bool {
        let told = target::server(&self.figures.name).and_then(|mut client| status(&mut client));
        told.map_or(true, |told| {
            let devices = told.devices.iter().map(|device| &device.path);
            devices.chain(told.spares.iter().map(|spare| &spare.path)).any(|path| paths.contains(path))
        })
    }

    /// Sends a request for which the server wants the descriptors of devices.
    fn hand_over(&self, request: &Request, files: &[OwnedFd]) -> Result<()> {
        // A connection is of no use after such a request.
        let mut client = target::server(&self.figures.name)?;
        match client.ask(request)? {
            Reply::Ready {} => {}
            _ => return Err(client.misunderstood()),
        }
        files.iter().try_for_each(|file| client.send_descriptor(file.as_fd()))?;
        match client.last_reply()? {
            Reply::Done {} => Ok(()),
            _ => Err(client.misunderstood()),
        }
    }

    /// Returns an error if the pool consists of mirrors, and a group is none; unless that is `forced`.
    fn check_as_safe(&self, groups: &[Vec<PathBuf>], forced: bool) -> Result<()> {
        let is_alone = |group: u16| {
            let stays = |device: &&DeviceFigures| device.group == group && !device.leaves;
            self.figures.devices.iter().filter(stays).count() < 2
        };
        let mirrored = !self.figures.devices.iter().any(|device| !device.log && is_alone(device.group));
        match groups.iter().find(|group| group.len() < 2).and_then(|group| group.first()) {
            Some(alone) if mirrored && !forced => Err(Failure::new(format!(
                "the devices of pool {} have mirrors, and {} would have none: what lies on it would be lost with it",
                self.figures.name,
                shown(alone)
            ))
            .hint(format!("name its mirror: pagefold add {} mirror {} DEVICE; or use -f", self.figures.name, shown(alone)))),
            _ => Ok(()),
        }
    }

    /// Returns true if a device holds only what a verb has put there that ended before the pool had it.
    fn is_left_over(&self, held: &Held) -> bool {
        let is_missed = |number: u16| {
            let missed = |device: &&DeviceFigures| device.path.as_os_str().is_empty();
            self.figures.devices.iter().filter(missed).any(|device| device.number == number)
        };
        match held {
            Held::Pool { guid, unfinished: Some(number), .. } => {
                *guid == self.figures.guid && !is_missed(*number)
            }
            Held::Spare { guid, .. } => *guid == self.figures.guid,
            _ => false,
        }
    }

    fn check_new(&self, path: &Path) -> Result<()> {
        if self.find(path).is_some_and(|device| !device.path.as_os_str().is_empty()) {
            return Err(Failure::new(format!("{} is a device of the pool already", shown(path))));
        }
        if spares::find(&self.figures, path).is_some() {
            return Err(Failure::new(format!("{} is a spare of the pool already", shown(path))).hint(
                format!(
                    "it steps in by itself; to use it otherwise: pagefold remove {} {}",
                    self.figures.name,
                    shown(path)
                ),
            ));
        }
        Ok(())
    }

    /// Prints how large the pool would be with these devices; those that do not exist are to have `size` bytes.
    fn print_growth(&self, new: &Layout, size: Option<u64>) -> Result<()> {
        let mut sizes = group_sizes(self.figures.devices.iter());
        if !new.log.is_empty() {
            let sized = |path: &PathBuf| Ok((path.clone(), size_of_new(path, size)?));
            println!("{}", log_device::plan(&new.log.iter().map(sized).collect::<Result<Vec<_>>>()?)?);
        }
        for group in &new.groups {
            let all: Vec<u64> = group.iter().map(|path| size_of_new(path, size)).collect::<Result<_>>()?;
            sizes.extend(all.into_iter().min());
        }
        let after = pagefold_engine::pool::capacity_bytes(&sizes);
        let before = self.figures.capacity_bytes;
        println!(
            "{} would have room for {}, and has room for {} now; nothing is to be copied: it would take a moment; nothing was changed",
            self.figures.name,
            units::size(after),
            units::size(before)
        );
        Ok(())
    }

    /// Gives the pool a device that holds nothing that somebody may miss.
    fn give_new(&mut self, new: &Path, given: &GivenDevice, place: DevicePlace) -> Result<()> {
        let (seen, size) = self.check_given(new, given)?;
        let made = NewFiles::make(&seen.missing, size)?;
        let path = registry::absolute(new)?;
        let given = self.give(&path, place, given.wait);
        if given.is_ok() || self.may_have(&[path]) {
            made.stay();
        }
        given
    }

    /// Returns what is seen of the new device, and the size that it is to have if it is a file that is to be made.
    fn check_given(&self, new: &Path, given: &GivenDevice) -> Result<(Seen, Option<u64>)> {
        let size = file_bytes(given.size.as_deref())?;
        self.check_new(new)?;
        Ok((look(&[new.to_owned()], size, given.force, &|held| self.is_left_over(held))?, size))
    }

    fn give(&mut self, path: &Path, place: DevicePlace, wait: bool) -> Result<()> {
        let path = path.to_owned();
        self.add(std::slice::from_ref(&path), &Request::AddDevice { path: path.clone(), place })?;
        let replaced = match place {
            DevicePlace::InPlaceOf(number) => Some(number),
            DevicePlace::Beside(_) | DevicePlace::Own => None,
        };
        if wait { self.wait_for_fill(&path, replaced) } else { Ok(()) }
    }

    /// Returns an error if a scrub is under way, and the device is in use and has not just been filled itself: the others may
    /// need what it has.
    fn check_not_scrubbed(&self, device: &DeviceFigures) -> Result<()> {
        let PoolFigures { name, scrub, fill, .. } = &self.figures;
        let is_new = fill.as_ref().is_some_and(|fill| fill.device == device.number);
        let is_scrubbed = scrub.as_ref().is_some_and(|scrub| scrub.state == "running");
        let in_use = removal::of_group(&self.figures, device.group).filter(|of| of.state == "ONLINE").count();
        if !is_scrubbed || is_new || device.log || device.state != "ONLINE" || in_use < 2 {
            return Ok(());
        }
        Err(Failure::new(format!(
            "a scrub is under way, and the other devices of the mirror may need what {} has",
            shown(&device.path)
        ))
        .hint(format!(
            "wait for it: pagefold scrub --status --wait {name}; or use -f if nothing is wrong with the others"
        )))
    }

    /// Changes the devices that this machine knows of the pool.
    fn remember(&self, change: impl FnOnce(&mut Vec<std::path::PathBuf>)) -> Result<()> {
        let registry = Registry::open()?;
        let known = registry.of_guid(&self.figures.guid)?;
        let Some(mut known): Option<Known> = known else { return Ok(()) };
        change(&mut known.devices);
        registry.add(known)
    }

    /// Waits until a device is whole, and the one that it replaces has left.
    fn wait_for_fill(&mut self, path: &Path, replaced: Option<u16>) -> Result<()> {
        let progress = Progress::bytes("filling");
        let mut verifying = None;
        let has_failed = loop {
            self.figures = status(&mut self.client)?;
            match (filling::of(&self.figures.devices, path, replaced), &self.figures.fill) {
                (Progressed::Filling, Some(fill)) => {
                    progress.at(fill.done_bytes, fill.done_bytes + fill.left_bytes);
                }
                // A device that is replaced leaves when what was copied has been verified.
                (Progressed::Verifying, Some(fill)) if fill.to_verify_bytes > 0 => {
                    let shown = verifying.get_or_insert_with(|| Progress::bytes("verifying"));
                    shown.at(fill.verified_bytes, fill.to_verify_bytes);
                }
                (Progressed::Filling | Progressed::Verifying, _) => {}
                (Progressed::Done, _) => break false,
                (Progressed::Failed, _) => break true,
            }
            sleep(POLL);
        };
        progress.finish();
        if let Some(verifying) = verifying {
            verifying.finish();
        }
        match has_failed {
            false => Ok(()),
            true => Err(Failure::new(format!("{} could not be filled", shown(path)))
                .hint(format!("the log says why: pagefold events {}", self.figures.name))),
        }
    }
}

/// Returns the size of each group that these devices are of: that of its smallest one. No data lies on a log device.
fn group_sizes<'a>(devices: impl Iterator<Item = &'a DeviceFigures>) -> Vec<u64> {
    let mut sizes: BTreeMap<u16, u64> = BTreeMap::new();
    for device in devices.filter(|device| !device.log) {
        let of = sizes.entry(device.group).or_insert(u64::MAX);
        *of = (*of).min(device.size_bytes);
    }
    sizes.into_values().collect()
}

/// Returns the size of a device that a pool is to get; of one that does not exist, the size that it is to have.
fn size_of_new(path: &Path, size: Option<u64>) -> Result<u64> {
    if path.exists() { pools::device_bytes(path) } else { Ok(size.unwrap_or(0)) }
}

fn status(client: &mut Client) -> Result<PoolFigures> {
    match client.ask(&Request::Status {})? {
        Reply::Status { figures } => Ok(*figures),
        _ => Err(client.misunderstood()),
    }
}

/// Returns the state of a filling in a line, for `status`.
pub(super) fn fill_text(fill: &FillFigures, devices: &[DeviceFigures], exact: bool) -> String {
    let size = |bytes: u64| if exact { bytes.to_string() } else { units::size(bytes) };
    let found = devices.iter().find(|device| device.number == fill.device);
    let path = found.map_or_else(|| fill.device.to_string(), |device| shown(&device.path));
    match fill.finished {
        0 => format!(
            "{path} since {}, {} copied, {} left{}",
            units::utc(fill.started),
            size(fill.done_bytes),
            size(fill.left_bytes),
            time::pace_text(&fill.pace, exact)
        ),
        finished if fill.to_verify_bytes > 0 => {
            let leaving = devices.iter().find(|device| device.leaves).map(|device| shown(&device.path));
            format!(
                "{path} has all since {}, {} copied; {} of {} verified, then {} leaves",
                units::utc(finished),
                size(fill.done_bytes),
                size(fill.verified_bytes),
                size(fill.to_verify_bytes),
                leaving.unwrap_or_else(|| "the device whose place it took".to_owned())
            )
        }
        finished => {
            format!("{path} is whole since {}, {} copied", units::utc(finished), size(fill.done_bytes))
        }
    }
}
