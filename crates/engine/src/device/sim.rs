//! A simulated device: in memory, deterministic, and as unkind as real ones.
//!
//! Fault model:
//! 1. A write is visible to reads at once, and durable after a flush, or on return if it was durable itself.
//! 2. A power cut keeps, for every 512-byte sector on its own, the last durable content or any one of the
//!    contents written since. So writes are torn between sectors, reordered and lost, never torn inside one.
//! 3. A failed flush or durable write leaves each unflushed sector with one such content, for good: reads still
//!    show the newest one until the power cut, and no later flush makes it durable.
//! 4. Reads, writes and flushes fail where the test says so; where it says so bits flip, blocks cannot be read, or
//!    have again what they had before.
//! 5. A cut armed with [`SimDevice::cut_after`] strikes inside a write or flush, of which it keeps any part.
//!
//! [`SimDevice::watch`] calls a watcher at every instant at which a power cut could make a difference, without a cut.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;

use super::{AlignedBuf, Device, DeviceStats, check_range};
use crate::limits::BLOCK_BYTES;
use crate::{Error, Result};

const SECTOR_BYTES: usize = 512;
type Block = [u8; BLOCK_BYTES];

/// Number of places that are remembered in the order in which they were written.
const LATEST_PLACES: usize = 32;

/// Kinds of call that an [`InjectedFault`] strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimOp {
    /// [`Device::read`]
    Read,
    /// [`Device::write`]; the failed write may have stored any part of itself.
    Write,
    /// [`Device::flush`]; the range of the fault does not matter.
    Flush,
}

/// A fault: calls that fail with EIO.
#[derive(Clone, Debug)]
pub struct InjectedFault {
    /// The kind of call.
    pub op: SimOp,
    /// Bytes of the device: only calls that touch them fail.
    pub range: Range<u64>,
    /// Number of such calls that succeed first.
    pub skip: u64,
    /// Number of calls that fail then; `u64::MAX` for all.
    pub times: u64,
}

/// A simulated device. Cloning an image ([`SimDevice::crash`]) shares unchanged blocks, so that thousands of
/// crashes of one state are cheap.
pub struct SimDevice {
    path: PathBuf,
    size_bytes: AtomicU64,
    /// Size that it has in truth: it may have grown since it was opened.
    real_bytes: AtomicU64,
    state: Mutex<SimState>,
    stats: DeviceStats,
    watcher: Mutex<Option<Watcher>>,
}

type Watcher = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct SimState {
    /// Content that reads see.
    visible: SimBlocks,
    /// Blocks that are the first of a write.
    begun: Arc<BTreeSet<u64>>,
    /// The blocks that the last writes began at, newest first.
    latest: VecDeque<u64>,
    /// Number of writes so far.
    writes: u64,
    /// Blocks of which sectors' visible contents are not durable.
    unflushed: BTreeMap<u64, UnflushedBlock>,
    /// Blocks that cannot be read until they are written.
    unreadable: BTreeSet<u64>,
    faults: Vec<InjectedFault>,
    /// Writes and flushes until the power cut.
    cut_in: Option<u64>,
    off: bool,
    failed: bool,
    random: SplitMix64,
}

/// Blocks by number, in groups that copies share until one of them changes. Absent blocks are zeros.
#[derive(Clone, Default)]
struct SimBlocks(BTreeMap<u64, Arc<BlockGroup>>);

type BlockGroup = [Option<Arc<Block>>; GROUP_BLOCKS];

const GROUP_BLOCKS: usize = 256;

impl SimBlocks {
    const fn place(block: u64) -> (u64, usize) {
        (block / GROUP_BLOCKS as u64, (block % GROUP_BLOCKS as u64) as usize)
    }

    fn get(&self, block: u64) -> Option<&Arc<Block>> {
        let (group, at) = Self::place(block);
        self.0.get(&group)?.get(at)?.as_ref()
    }

    fn slot(&mut self, block: u64) -> &mut Option<Arc<Block>> {
        let (group, at) = Self::place(block);
        let group = self.0.entry(group).or_insert_with(|| Arc::new([const { None }; GROUP_BLOCKS]));
        &mut Arc::make_mut(group)[at]
    }

