//! Makes pages of SQLite: young and aged ones, of tables and indexes, leaf pages and others.

use super::Random;
use crate::sqlite::page::{FILE_HEADER, MAGIC, SqliteHeader, kind};
use crate::sqlite::record::{head_bytes, int_type, local_bytes, put_varint, value_bytes, varint_len};
use crate::testing::WORDS;

/// Contents of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Flag,
    Count,
    /// A number of any size.
    Any,
    Price,
    Float,
    Hex,
    Date,
    Word,
    /// Text that may go on in overflow pages.
    Prose,
    Blob,
    Null,
}

/// A table or an index, and the state of its pages.
#[derive(Clone, Debug)]
pub struct Tree {
    kind: u8,
    columns: Vec<Holds>,
    nulls: bool,
    /// True if some rows were added before some columns were.
    altered: bool,
    aged: bool,
    /// Bytes of a page.
    pub page_bytes: usize,
    /// Bytes at each page's end that are not SQLite's.
    pub reserved: usize,
}

impl Tree {
    /// Draws any table or index.
    pub fn random(random: &mut Random) -> Self {
        let all = [
            Holds::Flag,
            Holds::Count,
            Holds::Any,
            Holds::Price,
            Holds::Float,
            Holds::Hex,
            Holds::Date,
            Holds::Word,
            Holds::Prose,
            Holds::Blob,
            Holds::Null,
        ];
        let columns = 1 + if random.once_in(8) { random.below(40) } else { random.below(8) };
        let kinds =
            [kind::TABLE_LEAF, kind::TABLE_LEAF, kind::INDEX_LEAF, kind::INDEX_INNER, kind::TABLE_INNER];
        Self {
            kind: kinds[random.below(kinds.len())],
            columns: (0..columns).map(|_| all[random.below(all.len())]).collect(),
            nulls: random.once_in(2),
            altered: random.once_in(4),
            aged: random.once_in(2),
            page_bytes: [4096, 4096, 1024, 8192, 65536][random.below(5)],
            reserved: [0, 0, 0, 8, 32][random.below(5)],
        }
    }

    /// Makes a table of a few columns that compress well, in pages of 4 KiB.
    #[must_use]
    pub fn simple(aged: bool) -> Self {
        let columns = vec![Holds::Null, Holds::Hex, Holds::Date, Holds::Count, Holds::Price, Holds::Word];
        Self {
            kind: kind::TABLE_LEAF,
            columns,
            nulls: false,
            altered: false,
            aged,
            page_bytes: 4096,
            reserved: 0,
        }
    }

    /// Makes the index over the dates of [`Tree::simple`].
    #[must_use]
    pub fn index(aged: bool) -> Self {
        Self { kind: kind::INDEX_LEAF, columns: vec![Holds::Date, Holds::Count], ..Self::simple(aged) }
    }

    fn value(&self, random: &mut Random, n: usize, holds: Holds) -> (u64, Vec<u8>) {
        let int = |value: i64| {
            let serial = int_type(value);
            let len = value_bytes(serial).unwrap_or(0);
            (serial, value.to_be_bytes()[8 - len..].to_vec())
        };
        let text = |text: &str| (13 + 2 * text.len() as u64, text.as_bytes().to_vec());
        if holds == Holds::Null || (self.nulls && random.once_in(5)) {
            return (0, vec![]);
        }
        match holds {
            Holds::Null => (0, vec![]),
            Holds::Flag if random.once_in(60) => (1, vec![random.below(2) as u8]),
            Holds::Flag => int(random.below(2) as i64),
            Holds::Count => int(n as i64 * 3 + random.below(3) as i64),
            Holds::Any => int(random.next() as i64 >> random.below(64)),
            Holds::Price if random.once_in(40) => int(random.below(1000) as i64),
            Holds::Price => (7, (random.below(100_000) as f64 / 100.0).to_be_bytes().to_vec()),
            Holds::Float => (7, random.bytes(8)),
            Holds::Hex => text(&format!("{:016x}{:016x}", random.next(), random.next())),
            Holds::Date => {
                text(&format!("20{:02}-{:02}-{:02}", random.below(26), random.below(12), random.below(28)))
            }
            Holds::Word if random.once_in(90) => int(7),
            Holds::Word => text(WORDS[random.below(WORDS.len())]),
            Holds::Prose => {
                let most = if random.once_in(6) { 2000 } else { 30 };
                let words: Vec<&str> =
                    (0..random.below(most)).map(|_| WORDS[random.below(WORDS.len())]).collect();
                text(&words.join(" "))
            }
            Holds::Blob => {
                let len = random.below(40);
                (12 + 2 * len as u64, random.bytes(len))
            }
        }
    }

    /// Makes a cell; the part that does not fit is left to an overflow page.
    fn cell(&self, random: &mut Random, n: usize) -> Vec<u8> {
        let mut cell = vec![];
        let number = |cell: &mut Vec<u8>, value: u64| {
            let at = cell.len();
            cell.resize(at + varint_len(value), 0);
            put_varint(cell, at, value);
        };
        if kind::is_inner(self.kind) {
            cell.extend((random.below(5) as u32 + n as u32 * 4).to_be_bytes());
        }
        let columns = if self.altered && random.once_in(3) {
            self.columns.len().div_ceil(2)
        } else {
            self.columns.len()
        };
        let values: Vec<_> =
            self.columns[..columns].iter().map(|&holds| self.value(random, n, holds)).collect();
        let types: usize = values.iter().map(|(serial, _)| varint_len(*serial)).sum();
        let body: usize = values.iter().map(|(_, bytes)| bytes.len()).sum();
        let total = (head_bytes(types) + body) as u64;
        if kind::has_record(self.kind) {
            number(&mut cell, total);
        }
        if kind::is_table(self.kind) {
            number(&mut cell, if random.once_in(200) { random.next() } else { n as u64 });
        }
        if kind::has_record(self.kind) {
            let begin = cell.len();
            number(&mut cell, head_bytes(types) as u64);
            values.iter().for_each(|(serial, _)| number(&mut cell, *serial));
            values.iter().for_each(|(_, bytes)| cell.extend_from_slice(bytes));
            let local = local_bytes(self.kind, total, self.page_bytes - self.reserved);
            if (local as u64) < total {
                cell.truncate(begin + local);
                cell.extend((n as u32 + 7000).to_be_bytes());
            }
        }
        cell.resize(cell.len().max(4), 0);
        cell
    }
}

