//! `remove`: what lies on devices of a pool moves to the others, and then they leave it. A log device, on which nothing lies,
//! leaves at once.

use std::path::{Path, PathBuf};
use std::thread::sleep;

use pagefold_server::control::{DeviceFigures, PoolFigures, RemovalFigures, Request, SpareFigures};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::raw::{self, shown};
use pagefold_server::units;

use super::time::{Work, pace_text, time_text};
use super::{Asked, POLL, group_sizes, status};
use crate::args::Remove;
use crate::progress::Progress;
use crate::table;
use crate::verbs::{log_device, spares};

/// Removes devices from a pool, or stops that.
pub fn remove(args: &Remove) -> Result<()> {
    let mut asked = Asked::of(&args.pool, "remove")?;
    if args.stop {
        return asked.keep_all();
    }
    let spare = |word: &PathBuf| spares::find(&asked.figures, word).cloned();
    let leaving: Vec<SpareFigures> = args.devices.iter().filter_map(spare).collect();
    let others = args.devices.iter().filter(|word| spare(word).is_none());
    let mut groups: Vec<u16> = others.map(|word| asked.group(word)).collect::<Result<_>>()?;
    groups.sort_unstable();
    groups.dedup();
    leaving.iter().try_for_each(|spare| asked.check_unused(spare))?;
    if args.dry_run {
        leaving
            .iter()
            .for_each(|spare| println!("{} holds nothing, and would leave", spares::path_or_id(spare)));
        let logs =
            groups.extract_if(.., |group| log_device::is_group(&asked.figures, *group)).collect::<Vec<_>>();
        for group in logs {
            println!(
                "{} is the log device, on which no data lies: it would leave at once, and commits would wait for the other devices",
                named(&asked.figures, group)
            );
            if groups.is_empty() {
                println!(
                    "{} would be as large as before; it would take a moment; nothing was changed",
                    asked.figures.name
                );
            }
        }
        return if groups.is_empty() { Ok(()) } else { asked.print_removal(&groups) };
    }
    leaving.iter().try_for_each(|spare| asked.remove_spare(spare))?;
    for group in groups {
        let paths = asked.paths_of(group);
        asked.carry_out(&Request::RemoveGroup { group })?;
        if log_device::is_group(&asked.figures, group) {
            asked.remember(|devices| devices.retain(|path| !paths.contains(path)))?;
        } else if args.wait {
            asked.wait_for_removal(group)?;
            // If nobody waits, this machine remembers it a while longer, and passes over it when the pool is mounted.
            asked.remember(|devices| devices.retain(|path| !paths.contains(path)))?;
        }
    }
    Ok(())
}

/// Returns the name of a mirror in `status`, by which it can be removed.
pub(in crate::verbs) fn mirror_name(group: u16) -> String {
    format!("mirror-{group}")
}

/// Returns the devices of a group.
pub(super) fn of_group(figures: &PoolFigures, group: u16) -> impl Iterator<Item = &DeviceFigures> {
    figures.devices.iter().filter(move |device| device.group == group)
}

/// Returns what users call a device: its path, or its number if it is missing.
pub(super) fn device_name(device: &DeviceFigures) -> String {
    match device.path.as_os_str().is_empty() {
        true => format!("device number {}", device.number),
        false => shown(&device.path),
    }
}

/// Returns what users call a group: the path of its device, or the name of the mirror.
pub(super) fn named(figures: &PoolFigures, group: u16) -> String {
    let devices: Vec<&DeviceFigures> = of_group(figures, group).collect();
    match devices.as_slice() {
        [alone] => device_name(alone),
        _ => mirror_name(group),
    }
}

impl Asked {
    /// Returns an error if a spare stands in for a device.
    fn check_unused(&self, spare: &SpareFigures) -> Result<()> {
        let Some(stands) = spare.stands_for else { return Ok(()) };
        let (name, device) = (&self.figures.name, spares::device_text(&self.figures.devices, stands));
        let path = spares::path_or_id(spare);
        Err(Failure::new(format!("{path} stands in for {device}")).hint(format!(
            "give it back first: pagefold detach {name} {path}; or keep it for good: pagefold detach {name} {device}"
        )))
    }

    fn remove_spare(&mut self, spare: &SpareFigures) -> Result<()> {
        self.carry_out(&Request::RemoveSpare { id: spare.id.clone() })?;
        self.remember(|devices| devices.retain(|path| *path != spare.path))
    }

