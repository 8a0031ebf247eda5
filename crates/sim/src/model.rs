//! Models the content of a dataset: the simplest thing that a dataset can be compared with.

use std::collections::BTreeMap;
use std::sync::Arc;

use pagefold_codec::testing::{self, Keys, Schema, btree_page, heap_page};
use pagefold_engine::Key;

use crate::history::{Act, Fill, record_size};
use crate::random::Random;

/// Key whose value is the number of the last change.
pub const COUNTER: Key = Key::new(1, 1, 0);

/// A dataset's content after some change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Number of the change; 0 for an empty dataset.
    pub id: u64,
    /// Values.
    pub values: BTreeMap<Key, Vec<u8>>,
    /// Pages by object and page number, zero or not; absent ones are holes.
    pub pages: BTreeMap<(u64, u64), Arc<[u8]>>,
}

/// Returns the `len` bytes that a write with this fill and seed stores.
pub fn bytes(fill: Fill, seed: u64, len: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut pages = testing::Random::new(seed);
    let aged = seed % 2 == 1;
    let mut out = Vec::with_capacity(len as usize + 32);
    while out.len() < len as usize {
        match fill {
            Fill::Zeros => out.resize(len as usize, 0),
            Fill::Noise => out.extend_from_slice(&random.bits().to_le_bytes()),
            Fill::Heap => {
                let block = random.below(1 << 17) as usize;
                out.extend(heap_page(&mut pages, &Schema::simple(aged), block));
            }
            Fill::Btree => {
                out.extend(btree_page(&mut pages, Keys::Pairs, aged, random.below(1 << 17) as usize));
            }
            Fill::Rows => {
                out.extend_from_slice(&random.below(100_000).to_le_bytes());
                out.extend_from_slice(b"row of a table, and its columns.");
            }
        }
    }
    out.truncate(len as usize);
    out
}

impl State {
    /// Applies change `id`, which is made of these acts.
    pub fn apply(&mut self, id: u64, acts: &[Act]) {
        for act in acts {
            self.act(act);
        }
        self.values.insert(COUNTER, id.to_le_bytes().to_vec());
        self.id = id;
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Put { key, len, seed } => {
                self.values.insert(key, bytes(Fill::Rows, seed, len));
            }
            Act::Codec { object, codec } => {
                self.values.insert(Key::new(object, Key::COMPRESSION, 0), vec![codec]);
            }
            Act::Delete { key } => {
                self.values.remove(&key);
            }
            Act::Write { object, offset, len, fill, seed } => {
                self.write(object, offset, &bytes(fill, seed, len));
            }
            Act::Punch { object, from, to } => {
                let inside: Vec<_> =
                    self.pages.range((object, from)..(object, to)).map(|(k, _)| *k).collect();
                for key in inside {
                    self.pages.remove(&key);
                }
            }
            Act::Share { from, to, count } => {
                let source: Vec<_> =
                    (0..count).map(|at| self.pages.get(&(from.0, from.1 + at)).cloned()).collect();
                for (at, page) in (to.1..).zip(source) {
                    match page {
                        Some(page) => self.pages.insert((to.0, at), page),
                        None => self.pages.remove(&(to.0, at)),
                    };
                }
            }
        }
    }

    fn write(&mut self, object: u64, offset: u64, data: &[u8]) {
        let size = u64::from(record_size(object));
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let within = (at % size) as usize;
            let (part, tail) = rest.split_at(rest.len().min(size as usize - within));
            let slot = self.pages.entry((object, at / size)).or_insert_with(|| vec![0; size as usize].into());
            let mut page = slot.to_vec();
            page[within..within + part.len()].copy_from_slice(part);
            *slot = page.into();
            at += part.len() as u64;
            rest = tail;
        }
    }

    /// Returns the position in the object of the first byte that differs from `found`, which was read from `offset` on.
    /// Holes are zeros.
    pub fn difference(&self, object: u64, offset: u64, found: &[u8]) -> Option<u64> {
        let size = u64::from(record_size(object));
        let end = offset + found.len() as u64;
        let within = |from: u64, to: u64| &found[(from - offset) as usize..(to - offset) as usize];
        let mut at = offset;
        for ((_, page), content) in self.pages.range((object, offset / size)..(object, end.div_ceil(size))) {
            let start = page * size;
            let (from, to) = (start.max(offset), (start + size).min(end));
            let expected = &content[(from - start) as usize..(to - start) as usize];
            let hole = first_set(within(at, from)).map(|byte| at + byte);
            let differs = hole.or_else(|| Some(from + first_difference(within(from, to), expected)?));
            if differs.is_some() {
                return differs;
            }
            at = to;
        }
        first_set(within(at, end)).map(|byte| at + byte)
    }

    /// Returns the numbers of an object's pages that hold anything but zeros.
    pub fn stored(&self, object: u64) -> impl Iterator<Item = u64> + '_ {
        let all = self.pages.range((object, 0)..(object, u64::MAX));
        all.filter(|(_, content)| first_set(content).is_some()).map(|((_, page), _)| *page)
    }
}

fn first_difference(a: &[u8], b: &[u8]) -> Option<u64> {
    let len = a.len().min(b.len());
    if a[..len] == b[..len] {
        return None;
    }
    a.iter().zip(b).position(|(a, b)| a != b).map(|at| at as u64)
}

/// Returns the position of the first byte that is not zero.
fn first_set(bytes: &[u8]) -> Option<u64> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut parts = bytes.chunks(ZEROS.len()).zip((0..).step_by(ZEROS.len()));
    parts.find_map(|(part, start)| Some(start + first_difference(part, &ZEROS)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_found_in_pages_and_in_holes() {
        let object = 3;
        let size = u64::from(record_size(object));
        let mut state = State::default();
        state.write(object, 2 * size, &bytes(Fill::Rows, 1, 2 * size));
        state.write(object, 5 * size, &bytes(Fill::Rows, 2, size));
        let mut right = vec![0; 8 * size as usize];
        for ((_, page), content) in &state.pages {
            right[(page * size) as usize..][..size as usize].copy_from_slice(content);
        }
        let (from, to) = (size / 2, 7 * size + 100);
        let range = from as usize..to as usize;
        assert_eq!(state.difference(object, from, &right[range.clone()]), None);
        for at in (from..to).step_by(97).chain([from, 2 * size, 4 * size - 1, 4 * size, 6 * size, to - 1]) {
            let mut wrong = right.clone();
            wrong[at as usize] ^= 4;
            assert_eq!(state.difference(object, from, &wrong[range.clone()]), Some(at), "byte {at}");
        }
        assert_eq!(state.stored(object).collect::<Vec<_>>(), [2, 3, 5]);
    }
}
