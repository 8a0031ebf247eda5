//! Attacks the engine's decoders of bytes from a device.

use std::path::Path;
use std::sync::Arc;

use pagefold_engine::device::{AlignedBuf, Device, DeviceStats, Devices, OneDevice};
use pagefold_engine::history::{HOUR_SECONDS, SpaceHistory, SpaceSample};
use pagefold_engine::limits::{BLOCK_BYTES, CHUNK_BYTES};
use pagefold_engine::pool::label::{Label, Superblock};
use pagefold_engine::pool::{CreateOptions, Guid, SpareLabel, create_on};
use pagefold_engine::record::{
    Compression, Encoder, ModelId, Models, NoModels, Record, Squeeze, bases_of, decode, encode_delta,
    logical_len,
};
use pagefold_engine::segment::{
    DirEntry, Directory, LiveMap, PageIds, Part, Parts, Segment, Segments, decode_page,
};
use pagefold_engine::space::{Chunk, Chunks, Extent};
use pagefold_engine::types::SLOT_BITS;
use pagefold_engine::wal::{self, Position, batch as stored};
use pagefold_engine::wire::Reader;
use pagefold_engine::{Addr, Error, Key, Ptr, Result, dataset};
use pagefold_sim::random::Random;

/// Bytes of a sector of a superblock.
const SECTOR_BYTES: usize = 512;
pub(super) const POOL: Guid = Guid(*b"hostile-bytes-16");
/// Salt of the batches that are believed to tell what had been flushed.
pub(super) const SALT: wal::batch::Salt = [0; 6];
/// Size in bytes of the device that targets read from.
const DEVICE_BYTES: u64 = 256 << 20;

/// A device that holds some bytes at one place, and zeros elsewhere.
pub(super) struct Bytes {
    at: u64,
    bytes: Vec<u8>,
    stats: DeviceStats,
}

impl Bytes {
    pub(super) fn new(at: u64, bytes: Vec<u8>) -> Self {
        Self { at, bytes, stats: DeviceStats::default() }
    }
}

