//! Makes and destroys pools.

use std::path::PathBuf;
use std::sync::Arc;

use super::checkpoint::write_superblock;
use super::label::{FORMAT_VERSION, Guid, Label, NAME_BYTES_MAX, Superblock, is_name};
use super::membership::{MemberEntry, Membership};
use super::opening::Opening;
use super::root::Root;
use super::trim::discard_chunks;
use crate::device::{AlignedBuf, Device, Devices, FileDevice, MemberState, OneDevice, OpenMode};
use crate::limits::{DEVICE_BYTES_MAX, DEVICE_BYTES_MIN};
use crate::segment::{Located, Segment, Segments, record_checksum};
use crate::space::{Chunk, Chunks};
use crate::wal::{LogWriter, Position, Rec, RecordKind};
use crate::{Error, Result};

/// Number that stands for the pool's own tree where datasets are named by numbers.
pub(super) const OWN: u64 = 0;
/// Number of the dataset that every pool has.
pub(super) const FIRST_DATASET: u64 = 1;
/// Largest number of devices of a pool.
const DEVICES_MAX: usize = 4096;

/// Options of making a pool.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// True to overwrite a pool that the devices hold.
    pub force: bool,
    /// Time of creation, in seconds since 1970.
    pub created: u64,
    /// GUID of the pool; those of its devices follow from it.
    pub guid: Guid,
}

/// Makes a pool on these devices (files or block devices, which must exist).
pub fn create(name: &str, paths: &[PathBuf], options: &CreateOptions) -> Result<()> {
    create_with(name, &Devices::all(open_devices(paths)?), options, false, 1)
}

/// As [`create`], but first tells the devices that they hold nothing.
pub fn create_trimmed(name: &str, paths: &[PathBuf], options: &CreateOptions) -> Result<()> {
    create_with(name, &Devices::all(open_devices(paths)?), options, true, 1)
}

fn open_devices(paths: &[PathBuf]) -> Result<Vec<Arc<dyn Device>>> {
    let open = |path: &PathBuf| Ok(Arc::new(FileDevice::open(path, OpenMode::ReadWrite)?) as Arc<dyn Device>);
    paths.iter().map(open).collect()
}

/// Makes a pool on devices that are open.
pub fn create_on(name: &str, devices: &[Arc<dyn Device>], options: &CreateOptions) -> Result<()> {
    create_with(name, &Devices::all(devices.to_vec()), options, false, 1)
}

/// Makes a pool whose log begins in segment `segment`; with `trim` it first tells the devices that they hold nothing.
pub(super) fn create_with(
    name: &str,
    devices: &Devices,
    options: &CreateOptions,
    trim: bool,
    segment: u64,
) -> Result<()> {
    check_name(name)?;
    if devices.is_empty() || devices.len() > DEVICES_MAX {
        return Err(Error::Invalid(format!("a pool has 1 to {DEVICES_MAX} devices, not {}", devices.len())));
    }
    let labels: Vec<Label> = devices
        .here()
        .iter()
        .map(|here| new_label(name, here.one(), here.number, devices, options))
        .collect::<Result<_>>()?;
    devices.here().iter().try_for_each(|here| Label::erase(here.one()))?;
    for label in labels.iter().filter(|_| trim) {
        discard_chunks(devices, label.device, 0..Chunk::count(label.size_bytes).into())?;
    }
    let superblock = write_first_root(devices, &labels, options, segment)?;
    for label in &labels {
        label.write(devices.device(label.device)?.one())?;
    }
    // Labels must be durable before the superblock that makes the pool count.
    devices.flush()?;
    write_superblock(devices, &labels, &superblock)
}

