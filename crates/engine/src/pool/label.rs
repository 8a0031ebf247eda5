//! Labels and superblocks: by these a device tells to which pool it belongs, and where the last checkpoint is.
//!
//! Some MiB of a device are reserved ([`crate::space::reserved_places`]). Each holds, from its start:
//!
//! | offset | what | size |
//! |---|---|---|
//! | 0 | label | 4096 |
//! | 65536 | ring of 32 superblocks | 4096 each |
//!
//! Labels lie in all of these places, rings in the first and the last. Superblock `g` lies in slot `g mod 32` of both
//! rings of every device. Of the valid, confirmed ones the newest counts, by its opening and then by its generation;
//! any copy may be lost.
//!
//! Label (little-endian, zero to 4092):
//!
//! | offset | field | size |
//! |---|---|---|
//! | 0 | magic `PAGEFOLD` | 8 |
//! | 8 | format version | 4 |
//! | 12 | number of this device | 2 |
//! | 14 | zero | 2 |
//! | 16 | incompatible features: an unknown one refuses the pool | 8 |
//! | 24 | read-only compatible features: an unknown one allows reading only | 8 |
//! | 32 | GUID of the pool | 16 |
//! | 48 | GUID of this device | 16 |
//! | 64 | bytes of this device that its group uses | 8 |
//! | 72 | seconds since 1970 at which the pool was created | 8 |
//! | 80 | chunk size in bytes | 4 |
//! | 84 | GUID of the log: what superblocks and batches carry | 16 |
//! | 100 | GUID that the pool had before, or zeros | 16 |
//! | 116 | membership ([`Membership`]) | 117 |
//! | 233 | length of the name | 1 |
//! | 234 | name, as `is_name` demands, then zeros | 63 |
//! | 297 | tables that the membership's came from | 1024 |
//! | 1321 | groups that are gone | 513 |
//! | 4092 | crc32c of the bytes before | 4 |
//!
//! The GUID of the pool can be changed ([`super::reguid`]), the GUID of its log never: so changing the former touches
//! labels alone.
//!
//! Superblock. Its fields take the first 508 bytes of each 512, and the last 4 have the crc32c of all fields: a device
//! may write any of its sectors and not the others. If two superblocks shared a sector, a torn one could become whole by
//! the next one, torn as well, in the same slot.
//!
//! | place among the fields | field | size |
//! |---|---|---|
//! | 0 | magic `PFsuperb` | 8 |
//! | 8 | generation | 8 |
//! | 16 | GUID of the log | 16 |
//! | 32 | offset of the root on its device | 8 |
//! | 40 | address of the root | 8 |
//! | 48 | length of the root | 4 |
//! | 52 | checksum of the root | 4 |
//! | 56 | device of the root | 2 |
//! | 58 | 1: the pool was exported | 1 |
//! | 59 | all batches with lower numbers were flushed | 8 |
//! | 67 | offset of the root's second copy | 8 |
//! | 75 | checksum of it | 4 |
//! | 79 | device of it | 2 |
//! | 81 | 1: all devices have this superblock or one that has 0 here, flushed | 1 |
//! | 82 | epoch of the pool | 8 |
//! | 90 | number, nonce and time of the opening; number, nonce and last checkpoint of the 128 before it | 3096 |
//! | 3186 | number of the group that is the log device, plus 1; 0: there is none | 2 |
//! | 3188 | 1: the log device may have batches that no other device has | 1 |

use super::membership::Membership;
use super::opening::{Opening, Standing};
use crate::device::{AlignedBuf, MemberState, OneDevice};
use crate::limits::{BLOCK_BYTES, CHUNK_BYTES, DEVICE_BYTES_MAX, DEVICE_BYTES_MIN};
use crate::segment::Located;
use crate::space::reserved_places;
use crate::wire::Reader;
use crate::{Addr, Error, Result};