impl Device for Bytes {
    fn path(&self) -> &Path {
        Path::new("hostile")
    }
    fn size_bytes(&self) -> u64 {
        DEVICE_BYTES
    }
    fn read(&self, offset: u64, buf: &mut AlignedBuf) -> Result<()> {
        let end = offset.checked_add(buf.len() as u64).filter(|&end| end <= DEVICE_BYTES);
        if end.is_none() {
            return Err(Error::Invalid("beyond the device".into()));
        }
        buf.fill(0);
        let (skip, ahead) = (offset.saturating_sub(self.at), self.at.saturating_sub(offset));
        let from = self.bytes.get(skip as usize..).unwrap_or_default();
        let to = buf.get_mut(ahead as usize..).unwrap_or_default();
        let len = to.len().min(from.len());
        to[..len].copy_from_slice(&from[..len]);
        Ok(())
    }
    fn write(&self, _: u64, _: &AlignedBuf, _: bool) -> Result<()> {
        Err(Error::Invalid("read only".into()))
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
    fn stats(&self) -> &DeviceStats {
        &self.stats
    }
}

/// Returns a block with these bytes and the right checksum.
fn checksummed(bytes: &[u8]) -> Vec<u8> {
    let mut block = bytes.to_vec();
    block.resize(BLOCK_BYTES, 0);
    let at = BLOCK_BYTES - 4;
    let checksum = crc32c::crc32c(&block[..at]);
    block[at..].copy_from_slice(&checksum.to_le_bytes());
    block
}

/// Returns a block with these fields of a superblock, and their checksum at the end of each sector.
fn checksummed_sectors(bytes: &[u8]) -> Vec<u8> {
    let mut fields = bytes.to_vec();
    fields.resize(BLOCK_BYTES / SECTOR_BYTES * (SECTOR_BYTES - 4), 0);
    let checksum = crc32c::crc32c(&fields).to_le_bytes();
    fields.chunks(SECTOR_BYTES - 4).flat_map(|fields| fields.iter().chain(&checksum)).copied().collect()
}

/// Returns the device of a new pool.
fn image() -> Option<Arc<pagefold_engine::device::SimDevice>> {
    let device = Arc::new(pagefold_engine::device::SimDevice::new(256 << 20, 1));
    let options = CreateOptions { force: false, created: 1, guid: POOL };
    create_on("hostile", &[Arc::clone(&device) as Arc<dyn Device>], &options).ok()?;
    Some(device)
}

fn first_blocks(count: usize) -> Vec<Vec<u8>> {
    let Some(device) = image() else { return Vec::new() };
    let mut buf = AlignedBuf::zeroed(count * BLOCK_BYTES);
    match device.read(0, &mut buf) {
        Ok(()) => buf.chunks(BLOCK_BYTES).map(|block| block[..3200].to_vec()).collect(),
        Err(_) => Vec::new(),
    }
}

pub(super) fn label_seeds() -> Vec<Vec<u8>> {
    let spare = pagefold_engine::pool::fuzzing::spare_label_seed();
    first_blocks(1).into_iter().chain([spare]).collect()
}

pub(super) fn label(bytes: &[u8]) -> bool {
    let device = Bytes::new(0, checksummed(bytes));
    if let Ok(Some(_)) = SpareLabel::read(OneDevice::of(&device)) {
        return true;
    }
    let Ok(label) = Label::read(OneDevice::of(&device)) else { return false };
    let _refused_or_not = label.check_writable();
    let _blocks = Superblock::read_all(OneDevice::of(&device), &label);
    true
}

pub(super) fn superblock_seeds() -> Vec<Vec<u8>> {
    let blocks = first_blocks(64).into_iter().filter(|block| block.starts_with(b"PF"));
    let fields = |block: Vec<u8>| block.chunks(SECTOR_BYTES).flat_map(fields_of).copied().collect();
    blocks.map(fields).collect()
}

/// Returns the bytes of a sector without the checksum.
fn fields_of(sector: &[u8]) -> &[u8] {
    &sector[..sector.len().min(SECTOR_BYTES - 4)]
}

/// Reads a ring of superblocks with the one that has these fields at its start.
pub(super) fn superblock(bytes: &[u8]) -> bool {
    let Some(sim) = image_label() else { return false };
    let device = Bytes::new(pagefold_engine::pool::label::RING_START, checksummed_sectors(bytes));
    let mut label = sim;
    label.size_bytes = DEVICE_BYTES;
    !Superblock::read_all(OneDevice::of(&device), &label).is_empty()
}

fn image_label() -> Option<Label> {
    static LABEL: std::sync::OnceLock<Option<Label>> = std::sync::OnceLock::new();
    LABEL.get_or_init(|| Label::read(OneDevice::of(&*image()?)).ok()).clone()
}

pub(super) fn root_seeds() -> Vec<Vec<u8>> {
    pagefold_engine::pool::fuzzing::root_seeds()
}

pub(super) fn root(bytes: &[u8]) -> bool {
    pagefold_engine::pool::fuzzing::root(bytes)
}

fn header(records: &[(u32, u8)], ops: &[u8]) -> Vec<u8> {
    let fixed = stored::HEADER_BYTES + records.len() * stored::ENTRY_BYTES + ops.len();
    let len = fixed + records.iter().map(|(len, _)| *len as usize).sum::<usize>();
    let mut bytes = stored::MAGIC.to_vec();
    bytes.resize(stored::HEADER_BYTES, 0);
    bytes[72..76].copy_from_slice(&(records.len() as u32).to_le_bytes());
    bytes[76..80].copy_from_slice(&(ops.len() as u32).to_le_bytes());
    bytes[80..84].copy_from_slice(&(len as u32).to_le_bytes());
    for (len, kind) in records {
        bytes.extend(stored::entry_bytes(*len, *kind, 7));
    }
    bytes.extend_from_slice(ops);
    bytes.resize(len, 0xab);
    bytes
}

pub(super) fn batch_seeds() -> Vec<Vec<u8>> {
    let ops = redo_seeds().concat();
    vec![header(&[], &[]), header(&[(100, 0), (50, 1), (3000, 2)], &ops), header(&[(1, 0); 40], &[])]
}

fn set_checksums_of_batch(bytes: &mut [u8]) -> Option<usize> {
    let len = u32::from_le_bytes(bytes.get(80..84)?.try_into().ok()?) as usize;
    let body = bytes.get_mut(..len).filter(|body| body.len() >= stored::HEADER_BYTES)?;
    stored::set_checksums(body);
    Some(len)
}

pub(super) fn batch(bytes: &[u8]) -> bool {
    let mut bytes = bytes.to_vec();
    let _without_checksums_is_fine = set_checksums_of_batch(&mut bytes);
    let Some(batch) = stored::Verified::new(&bytes) else { return false };
    assert_eq!(batch.padded_bytes() as usize % BLOCK_BYTES, 0);
    for base in [0, CHUNK_BYTES as u32, u32::MAX] {
        assert_eq!(batch.entries(base).count(), batch.header().records.get() as usize);
    }
    redo(batch.ops())
}

/// Returns positions, each with batches behind it that the target makes continue it.
pub(super) fn replay_seeds() -> Vec<Vec<u8>> {
    let chunk = |index| Chunk { device: 0, index };
    let positions = [(1, 0, 0), (900, 8192, 12), (1 << 39, CHUNK_BYTES as u32 - 8192, (1 << SLOT_BITS) - 3)];
    let batches = batch_seeds().concat();
    let stored = |&(segment, used, slots): &(u64, u32, u32)| {
        let mut bytes = Vec::new();
        let position =
            Position { segment, chunk: chunk(2), used, slots, next: chunk(3), batch: segment, chain: 5 };
        position.encode(&mut bytes);
        bytes.extend_from_slice(&batches);
        bytes
    };
    positions.iter().map(stored).collect()
}

pub(super) fn replay(bytes: &[u8]) -> bool {
    let mut reader = Reader::new(bytes, "position");
    let Ok(start) = Position::decode(&mut reader) else { return false };
    let mut log = bytes[bytes.len() - reader.remaining()..].to_vec();
    let mut device = Vec::new();
    let mut at = start;
    while let Some(batch) = next_batch(&mut log, &mut at) {
        device.extend(batch);
    }
    let place = start.chunk.offset().saturating_add(u64::from(start.used));
    let devices = Devices::all(vec![Arc::new(Bytes::new(place, device)) as Arc<dyn Device>]);
    replayed(&devices, start, bytes.len().is_multiple_of(2), None)
}

/// Takes the batch at the start of `log` as one that continues the log at a position, which moves behind it: everything that
/// an enemy could make right is made right.
pub(super) fn next_batch(log: &mut Vec<u8>, at: &mut Position) -> Option<Vec<u8>> {
    if log.len() < stored::HEADER_BYTES {
        return None;
    }
    log[..4].copy_from_slice(&stored::MAGIC);
    log[4..8].copy_from_slice(&at.slots.to_le_bytes());
    log[24..32].copy_from_slice(&at.chain.to_le_bytes());
    log[32..40].copy_from_slice(&at.batch.to_le_bytes());
    log[40..48].copy_from_slice(&POOL.low().to_le_bytes());
    log[48..56].copy_from_slice(&at.segment.to_le_bytes());
    log[84..88].copy_from_slice(&at.next.index.to_le_bytes());
    log[88..90].copy_from_slice(&at.next.device.to_le_bytes());
    let len = set_checksums_of_batch(log)?;
    let mut batch = log[..len].to_vec();
    log.drain(..len);
    at.chain = u64::from_le_bytes(batch[8..16].try_into().unwrap_or_default());
    at.slots = at.slots.wrapping_add(u32::from_le_bytes(batch[72..76].try_into().unwrap_or_default()));
    at.batch = at.batch.wrapping_add(1);
    batch.resize(batch.len().next_multiple_of(BLOCK_BYTES), 0);
    Some(batch)
}

/// Replays a log from a position on. Returns true if it has batches.
pub(super) fn replayed(
    devices: &Devices,
    start: Position,
    accept_loss: bool,
    logged: Option<&wal::LoggedBatches>,
) -> bool {
    let chunks = Chunks::new(&[DEVICE_BYTES]);
    let mut batches = 0;
    let (pool, flushed) = (POOL.low(), if logged.is_some() { 0 } else { start.batch });
    let source = wal::LogSource { pool, devices, chunks: &chunks, flushed, salt: SALT, accept_loss, logged };
    let ended = wal::replay(source, start, &mut |view| {
        batches += 1;
        assert!(view.segment < 1 << 40 && u64::from(view.end) <= CHUNK_BYTES + BLOCK_BYTES as u64);
        assert!(view.records.iter().all(|(entry, ..)| entry.slot < 1 << SLOT_BITS));
        redo(view.ops);
        Ok(())
    });
    ended.is_ok() && batches > 0
}

pub(super) fn redo_seeds() -> Vec<Vec<u8>> {
    use dataset::redo::{Bases, PageRun, Redo};
    let ptr = |slot| Some(Ptr { addr: Addr::new(3, slot), len_bytes: 900 });
    let run = PageRun {
        dataset: 1,
        object: 9,
        record_size: 8192,
        first: 4,
        shared: false,
        ptrs: vec![ptr(1), None, ptr(2)],
        bases: Bases::None,
    };
    let deltas = PageRun { bases: Bases::Kept(vec![2, 0, 0]), ptrs: vec![ptr(1), None, ptr(2)], ..run };
    let of_two = |slot| vec![Ptr { addr: Addr::new(2, slot), len_bytes: 700 }; 2];
    let named = Bases::Shared(vec![of_two(5), vec![], of_two(9)]);
    let shared = PageRun { bases: named, shared: true, ptrs: vec![ptr(1), None, ptr(2)], ..run };
    let ops = [
        Redo::Put(1, Key::new(5, 1, 77), b"value"),
        Redo::Delete(1, Key::new(5, 1, 77)),
        Redo::Punch { dataset: 1, object: 9, from: 3, to: 800 },
        Redo::Pages(run),
        Redo::Pages(deltas),
        Redo::Pages(shared),
    ];
    let stored = |op: &Redo<'_>| {
        let mut bytes = Vec::new();
        op.encode(&mut bytes);
        bytes
    };
    ops.iter().map(stored).collect()
}