/// Cells of a page in the order of keys, and its free space as SQLite keeps it.
struct Space {
    page: Vec<u8>,
    pointers: usize,
    content: usize,
    cells: Vec<(usize, usize)>,
    /// Free blocks, in the order in which they lie.
    free: Vec<(usize, usize)>,
    fragments: usize,
}

impl Space {
    fn insert(&mut self, random: &mut Random, place: usize, cell: &[u8], aged: bool) -> bool {
        let pointers_end = self.pointers + 2 * (self.cells.len() + 1);
        if pointers_end > self.content {
            return false;
        }
        let block = self.free.iter().position(|&(_, size)| size >= cell.len());
        let at = if let Some(n) = block.filter(|_| aged && self.fragments < 50 && !random.once_in(5)) {
            let (at, size) = self.free[n];
            let rest = size - cell.len();
            if rest < 4 {
                self.free.remove(n);
                self.fragments += rest;
                at
            } else {
                self.free[n].1 = rest;
                at + rest
            }
        } else if pointers_end + cell.len() <= self.content {
            self.content -= cell.len();
            self.content
        } else {
            return false;
        };
        self.page[at..at + cell.len()].copy_from_slice(cell);
        self.cells.insert(place, (at, cell.len()));
        true
    }

    /// Frees a cell; its block is joined with its neighbours.
    fn remove(&mut self, n: usize) {
        let (mut at, mut size) = self.cells.remove(n);
        let near = |&(other, len): &(usize, usize), at: usize, size: usize| {
            (other + len <= at && other + len + 3 >= at) || (at + size <= other && at + size + 3 >= other)
        };
        while let Some(n) = self.free.iter().position(|block| near(block, at, size)) {
            let (other, len) = self.free.remove(n);
            let (begin, end) = (at.min(other), (at + size).max(other + len));
            self.fragments -= end - begin - size - len;
            (at, size) = (begin, end - begin);
        }
        if at == self.content {
            self.content += size;
        } else {
            self.free.push((at, size));
            self.free.sort_unstable();
        }
    }
}

/// Makes page `number` of `tree`; page 0 has the file's header.
pub fn tree_page(random: &mut Random, tree: &Tree, number: usize) -> Vec<u8> {
    let begin = if number == 0 { FILE_HEADER } else { 0 };
    let usable = tree.page_bytes - tree.reserved;
    let mut page = vec![0; tree.page_bytes];
    if tree.aged && random.once_in(2) {
        page = b"a stale row of text ".iter().copied().cycle().take(tree.page_bytes).collect();
    }
    if begin > 0 {
        page[..FILE_HEADER].fill(0);
        page[..16].copy_from_slice(MAGIC);
        page[20] = tree.reserved as u8;
    }
    page[usable..].iter_mut().for_each(|byte| *byte = random.next() as u8);
    let pointers = begin + if kind::is_inner(tree.kind) { 12 } else { 8 };
    let mut space = Space { page, pointers, content: usable, cells: vec![], free: vec![], fragments: 0 };
    for n in 0..1 + random.below(300) {
        let cell = tree.cell(random, number * 300 + n);
        let place = if tree.aged { random.below(space.cells.len() + 1) } else { space.cells.len() };
        if !space.insert(random, place, &cell, tree.aged) {
            break;
        }
        if tree.aged && random.once_in(3) {
            let n = random.below(space.cells.len());
            space.remove(n);
        }
    }
    let Space { mut page, content, cells, free, fragments, .. } = space;
    for (n, (at, _)) in cells.iter().enumerate() {
        page[pointers + 2 * n..][..2].copy_from_slice(&(*at as u16).to_be_bytes());
    }
    for (n, &(at, size)) in free.iter().enumerate() {
        let next = free.get(n + 1).map_or(0, |&(next, _)| next as u16);
        page[at..at + 2].copy_from_slice(&next.to_be_bytes());
        page[at + 2..at + 4].copy_from_slice(&(size as u16).to_be_bytes());
    }
    let header = SqliteHeader {
        begin,
        kind: tree.kind,
        free: free.first().map_or(0, |&(at, _)| at as u16),
        cells: cells.len(),
        content,
        fragments: fragments as u8,
        right: number as u32 * 1200 + 1,
    };
    header.write(&mut page);
    page
}

/// Makes an overflow page with text.
pub fn overflow_page(random: &mut Random, page_bytes: usize, number: usize) -> Vec<u8> {
    let mut page = if random.once_in(4) { vec![0; 4] } else { (number as u32 + 1).to_be_bytes().to_vec() };
    let most = if random.once_in(3) { random.below(page_bytes) } else { page_bytes };
    while page.len() < most {
        page.extend_from_slice(WORDS[random.below(WORDS.len())].as_bytes());
        page.push(b' ');
    }
    page.resize(page_bytes, 0);
    page
}
