//! Tries power cuts in the middle of steps, on images of the devices.

use std::sync::Arc;

use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::OpenOptions;

use super::setup::options;
use super::{Event, Outcome, Sim};
use crate::fuse::Fuse;
use crate::history::{History, Theme};
use crate::images::{Camera, Image, States, crashed};
use crate::pools::{Half, Split};
use crate::random::Random;
use crate::world::World;

/// Divisor of the number of images of pools that take long to compare: full and aged ones whose chunks are not small,
/// and those with many pages.
const SHARE: usize = 8;
/// Bytes of the cache of most images. Their pages are read once, and a larger cache only takes memory that has to be
/// mapped first.
const IMAGE_CACHE_BYTES: u64 = 1 << 20;
/// The same for pools with so many records that the directories of their segments take this much: each is read for every
/// record that it names if it is not kept.
const DENSE_CACHE_BYTES: u64 = 8 << 20;
/// Bytes of the segment table that most images keep: a check asks the table for every record, in the order of the tree.
const IMAGE_TABLE_BYTES: u64 = 8 << 20;
/// One image in this many has the history's cache and table.
const CACHE_SHARE: u64 = 16;
/// Number of events between two states whose content is kept. The others are made from those when they are found.
const KEPT_STRIDE: usize = 32;

/// Returns the options with which an image is opened: for one in [`CACHE_SHARE`] the history's, unless the pool is dense.
pub(super) fn image_options(history: &History, salt: u64) -> OpenOptions {
    let options = options(history, salt);
    if history.dense {
        OpenOptions { cache_bytes: DENSE_CACHE_BYTES, ..options }
    } else if salt.is_multiple_of(CACHE_SHARE) {
        options
    } else {
        OpenOptions { cache_bytes: IMAGE_CACHE_BYTES, table_bytes: Some(IMAGE_TABLE_BYTES), ..options }
    }
}

impl<'a> Sim<'a> {
    /// Begins to take images of the present devices.
    pub(super) fn watch(&mut self) {
        // With flipped bits, an image that lost data would prove nothing: the flips may have cost it.
        let wanted = self.history.images > 0 && self.history.theme != Theme::Flips;
        if !wanted && !self.history.verbs {
            return;
        }
        let full = matches!(self.history.theme, Theme::Full | Theme::Aged);
        let long = self.history.dense || full && !cfg!(feature = "small-chunks");
        let most = if long { self.history.images.div_ceil(SHARE) } else { self.history.images };
        let here = self.devices.iter().zip(&self.away).filter(|(_, away)| !**away);
        let here: Vec<Arc<SimDevice>> = here.map(|(device, _)| Arc::clone(device)).collect();
        let camera = Camera::new(&here, most, self.shutter.bits());
        camera.acknowledge(self.forgotten + self.durable);
        self.fuse = Fuse::new(&here, &self.fuse);
        for device in &here {
            let (camera, fuse) = (Arc::downgrade(&camera), Arc::downgrade(&self.fuse));
            device.watch(move || {
                if let Some(fuse) = fuse.upgrade() {
                    fuse.call();
                }
                if let Some(camera) = camera.upgrade() {
                    camera.instant();
                }
            });
        }
        self.camera = Some(camera);
    }

    /// Judges the images that were taken so far: each must recover to a state that the events so far allow.
    pub(super) fn develop(&mut self) -> Outcome {
        let images = self.camera.as_ref().map_or_else(Vec::new, |camera| camera.develop());
        if images.is_empty() {
            return Ok(());
        }
        let (mut shutter, mut cuts) = (self.shutter.clone(), 0);
        let states = self.states();
        let count = images.len();
        for (at, image) in images.into_iter().enumerate() {
            let least = image.durable.saturating_sub(self.forgotten);
            let salt = shutter.bits();
            let judged = image.judge(&states, least, &image_options(self.history, salt), &mut shutter);
            cuts += judged.map_err(|what| format!("power cut {} of {count} on the way: {what}", at + 1))?;
        }
        drop(states);
        (self.shutter, self.stats.images) = (shutter, self.stats.images + cuts);
        Ok(())
    }

    /// Opens the pool on copies of devices of which one of each mirror is there, and verifies that it has everything
    /// that was acknowledged. The copies are as after a power cut.
    pub(super) fn judge_alone(&mut self, devices: &[Arc<SimDevice>], random: &mut Random) -> Outcome {
        let copies = devices.iter().map(|device| crashed(device, random)).collect();
        let image = Image::of(copies, self.forgotten + self.durable);
        let options = image_options(self.history, random.bits());
        // Of a split nothing is known to one half of the devices.
        let states = states(&self.base, &self.log);
        let judged = image.judge(&states, self.durable, &options, random);
        drop(states);
        let paths: Vec<_> = devices.iter().map(|device| device.path()).collect();
        self.stats.images +=
            judged.map_err(|what| format!("by themselves {paths:?} have not everything: {what}"))?;
        self.stats.alone += 1;
        Ok(())
    }

    /// Compares the half that may have become a pool of its own with the model, on copies of its devices.
    pub(super) fn judge_half(&mut self, half: &Half, random: &mut Random) -> Outcome<Split> {
        let copies: Vec<_> = self.devices.iter().map(|device| Arc::new(crashed(device, random))).collect();
        half.judge(self.pool()?, &copies, &image_options(self.history, random.bits()))
    }

    fn states(&self) -> States<'_> {
        let states = states(&self.base, &self.log);
        States { half: self.verbs.half.as_ref(), ..states }
    }
}

/// Returns the states that a power cut may leave: `base`, and those after each event of `log`.
pub(super) fn states<'a>(base: &World, log: &'a [Event]) -> States<'a> {
    let mut world = base.clone();
    let (mut signatures, mut kept) = (vec![world.signature()], vec![world.clone()]);
    for (at, event) in (1..).zip(log) {
        event.happen(&mut world);
        signatures.push(world.signature());
        if at % KEPT_STRIDE == 0 {
            kept.push(world.clone());
        }
    }
    let world = move |at: usize| {
        let mut world = kept[at / KEPT_STRIDE].clone();
        log[at - at % KEPT_STRIDE..at].iter().for_each(|event| event.happen(&mut world));
        world
    };
    States { signatures, world: Box::new(world), half: None }
}