/// First bytes of a label.
pub(crate) const LABEL_MAGIC: [u8; 8] = *b"PAGEFOLD";
/// First bytes of a superblock.
pub(crate) const SUPERBLOCK_MAGIC: [u8; 8] = *b"PFsuperb";
/// First bytes of the label of a spare, which is no member ([`super::spares`]).
pub(crate) const SPARE_MAGIC: [u8; 8] = *b"PFspare!";
/// Version of the format that this program writes.
pub const FORMAT_VERSION: u32 = 7;
/// Features that this program knows.
pub const KNOWN_FEATURES: u64 = 0;
/// Number of slots of a ring of superblocks.
pub const RING_SLOTS: u64 = 32;
/// Offset at which a ring begins within its reserved MiB.
pub const RING_START: u64 = 64 << 10;
/// Longest pool name in bytes.
pub const NAME_BYTES_MAX: usize = 63;

/// Place of what the membership's table came from.
const LINEAGE_AT: usize = 234 + NAME_BYTES_MAX;
pub(super) const CHECKSUM_AT: usize = BLOCK_BYTES - 4;
/// Bytes that a device writes as a whole at least.
const SECTOR_BYTES: usize = 512;
/// Bytes of a sector that have fields of a superblock; a checksum follows.
const SECTOR_FIELDS: usize = SECTOR_BYTES - 4;

/// The group that is a pool's log device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogGroup {
    /// Its number.
    pub number: u16,
    /// True if it may have batches that no other device has, so that the pool needs it.
    pub is_needed: bool,
}

/// Identifier of a pool or a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid(pub [u8; 16]);

impl Guid {
    /// The GUID that stands for none.
    pub const NONE: Self = Self([0; 16]);

    /// Returns the low 8 bytes, which batches carry.
    pub fn low(self) -> u64 {
        let mut low = [0; 8];
        low.copy_from_slice(&self.0[..8]);
        u64::from_le_bytes(low)
    }

    /// Returns the high 8 bytes.
    pub(super) fn high(self) -> u64 {
        let mut high = [0; 8];
        high.copy_from_slice(&self.0[8..]);
        u64::from_le_bytes(high)
    }

    /// Returns the GUID of device `number` of a pool with this GUID.
    pub(super) fn of_device(self, number: u16) -> Self {
        let mut guid = self.0;
        for (byte, bits) in guid[14..].iter_mut().zip((number + 1).to_le_bytes()) {
            *byte ^= bits;
        }
        Self(guid)
    }
}

/// Returns true if a pool can have this name. Such a name can be part of a file's name, and be shown as it is.
pub(crate) fn is_name(name: &str) -> bool {
    name.len() <= NAME_BYTES_MAX
        && name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.:".contains(c))
}

impl std::fmt::Display for Guid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Guid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// The label of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Format version.
    pub version: u32,
    /// Number of this device in the pool.
    pub device: u16,
    /// Features without which the pool cannot be read.
    pub incompat: u64,
    /// Features without which the pool cannot be written.
    pub readonly_compat: u64,
    /// The pool's GUID.
    pub pool: Guid,
    /// This device's GUID.
    pub guid: Guid,
    /// Bytes of this device that its group uses; the device may be larger.
    pub size_bytes: u64,
    /// Seconds since 1970 at which the pool was created.
    pub created: u64,
    /// GUID of the log, which superblocks and batches carry: the pool's own when it was made.
    pub log: Guid,
    /// The pool's GUID before it was changed last; [`Guid::NONE`]: it never was.
    pub formerly: Guid,
    /// The group that the device is a member of.
    pub membership: Membership,
    /// The pool's name.
    pub name: String,
}

