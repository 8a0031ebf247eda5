//! Tries power cuts in the middle of steps, on images of the devices.

use pagefold_engine::pool::OpenOptions;

use super::setup::options;
use super::{Outcome, Sim};
use crate::history::{History, Theme};
use crate::images::{Camera, States};

/// Divisor of the number of images of pools that take long to compare: full and aged ones whose chunks are not small,
/// and those with many pages.
const SHARE: usize = 8;
/// The smaller of the caches that histories have.
const CACHE_BYTES_MIN: u64 = 64 << 10;

/// Returns the options with which an image is opened. Most are read once, for which a cache only takes memory that has
/// to be mapped first; one in four has the history's.
fn image_options(history: &History, salt: u64) -> OpenOptions {
    let options = options(history, salt);
    if salt.is_multiple_of(4) { options } else { OpenOptions { cache_bytes: CACHE_BYTES_MIN, ..options } }
}

impl<'a> Sim<'a> {
    /// Begins to take images of the present devices.
    pub(super) fn watch(&mut self) {
        // With flipped bits, an image that lost data would prove nothing: the flips may have cost it.
        if self.history.images == 0 || self.history.theme == Theme::Flips {
            return;
        }
        let full = matches!(self.history.theme, Theme::Full | Theme::Aged);
        let long = self.history.dense || full && !cfg!(feature = "small-chunks");
        let most = if long { self.history.images.div_ceil(SHARE) } else { self.history.images };
        let camera = Camera::new(&self.devices, most, self.shutter.bits());
        camera.acknowledge(self.forgotten + self.durable);
        self.camera = Some(camera);
    }

    /// Judges the images that were taken so far: each must recover to a state that the events so far allow.
    pub(super) fn develop(&mut self) -> Outcome {
        let images = self.camera.as_ref().map_or_else(Vec::new, |camera| camera.develop());
        if images.is_empty() {
            return Ok(());
        }
        let states = self.states();
        let count = images.len();
        for (at, image) in images.into_iter().enumerate() {
            let least = image.durable.saturating_sub(self.forgotten);
            let salt = self.shutter.bits();
            let judged = image.judge(&states, least, &image_options(self.history, salt), &mut self.shutter);
            self.stats.images +=
                judged.map_err(|what| format!("power cut {} of {count} on the way: {what}", at + 1))?;
        }
        Ok(())
    }

    /// Returns the states that a power cut may leave, oldest first.
    fn states(&self) -> States {
        let mut world = self.base.clone();
        let mut states = vec![(world.signature(), world.clone())];
        for event in &self.log {
            event.happen(&mut world);
            states.push((world.signature(), world.clone()));
        }
        states
    }
}
