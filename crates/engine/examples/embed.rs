//! A pool in a file, used by a program without mounts or servers: it is made, written, snapshotted, cloned, and read back.
//!
//! `cargo run --release -p pagefold-engine --example embed -- FILE`; FILE must not exist. The engine knows objects, which
//! are numbers, and their pages. Names, directories and attributes are the crate `pagefold-fs`, on top of it.

use std::path::Path;
use std::time::SystemTime;

use pagefold_engine::Result;
use pagefold_engine::dataset::{Change, Dataset};
use pagefold_engine::device::create_file_device;
use pagefold_engine::limits::{ATOMIC_WRITE_MAX, DEVICE_BYTES_MIN};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create};

/// The object that is written. Its number is the program's choice.
const OBJECT: u64 = 1;
/// Bytes of its pages: a power of two, and the same in every call as long as the object has pages.
const PAGE: u32 = 8192;

fn main() {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: embed FILE");
        std::process::exit(2);
    };
    if let Err(error) = run(Path::new(&path)) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

/// Makes a pool in the new file `path`, and does with it what a program would.
pub(crate) fn run(path: &Path) -> Result<()> {
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    create_file_device(path, 2 * DEVICE_BYTES_MIN)?;
    let devices = [path.to_path_buf()];
    // The GUID should be random: by it a pool is told from others, and from its copies.
    let guid = Guid(u128::from(now).to_le_bytes());
    create("embedded", &devices, &CreateOptions { force: false, created: now, guid })?;

    let pool = Pool::open(&devices, &OpenOptions { now, ..OpenOptions::default() })?;
    // Threads that commit every second, write checkpoints, and clean. They end when this is stopped or dropped.
    let background = pool.run()?;

    let dataset = pool.dataset();
    let before = vec![b'a'; 3 * PAGE as usize];
    write(&*dataset, 0, &before)?;
    // All that was accepted is durable from here on.
    dataset.sync()?;

    // The empty path is the pool's own dataset. A clone can be written as the dataset can.
    pool.snapshot(&[""], "before", now)?;
    pool.clone_snapshot("@before", "experiment", now)?;
    let clone = pool.open_dataset("experiment")?;
    write(&*clone, u64::from(PAGE), b"only in the clone")?;
    write(&*dataset, 0, &vec![b'b'; 2 * ATOMIC_WRITE_MAX])?;
    pool.sync()?;

    let snapshot = pool.open_dataset("@before")?;
    assert_eq!(read(&*snapshot, 0, before.len())?, before);
    assert_eq!(read(&*clone, u64::from(PAGE), 17)?, b"only in the clone");
    assert_eq!(read(&*dataset, u64::from(PAGE), 4)?, b"bbbb");

    // Changes are refused from here on. Without this, the next opening replays the log, as after a crash.
    pool.export()?;
    background.stop();
    drop((dataset, clone, snapshot, pool));

    let again = Pool::open(&devices, &OpenOptions { read_only: true, ..OpenOptions::default() })?;
    let clone = again.open_dataset("experiment")?;
    assert_eq!(read(&*clone, u64::from(PAGE), 17)?, b"only in the clone");
    assert_eq!(read(&*clone, 0, 4)?, b"aaaa");
    Ok(())
}

/// Writes bytes of any length. One change is applied as a whole, and writes [`ATOMIC_WRITE_MAX`] bytes at most.
fn write(dataset: &dyn Dataset, offset: u64, bytes: &[u8]) -> Result<()> {
    let mut offset = offset;
    for data in bytes.chunks(ATOMIC_WRITE_MAX) {
        dataset.apply(&[Change::Write { object: OBJECT, record_size: PAGE, offset, data }])?;
        offset += data.len() as u64;
    }
    Ok(())
}

fn read(dataset: &dyn Dataset, offset: u64, len_bytes: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len_bytes];
    dataset.read(OBJECT, PAGE, offset, &mut bytes)?;
    Ok(bytes)
}
