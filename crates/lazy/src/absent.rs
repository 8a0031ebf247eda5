//! The pages that a dataset does not have yet. The dataset itself stores which these are, so that its snapshots and
//! clones, and streams of it, say the same.
//!
//! All of it lies under keys of one kind behind all objects: number 0 is the [`Origin`], each other one a group of
//! pages.
//!
//! | bytes | of the origin |
//! |---|---|
//! | 1 | version, 1 |
//! | 16 | the repository |
//! | varint | number of the backup |
//! | varint, bytes | where the repository lies, as it was named |
//! | varint, bytes | the backup's name |
//!
//! | bytes | of a group |
//! |---|---|
//! | varint | object |
//! | varint | number of the group: its first page, by [`GROUP_PAGES`] |
//! | varint | recordsize in bytes |
//! | varint | pages that were absent at first |
//! | varint | bytes of their records |
//! | rest | a bit for each page, the lowest first: 1 it is absent. Zeros at the end are cut |

use std::collections::BTreeMap;

use pagefold_engine::dataset::{Change, Dataset};
use pagefold_engine::limits::{RECORDSIZE_MAX, RECORDSIZE_MIN};
use pagefold_engine::wire::{Reader, put_varint};
use pagefold_engine::{Error, Key, Result};

use crate::limits::GROUP_PAGES;

/// Kind of the keys that say what is absent.
pub const KIND: u8 = 0xD8;
const WORDS: usize = (GROUP_PAGES / 64) as usize;
/// Number of values that are read at once.
const BATCH: usize = 1024;

const fn key(number: u64) -> Key {
    Key::new(u64::MAX, KIND, number)
}

/// Key of the origin.
pub(crate) const ORIGIN_KEY: Key = key(0);
pub(crate) const END: Key = Key::new(u64::MAX, KIND + 1, 0);

/// Returns the byte of an object behind a group of its pages; `None` if no object is as long.
fn end_byte(group: u64, record_size: u32) -> Option<u64> {
    group.checked_add(1)?.checked_mul(GROUP_PAGES)?.checked_mul(record_size.into())
}

/// A group of pages of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Number of the key under which it is stored.
    pub(crate) number: u64,
    pub(crate) record_size: u32,
    /// Number of pages that were absent at first; `bytes` are those of their records.
    pub(crate) pages: u64,
    pub(crate) bytes: u64,
    bits: [u64; WORDS],
}

impl Group {
    pub(crate) fn new(number: u64, record_size: u32) -> Self {
        Self { number, record_size, pages: 0, bytes: 0, bits: [0; WORDS] }
    }

    /// Marks a page as absent from the beginning.
    pub(crate) fn add(&mut self, page: u64, record_bytes: u32) {
        if let Some(word) = self.bits.get_mut((page % GROUP_PAGES / 64) as usize) {
            *word |= 1 << (page % 64);
            self.pages += 1;
            self.bytes += u64::from(record_bytes);
        }
    }

    fn has(&self, page: u64) -> bool {
        self.bits.get((page % GROUP_PAGES / 64) as usize).is_some_and(|word| word >> (page % 64) & 1 != 0)
    }

    fn clear(&mut self, page: u64) {
        if let Some(word) = self.bits.get_mut((page % GROUP_PAGES / 64) as usize) {
            *word &= !(1 << (page % 64));
        }
    }