    /// Returns the first block from `block` on that is present.
    fn first_from(&self, block: u64) -> Option<u64> {
        let (first, _) = Self::place(block);
        self.0.range(first..).find_map(|(group, blocks)| {
            let numbers = group * GROUP_BLOCKS as u64..;
            numbers
                .zip(blocks.iter())
                .find(|(at, content)| *at >= block && content.is_some())
                .map(|(at, _)| at)
        })
    }

    /// Returns all blocks that are present, ascending.
    fn iter(&self) -> impl Iterator<Item = (u64, &Block)> {
        self.0.iter().flat_map(|(group, blocks)| {
            let first = group * GROUP_BLOCKS as u64;
            (first..).zip(blocks.iter()).filter_map(|(block, content)| Some((block, content.as_deref()?)))
        })
    }
}

/// Returns the block that has the content of a sector, the `at`th one of a block, that survives a power cut: `None`
/// stands for the visible one, `Some(None)` for zeros.
type Keeper<'a> = dyn FnMut(&UnflushedBlock, usize) -> Option<Option<&Arc<Block>>> + 'a;

/// A block of which some sectors' visible contents are not durable. Sets of sectors are masks: bit 0 is the first.
#[derive(Default)]
struct UnflushedBlock {
    /// The sectors.
    sectors: u8,
    /// Content of these sectors that is durable; `None`: zeros.
    durable: Option<Arc<Block>>,
    /// The writes since, oldest first. A sector that is in none of these was lost by a failed flush: its visible
    /// content is gone with the next power cut.
    written: Vec<UnflushedWrite>,
}

/// A write that is not durable.
struct UnflushedWrite {
    number: u64,
    sectors: u8,
    content: Arc<Block>,
}

/// Returns the bytes of a sector in its block, the `at`th one.
const fn bytes_of(at: usize) -> Range<usize> {
    at * SECTOR_BYTES..(at + 1) * SECTOR_BYTES
}

/// Returns the sectors of a mask, ascending.
fn sectors_of(mask: u8) -> impl Iterator<Item = usize> {
    (0..SECTORS_PER_BLOCK).filter(move |at| mask >> at & 1 == 1)
}

impl SimDevice {
    /// Returns an empty (all-zero) device. `seed` decides what a failed flush keeps: two devices with the same seed and
    /// the same calls behave alike. `size_bytes` is rounded down to whole blocks.
    #[must_use]
    pub fn new(size_bytes: u64, seed: u64) -> Self {
        let state = SimState { random: SplitMix64(seed), ..SimState::default() };
        Self::with_state(PathBuf::from(format!("sim-{seed}")), size_bytes, state)
    }

    /// Does what [`SimDevice::new`] does, with the path that messages name.
    #[must_use]
    pub fn named(path: PathBuf, size_bytes: u64) -> Self {
        Self::with_state(path, size_bytes, SimState::default())
    }

    fn with_state(path: PathBuf, size_bytes: u64, state: SimState) -> Self {
        let size_bytes = size_bytes - size_bytes % BLOCK_BYTES as u64;
        Self {
            path,
            size_bytes: size_bytes.into(),
            real_bytes: size_bytes.into(),
            state: Mutex::new(state),
            stats: DeviceStats::default(),
            watcher: Mutex::default(),
        }
    }

    /// Makes the device larger. Who has it open learns that by [`Device::measure`].
    pub fn grow(&self, size_bytes: u64) {
        self.real_bytes.fetch_max(size_bytes - size_bytes % BLOCK_BYTES as u64, Ordering::AcqRel);
    }

    /// Returns the device as it is after a power cut at this moment, with all faults removed. `choose(n)`, called once
    /// per unflushed sector in ascending order, returns which of its `n` possible contents survived: 0 is the durable
    /// one, `n - 1` the newest (larger answers count as that). This device does not change.
    #[must_use]
    pub fn crash(&self, choose: &mut dyn FnMut(usize) -> usize) -> Self {
        self.crash_keeping(&mut |unflushed, at| unflushed.pick(at, choose))
    }

