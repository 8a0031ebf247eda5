//! The label of a spare: a device that belongs to a pool and is no member of it.
//!
//! It lies where labels of members lie, and begins with other bytes, so that it is never taken for one. The first sound
//! label of a device says what it is. Little-endian, zero to 4092:
//!
//! | offset | field | size |
//! |---|---|---|
//! | 0 | magic `PFspare!` | 8 |
//! | 8 | format version | 4 |
//! | 12 | GUID of the pool | 16 |
//! | 28 | number of the spare, by which the pool knows it | 8 |
//! | 36 | length of the pool's name | 1 |
//! | 37 | name, then zeros | 63 |
//! | 4092 | crc32c of the bytes before | 4 |
//!
//! - V1: a device that becomes a member or a spare again always shows a label that is sound: the first one changes when
//!   all others are as they are to be before it, or the others change when the first one is durable. So whenever the
//!   power goes it is known to be this spare.

use super::label::{
    FORMAT_VERSION, Guid, Label, NAME_BYTES_MAX, RING_SLOTS, RING_START, SPARE_MAGIC, block_holds,
    checksummed_block, is_name, read_block,
};
use crate::device::{AlignedBuf, OneDevice};
use crate::limits::BLOCK_BYTES;
use crate::space::reserved_places;
use crate::wire::Reader;
use crate::{Error, Result};

/// Says of which pool a device is a spare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpareLabel {
    /// GUID of the pool.
    pub pool: Guid,
    /// Number by which the pool knows the spare.
    pub id: u64,
    /// Name of the pool.
    pub name: String,
}

impl SpareLabel {
    /// Reads the label of a spare; `None` if the device is no spare, or cannot be read.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for one of another version of the format.
    pub fn read(device: OneDevice<'_>) -> Result<Option<Self>> {
        let blocks = reserved_places(device.size_bytes()).into_iter();
        let mut sound =
            blocks.filter_map(|place| read_block(device, place).ok().filter(|block| block_holds(block)));
        let Some(block) = sound.next().filter(|block| block.starts_with(&SPARE_MAGIC)) else {
            return Ok(None);
        };
        Self::decode(&block).map(Some)
    }

    pub(crate) fn encode(&self) -> AlignedBuf {
        let mut out = Vec::with_capacity(BLOCK_BYTES);
        out.extend_from_slice(&SPARE_MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&self.pool.0);
        out.extend_from_slice(&self.id.to_le_bytes());
        out.push(self.name.len() as u8);
        out.extend_from_slice(self.name.as_bytes());
        checksummed_block(&out)
    }

    pub(crate) fn decode(block: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(block, "label of a spare");
        if reader.take(8)? != SPARE_MAGIC || !block_holds(block) {
            return Err(reader.bad("it is none"));
        }
        match reader.u32()? {
            FORMAT_VERSION => {}
            version => {
                return Err(Error::Unsupported(format!(
                    "a spare has format version {version}, and this program knows {FORMAT_VERSION}"
                )));
            }
        }
        let pool = Guid(reader.take(16)?.try_into().unwrap_or_default());
        let (id, len) = (reader.u64()?, usize::from(reader.u8()?));
        let name =
            std::str::from_utf8(reader.take(len.min(NAME_BYTES_MAX))?).ok().filter(|name| is_name(name));
        let name = name.ok_or_else(|| reader.bad("the pool's name is none that a pool can have"))?.to_owned();
        Ok(Self { pool, id, name })
    }

    /// Makes a device a spare, whatever it was before. On return that is durable.
    pub(super) fn take_over(&self, device: OneDevice<'_>) -> Result<()> {
        Label::erase(device)?;
        reserved_places(device.size_bytes())
            .into_iter()
            .try_for_each(|place| device.write(place, &self.encode()))?;
        device.flush()
    }

    /// Makes a device a spare that is one, or was a member until now (V1).
    pub(super) fn take_back(&self, device: OneDevice<'_>) -> Result<()> {
        device.write(0, &self.encode())?;
        device.flush()?;
        clear_behind_first(device)?;
        let others = reserved_places(device.size_bytes());
        others.into_iter().skip(1).try_for_each(|place| device.write(place, &self.encode()))?;
        device.flush()
    }

    /// Writes the label again, over one of the same spare that has another name or GUID of the pool.
    pub(super) fn rewrite(&self, device: OneDevice<'_>) -> Result<()> {
        self.take_back(device)
    }

    /// Prepares a spare to become a member: of its labels the first one is left, over which the member's is written (V1).
    pub(super) fn prepare(device: OneDevice<'_>) -> Result<()> {
        clear_behind_first(device)
    }
}

/// Erases all that may be in the reserved places of a device, but for the first label.
fn clear_behind_first(device: OneDevice<'_>) -> Result<()> {
    let all = RING_START as usize + RING_SLOTS as usize * BLOCK_BYTES;
    for place in reserved_places(device.size_bytes()) {
        let skipped = if place == 0 { BLOCK_BYTES } else { 0 };
        device.write(place + skipped as u64, &AlignedBuf::zeroed(all - skipped))?;
    }
    device.flush()
}

#[cfg(test)]
mod tests;
