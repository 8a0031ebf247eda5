//! Index pages of InnoDB as they are parsed: their records, in the order of the list and of the heap.

use super::layout::{Extent, InnodbLayout};
use super::page::{HEAP, INFIMUM, InnodbHeader, RECORD, SUPREMUM, SYSTEM_RECORDS, slot, status};
use super::{INSTANT_INFO, InnodbPage, InnodbRecord, MAX_OWNED, NOBODY};
use crate::wire::be16;

impl InnodbRecord {
    /// Returns the record at `origin`, and the origin of the next one; `None` if there is no room for a record.
    fn parse(page: &[u8], origin: usize, heap_top: usize) -> Option<(Self, usize)> {
        if origin < HEAP + RECORD || origin > heap_top {
            return None;
        }
        let head = page.get(origin - RECORD..origin)?;
        let number = be16(head, 1);
        let next = be16(head, 3);
        let record = Self {
            origin,
            info: head[0] >> 4,
            owned: head[0] & 0xF,
            heap: usize::from(number >> 3),
            status: number as u8 & 7,
            odd: false,
            extent: Extent::default(),
        };
        let after = if next == 0 { 0 } else { (origin + usize::from(next)) & 0xFFFF };
        // A list ends with a relative place of 0; a relative place that leads to 0 is no end.
        (next == 0 || after != 0).then_some((record, after))
    }

    /// Writes the header.
    pub(super) fn write(&self, page: &mut [u8], next: usize) {
        let at = self.origin;
        page[at - RECORD] = self.info << 4 | self.owned;
        let number = (self.heap as u16) << 3 | u16::from(self.status);
        page[at - 4..at - 2].copy_from_slice(&number.to_be_bytes());
        let next = if next == 0 { 0 } else { (next as u16).wrapping_sub(at as u16) };
        page[at - 2..at].copy_from_slice(&next.to_be_bytes());
    }

    /// Returns the record's pattern: info bits and status, of free records the number that they owned, and the null
    /// bitmap.
    pub(super) fn pattern(&self, free: bool) -> u64 {
        let owned = if free { self.owned } else { 0 };
        let bitmap = if self.odd { 0 } else { self.extent.bitmap };
        u64::from(self.info)
            | u64::from(self.status) << 4
            | u64::from(owned) << 7
            | u64::from(self.odd) << 11
            | u64::from(free) << 12
            | bitmap << 13
    }

    pub(super) fn from_pattern(pattern: u64) -> Self {
        Self {
            info: pattern as u8 & 0xF,
            status: (pattern >> 4) as u8 & 7,
            owned: (pattern >> 7) as u8 & 0xF,
            odd: pattern >> 11 & 1 == 1,
            extent: Extent { bitmap: pattern >> 13, ..Extent::default() },
            ..Self::default()
        }
    }
}

impl InnodbPage {
    /// Takes `page` apart, down to the headers of records. Returns false if anything is not as index pages have it.
    pub(crate) fn parse(&mut self, page: &[u8]) -> bool {
        let Some(header) = InnodbHeader::parse(page) else { return false };
        self.header = header;
        self.records.clear();
        self.groups.clear();
        self.parse_list(page).is_some() && self.parse_free(page).is_some() && self.number().is_some()
    }

    /// Parses the list of records, and the directory, which follows from it.
    fn parse_list(&mut self, page: &[u8]) -> Option<()> {
        let InnodbHeader { records: count, heap_top, slots, .. } = self.header;
        let own = |n: usize| usize::from(be16(page, slot(page.len(), n)));
        let mut origin = (INFIMUM + usize::from(be16(page, INFIMUM - 2))) & 0xFFFF;
        let mut group = 1;
        for _ in 0..count {
            let (record, after) = InnodbRecord::parse(page, origin, heap_top)?;
            if record.owned != 0 {
                self.groups.push(record.owned);
                (self.groups.len() < slots && record.owned == group && own(self.groups.len()) == origin)
                    .then_some(())?;
                group = 0;
            }
            group += 1;
            (group <= MAX_OWNED).then_some(())?;
            self.records.push(record);
            origin = after;
        }
        self.groups.push(group);
        let closed = origin == SUPREMUM && page[SUPREMUM - RECORD] == group && self.groups.len() + 1 == slots;
        (closed && own(0) == INFIMUM && own(slots - 1) == SUPREMUM).then_some(())
    }