    /// As [`SimDevice::crash`], but each write that was not flushed survives as a whole or not at all, as chosen by
    /// `seed`: writes are lost and reordered, and none is torn.
    #[must_use]
    pub fn crash_by_writes(&self, seed: u64) -> Self {
        let survives =
            |write: u64| SplitMix64(seed ^ write.wrapping_mul(0x9E37_79B9_7F4A_7C15)).below(2) == 1;
        self.crash_keeping(&mut |unflushed, at| {
            let newest = unflushed.writes_of(at).rev().find(|write| survives(write.number));
            Some(newest.map_or(unflushed.durable.as_ref(), |write| Some(&write.content)))
        })
    }

    /// Returns the device as it is after a power cut, which keeps what `keep` says of each sector.
    fn crash_keeping(&self, keep: &mut Keeper<'_>) -> Self {
        let mut state = self.state.lock();
        let mut image = SimState {
            visible: state.visible.clone(),
            begun: Arc::clone(&state.begun),
            latest: state.latest.clone(),
            unreadable: state.unreadable.clone(),
            ..SimState::default()
        };
        for (&block, unflushed) in &state.unflushed {
            for at in sectors_of(unflushed.sectors) {
                if let Some(kept) = keep(unflushed, at) {
                    let content = image.block_mut(block);
                    copy_sector(content, kept.map(Arc::as_ref), at);
                }
            }
        }
        image.random = SplitMix64(state.random.next());
        drop(state);
        Self::with_state(self.path.clone(), self.real_bytes.load(Ordering::Acquire), image)
    }

    /// As [`SimDevice::crash`], with choices drawn from `seed`.
    #[must_use]
    pub fn crash_seeded(&self, seed: u64) -> Self {
        let mut random = SplitMix64(seed);
        self.crash(&mut |n| random.below(n))
    }

    /// Arms a power cut: `calls` more writes and flushes succeed, and the one after that is cut in the middle. That
    /// call and all later ones fail with EIO. [`SimDevice::crash`] then returns the device as it is after power has
    /// come back.
    pub fn cut_after(&self, calls: u64) {
        self.state.lock().cut_in = Some(calls);
    }

