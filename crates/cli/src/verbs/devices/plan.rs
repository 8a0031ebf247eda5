//! `-n` of `attach`, `replace`, `detach`, `offline` and `online`: says what they would do.

use std::path::Path;

use pagefold_server::control::{DeviceChange, DeviceFigures, DevicePlace, Reply, Request};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::raw::shown;
use pagefold_server::{registry, units};

use super::removal::{device_name as named, mirror_name, of_group};
use super::time::{Work, time_text};
use super::{Asked, size_of_new};
use crate::args::GivenDevice;

impl Asked {
    /// Prints what it would do to give a device another mirror.
    pub(super) fn plan_attach(
        &mut self,
        beside: &DeviceFigures,
        new: &Path,
        given: &GivenDevice,
    ) -> Result<()> {
        let (new, bytes) = self.plan_new(new, given, DevicePlace::Beside(beside.number))?;
        let copied = units::size(bytes);
        println!("{new} would be a mirror of {}, and get {copied} in the background", named(beside));
        self.print_time(beside.group, bytes);
        self.print_rest(beside, &self.others(beside, Some(new), true));
        Ok(())
    }

    /// Prints what it would do to put a new device in the place of another one.
    pub(super) fn plan_replace(
        &mut self,
        old: &DeviceFigures,
        new: &Path,
        given: &GivenDevice,
    ) -> Result<()> {
        let (new, bytes) = self.plan_new(new, given, DevicePlace::InPlaceOf(old.number))?;
        let copied = units::size(bytes);
        println!("{new} would take the place of {}, and get {copied} in the background", named(old));
        self.print_time(old.group, bytes);
        if is_whole(old) {
            println!("{} would stay until then", named(old));
        }
        self.print_rest(old, &self.others(old, Some(new), false));
        Ok(())
    }

    /// Prints what it would do to remove a device from its mirror.
    pub(super) fn plan_detach(&mut self, device: &DeviceFigures, goes_back: bool) -> Result<()> {
        self.plan(DeviceChange::Detach(device.number))?;
        match goes_back {
            true => println!("{} would go back to the spares at once", named(device)),
            false => println!("{} would leave the pool at once, and hold none then", named(device)),
        }
        self.print_rest(device, &self.others(device, None, false));
        Ok(())
    }

    /// Prints what it would do to stop using a device.
    pub(super) fn plan_offline(&mut self, device: &DeviceFigures) -> Result<()> {
        self.plan(DeviceChange::Offline(device.number))?;
        println!(
            "{} would not be used from now on until it is online again; then it gets what was written meanwhile",
            named(device)
        );
        self.print_rest(device, &self.others(device, None, false));
        Ok(())
    }

    /// Prints what it would do to use a device again, which is at `path` now.
    pub(super) fn plan_online(&mut self, device: Option<&DeviceFigures>, path: &Path) -> Result<()> {
        let Some(device) = device else {
            return Err(Failure::new(format!(
                "pool {} knows no device at {}",
                self.figures.name,
                shown(path)
            ))
            .hint("if it has another name now, what it has missed is seen when it is taken online"));
        };
        let missed = self.plan(DeviceChange::Online(device.number))?;
        println!(
            "{} would get what it has missed: {}, or all {} if it is not as it was",
            named(device),
            units::size(missed),
            units::size(device.allocated_bytes)
        );
        self.print_time(device.group, missed);
        self.print_rest(device, &self.others(device, None, true));
        Ok(())
    }

    fn print_time(&self, group: u16, bytes: u64) {
        println!("{}", time_text(&self.figures, Work::Filling, group, bytes));
    }

    /// Returns the path of a new device, and the number of bytes that would be copied to it. Tells what it holds that would be
    /// lost.
    fn plan_new(&mut self, new: &Path, given: &GivenDevice, place: DevicePlace) -> Result<(String, u64)> {
        let (seen, size) = self.check_given(new, given)?;
        let size_bytes = size_of_new(new, size)?;
        let path = match seen.missing.is_empty() {
            true => registry::absolute(new)?,
            false => std::path::absolute(new).context(|| format!("cannot resolve {}", shown(new)))?,
        };
        let name = shown(&path);
        let bytes = self.plan(DeviceChange::Give { place, path, size_bytes })?;
        seen.lost_texts().for_each(|text| println!("{text}"));
        Ok((name, bytes))
    }

    fn plan(&mut self, change: DeviceChange) -> Result<u64> {
        match self.client.ask_and_wait(&Request::PlanChange { change })? {
            Reply::Planned { copied_bytes } => Ok(copied_bytes),
            _ => Err(self.client.misunderstood()),
        }
    }

    /// Returns the devices of a mirror that would have everything: those that have it now, with `device` or without, and
    /// a new one.
    fn others(&self, device: &DeviceFigures, new: Option<String>, stays: bool) -> Vec<String> {
        let is_new = new.is_some();
        let of_mirror = of_group(&self.figures, device.group).filter(|other| !other.leaves);
        let has_all = |other: &&DeviceFigures| {
            if other.number == device.number {
                stays && (!is_new || is_whole(other))
            } else {
                is_whole(other)
            }
        };
        of_mirror.filter(has_all).map(named).chain(new).collect()
    }

    /// Prints how many devices a mirror could lose if `left` have everything.
    fn print_rest(&self, device: &DeviceFigures, left: &[String]) {
        let name = &self.figures.name;
        match left {
            [alone] if device.log => println!(
                "{alone} would have no mirror: commits that only it has would be lost if it failed together with a crash"
            ),
            [alone] => println!("{alone} would have no mirror: what lies on it would be lost with it"),
            _ => println!(
                "then {} could lose {} of {} devices without losing {}",
                mirror_name(device.group),
                left.len() - 1,
                left.len(),
                if device.log { "commits" } else { "data" }
            ),
        }
        println!("{name} would be as large as before; nothing was changed");
    }
}

fn is_whole(device: &DeviceFigures) -> bool {
    device.state == "ONLINE"
}
