//! Chooses the changes and the catalogue operations of a history.

use pagefold_engine::Key;
use pagefold_engine::record::Compression;

use super::{Act, CatalogueOp, DATASETS, Fill, MIB, OBJECTS, Theme, Writer, record_size};
use crate::random::Random;

impl Writer {
    pub(super) fn path(&mut self) -> String {
        DATASETS[self.random.below(DATASETS.len() as u64) as usize].into()
    }

    pub(super) fn any(&mut self) -> String {
        if self.random.percent(40) { String::new() } else { self.path() }
    }

    pub(super) fn name(&mut self) -> String {
        format!("s{}", self.random.below(4))
    }

    pub(super) fn snapshot(&mut self) -> String {
        format!("{}@{}", self.any(), self.name())
    }

    pub(super) fn catalogue_op(&mut self) -> CatalogueOp {
        match self.random.below(100) {
            0..14 => CatalogueOp::Create { path: self.path() },
            14..46 => {
                let mut datasets = vec![self.any()];
                let second = self.any();
                if self.random.percent(20) && second != datasets[0] {
                    datasets.push(second);
                }
                CatalogueOp::Snapshot { datasets, name: self.name() }
            }
            46..60 => CatalogueOp::Clone { snapshot: self.snapshot(), path: self.path() },
            60..66 => CatalogueOp::DestroyDataset { path: self.path() },
            66..82 => {
                let of = self.any();
                let mut names: Vec<u64> = (0..4).filter(|_| self.random.percent(30)).collect();
                if names.is_empty() {
                    names.push(self.random.below(4));
                }
                if self.random.percent(50) {
                    names.reverse();
                }
                CatalogueOp::DestroySnapshots {
                    snapshots: names.iter().map(|name| format!("{of}@s{name}")).collect(),
                }
            }
            82..88 => CatalogueOp::Rollback { snapshot: self.snapshot(), newer: self.random.percent(60) },
            88..93 => CatalogueOp::Promote { path: self.path() },
            93..96 if self.random.percent(50) => CatalogueOp::Rename { path: self.path(), to: self.path() },
            93..96 => CatalogueOp::Rename { path: self.snapshot(), to: self.name() },
            96..98 => CatalogueOp::Hold { snapshot: self.snapshot() },
            _ => CatalogueOp::Release { snapshot: self.snapshot() },
        }
    }

    pub(super) fn change(&mut self) -> Vec<Act> {
        let mut acts = Vec::new();
        let mut shared = false;
        for _ in 0..self.random.within(1, self.acts) {
            let act = self.act(shared);
            shared |= matches!(act, Act::Share { .. });
            acts.push(act);
        }
        if !shared && self.small.percent(40) {
            (0..self.small.within(1, 3)).for_each(|_| acts.push(self.small_write()));
        }
        acts
    }

    /// Returns a write of a few bytes of a page, mostly of one that was overwritten like this before.
    fn small_write(&mut self) -> Act {
        let random = &mut self.small;
        let object = random.within(OBJECTS.start, 6);
        let size = u64::from(record_size(object));
        let page = if random.percent(80) { random.below(2) } else { random.below(self.span) };
        let fill = if random.percent(90) { Fill::Noise } else { Fill::Zeros };
        let (offset, len) = (page * size + random.below(size), random.skewed(300).max(1));
        Act::Write { object, offset, len, fill, seed: random.bits() }
    }

    pub(super) fn object(&mut self) -> u64 {
        // Large pages are rare, so that histories stay small.
        let most = if self.theme == Theme::Full { OBJECTS.end - 1 } else { 7 };
        let object = self.random.within(OBJECTS.start, most);
        if object > 6 && self.theme != Theme::Full && self.random.percent(70) { 4 } else { object }
    }

    pub(super) fn page(&mut self) -> u64 {
        self.random.below(self.span)
    }

    fn key(&mut self) -> Key {
        Key::new(self.random.within(1, 4), 2 + self.random.below(3) as u8, self.random.below(self.span * 4))
    }

    fn act(&mut self, shared: bool) -> Act {
        if self.rest.percent(2) {
            let codecs = [Compression::Off, Compression::Lz4, Compression::Zstd(3), Compression::Page(1)];
            let codec = codecs[self.rest.below(codecs.len() as u64) as usize].to_stored();
            return Act::Codec { object: self.rest.within(OBJECTS.start, OBJECTS.end - 1), codec };
        }
        match self.random.below(100) {
            0..15 => {
                let len =
                    if self.random.percent(3) { self.random.below(60_000) } else { self.random.skewed(300) };
                Act::Put { key: self.key(), len, seed: self.random.bits() }
            }
            15..22 => Act::Delete { key: self.key() },
            22..80 if !shared => self.write(),
            22..92 => {
                let object = self.object();
                let from = self.page();
                let to = match self.random.below(10) {
                    // Rare in full pools, which would otherwise be emptied as fast as they are filled.
                    0 if self.theme != Theme::Full || self.random.percent(10) => u64::MAX,
                    1..4 => from + self.random.below(self.span),
                    _ => from + self.random.below(3),
                };
                Act::Punch {
                    object,
                    from: if to == u64::MAX && self.random.percent(50) { 0 } else { from },
                    to,
                }
            }
            _ => {
                let (a, b) = if self.random.percent(50) { (2, 3) } else { (4, 5) };
                let pick = |random: &mut Random| if random.percent(50) { a } else { b };
                let from = (pick(&mut self.random), self.page());
                let to = (pick(&mut self.random), self.page());
                Act::Share { from, to, count: self.random.within(1, self.span) }
            }
        }
    }

    /// Returns a write of pages of a relation. Object 4 is a table and object 5 an index, and sometimes the other way
    /// round.
    fn relation(&mut self) -> Act {
        let object = self.random.within(4, 5);
        let size = u64::from(record_size(object));
        let fill = if (object == 4) == self.random.percent(90) { Fill::Heap } else { Fill::Btree };
        let len = size * self.random.within(1, 16);
        Act::Write { object, offset: self.page() * size, len, fill, seed: self.random.bits() }
    }

    fn write(&mut self) -> Act {
        if self.modelled && self.random.percent(50) {
            return self.relation();
        }
        let object = self.object();
        let size = u64::from(record_size(object));
        let full = self.theme == Theme::Full && self.random.percent(70);
        let fill = match self.random.below(if full { 3 } else { 10 }) {
            0 | 1 => Fill::Noise,
            2 => Fill::Zeros,
            _ => Fill::Rows,
        };
        let page = if full { self.random.below((96 * MIB / 6 / size).max(1)) } else { self.page() };
        let (offset, len) = match self.random.below(10) {
            _ if full => (page * size, (MIB / size).max(1) * size),
            0..5 => (page * size, size),
            5..7 => (page * size + self.random.below(size), self.random.within(1, size)),
            7 => (page * size + self.random.below(size), self.random.within(1, (4 * size).min(MIB))),
            8 => (page * size, (size * self.random.within(1, 16)).min(MIB)),
            _ => (page * size + self.random.below(size), self.random.skewed(MIB).max(1)),
        };
        Act::Write { object, offset, len, fill, seed: self.random.bits() }
    }
}