impl Label {
    fn encode(&self) -> AlignedBuf {
        let mut out = Vec::with_capacity(BLOCK_BYTES);
        out.extend_from_slice(&LABEL_MAGIC);
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.device.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.incompat.to_le_bytes());
        out.extend_from_slice(&self.readonly_compat.to_le_bytes());
        out.extend_from_slice(&self.pool.0);
        out.extend_from_slice(&self.guid.0);
        out.extend_from_slice(&self.size_bytes.to_le_bytes());
        out.extend_from_slice(&self.created.to_le_bytes());
        out.extend_from_slice(&(CHUNK_BYTES as u32).to_le_bytes());
        out.extend_from_slice(&self.log.0);
        out.extend_from_slice(&self.formerly.0);
        self.membership.encode(&mut out);
        out.push(self.name.len() as u8);
        out.extend_from_slice(self.name.as_bytes());
        out.resize(LINEAGE_AT, 0);
        self.membership.encode_lineage(&mut out);
        self.membership.encode_gone(&mut out);
        checksummed_block(&out)
    }

    fn decode(block: &[u8], device: OneDevice<'_>) -> Result<Self> {
        let path = device.path().display();
        let mut reader = Reader::new(block, "pool label");
        if reader.take(8)? != LABEL_MAGIC {
            return Err(Error::NotAPool(format!("{path} holds no Pagefold pool")));
        }
        if !block_holds(block) {
            return Err(Error::corrupt(format!("label of {path}"), "its checksum does not hold"));
        }
        let version = reader.u32()?;
        if version != FORMAT_VERSION {
            let to_use = match version < FORMAT_VERSION {
                true => {
                    "use the version of pagefold that made it, and copy what is on it to a pool of this one"
                }
                false => "use the version of pagefold that made it, or a later one",
            };
            return Err(Error::Unsupported(format!(
                "{path} has format version {version}; this program knows version {FORMAT_VERSION}: {to_use}"
            )));
        }
        let (device_number, _) = (reader.u16()?, reader.u16()?);
        let (incompat, readonly_compat) = (reader.u64()?, reader.u64()?);
        if incompat & !KNOWN_FEATURES != 0 {
            return Err(Error::Unsupported(format!(
                "{path} uses features ({:#x}) that this program does not know; use a later version of pagefold",
                incompat & !KNOWN_FEATURES
            )));
        }
        let pool = Guid(reader.take(16)?.try_into().unwrap_or_default());
        let guid = Guid(reader.take(16)?.try_into().unwrap_or_default());
        let (size_bytes, created, chunk) = (reader.u64()?, reader.u64()?, reader.u32()?);
        let log = Guid(reader.take(16)?.try_into().unwrap_or_default());
        let formerly = Guid(reader.take(16)?.try_into().unwrap_or_default());
        let mut membership = Membership::decode(&mut reader)?;
        let mut further = Reader::new(block.get(LINEAGE_AT..).unwrap_or_default(), "pool label");
        membership.decode_lineage(&mut further)?;
        membership.decode_gone(&mut further)?;
        let len = usize::from(reader.u8()?);
        let name =
            std::str::from_utf8(reader.take(len.min(NAME_BYTES_MAX))?).ok().filter(|name| is_name(name));
        let name = name.ok_or_else(|| reader.bad("the pool's name is none that a pool can have"))?.to_owned();
        if u64::from(chunk) != CHUNK_BYTES
            || membership.entry(device_number).is_none()
            || !(DEVICE_BYTES_MIN..=DEVICE_BYTES_MAX).contains(&size_bytes)
        {
            return Err(Error::corrupt(format!("label of {path}"), "a field is out of range"));
        }
        if size_bytes > device.size_bytes() {
            return Err(Error::corrupt(
                format!("device {path}"),
                format!(
                    "it is {} bytes long and its label says {size_bytes}: it was truncated. If it is a file, make it as long again, with zeros in place of what is lost (truncate -s {size_bytes} {path})",
                    device.size_bytes()
                ),
            ));
        }
        Ok(Self {
            version,
            device: device_number,
            incompat,
            readonly_compat,
            pool,
            guid,
            size_bytes,
            created,
            log,
            formerly,
            membership,
            name,
        })
    }

    /// Reads the label of a device: the first copy that can be read. A device may have grown, so that all places are
    /// looked into that may have a copy; the lowest ones are those of the pool that was made last.
    pub fn read(device: OneDevice<'_>) -> Result<Self> {
        let mut first = None;
        for place in reserved_places(device.size_bytes()) {
            let block = read_block(device, place);
            if block.as_ref().is_ok_and(|block| is_of_spare(block)) {
                // Labels behind it are of the time when it was a member.
                let path = device.path().display();
                return Err(first.unwrap_or_else(|| {
                    Error::NotAPool(format!("{path} is a spare of a pool, and holds no data"))
                }));
            }
            match block.and_then(|block| Self::decode(&block, device)) {
                Err(error) if first.is_none() && !matches!(error, Error::Unsupported(_)) => {
                    first = Some(error);
                }
                Err(error) if first.is_none() => return Err(error),
                Err(_) => {}
                found => return found,
            }
        }
        Err(first.unwrap_or_else(|| {
            Error::NotAPool(format!("{} holds no Pagefold pool", device.path().display()))
        }))
    }

    /// Returns true if what lies on `device`, whose label this is, is worth nothing alone: it was being filled from others, or
    /// was being added to the pool and got no superblock yet.
    #[must_use]
    pub fn is_unfinished(&self, device: OneDevice<'_>) -> bool {
        let own = self.membership.entry(self.device);
        own.is_some_and(|entry| entry.state == MemberState::Filling)
            || Superblock::read_all(device, self).is_empty()
    }

    /// Returns an error if the pool uses features without which it may only be read.
    pub fn check_writable(&self) -> Result<()> {
        let unknown = self.readonly_compat & !KNOWN_FEATURES;
        if unknown == 0 {
            return Ok(());
        }
        Err(Error::Unsupported(format!(
            "pool '{}' uses features ({unknown:#x}) that this program can read but not write; open it read-only, or use a later version of pagefold",
            self.name
        )))
    }

    /// Writes the label to all of its places.
    pub fn write(&self, device: OneDevice<'_>) -> Result<()> {
        self.offsets().into_iter().try_for_each(|offset| self.write_at(device, offset))
    }

    /// Makes a device show this label instead of whatever it showed before. On return that is durable.
    pub(super) fn take_over(&self, device: OneDevice<'_>) -> Result<()> {
        Self::erase(device)?;
        self.write(device)?;
        device.flush()
    }

    /// Returns the offsets at which the label lies, in bytes.
    pub(crate) fn offsets(&self) -> Vec<u64> {
        reserved_places(self.size_bytes)
    }

    /// Writes the label over another one of the same device, so that the device shows one of the two whenever the power
    /// fails: the first copy counts, and is written when all others are there. If a power cut has torn the first copy
    /// before, others are all that there is, and are written when the first one is there.
    ///
    /// A flush that failed before may have left any one copy undurable, whatever reads show. So the one that is to stay is
    /// written first as it is: if it was durable, it stays so, and if not, another one is.
    pub(super) fn rewrite(&self, device: OneDevice<'_>) -> Result<()> {
        let offsets = self.offsets();
        let (first, others) =
            offsets.split_first().ok_or_else(|| Error::corrupt("label", "it has no place"))?;
        let kept = offsets.iter().find_map(|offset| Some((offset, sound_block(device, *offset)?)));
        if let Some((offset, block)) = &kept {
            device.write(**offset, block)?;
            device.flush()?;
        }
        let is_first_kept = kept.is_some_and(|(offset, _)| offset == first);
        let parts = if is_first_kept { [others, &[*first]] } else { [&[*first], others] };
        for offsets in parts {
            offsets.iter().try_for_each(|offset| self.write_at(device, *offset))?;
            device.flush()?;
        }
        Ok(())
    }

    /// Writes what the pool is opened by as it is: the first copy of the label, and this superblock, as far as a device has
    /// them. A flush of an earlier process may have failed, so that reads show what is not durable. The next flush makes it
    /// so.
    pub(super) fn settle(&self, superblock: &Superblock, device: OneDevice<'_>) -> Result<()> {
        let label =
            self.offsets().into_iter().find_map(|offset| Some((offset, sound_block(device, offset)?)));
        let is_it = |block: &AlignedBuf| {
            Superblock::decode(block)
                .is_some_and(|found| Superblock { confirmed: superblock.confirmed, ..found } == *superblock)
        };
        let in_ring = |offset: u64| Some((offset, read_block(device, offset).ok().filter(&is_it)?));
        let superblocks = self.slots(superblock.generation).into_iter().filter_map(in_ring);
        label.into_iter().chain(superblocks).try_for_each(|(offset, block)| device.write(offset, &block))
    }

    /// Does what [`Label::rewrite`] does, over a label that said that less of the device is used: the last reserved place,
    /// with the second ring of superblocks, is another one then. It gets the superblocks before the label.
    pub(super) fn grow_from(&self, before: &Self, device: OneDevice<'_>) -> Result<()> {
        let ([first, old], [_, new]) = (before.rings(), self.rings());
        if new != old {
            for at in (0..RING_SLOTS).map(|slot| slot * BLOCK_BYTES as u64) {
                // Superblocks carry their checksum; of one that cannot be read in either ring nobody knows.
                let block = read_block(device, old + at).or_else(|_| read_block(device, first + at));
                device.write(new + at, &block.unwrap_or_else(|_| AlignedBuf::zeroed(BLOCK_BYTES)))?;
            }
            device.flush()?;
        }
        self.rewrite(device)
    }

    /// Writes one copy of the label.
    pub(super) fn write_at(&self, device: OneDevice<'_>, offset: u64) -> Result<()> {
        device.write(offset, &self.encode())
    }

    /// Returns an error unless this label lies at `offset` of a device. It may have another table of the group, and another
    /// size: these are written to one place after the other, the first one last, and the power may go in between. What the
    /// first place says counts, and the others are as new, or newer.
    pub(super) fn verify_at(&self, device: OneDevice<'_>, offset: u64) -> Result<()> {
        let block = read_block(device, offset)?;
        let is_this = |there: Self| {
            Self { membership: self.membership.clone(), size_bytes: self.size_bytes, ..there } == *self
        };
        if block_holds(&block) && Self::decode(&block, device).is_ok_and(is_this) {
            return Ok(());
        }
        let what = format!("label at byte {offset} of {}", device.path().display());
        Err(Error::corrupt(what, "it is not the one that the pool was opened by"))
    }

    /// Returns true if just this label lies at `offset` of a device.
    pub(super) fn lies_at(&self, device: OneDevice<'_>, offset: u64) -> bool {
        let block = read_block(device, offset);
        block.is_ok_and(|block| {
            block_holds(&block) && Self::decode(&block, device).is_ok_and(|there| there == *self)
        })
    }

    /// Makes a device hold no pool any more, neither this one nor another that had the device before.
    pub(crate) fn erase(device: OneDevice<'_>) -> Result<()> {
        // Nothing else of these places is ever read or written: the rest stays holes of a sparse file, which is known
        // by having holes.
        let zeros = AlignedBuf::zeroed(RING_START as usize + RING_SLOTS as usize * BLOCK_BYTES);
        let places = reserved_places(device.size_bytes());
        places.into_iter().try_for_each(|place| device.write(place, &zeros))?;
        device.flush()
    }

    /// Returns the offsets at which the rings of superblocks begin, in bytes.
    fn rings(&self) -> [u64; 2] {
        let last = self.offsets().last().copied().unwrap_or_default();
        [RING_START, last + RING_START]
    }

    fn slots(&self, generation: u64) -> [u64; 2] {
        self.rings().map(|ring| ring + generation % RING_SLOTS * BLOCK_BYTES as u64)
    }
}