    /// Returns true if an armed power cut has struck.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.state.lock().off
    }

    /// Calls `watcher` before each write, flush and discard, and in the middle of each durable write, while no part of
    /// it is durable. A watcher that calls [`SimDevice::crash`] therefore sees everything that a power cut may leave.
    pub fn watch(&self, watcher: impl Fn() + Send + Sync + 'static) {
        *self.watcher.lock() = Some(Arc::new(watcher));
    }

    fn watched(&self) -> bool {
        let watcher = self.watcher.lock().clone();
        // The watcher uses this device, so no lock of it may be held here.
        watcher.is_some_and(|watcher| {
            watcher();
            true
        })
    }

    /// Makes calls fail from now on.
    pub fn inject(&self, fault: InjectedFault) {
        self.state.lock().faults.push(fault);
    }

    /// Removes all injected faults. A failed flush stays failed, as on a real device.
    pub fn clear_faults(&self) {
        self.state.lock().faults.clear();
    }

    /// Removes the injected faults of this kind of call.
    pub fn clear_faults_of(&self, op: SimOp) {
        self.state.lock().faults.retain(|fault| fault.op != op);
    }

    /// Acts as if the process ended and another one opened the device while the power stayed on: a failed flush no
    /// longer makes every later one fail. The data that it lost stay lost, which shows after the next power cut.
    pub fn reopen(&self) {
        self.state.lock().failed = false;
    }

    /// Flips bit `bit` (0..8) of the byte at `offset`, durably and silently. An offset beyond the device has no effect.
    pub fn flip_bit(&self, offset: u64, bit: u8) {
        if offset >= self.size_bytes() {
            return;
        }
        let mut state = self.state.lock();
        let (block, at) = (offset / BLOCK_BYTES as u64, (offset % BLOCK_BYTES as u64) as usize);
        let flip = |content: &mut Block| content[at] ^= 1 << (bit % 8);
        flip(state.block_mut(block));
        if let Some(unflushed) = state.unflushed.get_mut(&block) {
            flip(Arc::make_mut(unflushed.durable.get_or_insert_with(zero_block)));
            unflushed.written.iter_mut().for_each(|write| flip(Arc::make_mut(&mut write.content)));
        }
    }

    /// Has reads of the block at `offset` fail until it is written, also after a power cut.
    pub fn spoil(&self, offset: u64) {
        self.state.lock().unreadable.insert(offset / BLOCK_BYTES as u64);
    }

    /// Has all blocks that cannot be read become zeros.
    pub fn clear_unreadable(&self) {
        let mut state = self.state.lock();
        for block in std::mem::take(&mut state.unreadable) {
            *state.visible.slot(block) = None;
            state.unflushed.remove(&block);
        }
    }

    /// Has the block at `offset` hold what it holds on `older`, an earlier copy, durably and silently: as if the writes since
    /// had never been done.
    pub fn lose_writes(&self, offset: u64, older: &Self) {
        if offset >= self.size_bytes() {
            return;
        }
        let block = offset / BLOCK_BYTES as u64;
        let content = older.state.lock().visible.get(block).cloned();
        let mut state = self.state.lock();
        *state.visible.slot(block) = content;
        state.unflushed.remove(&block);
    }

    /// Returns the first byte of the `n`th of all places that a write has begun at, by ascending offset; `n` wraps
    /// around. Returns `None` before the first write.
    #[must_use]
    pub fn written_place(&self, n: u64) -> Option<u64> {
        let state = self.state.lock();
        let at = n.checked_rem(state.begun.len() as u64)?;
        state.begun.iter().nth(at as usize).map(|block| block * BLOCK_BYTES as u64)
    }

    /// Returns the first byte of the place that the last write began at, or the write that came `back` writes before
    /// it.
    #[must_use]
    pub fn latest_place(&self, back: usize) -> Option<u64> {
        self.state.lock().latest.get(back).map(|block| block * BLOCK_BYTES as u64)
    }

    /// Returns the first bytes of all blocks that hold anything but zeros, ascending.
    #[must_use]
    pub fn written_blocks(&self) -> Vec<u64> {
        let state = self.state.lock();
        let written = state.visible.iter().filter(|(_, content)| content.iter().any(|byte| *byte != 0));
        written.map(|(block, _)| block * BLOCK_BYTES as u64).collect()
    }

    /// Returns the number of sectors whose content a crash may take back.
    #[must_use]
    pub fn unflushed_sectors(&self) -> usize {
        self.state.lock().unflushed.values().map(|unflushed| unflushed.sectors.count_ones() as usize).sum()
    }

    fn eio(&self, op: &'static str, offset: u64, len_bytes: u64) -> Error {
        Error::Io { op, device: self.path.clone(), offset, len_bytes, source: Errno::IO.into() }
    }

    fn failed(&self) -> Error {
        Error::Failed(format!("an earlier write or flush of {} failed", self.path.display()))
    }
}

