use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::Error;
use crate::dataset::Bounds;
use crate::dataset::ModelTable;
use crate::dataset::shared::ATTEMPTS;
use crate::device::{AlignedBuf, Device, DeviceStats, Devices, SimDevice};
use crate::record::{RecordCache, encode_metadata};
use crate::segment::{Segment, Segments};
use crate::space::Chunks;
use crate::tree::NodeCache;
use crate::wal::{LogWriter, Position, Rec, RecordKind};

const DEVICE_BYTES: u64 = 256 << 20;

/// A device that returns other bytes for the next reads, as if the place had been reused.
struct Reused {
    inner: SimDevice,
    stale_reads: AtomicU32,
}

impl Device for Reused {
    fn path(&self) -> &Path {
        self.inner.path()
    }
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut AlignedBuf) -> Result<()> {
        self.inner.read(offset, buf)?;
        let less = |left: u32| left.checked_sub(1);
        if self.stale_reads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
            buf.fill(7);
        }
        Ok(())
    }
    fn write(&self, offset: u64, buf: &AlignedBuf, durable: bool) -> Result<()> {
        self.inner.write(offset, buf, durable)
    }
    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.inner.discard(offset, len_bytes)
    }
    fn stats(&self) -> &DeviceStats {
        self.inner.stats()
    }
}

#[test]
fn a_record_whose_place_was_reused_is_looked_up_again() {
    let device = Arc::new(Reused { inner: SimDevice::new(DEVICE_BYTES, 1), stale_reads: AtomicU32::new(0) });
    let devices = Devices::all(vec![Arc::clone(&device) as Arc<dyn Device>]);
    let segments = Arc::new(Segments::new(1 << 20));
    let chunks = Arc::new(Chunks::new(&[DEVICE_BYTES]));
    let (chunk, next) = (chunks.allocate().unwrap(), chunks.allocate().unwrap());
    segments.insert(Segment::fresh(1, chunk)).unwrap();
    let position = Position { segment: 1, chunk, used: 0, slots: 0, next, batch: 1, chain: 0 };
    let mut writer = LogWriter::new(1, position, Arc::clone(&segments), Arc::clone(&chunks), &devices);
    let record = Rec { kind: RecordKind::Node, model: None, bytes: encode_metadata(b"node".to_vec()) };
    let ptr = writer.append(1, &[record], 0, |_| Vec::new(), true).unwrap().ptrs[0];
    let bounds = Bounds {
        capacity_bytes: 1 << 20,
        dirty_soft_bytes: 1,
        dirty_hard_bytes: 2,
        slack_bytes: 0,
        clean_chunks: 4,
        least_clean_chunks: 1,
        low_chunks: 2,
    };
    let nodes = Arc::new(NodeCache::new(1 << 20).unwrap());
    let shared = Arc::new(Shared::new(
        devices,
        (segments, chunks),
        nodes,
        (RecordCache::new(0), ModelTable::new(0)),
        bounds,
    ));
    let nodes = Nodes::of(&shared);
    device.stale_reads.store(ATTEMPTS - 1, Ordering::Relaxed);
    assert_eq!(nodes.load(ptr).unwrap(), b"node");
    device.stale_reads.store(ATTEMPTS, Ordering::Relaxed);
    assert!(matches!(nodes.load(ptr), Err(Error::Corrupt { .. })), "what stays damaged is reported");
}