/// A superblock, which tells where the root of the last checkpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Number of the superblock. Each checkpoint and each opening for writing takes the next one.
    pub generation: u64,
    /// GUID of the log.
    pub log: Guid,
    /// Place of the root.
    pub root: Located,
    /// Place of the root's second copy, which is as long.
    pub second: Located,
    /// Address of the root.
    pub addr: Addr,
    /// True if the pool was exported: nothing follows in the log.
    pub exported: bool,
    /// All batches of the log with lower numbers were on stable storage when the superblock was written (T7).
    pub flushed: u64,
    /// True if all devices had this superblock, with false here, on stable storage before it was written: from then on
    /// a device without it is stale. A pool of one device has only superblocks with true here.
    pub confirmed: bool,
    /// Epoch of the pool: it rises when groups are added.
    pub epoch: u64,
    /// The opening that wrote it.
    pub opening: Opening,
    /// The log device.
    pub log_device: Option<LogGroup>,
}

impl Superblock {
    /// Returns how far the pool had come when the superblock was written.
    pub(crate) fn standing(&self) -> Standing {
        Standing { opening: self.opening, generation: self.generation, open: !self.exported }
    }

    /// Returns the key by which the superblocks of one device are ordered by age.
    pub(super) fn order(&self) -> (u64, u64, bool) {
        (self.opening.id.number, self.generation, self.confirmed)
    }

