//! Makes pages as PostgreSQL and ([`innodb`]) InnoDB do, from a seed: for tests of this crate and of those above it.
//! Written without the code under test, except checksums of PostgreSQL and [`sqlite`].

mod btree;
pub mod corpora;
mod heap;
pub mod innodb;
pub mod logs;
pub mod sqlite;

pub use btree::{Keys, btree_page};
pub use heap::heap_page;

const WORDS: [&str; 8] = ["carefully", "final", "deposits", "sleep", "GREEN LANE", "furiously", "x", ""];

/// Random numbers that a seed determines: xorshift64*.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Begins the numbers of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns the next 56 bits.
    #[allow(clippy::should_implement_trait, reason = "an iterator would have an end")]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 8
    }

    /// Returns a number below `n`, or 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// Returns true once in `n` times on average.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Returns `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

#[derive(Clone, Copy, Debug)]
enum ColumnType {
    Int(usize),
    Flag,
    Uuid,
    Word,
    Letters,
    Text,
    Numeric,
    /// Text that is long enough for zstd.
    Prose,
    Long,
}

/// Columns of a relation, and the state of its pages.
#[derive(Clone, Debug)]
pub struct Schema {
    types: Vec<ColumnType>,
    nulls: bool,
    /// True if pages were used before: they have garbage in holes and behind tuples, pruned tuples, update chains.
    pub aged: bool,
    /// Length of a page, in bytes.
    pub page_bytes: usize,
}

/// Appends zeros up to a multiple of `to`.
pub(crate) fn align(data: &mut Vec<u8>, to: usize) {
    data.resize(data.len().next_multiple_of(to), 0);
}

fn put16(page: &mut [u8], at: usize, value: usize) {
    page[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
}

fn put32(page: &mut [u8], at: usize, value: u64) {
    page[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
}

fn put_line(page: &mut [u8], n: usize, off: usize, state: usize, len: usize) {
    put32(page, 24 + 4 * n, (off | state << 15 | len << 17) as u64);
}

fn put_header(random: &mut Random, page: &mut [u8], lines: usize, upper: usize, special: usize) {
    put32(page, 0, random.below(3) as u64);
    let lsn = if random.once_in(30) { random.next() } else { random.next() & !7 };
    put32(page, 4, lsn);
    put16(page, 8, 0);
    put16(page, 10, random.below(8));
    put16(page, 12, 24 + 4 * lines);
    put16(page, 14, upper);
    put16(page, 16, special);
    put16(page, 18, page.len() | 4);
    put32(page, 20, if random.once_in(3) { 700 + random.next() % 50 } else { 0 });
}

/// Makes a page of zeros or, if pages are aged, of bytes that were there before.
fn blank(random: &mut Random, schema: &Schema) -> Vec<u8> {
    match random.below(3) {
        _ if !schema.aged => vec![0; schema.page_bytes],
        0 => random.bytes(schema.page_bytes),
        1 => b"stale row of text ".iter().copied().cycle().take(schema.page_bytes).collect(),
        _ => vec![0; schema.page_bytes],
    }
}
