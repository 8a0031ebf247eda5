//! Finds the transactions in a binary log of MariaDB, as its bytes come.
//!
//! A log begins with four bytes (`fe 62 69 6e`). Events follow, each with a header of 19 bytes, little-endian
//! (<https://mariadb.com/kb/en/2-binlog-event-header/>):
//!
//! | offset | length | |
//! |---|---|---|
//! | 0 | 4 | time in seconds since 1970 |
//! | 4 | 1 | type |
//! | 5 | 4 | number of the server |
//! | 9 | 4 | length of the event, header included |
//! | 13 | 4 | where the event ends in the log, modulo 2^32 |
//! | 17 | 2 | flags; in the first event, 1 while the server writes to the log |
//!
//! A transaction is a group of events: it begins with an event of type GTID. Flag 1 at offset 12 behind that event's
//! header says that one statement follows, which is a group of its own; another group ends with a commit.

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};

/// The first bytes of a log.
pub(crate) const MAGIC: [u8; 4] = *b"\xfebin";
const HEADER_BYTES: usize = 19;
/// Bytes of an event that are looked at: an event that ends a transaction, or describes a log, is shorter.
const LOOKED_BYTES: usize = 4096;
/// Longest event: MariaDB bounds what a statement may hold (`max_allowed_packet`) by 1 GiB.
const EVENT_BYTES_MAX: u64 = (1 << 30) + (64 << 10);
/// Offset of the flags in the header of the first event of a log.
const FLAGS_AT: usize = 4 + 17;
const IN_USE: u8 = 1;

/// Types of events.
mod kind {
    pub(super) const QUERY: u8 = 2;
    pub(super) const STOP: u8 = 3;
    pub(super) const ROTATE: u8 = 4;
    pub(super) const DESCRIPTION: u8 = 15;
    pub(super) const XID: u8 = 16;
    pub(super) const XA_PREPARE: u8 = 38;
    pub(super) const CHECKPOINT: u8 = 161;
    pub(super) const GTID: u8 = 162;
    pub(super) const GTID_LIST: u8 = 163;
    pub(super) const ENCRYPTION: u8 = 164;
    pub(super) const QUERY_COMPRESSED: u8 = 165;
    /// Events of MySQL that tell a transaction's number: 33 and 34.
    pub(super) const OF_MYSQL: std::ops::RangeInclusive<u8> = 33..=34;
}

/// Bytes between the header of a statement and its session's variables: thread, time it took, length of the database's
/// name, error, length of the variables.
const QUERY_FIXED_BYTES: usize = 13;
/// Offset of the flags behind the header of a GTID event.
const GTID_FLAGS_AT: usize = 12;
/// Flag of a GTID event: one statement follows, and no commit.
const STANDALONE: u8 = 1;
/// Bytes of an event's checksum.
const CHECKSUM_BYTES: usize = 4;

/// An event that has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Offset of the event in its log.
    pub begin: u64,
    /// Offset behind it.
    pub end: u64,
    /// Time of the event in seconds since 1970; where a transaction begins or ends, the time at which its last
    /// statement began.
    pub time_s: u32,
    /// Its part in a transaction.
    pub role: Role,
}

/// The part of an event in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It belongs to no transaction.
    Between,
    /// It tells which transactions the files before this one have.
    State,
    /// It is the last one of a log that the server has closed.
    Last,
    /// It begins a transaction.
    Begins,
    /// It belongs to a transaction that goes on.
    Inside,
    /// It ends the transaction that began at this offset.
    Ends(u64),
}

/// Where a scan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Magic,
    Header,
    /// Reads the bytes of an event that are looked at; the event has so many in all.
    Body(u64),
    /// Passes over so many bytes of an event.
    Rest(u64),
}

/// A transaction that is coming.
#[derive(Clone, Copy, Debug)]
struct Group {
    begin: u64,
    time_s: u32,
    /// True if it is one statement, which nothing else ends.
    is_alone: bool,
}

/// Finds the events of a log, and what they are in a transaction.
#[derive(Debug)]
pub struct Scan {
    at: At,
    /// The magic, or the beginning of an event.
    seen: Vec<u8>,
    /// Offset of the event that is coming.
    begin: u64,
    /// True if events end with a checksum.
    checksums: bool,
    group: Option<Group>,
    /// Where the last event ended that leaves no transaction open.
    whole: u64,
    is_closed: bool,
    mark: u64,
}