impl Device for SimDevice {
    fn path(&self) -> &Path {
        &self.path
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    fn measure(&self) -> Result<()> {
        self.size_bytes.fetch_max(self.real_bytes.load(Ordering::Acquire), Ordering::AcqRel);
        Ok(())
    }

    fn read(&self, offset: u64, buf: &mut AlignedBuf) -> Result<()> {
        let len_bytes = buf.len() as u64;
        check_range(&self.path, self.size_bytes(), offset, len_bytes)?;
        let mut state = self.state.lock();
        let strikes = state.strikes(SimOp::Read, offset, len_bytes);
        if state.off || strikes || state.has_unreadable(offset, len_bytes) {
            return Err(self.eio("read", offset, len_bytes));
        }
        for (block, part) in (offset / BLOCK_BYTES as u64..).zip(buf.chunks_exact_mut(BLOCK_BYTES)) {
            match state.visible.get(block) {
                Some(content) => part.copy_from_slice(&content[..]),
                None => part.fill(0),
            }
        }
        Ok(())
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn data_from(&self, offset: u64) -> Option<u64> {
        let block = self.state.lock().visible.first_from(offset / BLOCK_BYTES as u64)?;
        Some((block * BLOCK_BYTES as u64).max(offset))
    }

    fn write(&self, offset: u64, buf: &AlignedBuf, durable: bool) -> Result<()> {
        let len_bytes = buf.len() as u64;
        check_range(&self.path, self.size_bytes(), offset, len_bytes)?;
        let watched = self.watched();
        let mut state = self.state.lock();
        if durable && state.failed {
            return Err(self.failed());
        }
        if state.off {
            return Err(self.eio("write", offset, len_bytes));
        }
        let cut = state.cut_strikes();
        let fails = cut || state.strikes(SimOp::Write, offset, len_bytes);
        let first = offset / BLOCK_BYTES as u64;
        state.begin_write(first);
        let blocks = buf.as_chunks::<BLOCK_BYTES>().0;
        for (block, bytes) in (first..).zip(blocks) {
            // Sectors that a failed write stored are visible at once; the crash chooses among those of a write that was
            // cut.
            let all = !fails || cut;
            let stored = (0..SECTORS_PER_BLOCK)
                .filter(|_| all || state.random.below(2) == 1)
                .fold(0, |mask: u8, at| mask | 1 << at);
            state.write_block(block, bytes, stored, durable && !fails && !watched);
        }
        if watched && durable && !fails {
            drop(state);
            self.watched();
            state = self.state.lock();
            for block in first..first + blocks.len() as u64 {
                state.unflushed.remove(&block);
            }
        }
        if fails {
            state.failed |= durable;
            return Err(self.eio("write", offset, len_bytes));
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.watched();
        let mut state = self.state.lock();
        if state.failed {
            return Err(self.failed());
        }
        if state.off || state.cut_strikes() {
            return Err(self.eio("flush", 0, self.size_bytes()));
        }
        if state.strikes(SimOp::Flush, 0, self.size_bytes()) {
            state.fail_flush();
            return Err(self.eio("flush", 0, self.size_bytes()));
        }
        state.unflushed.retain(|_, unflushed| unflushed.flush());
        Ok(())
    }

    /// Discards a range. Each of its blocks reads as its old content, as zeros or as noise afterwards, as drawn at
    /// random, and a crash keeps that.
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        check_range(&self.path, self.size_bytes(), offset, len_bytes)?;
        self.watched();
        let mut state = self.state.lock();
        if state.off {
            return Err(self.eio("discard", offset, len_bytes));
        }
        let blocks = offset / BLOCK_BYTES as u64..(offset + len_bytes) / BLOCK_BYTES as u64;
        for block in blocks {
            state.discard_block(block);
        }
        Ok(())
    }

    fn stats(&self) -> &DeviceStats {
        &self.stats
    }
}

impl SimState {
    /// Returns the visible content of a block, to be changed.
    fn block_mut(&mut self, block: u64) -> &mut Block {
        Arc::make_mut(self.visible.slot(block).get_or_insert_with(zero_block))
    }

    /// Notes that a write begins at a block.
    fn begin_write(&mut self, block: u64) {
        Arc::make_mut(&mut self.begun).insert(block);
        self.latest.truncate(LATEST_PLACES - 1);
        self.latest.push_front(block);
        self.writes += 1;
    }

    /// Stores some sectors of a block.
    fn write_block(&mut self, block: u64, content: &Block, sectors: u8, durable: bool) {
        if sectors == 0 {
            return;
        }
        self.unreadable.remove(&block);
        let before = self.visible.get(block).cloned();
        let content = Arc::new(*content);
        if !durable {
            let unflushed = self.unflushed.entry(block).or_default();
            unflushed.add(sectors, before.as_ref());
            let content = Arc::clone(&content);
            unflushed.written.push(UnflushedWrite { number: self.writes, sectors, content });
        } else if let Some(unflushed) = self.unflushed.get_mut(&block)
            && !unflushed.remove(sectors)
        {
            self.unflushed.remove(&block);
        }
        if sectors == ALL_SECTORS {
            *self.visible.slot(block) = Some(content);
        } else {
            let visible = self.block_mut(block);
            sectors_of(sectors).for_each(|at| copy_sector(visible, Some(&content), at));
        }
    }

    fn fail_flush(&mut self) {
        self.failed = true;
        let random = &mut self.random;
        for (block, unflushed) in &mut self.unflushed {
            let mut durable = unflushed.durable.clone().unwrap_or_else(zero_block);
            for at in sectors_of(unflushed.sectors) {
                let kept = unflushed.pick(at, &mut |n| random.below(n));
                let newest = || self.visible.get(*block);
                copy_sector(Arc::make_mut(&mut durable), kept.unwrap_or_else(newest).map(Arc::as_ref), at);
            }
            unflushed.durable = Some(durable);
            unflushed.written.clear();
        }
    }

    fn discard_block(&mut self, block: u64) {
        match self.random.below(3) {
            0 => return,
            1 => {
                *self.visible.slot(block) = None;
            }
            _ => {
                let noise = self.random.next().to_le_bytes();
                let content: Block = std::array::from_fn(|i| noise[i % noise.len()]);
                *self.visible.slot(block) = Some(Arc::new(content));
            }
        }
        self.unflushed.remove(&block);
    }

    /// Counts a call down to the power cut; true for the call that is cut.
    fn cut_strikes(&mut self) -> bool {
        match &mut self.cut_in {
            None => false,
            Some(0) => {
                self.off = true;
                true
            }
            Some(calls) => {
                *calls -= 1;
                false
            }
        }
    }

    fn has_unreadable(&self, offset: u64, len_bytes: u64) -> bool {
        let blocks = offset / BLOCK_BYTES as u64..(offset + len_bytes).div_ceil(BLOCK_BYTES as u64);
        self.unreadable.range(blocks).next().is_some()
    }

    fn strikes(&mut self, op: SimOp, offset: u64, len_bytes: u64) -> bool {
        let mut strikes = false;
        let touched = |range: &Range<u64>| {
            op == SimOp::Flush || (range.start < offset + len_bytes && offset < range.end)
        };
        for fault in self.faults.iter_mut().filter(|f| f.op == op && touched(&f.range)) {
            if fault.skip > 0 {
                fault.skip -= 1;
            } else if fault.times > 0 {
                fault.times -= u64::from(fault.times != u64::MAX);
                strikes = true;
            }
        }
        strikes
    }
}

impl UnflushedBlock {
    /// Adds sectors, of which `before` has the durable content, if they are not among them.
    fn add(&mut self, sectors: u8, before: Option<&Arc<Block>>) {
        let new = sectors & !self.sectors;
        if self.sectors == 0 {
            self.durable = before.cloned();
        } else if new != 0 {
            let durable = Arc::make_mut(self.durable.get_or_insert_with(zero_block));
            sectors_of(new).for_each(|at| copy_sector(durable, before.map(Arc::as_ref), at));
        }
        self.sectors |= sectors;
    }

    /// Removes sectors, which have become durable. Returns false if none are left.
    fn remove(&mut self, sectors: u8) -> bool {
        self.sectors &= !sectors;
        self.written.iter_mut().for_each(|write| write.sectors &= !sectors);
        self.written.retain(|write| write.sectors != 0);
        self.sectors != 0
    }

    /// Removes the sectors that a flush makes durable: all but those that an earlier one lost. Returns false if none are
    /// left.
    fn flush(&mut self) -> bool {
        let written = self.written.iter().fold(0, |mask, write| mask | write.sectors);
        self.remove(written)
    }

    /// Returns the writes of a sector, oldest first.
    fn writes_of(&self, at: usize) -> impl DoubleEndedIterator<Item = &UnflushedWrite> {
        self.written.iter().filter(move |write| write.sectors >> at & 1 == 1)
    }

    /// Returns the block that has the content of a sector that survives; `None` stands for the newest one that was
    /// written.
    fn pick(&self, at: usize, choose: &mut dyn FnMut(usize) -> usize) -> Option<Option<&Arc<Block>>> {
        let newest = self.writes_of(at).count();
        match choose(newest + 1).min(newest) {
            0 => Some(self.durable.as_ref()),
            n if n == newest => None,
            n => self.writes_of(at).nth(n - 1).map(|write| Some(&write.content)),
        }
    }
}

/// Copies a sector, the `at`th one of a block, from the block `from`; `None`: zeros.
fn copy_sector(to: &mut Block, from: Option<&Block>, at: usize) {
    match from {
        Some(from) => to[bytes_of(at)].copy_from_slice(&from[bytes_of(at)]),
        None => to[bytes_of(at)].fill(0),
    }
}

const SECTORS_PER_BLOCK: usize = BLOCK_BYTES / SECTOR_BYTES;
const ALL_SECTORS: u8 = u8::MAX;
const _: () = assert!(SECTORS_PER_BLOCK == u8::BITS as usize);

fn zero_block() -> Arc<Block> {
    Arc::new([0; BLOCK_BYTES])
}

/// SplitMix64 (Steele, Lea and Flood, 2014): small, seeded, good enough to choose with.
#[derive(Default)]
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}
