//! Membership: the part of a label that tells the device's place in the pool.
//!
//! A pool is a set of groups; a group is a device, or a mirror of several. All members of a group carry the same table of
//! its members.
//!
//! | offset | field | size |
//! |---|---|---|
//! | 116 | epoch of the pool: rises by one when groups are added or removed; superblocks have it, too | 8 |
//! | 124 | number of the group | 2 |
//! | 126 | number of groups | 2 |
//! | 128 | epoch of the group: rises by one with every change of the table | 8 |
//! | 136 | random number that was drawn for that change: two halves that went on separately have different ones | 8 |
//! | 144 | number of members; plus 128: everything moves off the group, which leaves the pool then | 1 |
//! | 145 | 8 entries of the table, zero where there is no member | 11 each |
//!
//! | offset in an entry | field | size |
//! |---|---|---|
//! | 0 | number of the device | 2 |
//! | 2 | state ([`MemberState`]); plus 128: another device takes its place, and it leaves when that one is whole | 1 |
//! | 3 | birth: a random number, by which the device is told from one that had its number before | 8 |
//!
//! The upper half of the birth of a device that takes the place of another one is not random: it tells which that is
//! ([`birth_in_place_of`]).
//!
//! Behind the label's name stand the tables that this one came from, [`LINEAGE`] at most, the newest first, each by its
//! epoch and its random number: 16 bytes each, zero where there are no more. Behind these stand the numbers of the groups
//! that have left the pool, as [`GONE_MAX`] ranges at most: their number (1 byte), and the first and the last number of
//! each (2 bytes each), ascending, zero where there are no more.

use crate::device::MemberState;
use crate::ranges::Ranges;
use crate::wire::Reader;
use crate::{Error, Result};

/// Largest number of members of a group: four that stay, and those that are on their way in or out.
pub(super) const MEMBERS_MAX: usize = 8;
/// Largest number of tables that a table says it came from.
pub(super) const LINEAGE: usize = 64;
/// Largest number of ranges of the numbers of groups that are gone.
pub(super) const GONE_MAX: usize = 128;
/// Largest number of devices of a mirror that stay.
pub(super) const MIRROR_MAX: usize = 4;
/// Epoch of a pool that was just made.
pub(super) const FIRST_EPOCH: u64 = 1;
/// Bits of a birth that are random in any case.
const DRAWN: u64 = u32::MAX as u64;
/// Bit of a stored state that says that the member leaves, and of the number of members that says that the group does.
const LEAVES: u8 = 128;

/// A member of a group, as a label names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemberEntry {
    /// Number of the device.
    pub number: u16,
    /// State of the device.
    pub state: MemberState,
    /// True if another device takes its place: then it leaves the group when that one is whole.
    pub leaves: bool,
    /// Random number that the device got when it became a member; see [`birth_in_place_of`].
    pub birth: u64,
}

/// Returns a number in which each bit depends on all bits of another one (the finaliser of splitmix64).
pub(super) const fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Returns the birth of a device that takes the place of one with the birth `of`, from a number that was drawn. By its
/// upper half the two are known to belong together.
pub(super) const fn birth_in_place_of(of: u64, drawn: u64) -> u64 {
    mixed(of) & !DRAWN | drawn & DRAWN
}

/// The table of a group's members that its labels have had: whoever knows it can tell that a device that was left out before
/// has not come as far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSeen {
    /// Number of the group.
    pub group: u16,
    /// Epoch of the group: the number of changes of its table.
    pub epoch: u64,
    /// Random number of that epoch.
    pub draw: u64,
}

/// A device's place in its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Epoch of the pool.
    pub epoch: u64,
    /// Number of the group.
    pub group: u16,
    /// Number of groups of the pool.
    pub groups: u16,
    /// Epoch of the group.
    pub group_epoch: u64,
    /// Random number of that epoch.
    pub draw: u64,
    /// True if everything moves off the group, which leaves the pool then (E2 of [`super::removal`]).
    pub(super) leaves: bool,
    /// Numbers of the groups that are gone. No group gets one of them again.
    pub(super) gone: Ranges,
    /// Members of the group, by ascending numbers.
    pub(crate) members: Vec<MemberEntry>,
    /// Epochs and random numbers of the tables that this one came from, the newest first.
    pub(super) lineage: Vec<(u64, u64)>,
}

