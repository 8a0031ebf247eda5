//! Compares a table of which little is in memory with one that is all in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::smallvec;

use super::*;
use crate::segment::decode_page;
use crate::segment::directory::DirRef;
use crate::segment::entry::{Move, PageIds, Part, held_bytes};
use crate::space::{Chunk, Extent};
use crate::{Addr, Ptr};

/// Pages as checkpoints have stored them.
#[derive(Default)]
struct MemPages(Mutex<BTreeMap<u64, Vec<u8>>>);

impl TablePages for MemPages {
    fn read(&self, segments: &Segments, page: u64) -> Result<Vec<Segment>> {
        let bytes = self.0.lock().get(&page).cloned();
        let bytes = bytes.ok_or_else(|| Error::corrupt("page", "it is not stored"))?;
        decode_page(segments.page_ids(), page, &bytes)
    }
}

const SLOTS: u32 = 60;
const LEN_BYTES: u32 = 1000;

fn part(chunk: u32, checksum: u32) -> Part {
    let extent = Extent { chunk: Chunk { device: 0, index: chunk }, start: 0, len_bytes: 100_000 };
    let directory = Some(DirRef { start: 0, len_bytes: 60, index_bytes: 20, second: 0, checksum });
    Part { first_slot: 0, extent, directory }
}

fn segment(id: u64) -> Segment {
    let mut segment = Segment {
        id,
        parts: smallvec![part(id as u32, 1)],
        slots: SLOTS,
        held: smallvec![0],
        ..Segment::default()
    };
    for slot in 0..SLOTS {
        segment.revive(slot, LEN_BYTES).unwrap();
    }
    segment
}

struct Both {
    all: Segments,
    few: Segments,
    stored: Arc<MemPages>,
    page_ptrs: BTreeMap<u64, Ptr>,
}

impl Both {
    fn new() -> Self {
        let (all, few) = (Segments::new(1 << 20), Segments::new(1 << 20));
        let stored = Arc::new(MemPages::default());
        for table in [&all, &few] {
            table.set_page_ids(PageIds::new(4).unwrap());
        }
        few.page_from(Arc::clone(&stored) as Arc<dyn TablePages>, TableBound::Fixed(8000));
        Self { all, few, stored, page_ptrs: BTreeMap::new() }
    }

    fn each(&self, change: impl Fn(&Segments)) {
        change(&self.all);
        change(&self.few);
    }

    fn checkpoint(&mut self) {
        for (at, table) in [&self.all, &self.few].into_iter().enumerate() {
            table.read_heavy(&self.page_ptrs);
            let snapshot = table.snapshot(&self.page_ptrs, u64::MAX >> 1);
            table.drop_dead(&snapshot.dropped);
            if at == 1 {
                let mut stored = self.stored.0.lock();
                for (page, bytes) in snapshot.pages {
                    match bytes.is_empty() {
                        true => drop((stored.remove(&page), self.page_ptrs.remove(&page))),
                        false => {
                            // Records of the table's own pages are not in this table: their addresses are in a segment
                            // that it does not have.
                            let addr = Addr::new(1 << 30, page as u32);
                            self.page_ptrs.insert(page, Ptr { addr, len_bytes: bytes.len() as u32 });
                            stored.insert(page, bytes);
                        }
                    }
                }
            }
            table.stored();
            table.verify_sums().unwrap();
        }
    }

    fn compare(&self) {
        let all = |table: &Segments| {
            let mut all = Vec::new();
            table.for_each(|segment| all.push(segment.clone())).unwrap();
            all
        };
        // A segment that has just died may be dropped earlier from the table where its page was away.
        let live = |segments: Vec<Segment>| segments.into_iter().filter(|segment| segment.live.count() > 0);
        let (first, second) = (all(&self.all), all(&self.few));
        assert!(live(first).eq(live(second)));
        assert_eq!(self.all.used_by_records().1, self.few.used_by_records().1);
        assert!(self.all.used_bytes() <= self.few.used_bytes());
        self.few.verify_sums().unwrap();
    }
}