    pub(crate) fn absent(&self) -> u64 {
        self.bits.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Returns the bytes of the absent records, estimated by the average of the records that were absent at first.
    pub(crate) fn absent_bytes(&self) -> u64 {
        self.bytes * self.absent() / self.pages.max(1)
    }

    pub(crate) fn key(&self) -> Key {
        key(self.number)
    }

    pub(crate) fn encode(&self, object: u64, group: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(160);
        for value in [object, group, self.record_size.into(), self.pages, self.bytes] {
            put_varint(&mut out, value);
        }
        let mut bits: Vec<u8> = self.bits.iter().flat_map(|word| word.to_le_bytes()).collect();
        bits.truncate(bits.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        out.extend_from_slice(&bits);
        out
    }

    fn decode(number: u64, bytes: &[u8]) -> Result<((u64, u64), Self)> {
        let mut reader = Reader::new(bytes, "group of absent pages");
        let place = (reader.varint()?, reader.varint()?);
        let mut group = Self::new(number, reader.varint_u32()?);
        (group.pages, group.bytes) = (reader.varint()?, reader.varint()?);
        let sane = group.record_size.is_power_of_two()
            && (RECORDSIZE_MIN..=RECORDSIZE_MAX).contains(&group.record_size)
            && group.pages <= GROUP_PAGES
            && group.bytes <= GROUP_PAGES << 32
            && end_byte(place.1, group.record_size).is_some();
        let rest = reader.take(reader.remaining())?;
        if !sane || rest.len() > WORDS * 8 {
            return Err(reader.bad("a number is out of range"));
        }
        for (at, byte) in rest.iter().enumerate() {
            if let Some(word) = group.bits.get_mut(at / 8) {
                *word |= u64::from(*byte) << (at % 8 * 8);
            }
        }
        if group.absent() == 0 || group.absent() > group.pages {
            return Err(reader.bad("its pages do not fit their number"));
        }
        Ok((place, group))
    }
}

/// Groups as they will be, by object and number of the group; one in which no page is absent will be removed.
pub(crate) type Amended = Vec<((u64, u64), Group)>;

/// A run of absent pages of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) object: u64,
    pub(crate) record_size: u32,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// Everything that is absent, by object and group.
#[derive(Debug, Default)]
pub(crate) struct Absent {
    groups: BTreeMap<(u64, u64), Group>,
    pages: u64,
}

impl Absent {
    /// Loads what `dataset` stores.
    pub(crate) fn load(dataset: &dyn Dataset) -> Result<Self> {
        let mut all = Self::default();
        let mut from = key(1);
        loop {
            let batch = dataset.range(&from, &END, BATCH)?;
            let next = batch.last().and_then(|(last, _)| last.offset.checked_add(1));
            for (key, value) in batch {
                let (place, group) = Group::decode(key.offset, &value)?;
                all.pages += group.absent();
                if all.groups.insert(place, group).is_some() {
                    return Err(Error::corrupt("groups of absent pages", "two are of the same pages"));
                }
            }
            let Some(next) = next else { return Ok(all) };
            from = key(next);
        }
    }

    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns about the number of bytes of the absent records.
    pub(crate) fn bytes(&self) -> u64 {
        self.groups.values().map(Group::absent_bytes).sum()
    }

    /// Returns the number of absent pages of an object, and about the number of bytes of their records.
    pub(crate) fn of(&self, object: u64) -> (u64, u64) {
        let groups = self.groups.range((object, 0)..=(object, u64::MAX));
        groups
            .fold((0, 0), |(pages, bytes), (_, group)| (pages + group.absent(), bytes + group.absent_bytes()))
    }

    /// Returns the first absent run at or after `page` of `object`, of at most `bytes` bytes (but of one page at
    /// least), below page `to`.
    pub(crate) fn next(&self, object: u64, page: u64, to: u64, bytes: u64) -> Option<Run> {
        let groups = self.groups.range((object, page / GROUP_PAGES)..=(object, to / GROUP_PAGES));
        for ((_, number), group) in groups {
            let begin = page.max(number * GROUP_PAGES);
            let end = to.min((number + 1) * GROUP_PAGES);
            let Some(from) = (begin..end).find(|page| group.has(*page)) else { continue };
            let most = (bytes / u64::from(group.record_size)).max(1);
            let end = end.min(from.saturating_add(most));
            let to = (from..end).find(|page| !group.has(*page)).unwrap_or(end);
            return Some(Run { object, record_size: group.record_size, from, to });
        }
        None
    }

    /// Returns a run as [`Absent::next`] does, of any object from `object` on.
    pub(crate) fn next_of_any(&self, object: u64, page: u64, bytes: u64) -> Option<Run> {
        if let Some(run) = self.next(object, page, u64::MAX, bytes) {
            return Some(run);
        }
        let ((object, _), _) = self.groups.range((object.checked_add(1)?, 0)..).next()?;
        self.next(*object, 0, u64::MAX, bytes)
    }

    /// Adds to `amended` the groups that change if the pages `from <= page < to` of `object` are not absent any more.
    /// Groups that are in `amended` already are changed there.
    pub(crate) fn amend(&self, amended: &mut Amended, object: u64, from: u64, to: u64) {
        if from >= to {
            return;
        }
        for (place, group) in
            self.groups.range((object, from / GROUP_PAGES)..=(object, (to - 1) / GROUP_PAGES))
        {
            let before = amended.iter().position(|(other, _)| other == place);
            let mut new = before.and_then(|at| amended.get(at)).map_or(group, |(_, group)| group).clone();
            let (begin, end) = (from.max(place.1 * GROUP_PAGES), to.min((place.1 + 1) * GROUP_PAGES));
            let absent = new.absent();
            (begin..end).for_each(|page| new.clear(page));
            if new.absent() == absent {
                continue;
            }
            match before.and_then(|at| amended.get_mut(at)) {
                Some(known) => known.1 = new,
                None => amended.push((*place, new)),
            }
        }
    }

    /// Returns the number of pages that will be absent once the groups are as in `amended`.
    pub(crate) fn pages_after(&self, amended: &Amended) -> u64 {
        let gone = |(place, group): &((u64, u64), Group)| {
            self.groups.get(place).map_or(0, Group::absent).saturating_sub(group.absent())
        };
        self.pages.saturating_sub(amended.iter().map(gone).sum())
    }

    /// Makes the groups as they are in `amended`.
    pub(crate) fn take(&mut self, amended: Amended) {
        self.pages = self.pages_after(&amended);
        for (place, group) in amended {
            if group.absent() == 0 {
                self.groups.remove(&place)
            } else {
                self.groups.insert(place, group)
            };
        }
    }
}

/// Returns the changes by which a dataset stores groups as they are in `amended`; `pages` will be absent then.
pub(crate) fn changes(amended: &Amended, pages: u64) -> Vec<Change<'static>> {
    let one = |((object, number), group): &((u64, u64), Group)| match group.absent() {
        0 => Change::Delete(group.key()),
        _ => Change::Put(group.key(), group.encode(*object, *number)),
    };
    let mut changes: Vec<_> = amended.iter().map(one).collect();
    if pages == 0 {
        changes.push(Change::Delete(ORIGIN_KEY));
    }
    changes
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn groups_are_stored_as_docs_backup_format_has_it() {
        let mut group = Group::new(5, 8192);
        group.add(2049, 200);
        group.add(2058, 100);
        assert_eq!(group.encode(9, 2), [9, 2, 0x80, 0x40, 2, 0xAC, 2, 0b10, 0b100]);
        assert_eq!((group.key(), ORIGIN_KEY), (Key::new(u64::MAX, 0xD8, 5), Key::new(u64::MAX, 0xD8, 0)));
    }

    #[test]
    fn groups_survive_and_lose_pages() {
        let mut group = Group::new(5, 8192);
        for page in [2048, 2049, 2060, 3071] {
            group.add(page, 100);
        }
        assert_eq!(Group::decode(5, &group.encode(9, 2)).unwrap(), ((9, 2), group.clone()));
        let mut absent = Absent { pages: 4, ..Absent::default() };
        absent.groups.insert((9, 2), group);
        assert_eq!(
            absent.next(9, 0, u64::MAX, 1 << 20),
            Some(Run { object: 9, record_size: 8192, from: 2048, to: 2050 })
        );
        assert_eq!(
            absent.next(9, 2049, 2050, 1),
            Some(Run { object: 9, record_size: 8192, from: 2049, to: 2050 })
        );
        assert_eq!(absent.next(9, 2050, 2060, 1 << 20), None);
        assert_eq!(absent.next_of_any(3, 77, 1 << 20).unwrap().from, 2048);
        let mut amended = Amended::new();
        absent.amend(&mut amended, 9, 2049, 2061);
        absent.amend(&mut amended, 9, 2050, 2055);
        absent.amend(&mut amended, 8, 0, u64::MAX);
        assert_eq!((amended.len(), absent.pages_after(&amended)), (1, 2));
        absent.take(amended);
        assert_eq!((absent.pages(), absent.of(9)), (2, (2, 200)));
        let mut rest = Amended::new();
        absent.amend(&mut rest, 9, 0, u64::MAX);
        assert_eq!(changes(&rest, absent.pages_after(&rest)).len(), 2);
        absent.take(rest);
        assert!(absent.pages() == 0 && absent.groups.is_empty());
    }

    fn stored(groups: &[(u64, u64)]) -> Result<Absent> {
        let dataset = pagefold_fs::testing::MemDataset::new(1 << 20);
        for (number, of) in groups {
            let mut group = Group::new(*number, 8192);
            group.add(of * GROUP_PAGES + 1, 10);
            dataset.apply(&[Change::Put(group.key(), group.encode(9, *of))]).unwrap();
        }
        Absent::load(&dataset)
    }

    /// Streams are not trusted, and bring these values.
    #[test]
    fn groups_of_a_forged_stream_are_read_once() {
        assert_eq!(stored(&[(1, 0), (2, 5)]).unwrap().pages(), 2);
        assert_eq!(stored(&[(1, 0), (u64::MAX, 5)]).unwrap().pages(), 2);
        assert!(stored(&[(1, 5), (2, 5)]).is_err(), "they would never be brought all");
        assert!(stored(&[(1, (1 << 54) / 8192)]).is_err(), "no file is as long");
    }

    #[test]
    fn what_cannot_be_a_group_is_damage() {
        let mut group = Group::new(5, 8192);
        group.add(1, 10);
        let bytes = group.encode(1, 0);
        assert!(Group::decode(5, &bytes[..bytes.len() - 1]).is_err(), "no page is absent");
        assert!(Group::decode(5, &[bytes.clone(), vec![0; 200]].concat()).is_err(), "too many pages");
        assert!(Group::decode(5, &Group { record_size: 777, ..group }.encode(1, 0)).is_err());
    }
}
