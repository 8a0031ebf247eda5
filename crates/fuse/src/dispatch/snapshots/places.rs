//! Places of the snapshots of which the kernel may know nodes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use pagefold_fs::Fs;

use super::SYNTHETIC;

/// A snapshot that was looked into.
pub(super) struct Place {
    /// Its number.
    pub(super) number: u64,
    /// References that the kernel has to its nodes, or more.
    pub(super) references: u64,
    /// Its file system; `None` if the snapshot was destroyed.
    pub(super) fs: Option<Arc<Fs>>,
    /// Number of files that were opened and not closed.
    pub(super) open_files: u64,
}

/// All places: those from 1 on, below [`SYNTHETIC`].
#[derive(Default)]
pub(super) struct Places {
    /// Places of the snapshots that are not destroyed.
    by_number: HashMap<u64, u16>,
    places: Vec<Option<Place>>,
    /// Those of `places` that nothing has.
    unused: BTreeSet<u16>,
}

impl Places {
    /// Returns what has a place.
    pub(super) fn get(&self, place: u16) -> Option<&Place> {
        self.places.get(usize::from(place).checked_sub(1)?)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, place: u16) -> Option<&mut Place> {
        self.places.get_mut(usize::from(place).checked_sub(1)?)?.as_mut()
    }

    /// Returns all that have a place.
    pub(super) fn all(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().flatten()
    }

    /// Returns the place of a snapshot, unless it was destroyed.
    pub(super) fn of(&self, number: u64) -> Option<u16> {
        self.by_number.get(&number).copied()
    }

    /// Returns a place that nothing has; `None` if there is none left.
    pub(super) fn unused(&self) -> Option<u16> {
        let next = || u16::try_from(self.places.len() + 1).ok().filter(|place| *place < SYNTHETIC);
        self.unused.first().copied().or_else(next)
    }

    /// Gives a place that nothing has.
    pub(super) fn give(&mut self, place: u16, known: Place) {
        let Some(at) = usize::from(place).checked_sub(1).filter(|_| place < SYNTHETIC) else { return };
        while self.places.len() <= at {
            self.places.push(None);
            self.unused.extend(u16::try_from(self.places.len()));
        }
        self.unused.remove(&place);
        if known.fs.is_some() {
            self.by_number.insert(known.number, place);
        }
        if let Some(slot) = self.places.get_mut(at) {
            *slot = Some(known);
        }
    }

    /// Notes that a snapshot is destroyed. Returns its file system, if it has a place.
    pub(super) fn close(&mut self, number: u64) -> Option<Arc<Fs>> {
        let place = self.by_number.remove(&number)?;
        self.get_mut(place)?.fs.take()
    }

    /// Takes a place back, and returns what had it.
    pub(super) fn give_up(&mut self, place: u16) -> Option<Place> {
        let given_up = self.places.get_mut(usize::from(place).checked_sub(1)?)?.take()?;
        if self.of(given_up.number) == Some(place) {
            self.by_number.remove(&given_up.number);
        }
        self.unused.insert(place);
        Some(given_up)
    }
}