pub(super) fn redo(bytes: &[u8]) -> bool {
    let mut seen = 0;
    dataset::redo::for_each(bytes, &mut |_| {
        seen += 1;
        Ok(())
    })
    .is_ok()
        && seen > 0
}

pub(super) fn node_seeds() -> Vec<Vec<u8>> {
    pagefold_engine::tree::fuzzing::node_seeds()
}

pub(super) fn node(bytes: &[u8]) -> bool {
    pagefold_engine::tree::fuzzing::node(bytes)
}

pub(super) fn space_history_seeds() -> Vec<Vec<u8>> {
    let mut random = Random::new(2);
    let (mut history, mut seeds) = (SpaceHistory::default(), Vec::new());
    for hour in 0..1000 {
        let (time, used_bytes) = (1_795_266_000 + hour * HOUR_SECONDS, random.below(1 << 40));
        history.observe(SpaceSample { time, used_bytes, logical_bytes: used_bytes * 3 });
        if [0, 1, 40, 999].contains(&hour) {
            seeds.push(history.encode());
        }
    }
    seeds
}

/// Samples that decode are those that encode, and a forecast comes of it, whatever the time is.
pub(super) fn space_history(bytes: &[u8]) -> bool {
    let Ok(history) = SpaceHistory::decode(bytes) else { return false };
    assert!(
        SpaceHistory::decode(&history.encode()).is_ok_and(|again| again == history),
        "it encodes to something else"
    );
    for time in history.samples().iter().map(|sample| sample.time).chain([u64::MAX]) {
        history.forecast(SpaceSample { time, ..SpaceSample::default() }, u64::MAX);
    }
    true
}