fn new_label(
    name: &str,
    device: OneDevice<'_>,
    number: u16,
    devices: &Devices,
    options: &CreateOptions,
) -> Result<Label> {
    let path = device.path().display();
    if device.size_bytes() < DEVICE_BYTES_MIN {
        return Err(Error::Invalid(format!(
            "{path} is too small for a pool: {} bytes, and at least {DEVICE_BYTES_MIN} are needed",
            device.size_bytes()
        )));
    }
    if device.size_bytes() > DEVICE_BYTES_MAX {
        return Err(Error::Invalid(format!(
            "{path} is too large for a pool: {} bytes, and at most {DEVICE_BYTES_MAX} (16 PiB) of a device can be used; make smaller ones of it",
            device.size_bytes()
        )));
    }
    if let (Ok(old), false) = (Label::read(device), options.force) {
        return Err(Error::Busy(format!(
            "{path} belongs to pool '{}' already; destroy that first, or use -f to overwrite it",
            old.name
        )));
    }
    Ok(Label {
        version: FORMAT_VERSION,
        device: number,
        devices: devices.len() as u16,
        incompat: 0,
        readonly_compat: 0,
        pool: options.guid,
        guid: options.guid.of_device(number),
        size_bytes: device.size_bytes(),
        created: options.created,
        log: options.guid,
        formerly: Guid::NONE,
        membership: Membership::first(number, devices.len() as u16, vec![MemberEntry {
            number,
            state: MemberState::Whole,
            birth: options.guid.high() ^ u64::from(number),
        }]),
        name: name.into(),
    })
}

/// Writes the root of an empty pool as the first batch of its log.
fn write_first_root(
    devices: &Devices,
    labels: &[Label],
    options: &CreateOptions,
    segment: u64,
) -> Result<Superblock> {
    let sizes: Vec<u64> = labels.iter().map(|label| label.size_bytes).collect();
    let chunks = Arc::new(Chunks::new(&sizes));
    let segments = Arc::new(Segments::new(1 << 20));
    let (chunk, next, copies) = (chunks.allocate()?, chunks.allocate()?, chunks.allocate()?);
    let position = Position { segment, chunk, used: 0, slots: 0, next, batch: 1, chain: 0 };
    segments.insert(Segment::fresh(position.segment, chunk))?;
    let mut writer =
        LogWriter::new(options.guid.low(), position, Arc::clone(&segments), chunks, devices.clone());
    let root = Root {
        checkpoint: 1,
        position,
        open_directory: segments
            .open_directory(position.segment)
            .unwrap_or_default()
            .encode(position.segment)
            .bytes,
        page_ids: segments.page_ids(),
        lists: Vec::new(),
        dead: Vec::new(),
        own: None,
        catalogue: Vec::new(),
        copies: Vec::new(),
    };
    let bytes = root.encode();
    let copy = AlignedBuf::from_bytes(&bytes);
    let len_bytes = bytes.len() as u32;
    let record = Rec { kind: RecordKind::Root, model: None, bytes };
    let appended = writer.append(1, &[record], 0, |_| Vec::new(), false)?;
    let ptr =
        appended.ptrs.first().ok_or_else(|| Error::corrupt("root of a checkpoint", "it was not stored"))?;
    devices.write(copies.device, copies.offset(), &copy, false)?;
    writer.flushes().wrote(copies.device);
    writer.flushes().flush()?;
    let checksum = record_checksum(ptr.addr.copy(), copy.get(..len_bytes as usize).unwrap_or_default());
    let second = Located { device: copies.device, offset: copies.offset(), len_bytes, checksum };
    Ok(Superblock {
        generation: 1,
        log: options.guid,
        root: segments.locate(devices, ptr.addr)?,
        second,
        addr: ptr.addr,
        exported: true,
        flushed: writer.flushes().flushed_batch(),
        confirmed: true,
        epoch: labels.first().map_or(0, |label| label.membership.epoch),
        opening: Opening::first(options.guid.high(), options.created),
    })
}

fn check_name(name: &str) -> Result<()> {
    if is_name(name) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "'{name}' is no name for a pool: it begins with a letter and has up to {NAME_BYTES_MAX} letters, digits and any of _ - . :"
    )))
}

/// Erases the labels of a pool's devices; what they held is lost.
pub fn destroy(paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        let device = FileDevice::open(path, OpenMode::ReadWrite)?;
        Label::read(OneDevice::of(&device))?;
        Label::erase(OneDevice::of(&device))?;
    }
    Ok(())
}
