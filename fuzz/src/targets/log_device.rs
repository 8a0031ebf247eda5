//! Attacks the reader of log devices.

use std::sync::Arc;

use pagefold_engine::dataset::Change;
use pagefold_engine::device::{AlignedBuf, Device, Devices, SimDevice};
use pagefold_engine::limits::{BLOCK_BYTES, CHUNK_BYTES};
use pagefold_engine::pool::{CreateOptions, OpenOptions, Pool, create_with_log_on};
use pagefold_engine::space::Chunk;
use pagefold_engine::types::SLOT_BITS;
use pagefold_engine::wal::{LoggedBatches, Position, batch as stored};
use pagefold_engine::wire::Reader;

use super::engine::{Bytes, POOL, SALT, batch_seeds, next_batch, replayed};

/// Bytes that the log device is said to have: it is read up to there, or up to where nothing was ever written.
const LOG_BYTES: u64 = 24 << 20;
/// Offset of its first chunk.
const FIRST: u64 = 1 << 20;
/// Bytes of all that is written to it at most, so that an input takes a bounded time.
const WRITTEN_MAX: usize = 3 * CHUNK_BYTES as usize;

/// The place of a batch, as the two bytes before it tell: it is made right, so that the log goes on with it; it lies where it
/// belongs; it lies on the log device, so many times; and so many blocks of that are left out before each.
struct Placing {
    is_right: bool,
    in_place: bool,
    times: usize,
    skipped_blocks: usize,
}

impl Placing {
    fn of(raw: [u8; 2]) -> Self {
        let [how, skipped] = raw;
        let chunks = if how & 0x80 == 0 { 0 } else { CHUNK_BYTES as usize / BLOCK_BYTES };
        Self {
            is_right: how & 1 == 1,
            in_place: how & 2 == 2,
            times: usize::from(how >> 2 & 7),
            skipped_blocks: usize::from(skipped) + chunks,
        }
    }
}

/// Returns the log device of a pool that crashed: from its first chunk on, as far as it was written.
fn real_log() -> Option<Vec<u8>> {
    let sims: Vec<Arc<SimDevice>> = (0..2).map(|seed| Arc::new(SimDevice::new(140 << 20, seed))).collect();
    let handles = |sims: &[Arc<SimDevice>]| -> Vec<Arc<dyn Device>> {
        sims.iter().map(|sim| Arc::clone(sim) as Arc<dyn Device>).collect()
    };
    let options = CreateOptions { force: false, created: 1, guid: POOL };
    create_with_log_on("hostile", &[handles(&sims[..1])], &handles(&sims[1..]), &options).ok()?;
    let options = OpenOptions { cache_bytes: 8 << 20, salt: 7, ..OpenOptions::default() };
    let pool = Pool::open_on(handles(&sims), &options).ok()?;
    for at in 0..6_u64 {
        let data = vec![at as u8; 4096];
        let change = Change::Write { object: 4, record_size: 4096, offset: at * 4096, data: &data };
        pool.dataset().apply(&[change]).ok()?;
        pool.sync().ok()?;
    }
    let mut bytes = AlignedBuf::zeroed(48 << 10);
    sims.get(1)?.read(FIRST, &mut bytes).ok()?;
    Some(bytes.to_vec())
}

/// Returns the position at which the log goes on with the batch at the start of these bytes.
fn position_of(bytes: &[u8]) -> Option<Position> {
    let batch = stored::Verified::new(bytes)?;
    let header = batch.header();
    let next = Chunk { device: header.next_device.get(), index: header.next_index.get() };
    Some(Position {
        segment: header.segment.get(),
        chunk: Chunk { device: 0, index: 1 },
        used: 0,
        slots: header.first_slot.get(),
        next,
        batch: header.number.get(),
        chain: header.chain.get(),
    })
}

/// Returns positions with batches behind them, each behind two bytes that tell where it lies; and a log device of a real pool.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let chunk = |index| Chunk { device: 0, index };
    let at = |segment, used, slots| Position {
        segment,
        chunk: chunk(2),
        used,
        slots,
        next: chunk(3),
        batch: segment,
        chain: 5,
    };
    let positions =
        [at(1, 0, 0), at(900, 8192, 12), at(1 << 39, CHUNK_BYTES as u32 - 8192, (1 << SLOT_BITS) - 3)];
    let placings: [&[[u8; 2]]; 4] = [
        &[[5, 0], [5, 0], [5, 0]],
        &[[7, 0], [5, 3], [3, 0]],
        &[[29, 200], [0x85, 255], [12, 0]],
        &[[4, 0], [13, 0], [3, 9]],
    ];
    let mut seeds = Vec::new();
    for (position, placings) in positions.iter().flat_map(|at| placings.iter().map(move |how| (at, how))) {
        let mut bytes = Vec::new();
        position.encode(&mut bytes);
        for (batch, how) in batch_seeds().iter().zip(*placings) {
            bytes.extend(how);
            bytes.extend(batch);
        }
        seeds.push(bytes);
    }
    if let Some(log) = real_log()
        && let Some(position) = position_of(&log)
    {
        let mut seed = Vec::new();
        position.encode(&mut seed);
        seed.extend([4, 0]);
        seed.extend(log);
        seeds.push(seed);
    }
    seeds
}

/// Replays a log whose batches lie in their places, on the log device, on both, or on neither.
pub(super) fn replay(bytes: &[u8]) -> bool {
    let mut reader = Reader::new(bytes, "position");
    let Ok(start) = Position::decode(&mut reader) else { return false };
    let mut rest = bytes[bytes.len() - reader.remaining()..].to_vec();
    // It never grows beyond that: the allocations of an input are those of the reader.
    let (mut device, mut log) = (Vec::new(), Vec::with_capacity(WRITTEN_MAX));
    let mut at = start;
    while let Some(raw) = rest.get(..2).and_then(|raw| raw.try_into().ok()) {
        rest.drain(..2);
        let how = Placing::of(raw);
        let batch = match how.is_right {
            true => next_batch(&mut rest, &mut at),
            // As it is: all of the rest.
            false => Some(std::mem::take(&mut rest)),
        };
        let Some(mut batch) = batch else { break };
        batch.resize(batch.len().next_multiple_of(BLOCK_BYTES), 0);
        if how.in_place {
            device.extend_from_slice(&batch);
        }
        for _ in 0..how.times {
            let skipped_bytes = how.skipped_blocks * BLOCK_BYTES;
            if log.len() + skipped_bytes + batch.len() > WRITTEN_MAX {
                break;
            }
            log.resize(log.len() + skipped_bytes, 0);
            log.extend_from_slice(&batch);
        }
    }
    let place = start.chunk.offset().saturating_add(u64::from(start.used));
    let all = [Bytes::new(place, device), Bytes::new(FIRST, log)];
    let devices = Devices::all(all.into_iter().map(|bytes| Arc::new(bytes) as Arc<dyn Device>).collect());
    let accepts_loss = bytes.len().is_multiple_of(2) || bytes.len().is_multiple_of(3);
    let logged = LoggedBatches::read(&devices, (1, LOG_BYTES), (POOL.low(), SALT), accepts_loss);
    replayed(&devices, start, accepts_loss, Some(&logged))
}