pub(super) fn directory_seeds() -> Vec<Vec<u8>> {
    let mut random = Random::new(1);
    let (mut directory, mut start) = (Directory::default(), 0);
    for slot in (0..60).step_by(2) {
        let len_bytes = random.below(5000) as u32;
        directory.push(DirEntry { slot, start, len_bytes, checksum: random.bits() as u32 });
        start += len_bytes;
    }
    let small = directory.clone();
    for slot in (3000..3000 + 2 * 1500).step_by(2) {
        directory.push(DirEntry { slot, start, len_bytes: 100, checksum: random.bits() as u32 });
        start += 100;
    }
    [Directory::default(), small, directory].map(|directory| directory.encode(7).bytes).to_vec()
}

pub(super) fn directory(bytes: &[u8]) -> bool {
    let mut bytes = bytes.to_vec();
    let _ = set_checksums_of_leaves(&mut bytes);
    let Ok(directory) = Directory::decode(&bytes, 7, CHUNK_BYTES as u32) else { return false };
    let ends = |entry: &DirEntry| u64::from(entry.start) + u64::from(entry.len_bytes) <= CHUNK_BYTES;
    assert!(directory.entries().iter().all(ends));
    for entry in directory.entries() {
        assert_eq!(directory.get(entry.slot).map(|found| found.slot), Some(entry.slot));
    }
    true
}