    fn encode(&self) -> AlignedBuf {
        let mut out = Vec::with_capacity(BLOCK_BYTES);
        out.extend_from_slice(&SUPERBLOCK_MAGIC);
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&self.log.0);
        out.extend_from_slice(&self.root.offset.to_le_bytes());
        out.extend_from_slice(&self.addr.raw().to_le_bytes());
        out.extend_from_slice(&self.root.len_bytes.to_le_bytes());
        out.extend_from_slice(&self.root.checksum.to_le_bytes());
        out.extend_from_slice(&self.root.device.to_le_bytes());
        out.push(u8::from(self.exported));
        out.extend_from_slice(&self.flushed.to_le_bytes());
        out.extend_from_slice(&self.second.offset.to_le_bytes());
        out.extend_from_slice(&self.second.checksum.to_le_bytes());
        out.extend_from_slice(&self.second.device.to_le_bytes());
        out.push(u8::from(self.confirmed));
        out.extend_from_slice(&self.epoch.to_le_bytes());
        self.opening.encode(&mut out);
        let number = self.log_device.map_or(0, |group| group.number.saturating_add(1));
        out.extend_from_slice(&number.to_le_bytes());
        out.push(u8::from(self.log_device.is_some_and(|group| group.is_needed)));
        checksummed_sectors(out)
    }

    fn decode(block: &[u8]) -> Option<Self> {
        let fields = fields_of_sectors(block)?;
        let mut reader = Reader::new(&fields, "superblock");
        if reader.take(8).ok()? != SUPERBLOCK_MAGIC {
            return None;
        }
        let generation = reader.u64().ok()?;
        let log = Guid(reader.take(16).ok()?.try_into().ok()?);
        let offset = reader.u64().ok()?;
        let addr = Addr::from_raw(reader.u64().ok()?)?;
        let (len_bytes, checksum, device) = (reader.u32().ok()?, reader.u32().ok()?, reader.u16().ok()?);
        let (exported, flushed) = (reader.u8().ok()? == 1, reader.u64().ok()?);
        let root = Located { device, offset, len_bytes, checksum };
        let (offset, checksum, device) = (reader.u64().ok()?, reader.u32().ok()?, reader.u16().ok()?);
        let second = Located { device, offset, len_bytes, checksum };
        let (confirmed, epoch) = (reader.u8().ok()? == 1, reader.u64().ok()?);
        let opening = Opening::decode(&mut reader).ok()?;
        let (number, is_needed) = (reader.u16().ok()?, reader.u8().ok()? == 1);
        let log_device = number.checked_sub(1).map(|number| LogGroup { number, is_needed });
        Some(Self {
            generation,
            log,
            root,
            second,
            addr,
            exported,
            flushed,
            confirmed,
            epoch,
            opening,
            log_device,
        })
    }

    /// Writes the superblock to both rings of a device.
    pub fn write(&self, device: OneDevice<'_>, label: &Label) -> Result<()> {
        (0..2).try_for_each(|ring| self.write_to(ring, device, label))
    }

    /// Writes the superblock to the first or the second ring of a device.
    pub(crate) fn write_to(&self, ring: usize, device: OneDevice<'_>, label: &Label) -> Result<()> {
        let slots = label.slots(self.generation);
        device.write(slots[ring % 2], &self.encode())
    }

    /// Returns all valid superblocks of a device, newest first.
    pub fn read_all(device: OneDevice<'_>, label: &Label) -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        for start in label.rings() {
            let mut ring = AlignedBuf::zeroed((RING_SLOTS as usize) * BLOCK_BYTES);
            // An unreadable ring is a lost copy; the other one counts.
            if let Err(error) = device.read(start, &mut ring) {
                tracing::warn!(%error, "a ring of superblocks cannot be read");
                continue;
            }
            found.extend(
                ring.chunks(BLOCK_BYTES).filter_map(Self::decode).filter(|block| block.log == label.log),
            );
        }
        found.sort_unstable_by_key(|block| std::cmp::Reverse(block.order()));
        found.dedup();
        found
    }
}