impl Default for Scan {
    fn default() -> Self {
        Self {
            at: At::Magic,
            seen: Vec::new(),
            begin: 0,
            checksums: false,
            group: None,
            whole: 0,
            is_closed: false,
            mark: 0,
        }
    }
}

impl Scan {
    /// Offset up to which the log holds whole transactions.
    pub fn whole(&self) -> u64 {
        self.whole
    }

    /// Returns true if the last event says that the server has closed the log, and that another one follows.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Hash of the first event of the log, which has the time at which the log was begun; 0 before it has come. It
    /// distinguishes logs of one name.
    pub fn mark(&self) -> u64 {
        self.mark
    }

    /// Goes on at `offset`, between two transactions. The first event must have come. At 0 it begins again.
    pub fn go_on_at(&mut self, offset: u64) {
        if offset == 0 {
            *self = Self::default();
            return;
        }
        self.seen.clear();
        (self.at, self.begin, self.whole, self.group) = (At::Header, offset, offset, None);
    }

    /// Takes the next bytes of the log, and visits the events that have come to their end.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the bytes are no binary log of MariaDB, or one that is encrypted.
    pub fn feed(&mut self, mut bytes: &[u8], visit: &mut dyn FnMut(Event)) -> Result<()> {
        loop {
            let wanted = match self.at {
                At::Magic => MAGIC.len(),
                At::Header => HEADER_BYTES,
                At::Body(len) => usize::try_from(len).unwrap_or(LOOKED_BYTES).min(LOOKED_BYTES),
                At::Rest(left) => {
                    let passed = left.min(bytes.len() as u64);
                    bytes = bytes.get(passed as usize..).unwrap_or_default();
                    if passed < left {
                        self.at = At::Rest(left - passed);
                        return Ok(());
                    }
                    self.end_event(visit)?;
                    continue;
                }
            };
            let some = bytes.get(..wanted.saturating_sub(self.seen.len())).unwrap_or(bytes);
            self.seen.extend_from_slice(some);
            bytes = bytes.get(some.len()..).unwrap_or_default();
            if self.seen.len() < wanted {
                return Ok(());
            }
            self.at = match self.at {
                At::Magic => {
                    if self.seen != MAGIC {
                        return Err(bad(0, "it does not begin as a binary log"));
                    }
                    self.seen.clear();
                    self.begin = MAGIC.len() as u64;
                    At::Header
                }
                At::Header => At::Body(self.checked_len()?),
                At::Body(len) => At::Rest(len - wanted as u64),
                At::Rest(left) => At::Rest(left),
            };
        }
    }

    /// Returns the length of the event whose header has come.
    fn checked_len(&self) -> Result<u64> {
        let len = u64::from(self.number(9));
        let end = self.begin.saturating_add(len);
        let is_first = self.begin == MAGIC.len() as u64;
        // Events that a server of an older version has relayed may not tell where they end.
        let told = self.number(13);
        if len < HEADER_BYTES as u64 || len > EVENT_BYTES_MAX || (told != 0 && told != end as u32) {
            return Err(bad(self.begin, "there is no event"));
        }
        if is_first && self.kind() != kind::DESCRIPTION {
            return Err(bad(self.begin, "the first event does not describe the log"));
        }
        Ok(len)
    }