impl Membership {
    /// Returns the first membership of the devices of a group.
    pub(crate) fn first(group: u16, groups: u16, members: Vec<MemberEntry>) -> Self {
        Self {
            epoch: FIRST_EPOCH,
            group,
            groups,
            group_epoch: 1,
            draw: 0,
            leaves: false,
            gone: Ranges::default(),
            members,
            lineage: Vec::new(),
        }
    }

    /// Returns what stands for the table of a group that is gone.
    pub(super) fn none(group: u16, groups: u16) -> Self {
        Self::first(group, groups, Vec::new())
    }

    /// Returns the place of a device that is all of its group.
    pub fn alone(group: u16, groups: u16, number: u16, birth: u64) -> Self {
        let entry = MemberEntry { number, state: MemberState::Whole, leaves: false, birth };
        Self::first(group, groups, vec![entry])
    }

    /// Returns the same place in another epoch of the pool.
    #[must_use]
    pub fn of_epoch(self, epoch: u64) -> Self {
        Self { epoch, ..self }
    }

    /// Returns true if the group has several devices.
    pub fn is_mirrored(&self) -> bool {
        self.members.len() > 1
    }

    /// Returns the entry of a device.
    pub(crate) fn entry(&self, number: u16) -> Option<&MemberEntry> {
        self.members.iter().find(|entry| entry.number == number)
    }

    /// Returns an error if no other device can take the place of a member.
    pub(super) fn check_replaced(&self, number: u16) -> Result<()> {
        match self.entry(number) {
            Some(entry) if entry.leaves => Err(Error::Busy("another device is taking its place".into())),
            Some(_) => Ok(()),
            None => Err(Error::Invalid("it has just left".into())),
        }
    }

    /// Returns the member that takes the place of another one.
    fn successor(&self, of: &MemberEntry) -> Option<&MemberEntry> {
        let is_it = |entry: &&MemberEntry| {
            entry.number != of.number && entry.birth & !DRAWN == mixed(of.birth) & !DRAWN
        };
        self.members.iter().find(is_it)
    }

    /// Returns a member that is to leave now, since the one that takes its place is whole, and that one. If that is to leave
    /// as well, the one that takes its place in turn will do, and the one that was there first leaves first.
    pub(super) fn replaced(&self, is_whole: impl Fn(&MemberEntry) -> bool) -> Option<(u16, u16)> {
        let by = |entry: &MemberEntry| {
            // Labels may go round in a circle.
            let next = std::iter::successors(self.successor(entry), |entry| self.successor(entry));
            next.take(MEMBERS_MAX).find(|entry| is_whole(entry)).filter(|_| entry.leaves)
        };
        let is_first = |entry: &&MemberEntry| {
            !self.members.iter().any(|other| other.leaves && self.successor(other) == Some(*entry))
        };
        self.members.iter().filter(is_first).find_map(|entry| Some((entry.number, by(entry)?.number)))
    }

    /// Removes a member. If it took the place of another one, that one stays.
    pub(super) fn remove(&mut self, number: u16) {
        self.members.retain(|entry| entry.number != number);
        self.keep_unreplaced();
    }

    /// Has members stay whose places nobody takes.
    pub(super) fn keep_unreplaced(&mut self) {
        let replaced = |entry: &MemberEntry| entry.leaves && self.successor(entry).is_some();
        let leaves: Vec<bool> = self.members.iter().map(replaced).collect();
        self.members.iter_mut().zip(leaves).for_each(|(entry, leaves)| entry.leaves = leaves);
    }