    /// Returns the group that a word names: a mirror by its name, or a device that has no mirror.
    fn group(&self, word: &Path) -> Result<u16> {
        let mirrors =
            self.figures.devices.iter().filter(|device| of_group(&self.figures, device.group).count() > 1);
        let by_name =
            mirrors.map(|device| device.group).find(|group| word.to_str() == Some(&mirror_name(*group)));
        if let Some(group) = by_name {
            return Ok(group);
        }
        let device = self.device(word)?;
        if of_group(&self.figures, device.group).count() == 1 {
            return Ok(device.group);
        }
        let (path, name, pool) =
            (table::printable(&raw::text(word)), mirror_name(device.group), &self.figures.name);
        Err(Failure::new(format!("{path} is one device of {name}")).hint(format!(
            "to remove the whole mirror: pagefold remove {pool} {name}; to remove the device from it: pagefold detach {pool} {path}"
        )))
    }

    fn paths_of(&self, group: u16) -> Vec<PathBuf> {
        of_group(&self.figures, group).map(|device| device.path.clone()).collect()
    }

    /// Stops all removals.
    fn keep_all(&mut self) -> Result<()> {
        let mut leaving: Vec<u16> =
            self.figures.devices.iter().filter(|device| device.removing).map(|device| device.group).collect();
        leaving.dedup();
        if leaving.is_empty() {
            return Err(Failure::new(format!("no device of pool {} is being removed", self.figures.name)));
        }
        leaving.into_iter().try_for_each(|group| self.carry_out(&Request::KeepGroup { group }))
    }

    /// Prints what the removal of groups would move, and how large the pool would be.
    fn print_removal(&self, groups: &[u16]) -> Result<()> {
        let figures = &self.figures;
        let stays =
            |device: &&DeviceFigures| !device.removing && !device.log && !groups.contains(&device.group);
        let sizes = group_sizes(figures.devices.iter().filter(stays));
        let after = pagefold_engine::pool::capacity_bytes(&sizes);
        let name = &figures.name;
        let needed = figures.used_bytes.saturating_add(figures.reserved_bytes);
        if sizes.is_empty() || needed > after {
            return Err(Failure::new(format!(
                "{name} stores or reserves {}, and the other devices have room for {}",
                units::size(needed),
                units::size(if sizes.is_empty() { 0 } else { after })
            ))
            .hint(format!("delete something, or make the pool larger first: pagefold add {name} DEVICE")));
        }
        for group in groups {
            let moved =
                of_group(figures, *group).map(|device| device.allocated_bytes).max().unwrap_or_default();
            println!("up to {} would move off {}", units::size(moved), named(figures, *group));
            println!("{}", time_text(figures, Work::Moving, *group, moved));
        }
        println!(
            "{name} would have room for {}, and has room for {} now; {} are used or reserved; nothing was changed",
            units::size(after),
            units::size(figures.capacity_bytes),
            units::size(needed)
        );
        Ok(())
    }

    fn wait_for_removal(&mut self, group: u16) -> Result<()> {
        let (progress, name) = (Progress::bytes("moving"), named(&self.figures, group));
        let mut obstacle = None;
        loop {
            self.figures = status(&mut self.client)?;
            let there = of_group(&self.figures, group).next();
            match (&self.figures.removal, there) {
                (_, Some(device)) if !device.removing => {
                    return Err(Failure::new(format!("the removal of {name} was stopped")));
                }
                (Some(removal), Some(_)) if removal.group == group => {
                    progress.at(removal.moved_bytes, removal.moved_bytes + removal.left_bytes);
                    if removal.obstacle.is_some() && obstacle != removal.obstacle {
                        obstacle.clone_from(&removal.obstacle);
                        crate::verbs::warn(&format!(
                            "the removal of {name} waits: {}",
                            obstacle.as_deref().unwrap_or_default()
                        ));
                    }
                }
                (_, Some(_)) => {}
                (_, None) => break,
            }
            sleep(POLL);
        }
        progress.finish();
        Ok(())
    }
}

/// Returns the state of a removal in a line, for `status`.
pub(in crate::verbs) fn removal_text(removal: &RemovalFigures, pool: &PoolFigures, exact: bool) -> String {
    let size = |bytes: u64| if exact { bytes.to_string() } else { units::size(bytes) };
    if removal.finished > 0 {
        let (group, moved) = (removal.group, size(removal.moved_bytes));
        return format!("group {group} has left since {}, {moved} moved", units::utc(removal.finished));
    }
    let since = match removal.started {
        0 => String::new(),
        started => format!(" since {}", units::utc(started)),
    };
    let waits =
        removal.obstacle.as_ref().map(|obstacle| format!("; it waits: {obstacle}")).unwrap_or_default();
    let (name, moved, left) =
        (named(pool, removal.group), size(removal.moved_bytes), size(removal.left_bytes));
    format!("{name} leaves{since}, {moved} moved, {left} left{}{waits}", pace_text(&removal.pace, exact))
}