    fn number(&self, at: usize) -> u32 {
        let bytes = self.seen.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    fn kind(&self) -> u8 {
        self.seen.get(4).copied().unwrap_or_default()
    }

    fn end_event(&mut self, visit: &mut dyn FnMut(Event)) -> Result<()> {
        let begin = self.begin;
        let end = begin + u64::from(self.number(9));
        let group = self.group;
        let role = self.role()?;
        let time_s = match (role, group) {
            (Role::Ends(_), Some(group)) => group.time_s,
            _ => self.number(0),
        };
        if !matches!(role, Role::Begins | Role::Inside) {
            self.whole = end;
        }
        self.is_closed = role == Role::Last;
        self.seen.clear();
        (self.at, self.begin) = (At::Header, end);
        visit(Event { begin, end, time_s, role });
        Ok(())
    }

    fn role(&mut self) -> Result<Role> {
        let begin = self.begin;
        match self.kind() {
            kind::DESCRIPTION => self.describe()?,
            kind::ENCRYPTION => {
                return Err(bad(
                    begin,
                    "the server encrypts it (encrypt_binlog), so its transactions cannot be seen",
                ));
            }
            kind if kind::OF_MYSQL.contains(&kind) => {
                return Err(bad(begin, "it is a log of MySQL, not of MariaDB"));
            }
            kind::GTID => {
                let flags = self.seen.get(HEADER_BYTES + GTID_FLAGS_AT).copied().unwrap_or_default();
                if self.group.is_some() {
                    return Err(bad(begin, "a transaction begins within another one"));
                }
                let is_alone = flags & STANDALONE != 0;
                self.group = Some(Group { begin, time_s: self.number(0), is_alone });
                return Ok(Role::Begins);
            }
            kind => {
                let Some(group) = self.group else {
                    return Ok(match kind {
                        kind::ROTATE | kind::STOP => Role::Last,
                        kind::GTID_LIST => Role::State,
                        _ => Role::Between,
                    });
                };
                let is_query = matches!(kind, kind::QUERY | kind::QUERY_COMPRESSED);
                let ends = matches!(kind, kind::XID | kind::XA_PREPARE)
                    || (is_query && group.is_alone)
                    || (kind == kind::QUERY && self.is_end_of_transaction());
                if ends {
                    self.group = None;
                    return Ok(Role::Ends(group.begin));
                }
                if matches!(kind, kind::ROTATE | kind::STOP | kind::CHECKPOINT | kind::GTID_LIST) {
                    return Err(bad(begin, "the log ends within a transaction"));
                }
                return Ok(Role::Inside);
            }
        }
        Ok(Role::Between)
    }

    /// Reads the event that describes the log: its version (2 bytes), the server's version (50 bytes), a time, the
    /// length of headers, the lengths of fixed parts by type, and the algorithm of checksums with a checksum.
    fn describe(&mut self) -> Result<()> {
        let len = self.seen.len();
        let algorithm = len.checked_sub(CHECKSUM_BYTES + 1).and_then(|at| self.seen.get(at)).copied();
        let server = self.seen.get(HEADER_BYTES + 2..HEADER_BYTES + 52).unwrap_or_default();
        if len != self.number(9) as usize || !server.windows(7).any(|word| word == b"MariaDB") {
            return Err(bad(self.begin, "it is no binary log of MariaDB"));
        }
        self.checksums = match algorithm {
            Some(0) => false,
            Some(1) => true,
            _ => return Err(bad(self.begin, "its events have checksums of a kind that is not known")),
        };
        let mut first = self.seen.clone();
        if let Some(flags) = first.get_mut(FLAGS_AT - MAGIC.len()) {
            *flags &= !IN_USE;
        }
        self.mark = xxh3_64(&first);
        Ok(())
    }

    /// Returns true if the statement that has come is a commit or an abort, as the server writes them.
    fn is_end_of_transaction(&self) -> bool {
        let Some(body) = self.seen.get(HEADER_BYTES..) else { return false };
        let is_whole = self.seen.len() == self.number(9) as usize;
        let (Some(name), Some(variables)) = (body.get(8), body.get(11..QUERY_FIXED_BYTES)) else {
            return false;
        };
        let variables = variables.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        let begin = QUERY_FIXED_BYTES + variables + usize::from(*name) + 1;
        let end = body.len().saturating_sub(if self.checksums { CHECKSUM_BYTES } else { 0 });
        let text = body.get(begin..end).unwrap_or_default();
        let is_all = |word: &[u8]| text.eq_ignore_ascii_case(word);
        let begins = |word: &[u8]| text.get(..word.len()).is_some_and(|some| some.eq_ignore_ascii_case(word));
        is_whole
            && (is_all(b"COMMIT") || is_all(b"ROLLBACK") || begins(b"XA COMMIT ") || begins(b"XA ROLLBACK "))
    }
}

/// Clears the flag by which a server says that it is writing to a log; `bytes` are the first of the log.
pub fn clear_in_use(bytes: &mut [u8]) {
    if let Some(flags) = bytes.get_mut(FLAGS_AT) {
        *flags &= !IN_USE;
    }
}

fn bad(offset: u64, what: &str) -> Error {
    Error::Invalid(format!("at byte {offset}: {what}"))
}