/// Sets the right checksums of leaves, as far as the index can be read.
fn set_checksums_of_leaves(bytes: &mut [u8]) -> Option<()> {
    let mut reader = Reader::new(bytes, "segment directory");
    let count = u32::from_le_bytes(reader.take(16).ok()?.get(12..)?.try_into().ok()?).min(64);
    let mut leaves = Vec::new();
    for _ in 0..count {
        for _ in 0..3 {
            reader.varint().ok()?;
        }
        let len = reader.varint().ok()?;
        leaves.push((len, bytes.len() - reader.remaining()));
        reader.u32().ok()?;
    }
    let mut at = bytes.len() - reader.remaining();
    for (len, checksum) in leaves {
        let end = at.checked_add(usize::try_from(len).ok()?)?;
        let computed = crc32c::crc32c(bytes.get(at..end)?);
        bytes.get_mut(checksum..checksum + 4)?.copy_from_slice(&computed.to_le_bytes());
        at = end;
    }
    Some(())
}

pub(super) fn table_seeds() -> Vec<Vec<u8>> {
    let table = Segments::new(1 << 20);
    for id in [1, 2, 90] {
        let mut segment = Segment::fresh(id, Chunk { device: 0, index: id as u32 });
        segment.parts = Parts::from_slice(&[Part {
            first_slot: 0,
            extent: Extent { chunk: Chunk { device: 0, index: 4 }, start: 0, len_bytes: 100_000 },
            directory: None,
        }]);
        segment.slots = 100;
        segment.live = LiveMap::default();
        for slot in (0..100).step_by(3) {
            segment.live.set(slot);
        }
        segment.live_bytes = 5000;
        if table.insert(segment).is_ok() {
            table.mark_dirty(0);
        }
    }
    table.snapshot(&std::collections::BTreeMap::new(), 0).pages.into_iter().map(|(_, bytes)| bytes).collect()
}

pub(super) fn table(bytes: &[u8]) -> bool {
    let table = Segments::new(1 << 20);
    let read = decode_page(PageIds::default(), 0, bytes);
    let loaded = read.map(|segments| table.load_page(0, segments, 0, &mut |_| {})).is_ok();
    let all = table.for_each(|segment| {
        let _counted = (segment.used_bytes(), segment.live.count(), segment.part(segment.slots));
    });
    loaded && all.is_ok()
}