    fn parse_free(&mut self, page: &[u8]) -> Option<()> {
        let mut origin = self.header.free;
        for _ in self.header.records..self.header.heap - SYSTEM_RECORDS {
            let (record, after) = InnodbRecord::parse(page, origin, self.header.heap_top)?;
            self.records.push(record);
            origin = after;
        }
        (origin == 0).then_some(())
    }

    /// Fills `by_heap`: every number belongs to one record, and records lie in the order of their numbers.
    fn number(&mut self) -> Option<()> {
        self.by_heap.clear();
        self.by_heap.resize(self.records.len(), NOBODY);
        for (n, record) in self.records.iter().enumerate() {
            let place = self.by_heap.get_mut(record.heap.checked_sub(SYSTEM_RECORDS)?)?;
            (*place == NOBODY).then_some(())?;
            *place = n as u16;
        }
        let origin = |&n: &u16| self.records[usize::from(n)].origin;
        self.by_heap.is_sorted_by(|a, b| origin(a) + RECORD <= origin(b)).then_some(())
    }

    /// Finds the places of values; records that the layout does not describe become odd. Returns false if records
    /// overlap all the same.
    pub(crate) fn parse_columns(&mut self, page: &[u8], layout: &InnodbLayout) -> bool {
        let expected = if self.header.level == 0 { status::ORDINARY } else { status::NODE };
        for record in &mut self.records {
            record.odd = record.status != expected || record.info & INSTANT_INFO != 0;
        }
        // A record that overlaps another becomes odd, and all records are located again.
        for _ in 0..4 {
            self.locate(page, layout);
            match self.chain() {
                Some(true) => return true,
                Some(false) => {}
                None => return false,
            }
        }
        false
    }

    fn locate(&mut self, page: &[u8], layout: &InnodbLayout) {
        let columns = layout.fields.len();
        self.grid.reset(self.records.len(), columns);
        self.rows.clear();
        for (n, record) in self.records.iter_mut().enumerate().filter(|(_, record)| !record.odd) {
            let bounds = (HEAP, self.header.heap_top);
            match layout.locate(page, record.origin, bounds, &mut self.grid, self.rows.len()) {
                Some((extent, present)) => {
                    record.extent = extent;
                    self.grid.push(present);
                    self.rows.push(n as u16);
                }
                None => record.odd = true,
            }
        }
        self.grid.close(self.rows.len(), columns);
    }

    /// Finds gaps, in the order of the heap. Returns `Some(false)` if a record has become odd, and `None` if records
    /// overlap all the same.
    fn chain(&mut self) -> Option<bool> {
        self.gaps.clear();
        let mut end = HEAP;
        let mut clean = true;
        for h in 0..self.by_heap.len() {
            let next = self.by_heap.get(h + 1).map(|&n| self.records[usize::from(n)].origin - RECORD);
            let record = &mut self.records[usize::from(self.by_heap[h])];
            let ceiling = next.unwrap_or(self.header.heap_top);
            if !record.odd && (record.extent.start < end || record.extent.end > ceiling) {
                record.odd = true;
                clean = false;
            }
            let start = if record.odd { record.origin - RECORD } else { record.extent.start };
            self.gaps.push(start.checked_sub(end)? as u16);
            end = if record.odd { record.origin } else { record.extent.end };
        }
        self.gaps.push(self.header.heap_top.checked_sub(end)? as u16);
        Some(clean)
    }

    /// Returns the bytes of free records and gaps, as the header counts them if no record is odd.
    pub(super) fn garbage(&self) -> usize {
        let listed = self.records[..self.header.records].iter();
        let used: usize = listed
            .map(|record| if record.odd { RECORD } else { record.extent.end - record.extent.start })
            .sum();
        (self.header.heap_top - HEAP).saturating_sub(used)
    }

    /// Notes stale bytes: the gaps between records if `gaps`, and the hole behind them if `hole`.
    pub(super) fn stale_regions(&mut self, page_bytes: usize, gaps: bool, hole: bool) {
        self.stale.clear();
        let mut end = HEAP;
        if gaps {
            for (&n, &gap) in self.by_heap.iter().zip(&self.gaps) {
                self.stale.note(end, end + usize::from(gap));
                let record = &self.records[usize::from(n)];
                end = if record.odd { record.origin } else { record.extent.end };
            }
            self.stale.note(end, self.header.heap_top);
        }
        if hole {
            self.stale.note(self.header.heap_top, slot(page_bytes, self.header.slots - 1));
        }
    }
}