    /// Returns true if both are tables of one epoch that came from different changes: of halves of a pool that went on
    /// separately.
    pub(crate) fn is_apart(&self, other: &Self) -> bool {
        self.group_epoch == other.group_epoch && (self.draw, &self.members) != (other.draw, &other.members)
    }

    /// Begins a new epoch of the group, with a random number.
    pub(super) fn advance(&mut self, draw: impl FnOnce(u64) -> u64) {
        self.lineage.insert(0, self.id());
        self.lineage.truncate(LINEAGE);
        self.group_epoch += 1;
        self.draw = draw(self.group_epoch);
    }

    /// Returns the epoch of the group and its random number, by which the table is known.
    pub(super) const fn id(&self) -> (u64, u64) {
        (self.group_epoch, self.draw)
    }

    /// Returns true if this table came from `other`, or is the same one.
    pub(super) fn came_from(&self, other: &Self) -> bool {
        self.id() == other.id() || self.lineage.contains(&other.id())
    }

    /// Returns false if this table has not come as far as another one of its group, or went on from another one: it does not
    /// name that one among those that it came from, and would.
    pub(super) fn has_come_to(&self, seen: &TableSeen) -> bool {
        let id = (seen.epoch, seen.draw);
        let is_forgotten = self.lineage.len() == LINEAGE
            && self.lineage.last().is_some_and(|(oldest, _)| *oldest > seen.epoch);
        self.id() == id || self.lineage.contains(&id) || is_forgotten
    }

    /// Returns what stands for the table where somebody notes how far the pool has come.
    pub(super) const fn seen(&self) -> TableSeen {
        TableSeen { group: self.group, epoch: self.group_epoch, draw: self.draw }
    }

    /// Appends the stored form of the numbers of groups that are gone.
    pub(super) fn encode_gone(&self, out: &mut Vec<u8>) {
        let ranges: Vec<_> = self.gone.iter().take(GONE_MAX).collect();
        out.push(ranges.len() as u8);
        for at in 0..GONE_MAX {
            let (first, last) = ranges.get(at).map_or((0, 0), |range| (range.start, range.end - 1));
            out.extend_from_slice(&(first as u16).to_le_bytes());
            out.extend_from_slice(&(last as u16).to_le_bytes());
        }
    }

    /// Reads the stored form of the numbers of groups that are gone.
    pub(super) fn decode_gone(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let count = usize::from(reader.u8()?);
        let mut next = 0;
        for _ in 0..count {
            let (first, last) = (u64::from(reader.u16()?), u64::from(reader.u16()?));
            if first < next || last < first || last >= self.groups.into() {
                return Err(reader.bad("the groups that are gone cannot be"));
            }
            self.gone.insert_range(first..last + 1);
            next = last + 2;
        }
        if count > GONE_MAX || self.gone.has(self.group.into()) {
            return Err(reader.bad("the groups that are gone cannot be"));
        }
        Ok(())
    }

    /// Notes that a group has left the pool.
    ///
    /// # Errors
    /// [`Error::Invalid`] if so many have that a label has no place for another one.
    pub(super) fn add_gone(&mut self, group: u16) -> Result<()> {
        let mut gone = self.gone.clone();
        gone.insert(group.into());
        if gone.iter().count() > GONE_MAX {
            return Err(Error::Invalid(
                "the labels have no place to say that another device has left the pool".into(),
            ));
        }
        self.gone = gone;
        Ok(())
    }

    /// Appends the stored form of the tables that it came from.
    pub(super) fn encode_lineage(&self, out: &mut Vec<u8>) {
        for at in 0..LINEAGE {
            let (epoch, draw) = self.lineage.get(at).copied().unwrap_or_default();
            out.extend_from_slice(&epoch.to_le_bytes());
            out.extend_from_slice(&draw.to_le_bytes());
        }
    }

    /// Reads the stored form of the tables that it came from.
    pub(super) fn decode_lineage(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        for _ in 0..LINEAGE {
            let id = (reader.u64()?, reader.u64()?);
            if id.0 > 0 {
                self.lineage.push(id);
            }
        }
        Ok(())
    }

