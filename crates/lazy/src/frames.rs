//! Protocol for the pages of a backup over a local socket: a process with network and keys reads them, and the server
//! of a pool, which has neither, asks for them.
//!
//! A client that connects gets a greeting first; then it asks and gets an answer, one after the other. Numbers are
//! little endian.
//!
//! | bytes | of the greeting |
//! |---|---|
//! | 8 | `PFlazy`, version 1, 0 |
//! | 16 | the token of the backup |
//! | 8 | seconds that a read may wait for the store |
//!
//! | bytes | of a question |
//! |---|---|
//! | 1 | 1 pages, 2 figures, 3 wishes, 4 other wishes |
//! | 8 | object |
//! | 4 | recordsize; for other wishes, 1 if pages that nobody reads are to be brought, too |
//! | 8 | byte offset; for other wishes, largest number of bytes of such pages a second, 0 for no bound |
//! | 4 | length in bytes |
//!
//! A question for wishes is answered by 9 bytes: 1 byte (1 if such pages are to be brought), and 8 with the bound.
//!
//! An answer is a byte (0 done, 1 damaged, 2 the store does not answer, 3 anything else), a length (4), and bytes: the
//! result, or the reason of the failure.

use std::time::Duration;

use pagefold_engine::Result;
use pagefold_engine::wire::Reader;

use crate::origin::Token;

const MAGIC: [u8; 8] = *b"PFlazy\x01\0";
pub(crate) const GREETING_BYTES: usize = 32;
pub(crate) const QUESTION_BYTES: usize = 25;
pub(crate) const ANSWER_HEAD_BYTES: usize = 5;
pub(crate) const PAGES: u8 = 1;
pub(crate) const FIGURES: u8 = 2;
pub(crate) const WISHES: u8 = 3;
pub(crate) const WISH: u8 = 4;
pub(crate) const DONE: u8 = 0;
pub(crate) const DAMAGED: u8 = 1;
pub(crate) const AWAY: u8 = 2;
pub(crate) const OTHER: u8 = 3;

/// Greeting of every client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Token of the backup.
    pub token: Token,
    /// Longest time that a read may wait for the store; whole seconds count.
    pub patience: Duration,
}

/// Requests to the servers of datasets over a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// True if pages that nobody reads are to be brought, too.
    pub hydrate: bool,
    /// Largest number of bytes of records that are brought a second.
    pub rate: Option<u64>,
}

impl Wishes {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = vec![u8::from(self.hydrate)];
        out.extend_from_slice(&self.rate.unwrap_or(0).to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "wishes");
        let hydrate = reader.u8()? != 0;
        let rate = Some(reader.u64()?).filter(|rate| *rate > 0);
        reader.end()?;
        Ok(Self { hydrate, rate })
    }
}

impl Greeting {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.token.0);
        out.extend_from_slice(&self.patience.as_secs().to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "greeting");
        if reader.take(MAGIC.len())? != MAGIC {
            return Err(reader.bad("it is none of this version"));
        }
        let mut token = [0; 16];
        token.copy_from_slice(reader.take(16)?);
        let patience = Duration::from_secs(reader.u64()?.min(24 * 60 * 60));
        reader.end()?;
        Ok(Self { token: Token(token), patience })
    }
}

/// Encodes a question.
pub(crate) fn question(kind: u8, object: u64, record_size: u32, offset: u64, len: u32) -> Vec<u8> {
    let mut out = vec![kind];
    out.extend_from_slice(&object.to_le_bytes());
    out.extend_from_slice(&record_size.to_le_bytes());
    out.extend_from_slice(&offset.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
    out
}
