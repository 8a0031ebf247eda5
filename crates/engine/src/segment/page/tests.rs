//! Compares what is kept of a page that is away with its entries.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::super::entry::{LiveMap, Part};
use super::*;
use crate::segment::DirRef;
use crate::space::Extent;

struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (self.0 >> 33) % bound
    }
}

fn len_bytes(addr: Addr) -> u32 {
    100 + (addr.raw() % 977) as u32
}

/// Makes a segment with one to four parts; neighbouring parts may lie in the same chunk.
fn segment(dice: &mut Dice, id: u64) -> Segment {
    let slots = 20 + dice.below(200) as u32;
    let mut segment = Segment { id, slots, recompressed: dice.below(9) == 0, ..Segment::default() };
    let mut first_slot = 0;
    for _ in 0..=dice.below(4) {
        let chunk = Chunk { device: 0, index: (id / 5 + dice.below(3)) as u32 };
        let directory =
            Some(DirRef { start: 0, len_bytes: 60, index_bytes: 20, second: 0, checksum: first_slot });
        let extent = Extent { chunk, start: 0, len_bytes: 4096 };
        segment.parts.push(Part { first_slot, extent, directory });
        segment.held.push(0);
        first_slot += 1 + dice.below(slots.into()) as u32 / 4;
    }
    segment.revive(0, len_bytes(Addr::new(id, 0)));
    for slot in (1..slots).filter(|_| dice.below(3) > 0) {
        segment.revive(slot, len_bytes(Addr::new(id, slot)));
    }
    segment
}

fn held(segments: &[Segment]) -> BTreeMap<u32, u64> {
    let mut held = BTreeMap::new();
    for segment in segments {
        for (part, bytes) in segment.parts.iter().zip(&segment.held) {
            *held.entry(part.extent.chunk.index).or_default() += bytes;
        }
    }
    held.retain(|_, bytes| *bytes > 0);
    held
}

#[test]
fn records_that_die_are_known_by_chunk_and_the_page_comes_back_without_them() {
    let mut dice = Dice(7);
    for round in 0..200 {
        let ids = PageIds::new(1 + dice.below(64) as u8).unwrap();
        let per_page = u64::from(ids.get());
        let page = 1 + dice.below(90);
        let mut stored = Vec::new();
        for id in page * per_page..(page + 1) * per_page {
            if dice.below(5) > 0 {
                stored.push(segment(&mut dice, id));
            }
        }
        let Some(last) = stored.last().map(|segment| segment.id) else { continue };
        // One segment is dropped while its page is in memory.
        let dropped = last - dice.below(per_page.min(last));
        let mut here: Vec<Segment> = stored.iter().filter(|segment| segment.id != dropped).cloned().collect();
        let mut deaths = Deaths::default();
        let die = |segments: &mut [Segment], deaths: &mut Deaths, away: Option<&mut Away>| {
            let mut away = away;
            for segment in segments {
                let id = segment.id;
                for slot in (0..segment.slots).filter(|slot| slot % 7 == round % 7) {
                    let ptr = Ptr { addr: Addr::new(id, slot), len_bytes: len_bytes(Addr::new(id, slot)) };
                    let Some((chunk, bytes)) = segment.kill(slot, ptr.len_bytes) else { continue };
                    deaths.push(page, ptr);
                    if let Some(away) = away.as_deref_mut() {
                        let died = away.kill(ids, ptr).unwrap();
                        assert_eq!((died.chunk, died.held_bytes), (chunk, bytes));
                    }
                }
            }
        };
        // Some records died before the page is put away.
        let half = here.len() / 2;
        die(&mut here[..half], &mut deaths, None);
        let Some(mut away) = Away::of(round.into(), ids, &here) else {
            assert!(here.iter().any(|segment| segment.live.count() == 0));
            continue;
        };
        let all: Vec<u64> = here.iter().map(|segment| segment.id).collect();
        assert_eq!(away.segments(ids, page).collect::<Vec<_>>(), all);
        assert!(!away.has(ids, dropped));
        assert_eq!(away.kill(ids, Ptr { addr: Addr::new(dropped, 0), len_bytes: 100 }), None);
        die(&mut here[half..], &mut deaths, Some(&mut away));
        let mut by_chunk = BTreeMap::new();
        for stretch in &away.stretches {
            *by_chunk.entry(stretch.chunk.index).or_default() += u64::from(stretch.held);
        }
        by_chunk.retain(|_, bytes| *bytes > 0);
        assert_eq!(by_chunk, held(&here));
        assert_eq!(away.record_bytes, here.iter().map(Segment::live_records_bytes).sum::<u64>());
        assert!(away.used_bytes >= here.iter().map(Segment::used_bytes).sum());
        // The stored page still has the dropped segment, whose records are dead, too.
        for segment in stored.iter().filter(|segment| segment.id == dropped) {
            for slot in segment.live.iter() {
                deaths.push(
                    page,
                    Ptr { addr: Addr::new(dropped, slot), len_bytes: len_bytes(Addr::new(dropped, slot)) },
                );
            }
        }
        let settled = away.settle(ids, page, stored.clone(), &deaths).unwrap();
        assert_eq!(settled, Settled { segments: here, agrees: true });
        // The page as it was read lacks a record; then it lacks a segment, too.
        if let Some(first) = stored.iter_mut().find(|segment| segment.id != dropped) {
            let slot = first.live.iter().find(|slot| slot % 7 != round % 7);
            if let Some(slot) = slot {
                first.kill(slot, len_bytes(Addr::new(first.id, slot)));
                assert!(!away.settle(ids, page, stored.clone(), &deaths).unwrap().agrees);
            }
            stored.retain(|segment| segment.id == dropped);
            assert!(away.settle(ids, page, stored, &deaths).is_err());
        }
    }
}

