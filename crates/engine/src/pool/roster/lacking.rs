//! Members that are not whole: what they lack, by what they are known when they come back, and when they are whole again.

use std::sync::atomic::Ordering;

use super::Labels;
use crate::Result;
use crate::device::{ALL, MemberState};
use crate::pool::identity::Member;
use crate::pool::label::{Label, Superblock};
use crate::pool::lacks::{Lacks, Leaving, Since};
use crate::pool::members::Returned;
use crate::pool::membership::{MemberEntry, Membership};
use crate::ranges::Ranges;

impl Labels {
    /// Finds out what the members lack that are not whole, from what the checkpoint has `stored` of them, and from what
    /// was written `since` (U2). Comes before anything is written to a group in this opening.
    ///
    /// # Errors
    /// Errors of labels.
    pub(in crate::pool) fn settle_lacks(
        &self,
        stored: &[Lacks],
        since: &Since,
        newest: &Superblock,
    ) -> Result<()> {
        let mut state = self.state.lock();
        let (returned, missing) = (std::mem::take(&mut state.returned), std::mem::take(&mut state.missing));
        let (mut found, mut untold) = (Vec::new(), Vec::new());
        for table in &state.tables {
            let mut written = Ranges::default();
            since.add_to(table.group, &mut written);
            self.devices.set_since(table.group, &written);
            let others = table.members.iter().copied().filter(|entry| !self.is_whole(entry.number));
            for MemberEntry { number, birth, .. } in others {
                // One that was whole until now has all that any checkpoint has stored of it.
                let stored = stored.iter().filter(|_| !missing.contains(&number));
                let stored = stored.into_iter().find(|lacks| (lacks.number, lacks.birth) == (number, birth));
                let mut regions = written.clone();
                stored
                    .iter()
                    .flat_map(|lacks| lacks.regions.iter())
                    .for_each(|range| regions.insert_range(range));
                let root = stored.and_then(|lacks| lacks.root).unwrap_or(newest.addr.raw());
                let mut left = Leaving { told: stored.and_then(|lacks| lacks.told), root };
                let here = returned.iter().find(|returned| returned.label.device == number);
                if let Some(Returned { label, member }) = here {
                    let has_root = member.as_ref().is_some_and(|member| member.has_root(root));
                    if !has_root || !is_told(&left, table, label) {
                        regions.insert_range(ALL);
                        untold.push(table.group);
                    }
                    left.told = Some(label.membership.id());
                }
                found.push((number, left, regions));
            }
        }
        for (number, left, regions) in found {
            // Labels of this opening may have been written to it already.
            let told = state.left.get(&number).map_or(left.told, |there| there.told);
            state.left.insert(number, Leaving { told, ..left });
            self.devices.set_lacking_only(number, regions);
            self.left_out.store(true, Ordering::Release);
        }
        drop(state);
        untold.dedup();
        untold.into_iter().try_for_each(|group| self.change(group))
    }

    /// Returns what the members lack that are not whole (U1).
    pub(in crate::pool) fn lacks(&self) -> Vec<Lacks> {
        let state = self.state.lock();
        let mut all = Vec::new();
        for MemberEntry { number, birth, .. } in state.tables.iter().flat_map(|table| &table.members) {
            let Some((member, mut regions)) = self.devices.state_and_lacking(*number) else { continue };
            if member == MemberState::Whole {
                continue;
            }
            let left = state.left.get(number);
            if left.is_none() {
                regions.insert_range(ALL);
            }
            let Leaving { told, root } = left.copied().unwrap_or_default();
            let root = Some(root).filter(|_| !member.is_written());
            all.push(Lacks { number: *number, birth: *birth, told, root, regions });
        }
        all
    }

    /// Returns the largest number of bytes of the stored form of what members may lack.
    pub(in crate::pool) fn lacks_bytes_max(&self) -> u64 {
        let state = self.state.lock();
        let groups = state.tables.iter().zip(&state.sizes);
        let others = |table: &Membership| (table.members.len() as u64).saturating_sub(1);
        groups.map(|(table, bytes)| others(table) * Lacks::bytes_max(*bytes)).sum()
    }

    /// Makes a member whole that lacks nothing any more. Returns false if it was left out meanwhile.
    ///
    /// # Errors
    /// Errors of labels.
    pub(in crate::pool) fn complete(&self, group: u16, number: u16) -> Result<bool> {
        self.pause();
        if !self.devices.complete(number) {
            return Ok(false);
        }
        self.pause();
        self.change(group)?;
        // It may have failed to take the label that calls it whole.
        Ok(self.is_whole(number))
    }

    /// Returns the address of the root that the newest superblock of a device names, as far as that is known.
    pub(in crate::pool) fn root_of(&self, number: u16) -> Option<u64> {
        self.state.lock().left.get(&number).map(|left| left.root)
    }

    /// Returns true if a device is as it was when it was left out.
    pub(in crate::pool) fn is_as_left(&self, device: &Member) -> bool {
        let (label, state) = (&device.label, self.state.lock());
        let left = state.left.get(&label.device).filter(|left| device.has_root(left.root));
        let table = state.tables.get(usize::from(label.membership.group));
        left.zip(table).is_some_and(|(left, table)| is_told(left, table, label))
    }
}

/// Returns true if the label of a device is the one that is known.
fn is_told(left: &Leaving, table: &Membership, label: &Label) -> bool {
    let own = &label.membership;
    match left.told {
        Some(id) => id == own.id(),
        None => {
            let calls_it_whole =
                own.entry(label.device).is_some_and(|entry| entry.state == MemberState::Whole);
            calls_it_whole && table.came_from(own)
        }
    }
}