/// Returns true if a block is the label of a spare.
fn is_of_spare(block: &[u8]) -> bool {
    block.starts_with(&SPARE_MAGIC) && block_holds(block)
}

pub(super) fn checksummed_block(bytes: &[u8]) -> AlignedBuf {
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
    block[..bytes.len()].copy_from_slice(bytes);
    let checksum = crc32c::crc32c(&block[..CHECKSUM_AT]);
    block[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
    block
}

pub(super) fn block_holds(block: &[u8]) -> bool {
    block.len() == BLOCK_BYTES && crc32c::crc32c(&block[..CHECKSUM_AT]).to_le_bytes() == block[CHECKSUM_AT..]
}

/// Returns a block with these fields of a superblock, each sector with the checksum of all.
fn checksummed_sectors(mut fields: Vec<u8>) -> AlignedBuf {
    fields.resize(BLOCK_BYTES / SECTOR_BYTES * SECTOR_FIELDS, 0);
    let checksum = crc32c::crc32c(&fields).to_le_bytes();
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
    for (sector, fields) in block.chunks_mut(SECTOR_BYTES).zip(fields.chunks(SECTOR_FIELDS)) {
        let (place, end) = sector.split_at_mut(SECTOR_FIELDS);
        place.copy_from_slice(fields);
        end.copy_from_slice(&checksum);
    }
    block
}

/// Returns the fields of a superblock; `None` if not all sectors are of one superblock.
fn fields_of_sectors(block: &[u8]) -> Option<Vec<u8>> {
    let sectors =
        || block.chunks(SECTOR_BYTES).map(|sector| sector.split_at(SECTOR_FIELDS.min(sector.len())));
    let fields: Vec<u8> = sectors().map(|(fields, _)| fields).collect::<Vec<_>>().concat();
    let checksum = crc32c::crc32c(&fields).to_le_bytes();
    let is_whole = block.len() == BLOCK_BYTES && sectors().all(|(_, end)| end == checksum);
    is_whole.then_some(fields)
}

/// Returns a block that is sound by its checksum.
fn sound_block(device: OneDevice<'_>, offset: u64) -> Option<AlignedBuf> {
    read_block(device, offset).ok().filter(|block| block_holds(block))
}

pub(super) fn read_block(device: OneDevice<'_>, offset: u64) -> Result<AlignedBuf> {
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
    device.read(offset, &mut block)?;
    Ok(block)
}

#[cfg(test)]
mod tests;
