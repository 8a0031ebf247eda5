//! Defines types for the numbers that every layer passes on.

use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

use crate::limits::BASES_MAX;

/// Stable address of a record: segment id (40 bits) and slot in it (24 bits).
///
/// Addresses grow with log order and are never used twice, so comparing two addresses compares the
/// births of their records. Zero is never an address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addr(u64);

/// Bits of an [`Addr`] that name the slot.
pub const SLOT_BITS: u32 = 24;

/// Number that is added to a segment's number for the segment of its records' second copies. Segments of the log have
/// lower numbers.
pub const COPIES: u64 = 1 << 39;

impl Addr {
    /// Returns the address of `slot` in `segment`.
    pub const fn new(segment: u64, slot: u32) -> Self {
        Self((segment << SLOT_BITS) | slot as u64)
    }
    /// Reads the stored form; `None` for zero, which addresses nothing.
    pub const fn from_raw(raw: u64) -> Option<Self> {
        if raw == 0 { None } else { Some(Self(raw)) }
    }
    /// Returns the stored form.
    pub const fn raw(self) -> u64 {
        self.0
    }
    /// Returns the segment id.
    pub const fn segment(self) -> u64 {
        self.0 >> SLOT_BITS
    }
    /// Returns the slot within the segment.
    pub(crate) const fn slot(self) -> u32 {
        (self.0 & ((1 << SLOT_BITS) - 1)) as u32
    }
    /// Returns the address of the second copy of a record that is kept twice; for a second copy, its own.
    pub const fn copy(self) -> Self {
        Self(self.0 | COPIES << SLOT_BITS)
    }
    /// Returns true if it is the address of a second copy.
    pub(crate) const fn is_copy(self) -> bool {
        self.segment() >= COPIES
    }
    /// Returns the address of the record that this is the second copy of; for anything else, its own.
    pub(crate) const fn original(self) -> Self {
        Self(self.0 & !(COPIES << SLOT_BITS))
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.segment(), self.slot())
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Hashes addresses for caches, with fixed constants (the finaliser of splitmix64): the same run evicts the same
/// entries.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AddrHasher(u64);

/// Makes [`AddrHasher`]s.
pub(crate) type AddrHashing = BuildHasherDefault<AddrHasher>;

impl Hasher for AddrHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }
    fn write_u64(&mut self, value: u64) {
        let mut x = self.0 ^ value.wrapping_add(0x9E37_79B9_7F4A_7C15);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        self.0 = x ^ (x >> 31);
    }
}

/// A record's address with its stored length, as trees keep it: enough to account for the record without
/// looking up its segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ptr {
    /// Address of the record.
    pub addr: Addr,
    /// Its stored (compressed) length in bytes.
    pub len_bytes: u32,
}

/// Key of a dataset's tree. Ordered by object, then kind, then offset.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// The object (an inode's data, a directory, ...) that the entry belongs to.
    pub object: u64,
    /// Kind of the entry. Below [`Key::ENGINE_KINDS`] the meaning is the file system's.
    pub kind: u8,
    /// Position within the object: page number, name hash, ...
    pub offset: u64,
}

impl Key {
    /// Codec of an object's pages as one byte, `offset` 0. The engine reads no other value of the file system.
    pub const COMPRESSION: u8 = 0xD0;
    /// Kinds from here on belong to the engine.
    pub const ENGINE_KINDS: u8 = 0xE0;
    /// Page of an object's data; `offset` is the page number (byte offset / recordsize).
    pub const PAGE: u8 = 0xF0;
    /// Stored size of an object's pages, kept by the engine.
    pub const USAGE: u8 = 0xF1;
    /// Base of a page's delta; `offset` is the page number times [`crate::limits::BASES_MAX`], plus the base's position
    /// among the page's bases.
    pub const BASE: u8 = 0xF2;
    /// Reference count of a shared record (object 0, `offset` = raw address).
    pub const SHARED: u8 = 0xF3;
    /// A model of pages (the pool's own tree, object 0, `offset` = its number).
    pub const MODEL: u8 = 0xF4;
    /// A block of a dead list (the pool's own tree, object = number of the sublist, `offset` = number of the block).
    pub const DEAD: u8 = 0xF5;
    /// A bucket of a dead list (the pool's own tree, object = number of the list, `offset` = birth).
    pub(crate) const BUCKET: u8 = 0xF6;
    /// The sublist behind another one (the pool's own tree, object = number of that one, `offset` 0).
    pub(crate) const LINK: u8 = 0xF7;
    /// Counts of errors (the pool's own tree, object 0, `offset` 0).
    pub const FAULTS: u8 = 0xF8;
    /// The pool's space over time (the pool's own tree, object 0, `offset` 0).
    pub const SPACE: u8 = 0xF9;

    /// The lowest key.
    pub const FIRST: Self = Self::new(0, 0, 0);
    /// A key above all keys that are in use.
    pub const LAST: Self = Self::new(u64::MAX, u8::MAX, u64::MAX);

    /// Creates a key.
    pub const fn new(object: u64, kind: u8, offset: u64) -> Self {
        Self { object, kind, offset }
    }
    /// Returns the key of the model number `id`.
    pub(crate) const fn model(id: u32) -> Self {
        Self::new(0, Self::MODEL, id as u64)
    }
    /// Returns the key of the base number `at` of page number `page` of `object`. If there can be no such page, the key
    /// is behind those of all bases.
    pub(crate) const fn base(object: u64, page: u64, at: usize) -> Self {
        match page.checked_mul(BASES_MAX as u64) {
            Some(offset) if at < BASES_MAX => Self::new(object, Self::BASE, offset + at as u64),
            _ => Self::new(object, Self::BASE + 1, 0),
        }
    }
    /// Returns the key of page number `page` of `object`.
    pub const fn page(object: u64, page: u64) -> Self {
        Self::new(object, Self::PAGE, page)
    }
}