#[test]
fn a_table_of_which_little_is_in_memory_is_as_one_that_is_all_there() {
    const SEGMENTS: u64 = 200;
    let mut both = Both::new();
    (1..=SEGMENTS).for_each(|id| both.each(|table| table.insert(segment(id)).unwrap()));
    both.checkpoint();
    assert!(both.few.inner.read().segments.here() < 60, "{}", both.few.inner.read().segments.here());
    both.compare();
    let mut state = 1_u64;
    let mut below = |bound: u64| {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (state >> 33) % bound
    };
    let mut next_chunk = 1000;
    for step in 0..20_000 {
        let id = 1 + below(SEGMENTS);
        let addr = Addr::new(id, below(SLOTS.into()) as u32);
        let ptr = Ptr { addr, len_bytes: LEN_BYTES };
        match below(100) {
            0..80 => {
                if both.all.is_live(addr).unwrap() {
                    both.each(|table| table.mark_dead(&[ptr]));
                }
            }
            80..90 => {
                // The segment's survivors move.
                let Some(now) = both.all.get(id).unwrap().filter(|segment| segment.live.count() > 0) else {
                    continue;
                };
                next_chunk += 1;
                let lens: Vec<(u32, u32)> = now.live.iter().map(|slot| (slot, LEN_BYTES)).collect();
                both.each(|table| {
                    let parts = vec![part(next_chunk, step)];
                    let to = Move { parts, models: vec![], lens: lens.clone(), recompressed: false };
                    assert_eq!(table.relocate(id, to).unwrap(), now.parts.to_vec());
                });
            }
            90..98 => assert_eq!(both.all.is_live(addr).unwrap(), both.few.is_live(addr).unwrap()),
            98 => {
                // The segment is written anew, as if it came from the log.
                if both.all.get(id).unwrap().is_none_or(|segment| segment.live.count() == 0) {
                    both.checkpoint();
                    both.each(|table| table.insert(segment(id)).unwrap());
                }
            }
            _ => both.checkpoint(),
        }
        if step % 500 == 0 {
            both.compare();
            assert!(held_bytes(LEN_BYTES.into()) > 0);
        }
    }
    assert!(both.few.pages_read() > 1000, "{}", both.few.pages_read());
    assert_eq!(both.all.pages_read(), 0);
}

#[test]
fn a_page_that_cannot_be_read_is_an_error_to_who_needs_it() {
    let mut both = Both::new();
    (1..=100).for_each(|id| both.each(|table| table.insert(segment(id)).unwrap()));
    both.checkpoint();
    let away = (1..=100).find(|id| both.few.inner.read().segments.get(*id).is_err()).unwrap();
    both.stored.0.lock().clear();
    assert!(both.few.get(away).is_err());
    assert!(both.few.is_live(Addr::new(away, 3)).is_err());
    // Deaths are counted although the page is away.
    let used = both.few.used_bytes();
    both.few.mark_dead(&[Ptr { addr: Addr::new(away, 3), len_bytes: LEN_BYTES }]);
    assert_eq!(used - both.few.used_bytes(), held_bytes(LEN_BYTES.into()));
    both.few.verify_sums().unwrap();
}

#[test]
fn where_no_page_may_go_all_stay() {
    let mut both = Both::new();
    // These are more pages than one search looks at, and none of them is stored.
    (1..=40_000).for_each(|id| both.few.insert(segment(id)).unwrap());
    both.few.put_away();
    assert_eq!(both.few.inner.read().segments.here(), 40_000);
    both.checkpoint();
    assert!(both.few.inner.read().segments.here() < 60);
}

/// Kills record after record, as the freeing of a large file does. A page of which many records died is stored in place
/// of the list of these, so that the list stays short. No more is promised to checkpoints than before. A checkpoint is
/// due when half of what the table may take has changed.
#[test]
fn dead_records_are_listed_only_as_long_as_that_is_shorter_than_their_page() {
    const SEGMENTS: u64 = 400;
    let both = Both::new();
    let table = &both.few;
    (1..=SEGMENTS).for_each(|id| table.insert(segment(id)).unwrap());
    let snapshot = table.snapshot(&both.page_ptrs, u64::MAX >> 1);
    assert!(snapshot.dropped.is_empty() && !table.wants_checkpoint());
    let mut before: u64 = table.to_store(0, 0).iter().sum();
    let mut longest = 0;
    for id in 1..=SEGMENTS {
        for slot in 0..SLOTS - 1 {
            table.mark_dead(&[Ptr { addr: Addr::new(id, slot), len_bytes: LEN_BYTES }]);
            let promised = table.to_store(0, 0).iter().sum();
            assert!(
                promised <= before + crate::segment::deaths::promised_bytes(1 << 20),
                "{before} {promised}"
            );
            before = promised;
        }
        longest = longest.max(table.inner.read().deaths.memory_bytes());
    }
    table.verify_sums().unwrap();
    let all_bytes = SEGMENTS * u64::from(SLOTS) * size_of::<Ptr>() as u64;
    assert!(longest < all_bytes / 8, "{longest} of {all_bytes} bytes");
    assert!(table.wants_checkpoint());
    table.snapshot(&both.page_ptrs, u64::MAX >> 1);
    assert!(!table.wants_checkpoint());
    assert_eq!(table.inner.read().deaths.memory_bytes(), 0);
}
