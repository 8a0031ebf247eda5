//! Reads and writes a page's header, its free blocks and fragments ("Database File Format", section 1.6).

use crate::wire::{be16, be32};

/// Bytes of the file's header, in its first page.
pub(crate) const FILE_HEADER: usize = 100;
pub(crate) const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// Smallest page, in bytes.
pub(crate) const PAGE_MIN: usize = 512;
/// Largest number of bytes that extensions reserve at a page's end: a byte of the file's header tells the number.
pub(crate) const RESERVED_MAX: usize = 255;
/// Bytes of a free block's own header; smaller gaps are fragments.
pub(crate) const BLOCK: usize = 4;

/// Kinds of page, as a page's first byte names them.
pub(crate) mod kind {
    pub(crate) const INDEX_INNER: u8 = 2;
    pub(crate) const TABLE_INNER: u8 = 5;
    pub(crate) const INDEX_LEAF: u8 = 10;
    pub(crate) const TABLE_LEAF: u8 = 13;

    pub(crate) const fn is_known(kind: u8) -> bool {
        matches!(kind, INDEX_INNER | TABLE_INNER | INDEX_LEAF | TABLE_LEAF)
    }

    /// Returns true if cells have a child.
    pub(crate) const fn is_inner(kind: u8) -> bool {
        matches!(kind, INDEX_INNER | TABLE_INNER)
    }

    /// Returns true if cells have a row id.
    pub(crate) const fn is_table(kind: u8) -> bool {
        matches!(kind, TABLE_LEAF | TABLE_INNER)
    }

    /// Returns true if cells have a record.
    pub(crate) const fn has_record(kind: u8) -> bool {
        kind != TABLE_INNER
    }
}

/// The page header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SqliteHeader {
    /// Offset of the header: behind the file's header in the first page, otherwise 0.
    pub(crate) begin: usize,
    pub(crate) kind: u8,
    /// Offset of the first free block; 0 for none.
    pub(crate) free: u16,
    pub(crate) cells: usize,
    /// Offset at which the area of cells begins.
    pub(crate) content: usize,
    /// Number of bytes of fragments.
    pub(crate) fragments: u8,
    /// The last child of an inner page.
    pub(crate) right: u32,
}

impl SqliteHeader {
    /// Returns the header of `page`, or `None` if the page has none.
    pub(crate) fn parse(page: &[u8]) -> Option<Self> {
        let begin = if page.starts_with(MAGIC) { FILE_HEADER } else { 0 };
        let kind = *page.get(begin)?;
        if !kind::is_known(kind) || page.len() < PAGE_MIN {
            return None;
        }
        let content = match be16(page, begin + 5) {
            0 => 1 << 16,
            content => usize::from(content),
        };
        let header = Self {
            begin,
            kind,
            free: be16(page, begin + 1),
            cells: usize::from(be16(page, begin + 3)),
            content,
            fragments: *page.get(begin + 7)?,
            right: if kind::is_inner(kind) { be32(page, begin + 8) } else { 0 },
        };
        (header.pointers_end() <= content && content <= page.len()).then_some(header)
    }

    /// Returns the offset at which the cells' pointers begin.
    pub(crate) fn pointers(&self) -> usize {
        self.begin + if kind::is_inner(self.kind) { 12 } else { 8 }
    }

    /// Returns the offset behind the last pointer, where the hole begins.
    pub(crate) fn pointers_end(&self) -> usize {
        self.pointers() + 2 * self.cells
    }

    /// Writes the header to `page`, which has room for it.
    pub(crate) fn write(&self, page: &mut [u8]) {
        let at = self.begin;
        page[at] = self.kind;
        page[at + 1..at + 3].copy_from_slice(&self.free.to_be_bytes());
        page[at + 3..at + 5].copy_from_slice(&(self.cells as u16).to_be_bytes());
        page[at + 5..at + 7].copy_from_slice(&(self.content as u16).to_be_bytes());
        page[at + 7] = self.fragments;
        if kind::is_inner(self.kind) {
            page[at + 8..at + 12].copy_from_slice(&self.right.to_be_bytes());
        }
    }
}

/// The symbol of a gap without a free block.
const NO_BLOCK: u8 = 16;

/// Place of a free block in a gap: fragments of at most three bytes may lie before and behind it. A symbol codes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreeBlock {
    /// Bytes from the gap's begin to the block, and from the block to the gap's end.
    before: usize,
    behind: usize,
}

impl FreeBlock {
    pub(crate) fn from_symbol(symbol: u8) -> Option<Self> {
        (symbol < NO_BLOCK)
            .then(|| Self { before: usize::from(symbol & 3), behind: usize::from(symbol >> 2) })
    }

    /// Returns the symbol of the gap of `len` bytes at `gap`, and the next free block to be looked for. `block` is the
    /// one that is looked for now, 0 for none; if it lies in the gap, the list's next block follows it.
    pub(crate) fn of(page: &[u8], (gap, len): (usize, usize), block: u16) -> (u8, u16) {
        let at = usize::from(block);
        let size = usize::from(be16(page, at + 2));
        let inside = at >= gap && at + size <= gap + len && size >= BLOCK;
        if block == 0 || !inside || at - gap > 3 || gap + len - at - size > 3 {
            return (NO_BLOCK, block);
        }
        let symbol = (at - gap) as u8 | ((gap + len - at - size) as u8) << 2;
        (symbol, be16(page, at))
    }

    /// Returns the block's place and size in the gap of `len` bytes at `gap`; `None` if it does not fit.
    pub(crate) fn place(self, gap: usize, len: usize) -> Option<(usize, usize)> {
        let size = len.checked_sub(self.before + self.behind).filter(|&size| size >= BLOCK)?;
        Some((gap + self.before, size))
    }
}
