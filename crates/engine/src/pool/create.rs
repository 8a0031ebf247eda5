//! Makes and destroys pools.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::label::{FORMAT_VERSION, Guid, Label, LogGroup, NAME_BYTES_MAX, Superblock, is_name};
use super::membership::{FIRST_EPOCH, MIRROR_MAX, MemberEntry, Membership};
use super::opening::Opening;
use super::root::Root;
use super::roster::write_superblock;
use super::spare_label::SpareLabel;
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
    create_with(name, (&Devices::all(open_devices(paths)?), false), options, false, 1)
}

/// Makes a pool of groups of devices: a group of several is a mirror. `log` are the devices that get each commit first, if
/// there are any. With `trim` it first tells the devices that they hold nothing.
pub fn create_groups(
    name: &str,
    groups: &[Vec<PathBuf>],
    log: &[PathBuf],
    options: &CreateOptions,
    trim: bool,
) -> Result<()> {
    let groups = groups.iter().map(|paths| open_devices(paths)).collect::<Result<Vec<_>>>()?;
    let (devices, has_log) = with_log(groups, open_devices(log)?);
    create_with(name, (&devices, has_log), options, trim, 1)
}

/// Returns the devices of groups and of a log device, and whether there is one: it is the last group.
fn with_log(mut groups: Vec<Vec<Arc<dyn Device>>>, log: Vec<Arc<dyn Device>>) -> (Devices, bool) {
    let has_log = !log.is_empty();
    groups.extend(has_log.then_some(log));
    (Devices::groups(groups), has_log)
}

fn open_devices(paths: &[PathBuf]) -> Result<Vec<Arc<dyn Device>>> {
    let open = |path: &PathBuf| Ok(Arc::new(FileDevice::open(path, OpenMode::ReadWrite)?) as Arc<dyn Device>);
    paths.iter().map(open).collect()
}

/// Makes a pool on devices that are open.
pub fn create_on(name: &str, devices: &[Arc<dyn Device>], options: &CreateOptions) -> Result<()> {
    create_with(name, (&Devices::all(devices.to_vec()), false), options, false, 1)
}

/// As [`create_groups`], on devices that are open, without a log device.
pub fn create_groups_on(name: &str, groups: &[Vec<Arc<dyn Device>>], options: &CreateOptions) -> Result<()> {
    create_with(name, (&Devices::groups(groups.to_vec()), false), options, false, 1)
}

/// As [`create_groups`], on devices that are open.
pub fn create_with_log_on(
    name: &str,
    groups: &[Vec<Arc<dyn Device>>],
    log: &[Arc<dyn Device>],
    options: &CreateOptions,
) -> Result<()> {
    let (devices, has_log) = with_log(groups.to_vec(), log.to_vec());
    create_with(name, (&devices, has_log), options, false, 1)
}

/// Makes a pool whose log begins in segment `segment`; the last group is the log device if `has_log` says so. With `trim` it
/// first tells the devices that they hold nothing.
pub(super) fn create_with(
    name: &str,
    (devices, has_log): (&Devices, bool),
    options: &CreateOptions,
    trim: bool,
    segment: u64,
) -> Result<()> {
    check_name(name)?;
    let here = devices.here();
    if here.is_empty() || here.len() > DEVICES_MAX {
        return Err(Error::Invalid(format!("a pool has 1 to {DEVICES_MAX} devices, not {}", here.len())));
    }
    for device in &here {
        check_device(device.one(), options)?;
    }
    let groups = devices.len() as u16;
    let tables: Vec<Membership> =
        (0..groups).map(|group| first_table(devices, group, options)).collect::<Result<_>>()?;
    let labels: Vec<Label> = here
        .iter()
        .filter_map(|device| {
            let table = tables.get(usize::from(device.group))?;
            Some(new_label(name, device.number, devices.size_bytes(device.group).ok()?, table, options))
        })
        .collect();
    here.iter().try_for_each(|device| Label::erase(device.one()))?;
    let mut sizes: Vec<u64> = (0..groups).map(|group| devices.size_bytes(group)).collect::<Result<_, _>>()?;
    for (group, size_bytes) in (0..groups).zip(&sizes).filter(|_| trim) {
        discard_chunks(devices, group, 0..Chunk::count(*size_bytes).into())?;
    }
    let log_group = groups.checked_sub(1).filter(|_| has_log);
    if has_log {
        sizes.pop();
    }
    let superblock = Superblock {
        log_device: log_group.map(|number| LogGroup { number, is_needed: false }),
        ..write_first_root(devices, &sizes, options, segment)?
    };
    for label in &labels {
        label.write(devices.device(label.device)?.one())?;
    }
    // Labels must be durable before the superblock that makes the pool count.
    devices.flush()?;
    write_superblock(devices, &labels, &superblock, &|superblock| Ok(*superblock))
}

