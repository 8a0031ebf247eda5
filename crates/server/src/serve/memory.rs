//! Watches the memory of this process, and makes caches and file systems keep to the pool's budget.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Once};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pagefold_engine::pool::{MemoryUse, Pool};
use parking_lot::{Condvar, Mutex};

use super::budget::CacheBudget;
use super::export::FrontEnd;
use super::exports::Exports;
use super::spare_memory::SpareMemory;
use crate::allocator;
use crate::failure::{Context, Result};

/// Interval between two looks. Memory that is allocated in between may exceed the budget for that long.
const INTERVAL: Duration = Duration::from_millis(100);
/// The same while little memory is free, in which others could take much of it.
const SHORT_INTERVAL: Duration = Duration::from_millis(20);
/// Number of looks after which file systems drop inodes that were not used since the last time.
const TRIM_EVERY: u32 = 10;
/// Number of looks after which the control groups are found anew.
const FIND_EVERY: u32 = 100;
/// Resident bytes that no counter covers, above which the allocator gives back freed memory. Program and threads take
/// some 20 MiB of it. The rest is soon used again, and need not be asked for anew then.
const FREED_BYTES: u64 = 40 << 20;
/// File in which the system tells the memory of a process.
const STATUS: &str = "/proc/self/status";
/// Field with resident memory, in KiB, that is neither of a file nor shared.
const ANONYMOUS: &str = "RssAnon:";
/// Length of the buffer for that file. It need not hold all of the file: on machines with very many CPUs their long
/// masks come after the field.
const STATUS_BYTES: usize = 4096;

/// The thread that looks.
pub(crate) struct MemoryMonitor {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl MemoryMonitor {
    /// Starts the thread.
    pub(super) fn start(looking: Looking) -> Result<Self> {
        let status = File::open(STATUS).context(|| format!("cannot open {STATUS}"))?;
        let stop: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name("memory".into());
        let thread = thread.spawn(move || looking.work(&status, &stopped));
        let thread = thread.context(|| "cannot start a thread".into())?;
        Ok(Self { stop, thread: Mutex::new(Some(thread)) })
    }

    /// Stops the thread and waits for its end.
    pub(super) fn stop(&self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        if self.thread.lock().take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that looks at memory panicked");
        }
    }
}

impl Drop for MemoryMonitor {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The thread's view of its server.
pub(super) struct Looking {
    pub(super) pool: Arc<Pool>,
    pub(super) exports: Arc<Exports>,
    pub(super) front: Arc<dyn FrontEnd>,
    pub(super) budget: Arc<CacheBudget>,
}

impl Looking {
    fn work(&self, status: &File, stop: &(Mutex<bool>, Condvar)) {
        let mut looks = 0u32;
        let (no_resident, no_spare) = (Once::new(), Once::new());
        let mut spare = None;
        let mut looked = None::<Instant>;
        loop {
            // A look beside the turns of the others only has the caches give way.
            let turn = looked.is_none_or(|looked| looked.elapsed() >= INTERVAL);
            self.pool.beside().requests.set(self.front.request_bytes());
            match self.settled_bytes(status) {
                Ok(bytes) => {
                    // The server may have been moved to another group.
                    spare = spare.filter(|_| !turn || !looks.is_multiple_of(FIND_EVERY));
                    if let Err(error) = self.follow(&mut spare, bytes, turn) {
                        no_spare.call_once(|| {
                            tracing::warn!(%error, "the system does not tell how much memory is free; the caches keep their size");
                        });
                    }
                    self.pool.observe_resident(bytes);
                }
                Err(error) => no_resident.call_once(|| {
                    tracing::warn!(%error, "the system does not tell how much memory is resident; what is counted bounds it alone");
                }),
            }
            if turn {
                looked = Some(Instant::now());
                looks = looks.wrapping_add(1);
                if looks.is_multiple_of(TRIM_EVERY) {
                    self.exports.all().iter().for_each(|mounted| mounted.export.trim_memory());
                }
            }
            let interval = if self.budget.is_short() { SHORT_INTERVAL } else { INTERVAL };
            let mut stopped = stop.0.lock();
            if !*stopped {
                stop.1.wait_for(&mut stopped, interval);
            }
            if *stopped {
                return;
            }
        }
    }

    /// Adapts the budget of the caches to the memory that is free, if it is to follow that. `resident_bytes` are
    /// resident in this process.
    fn follow(&self, spare: &mut Option<SpareMemory>, resident_bytes: u64, turn: bool) -> io::Result<()> {
        if !self.budget.is_auto() {
            return Ok(());
        }
        let spare = match spare {
            Some(found) => found,
            None => spare.insert(SpareMemory::find()?),
        };
        self.budget.follow(&spare.read()?, resident_bytes, turn);
        Ok(())
    }

    /// Returns the resident memory of this process, after giving back freed memory if that is much.
    fn settled_bytes(&self, status: &File) -> io::Result<u64> {
        let bytes = anonymous_bytes(status)?;
        let used = MemoryUse { resident_bytes: bytes, ..self.pool.memory() };
        if used.other_bytes() < FREED_BYTES {
            return Ok(bytes);
        }
        allocator::give_back();
        anonymous_bytes(status)
    }
}

/// Returns the resident memory of this process in bytes, without pages of files and shared pages.
fn anonymous_bytes(status: &File) -> io::Result<u64> {
    let mut text = [0; STATUS_BYTES];
    let len = status.read_at(&mut text, 0)?;
    let text = String::from_utf8_lossy(&text[..len]);
    let line = text.lines().find_map(|line| line.strip_prefix(ANONYMOUS));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| io::Error::other(format!("{STATUS} has no line {ANONYMOUS}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_touched_is_seen() {
        let status = File::open(STATUS).unwrap();
        let before = anonymous_bytes(&status).unwrap();
        let memory = vec![1u8; 64 << 20];
        let after = anonymous_bytes(&status).unwrap();
        assert_eq!(memory.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 64 << 20);
        assert!(after >= before + (48 << 20), "{before} -> {after}");
    }
}