#[test]
fn stretches_of_neighbours_in_one_chunk_are_one() {
    let mut dice = Dice(9);
    let mut segments: Vec<Segment> = (64..128).map(|id| segment(&mut dice, id)).collect();
    for segment in &mut segments {
        segment.parts.truncate(1);
        segment.held = SmallVec::from_slice(&[segment.held.iter().sum()]);
        segment.parts[0].extent.chunk = Chunk { device: 0, index: (segment.id / 40) as u32 };
    }
    let away = Away::of(0, PageIds::default(), &segments).unwrap();
    assert_eq!(away.stretches.len(), 3);
    assert!(away.memory_bytes() < 250, "{} bytes", away.memory_bytes());
}

#[test]
fn pages_that_have_to_stay_do() {
    let away = |change: fn(&mut Segment)| {
        let mut segment = segment(&mut Dice(3), 5);
        change(&mut segment);
        Away::of(0, PageIds::default(), &[segment])
    };
    assert!(away(|_| {}).is_some());
    assert!(away(|segment| segment.parts[0].directory = None).is_none());
    assert!(away(|segment| segment.id |= COPIES).is_none());
    assert!(away(|segment| segment.live = LiveMap::default()).is_none());
}

/// Records that were coded again are taken for longer than they are if their directory cannot be read when they die.
#[test]
fn a_page_whose_sums_are_too_small_can_be_read() {
    let mut dice = Dice(5);
    for id in 64..128 {
        let mut segment = Segment { recompressed: true, ..segment(&mut dice, id) };
        let live: Vec<u32> = segment.live.iter().collect();
        let (left, dead) = live.split_at(1 + dice.below(live.len() as u64 - 1) as usize);
        for slot in dead {
            segment.kill(*slot, 9 * len_bytes(Addr::new(id, *slot)));
        }
        let mut bytes = Vec::new();
        segment.encode(0, &mut bytes);
        let mut read = decode_page(PageIds::default(), 1, &bytes).unwrap();
        assert!(read[0].live.iter().eq(left.iter().copied()));
        let mut away = Away::of(1, PageIds::default(), &read).unwrap();
        for slot in left {
            let addr = Addr::new(id, *slot);
            let ptr = Ptr { addr, len_bytes: 9 * len_bytes(addr) };
            read[0].kill(*slot, ptr.len_bytes).unwrap();
            away.kill(PageIds::default(), ptr).unwrap();
        }
        assert_eq!((read[0].live.count(), away.used_bytes.min(away.record_bytes)), (0, 0));
    }
}