    /// Appends the stored form.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&self.group.to_le_bytes());
        out.extend_from_slice(&self.groups.to_le_bytes());
        out.extend_from_slice(&self.group_epoch.to_le_bytes());
        out.extend_from_slice(&self.draw.to_le_bytes());
        out.push(self.members.len() as u8 | if self.leaves { LEAVES } else { 0 });
        for at in 0..MEMBERS_MAX {
            let state = |entry: &MemberEntry| entry.state as u8 | if entry.leaves { LEAVES } else { 0 };
            let entry = self.members.get(at).map(|entry| (entry.number, state(entry), entry.birth));
            let (number, state, birth) = entry.unwrap_or_default();
            out.extend_from_slice(&number.to_le_bytes());
            out.push(state);
            out.extend_from_slice(&birth.to_le_bytes());
        }
    }

    /// Reads the stored form.
    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let (epoch, group, groups) = (reader.u64()?, reader.u16()?, reader.u16()?);
        let (group_epoch, draw, stored) = (reader.u64()?, reader.u64()?, reader.u8()?);
        let (count, group_leaves) = (usize::from(stored & !LEAVES), stored & LEAVES != 0);
        if count == 0 || count > MEMBERS_MAX || group >= groups {
            return Err(reader.bad("its group cannot be"));
        }
        let mut members: Vec<MemberEntry> = Vec::with_capacity(count);
        for at in 0..MEMBERS_MAX {
            let (number, state, birth) = (reader.u16()?, reader.u8()?, reader.u64()?);
            let ascends = members.last().is_none_or(|before| before.number < number);
            let leaves = state & LEAVES != 0;
            match MemberState::from_raw(state & !LEAVES) {
                Some(state) if at < count && ascends => {
                    members.push(MemberEntry { number, state, leaves, birth });
                }
                _ if at < count => return Err(reader.bad("a member of its group cannot be")),
                _ => {}
            }
        }
        Ok(Self { epoch, group_epoch, draw, leaves: group_leaves, ..Self::first(group, groups, members) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Membership {
        let entry = |number, state, leaves, birth| MemberEntry { number, state, leaves, birth };
        let members =
            vec![entry(2, MemberState::Whole, false, 7), entry(5, MemberState::Faulted, true, u64::MAX)];
        Membership { epoch: 9, group_epoch: 4, draw: 3, leaves: true, ..Membership::first(1, 2, members) }
    }

    #[test]
    fn the_stored_form_has_a_fixed_length_and_reads_back() {
        let mut out = Vec::new();
        table().encode(&mut out);
        assert_eq!(out.len(), 117);
        assert_eq!(Membership::decode(&mut Reader::new(&out, "a label")).unwrap(), table());
    }

    #[test]
    fn a_table_knows_those_that_it_came_from() {
        let mut all = vec![table()];
        for draw in 0..LINEAGE as u64 + 3 {
            let mut next = all.last().unwrap().clone();
            next.advance(|epoch| epoch + draw);
            all.push(next);
        }
        let last = all.last().unwrap();
        let known = all.iter().rev().take_while(|before| last.came_from(before)).count();
        assert_eq!(known, LINEAGE + 1);
        let mut apart = all[all.len() - 2].clone();
        apart.draw += 1;
        assert!(!last.came_from(&apart));
        let mut out = Vec::new();
        last.encode_lineage(&mut out);
        assert_eq!(out.len(), 16 * LINEAGE);
        let mut read = Membership { lineage: Vec::new(), ..last.clone() };
        read.decode_lineage(&mut Reader::new(&out, "a label")).unwrap();
        assert_eq!(read, *last);
    }

    /// A table whose member 0 is replaced by 3, and that by 1; member 2 is another one.
    fn chain(states: [MemberState; 4]) -> Membership {
        let third = birth_in_place_of(70, 1);
        let births = [70, birth_in_place_of(third, 1), 71, third];
        let leaves = [true, false, false, true];
        let entry = |at: usize| MemberEntry {
            number: at as u16,
            state: states[at],
            leaves: leaves[at],
            birth: births[at],
        };
        Membership::first(0, 1, (0..4).map(entry).collect())
    }

    #[test]
    fn a_member_is_replaced_when_the_one_in_its_place_is_whole_or_the_one_in_the_place_of_that() {
        use MemberState::{Faulted, Filling, Whole};
        let replaced =
            |table: &Membership| table.replaced(|entry| entry.state == Whole).map(|(number, _)| number);
        assert_eq!(replaced(&chain([Whole, Filling, Whole, Filling])), None, "member 2 is in nobody's place");
        for third in [Whole, Filling, Faulted] {
            let mut table = chain([Whole, Whole, Filling, third]);
            assert_eq!(replaced(&table), Some(0));
            table.remove(0);
            assert_eq!(replaced(&table), Some(3));
            table.remove(3);
            assert_eq!(replaced(&table), None);
        }
        let mut table = chain([Whole, Filling, Whole, Whole]);
        assert_eq!(replaced(&table), Some(0));
        table.remove(0);
        assert_eq!(replaced(&table), None, "the last one is not whole yet");
    }

    #[test]
    fn a_member_stays_if_the_one_in_its_place_is_removed() {
        let table = chain([MemberState::Whole; 4]);
        let leaving = |without: u16| {
            let mut table = table.clone();
            table.remove(without);
            table.members.iter().filter(|entry| entry.leaves).map(|entry| entry.number).collect::<Vec<_>>()
        };
        assert_eq!([leaving(0), leaving(1), leaving(2), leaving(3)], [vec![3], vec![0], vec![0, 3], vec![]]);
    }

    #[test]
    fn groups_that_are_gone_read_back_and_what_cannot_be_is_refused() {
        let mut of = Membership { groups: 300, group: 3, ..table() };
        [0, 1, 2, 7, 299].into_iter().for_each(|group| of.add_gone(group).unwrap());
        let mut out = Vec::new();
        of.encode_gone(&mut out);
        assert_eq!(out.len(), 1 + 4 * GONE_MAX);
        let read = |bytes: &[u8], group: u16| {
            let mut read = Membership { gone: Ranges::default(), group, ..of.clone() };
            read.decode_gone(&mut Reader::new(bytes, "a label")).map(|()| read)
        };
        assert_eq!(read(&out, 3).unwrap(), of);
        assert!(read(&out, 7).is_err(), "its own group is gone");
        // Too many ranges, a range that ends before it begins, that overlaps, that is behind the last group.
        for (at, value) in [(0, 200), (3, 0xFF), (5, 1), (11, 2)] {
            let mut bad = out.clone();
            bad[at] = value;
            assert!(read(&bad, 3).is_err(), "byte {at}");
        }
        let mut many = Membership { groups: 1000, group: 999, ..table() };
        for group in 0..GONE_MAX as u16 {
            many.add_gone(2 * group).unwrap();
        }
        assert!(many.add_gone(998).is_err(), "there is no place for another range");
        many.add_gone(1).unwrap();
        many.add_gone(998).unwrap();
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut out = Vec::new();
        table().encode(&mut out);
        // Number of the group, of members, a state, and a number that does not ascend.
        for (at, value) in [(8, 2), (28, 0), (28, 9), (31, 77), (40, 2)] {
            let mut bad = out.clone();
            bad[at] = value;
            assert!(Membership::decode(&mut Reader::new(&bad, "a label")).is_err(), "byte {at}");
        }
    }

    #[test]
    fn halves_that_went_on_separately_are_told_apart() {
        let one = table();
        let mut other = table();
        assert!(!one.is_apart(&other));
        other.draw = 8;
        assert!(one.is_apart(&other));
        other.group_epoch = 5;
        assert!(!one.is_apart(&other), "the later one counts");
    }
}