/// Returns an error if a device cannot be part of a new pool.
fn check_device(device: OneDevice<'_>, options: &CreateOptions) -> Result<()> {
    check_size(device)?;
    if let (Ok(Some(old)), false) = (SpareLabel::read(device), options.force) {
        return Err(Error::Busy(format!(
            "{} is a spare of pool '{}'; remove it there first, or use -f to overwrite it",
            device.path().display(),
            old.name
        )));
    }
    if let (Ok(old), false) = (Label::read(device), options.force) {
        return Err(Error::Busy(format!(
            "{} belongs to pool '{}' already; destroy that first, or use -f to overwrite it",
            device.path().display(),
            old.name
        )));
    }
    Ok(())
}

/// Returns an error if a device is too small or too large for any pool.
pub(super) fn check_size(device: OneDevice<'_>) -> Result<()> {
    check_size_of(device.path(), device.size_bytes())
}

/// Does what [`check_size`] does, with a device of that path and size.
pub(super) fn check_size_of(path: &Path, size_bytes: u64) -> Result<()> {
    let path = path.display();
    if size_bytes < DEVICE_BYTES_MIN {
        return Err(Error::Invalid(format!(
            "{path} is too small for a pool: {size_bytes} bytes, and at least {DEVICE_BYTES_MIN} are needed"
        )));
    }
    if size_bytes > DEVICE_BYTES_MAX {
        return Err(Error::Invalid(format!(
            "{path} is too large for a pool: {size_bytes} bytes, and at most {DEVICE_BYTES_MAX} (16 PiB) of a device can be used; make smaller ones of it"
        )));
    }
    Ok(())
}

/// Returns an error if a group cannot have so many devices.
pub(super) fn check_members(count: usize) -> Result<()> {
    match count {
        0 => Err(Error::Invalid("a group has at least one device".into())),
        1..=MIRROR_MAX => Ok(()),
        _ => Err(Error::Invalid(format!("a mirror has at most {MIRROR_MAX} devices, not {count}"))),
    }
}

/// Returns the first table of a group.
fn first_table(devices: &Devices, group: u16, options: &CreateOptions) -> Result<Membership> {
    let states = devices.states(group);
    check_members(states.len())?;
    let entry = |(number, state): &(u16, MemberState)| MemberEntry {
        number: *number,
        state: *state,
        leaves: false,
        birth: options.guid.high() ^ u64::from(*number),
    };
    Ok(Membership::first(group, devices.len() as u16, states.iter().map(entry).collect()))
}

fn new_label(name: &str, number: u16, size_bytes: u64, table: &Membership, options: &CreateOptions) -> Label {
    Label {
        version: FORMAT_VERSION,
        device: number,
        incompat: 0,
        readonly_compat: 0,
        pool: options.guid,
        guid: options.guid.of_device(number),
        size_bytes,
        created: options.created,
        log: options.guid,
        formerly: Guid::NONE,
        membership: table.clone(),
        name: name.into(),
    }
}

/// Writes the root of an empty pool as the first batch of its log.
fn write_first_root(
    devices: &Devices,
    sizes: &[u64],
    options: &CreateOptions,
    segment: u64,
) -> Result<Superblock> {
    let chunks = Arc::new(Chunks::new(sizes));
    let segments = Arc::new(Segments::new(1 << 20));
    let (chunk, next, copies) = (chunks.allocate()?, chunks.allocate()?, chunks.allocate()?);
    let position = Position { segment, chunk, used: 0, slots: 0, next, batch: 1, chain: 0 };
    segments.insert(Segment::fresh(position.segment, chunk))?;
    let mut writer = LogWriter::new(options.guid.low(), position, Arc::clone(&segments), chunks, devices);
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
        lacks: Vec::new(),
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
        epoch: FIRST_EPOCH,
        opening: Opening::first(options.guid.high(), options.created),
        log_device: None,
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

/// Erases the labels of a pool's devices and spares; what they held is lost.
pub fn destroy(paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        let device = FileDevice::open(path, OpenMode::ReadWrite)?;
        if !matches!(SpareLabel::read(OneDevice::of(&device)), Ok(Some(_))) {
            Label::read(OneDevice::of(&device))?;
        }
        Label::erase(OneDevice::of(&device))?;
    }
    Ok(())
}
