//! Turns acts and catalogue operations of a history into calls of the engine.

use pagefold_engine::Key;
use pagefold_engine::dataset::Change;
use pagefold_engine::limits::{RECORD_BYTES_MAX, RECORDSIZE_MAX};
use pagefold_engine::pool::{Pool, ReceiveOptions, Source};
use pagefold_engine::segment::held_bytes;

use crate::graft;
use crate::history::{Act, CatalogueOp, Fill, record_size};
use crate::model::bytes;
use crate::world::TAG;

/// Returns the bytes that each act stores.
pub(crate) fn contents(acts: &[Act]) -> Vec<Vec<u8>> {
    let one = |act: &Act| match *act {
        Act::Put { len, seed, .. } => bytes(Fill::Rows, seed, len),
        Act::Write { len, fill, seed, .. } => bytes(fill, seed, len),
        Act::Codec { codec, .. } => vec![codec],
        _ => Vec::new(),
    };
    acts.iter().map(one).collect()
}

/// Returns the largest number of bytes that a page of an object takes.
fn page(object: u64) -> u64 {
    let header = (RECORD_BYTES_MAX - RECORDSIZE_MAX as usize) as u64;
    held_bytes(u64::from(record_size(object)) + header) + 64
}

/// Returns the largest number of bytes that an act takes, stored or before compression.
pub(super) fn most(act: &Act) -> u64 {
    match *act {
        Act::Put { len, .. } => len + 128,
        Act::Write { object, offset, len, .. } => {
            let size = u64::from(record_size(object));
            ((offset + len).div_ceil(size) - offset / size) * page(object)
        }
        // Pages that are not stored yet are stored once more.
        Act::Share { from, count, .. } => 128 + count * (64 + page(from.0)),
        Act::Codec { .. } | Act::Delete { .. } | Act::Punch { .. } => 128,
    }
}

/// Returns acts in the engine's form. `data` holds the bytes of each.
pub(crate) fn changes<'d>(acts: &[Act], data: &'d [Vec<u8>]) -> Vec<Change<'d>> {
    let one = |(act, data): (&Act, &'d Vec<u8>)| match *act {
        Act::Put { key, .. } => Change::Put(key, data.clone()),
        Act::Codec { object, .. } => Change::Put(Key::new(object, Key::COMPRESSION, 0), data.clone()),
        Act::Delete { key } => Change::Delete(key),
        Act::Write { object, offset, .. } => {
            Change::Write { object, record_size: record_size(object), offset, data }
        }
        Act::Punch { object, from, to } => Change::Punch { object, from, to },
        Act::Share { from, to, count } => {
            Change::Share { from_object: from.0, from_page: from.1, to_object: to.0, to_page: to.1, count }
        }
    };
    acts.iter().zip(data).map(one).collect()
}

/// Time at which all datasets and snapshots of histories are made, in seconds since 1970.
const CREATED: u64 = 1_700_000_000;

pub(crate) fn run_catalogue_op(pool: &Pool, op: &CatalogueOp) -> pagefold_engine::Result<()> {
    match op {
        CatalogueOp::Create { path } => pool.create_dataset(path, CREATED),
        CatalogueOp::Snapshot { datasets, name } => {
            pool.snapshot(&datasets.iter().map(String::as_str).collect::<Vec<_>>(), name, CREATED)
        }
        CatalogueOp::Clone { snapshot, path } => pool.clone_snapshot(snapshot, path, CREATED),
        CatalogueOp::DestroyDataset { path } => pool.destroy_dataset(path),
        CatalogueOp::DestroySnapshots { snapshots } => {
            pool.destroy_snapshots(&snapshots.iter().map(String::as_str).collect::<Vec<_>>())
        }
        CatalogueOp::Rollback { snapshot, newer } => pool.rollback(snapshot, *newer),
        CatalogueOp::Reset { path, own } => pool.reset(path, *own),
        CatalogueOp::Rebase { path, onto, own } => graft::rebase(pool, path, onto, *own, CREATED),
        CatalogueOp::Promote { path } => pool.promote(path),
        CatalogueOp::Rename { path, to } => pool.rename(path, to),
        CatalogueOp::Hold { snapshot } => pool.hold(snapshot, TAG, CREATED),
        CatalogueOp::Release { snapshot } => pool.release(snapshot, TAG),
        CatalogueOp::Receive { snapshot, from, path } => {
            let source = Source::Snapshot { path: snapshot, from: from.as_deref() };
            run_stream(pool, &source, path, None)
        }
    }
}

/// Sends a stream and receives it. With `torn`, it ends early, after that many thousandths of its bytes.
pub(super) fn run_stream(
    pool: &Pool,
    source: &Source<'_>,
    path: &str,
    torn: Option<u64>,
) -> pagefold_engine::Result<()> {
    let mut stream = Vec::new();
    pool.send(source, &mut stream, &mut |_| {})?;
    if let Some(permille) = torn {
        stream.truncate(stream.len() * permille as usize / 1000);
    }
    let options = ReceiveOptions { created: CREATED, keep: true, force: true };
    pool.receive(path, &options, &mut stream.as_slice(), &mut |_| {}).map(drop)
}