pub(super) fn record_seeds() -> Vec<Vec<u8>> {
    let mut random = Random::new(2);
    let words = b"pagefold keeps pages of databases ".repeat(60);
    let mut noise = words.clone();
    for _ in 0..200 {
        let at = random.below(noise.len() as u64) as usize;
        noise[at] = random.bits() as u8;
    }
    let mut seeds = Vec::new();
    for compression in
        [Compression::Off, Compression::Lz4, Compression::Zstd(1), Compression::Zstd(9), Compression::Zlib(6)]
    {
        for page in [&words[..], &noise[..], &vec![7; 60_000][..]] {
            let mut record = Vec::new();
            Encoder::new().encode(page, compression, &mut record);
            seeds.push(record);
        }
    }
    let numbers: Vec<u8> = (0..512).flat_map(|n| (f64::from(n * n % 97) / 3.0 + 1.0).to_le_bytes()).collect();
    let mut record = Vec::new();
    Encoder::new().encode(&numbers, Compression::Page(1), &mut record);
    seeds.push(record);
    seeds
}

const FULL: Addr = Addr::new(7, 1);
const CHANGED: Addr = Addr::new(7, 2);

/// The bases of the target's deltas: a full record, and a delta of it.
struct Known;

/// Returns a page of 8 KiB after `times` changes.
fn changed_page(times: u8) -> Vec<u8> {
    let mut page = b"pagefold keeps pages of databases ".repeat(241);
    page.truncate(8192);
    for time in 0..times {
        page[usize::from(time) * 900..][..20].fill(time);
    }
    page
}

impl Models for Known {
    fn model(&self, id: ModelId) -> pagefold_engine::Result<Arc<pagefold_codec::Model>> {
        NoModels.model(id)
    }

    fn base(&self, addr: Addr) -> pagefold_engine::Result<Record> {
        let mut record = Vec::new();
        match addr {
            FULL => drop(Encoder::new().encode(&changed_page(0), Compression::Lz4, &mut record)),
            CHANGED => {
                encode_delta(&changed_page(0), &[FULL], &changed_page(1), Squeeze::Small, &mut record);
            }
            other => return NoModels.base(other),
        }
        Ok(record.into())
    }
}

pub(super) fn delta_seeds() -> Vec<Vec<u8>> {
    let of_full = |squeeze| {
        let mut record = Vec::new();
        encode_delta(&changed_page(0), &[FULL], &changed_page(4), squeeze, &mut record);
        record
    };
    let mut of_both = Vec::new();
    encode_delta(&changed_page(1), &[FULL, CHANGED], &changed_page(2), Squeeze::No, &mut of_both);
    let mut moved = changed_page(1);
    moved.rotate_left(64);
    let mut squeezed = Vec::new();
    encode_delta(&changed_page(1), &[FULL, CHANGED], &moved, Squeeze::Small, &mut squeezed);
    vec![of_full(Squeeze::No), of_full(Squeeze::Fast), of_full(Squeeze::Small), of_both, squeezed]
}

/// Decodes a delta whose bases are there. The result must not depend on the former content of the page.
pub(super) fn delta(bytes: &[u8]) -> bool {
    let (mut page, mut again) = (vec![0xee; 8192], vec![0x11; 8192]);
    let decoded =
        bases_of(bytes).is_ok_and(|bases| !bases.is_empty()) && decode(bytes, &Known, &mut page).is_ok();
    if decoded {
        assert!(decode(bytes, &Known, &mut again).is_ok() && again == page);
    }
    decoded
}

/// Decodes a record as pages of two sizes. A record may say that it is longer than its page (a bomb).
pub(super) fn record(bytes: &[u8]) -> bool {
    let Ok(len) = logical_len(bytes) else { return false };
    assert!((1..=1 << 20).contains(&len), "a record says to hold {len} bytes");
    let mut page = vec![0xee; 8192];
    let small = decode(bytes, &NoModels, &mut page).is_ok();
    page.resize(65_536, 0xee);
    let large = decode(bytes, &NoModels, &mut page).is_ok();
    assert!(large || !small);
    large
}
