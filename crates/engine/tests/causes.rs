//! Every byte that reaches a device is counted by its cause, once.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use pagefold_engine::dataset::Change;
use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create_on};

const PAGE: usize = 8192;

fn written(pool: &Pool) -> u64 {
    pool.status().devices.iter().map(|device| device.counts.written_bytes).sum()
}

#[test]
fn causes_sum_up_to_what_devices_write() {
    let devices: Vec<Arc<dyn Device>> =
        (0..2).map(|n| Arc::new(SimDevice::new(160 << 20, n)) as Arc<dyn Device>).collect();
    create_on("tank", &devices, &CreateOptions { force: false, created: 0, guid: Guid([7; 16]) }).unwrap();
    let pool =
        Pool::open_on(devices, &OpenOptions { cache_bytes: 32 << 20, ..OpenOptions::default() }).unwrap();
    let opened = written(&pool);
    let assert_counted = |what: &str| {
        let (totals, written) = (pool.totals(), written(&pool) - opened);
        assert_eq!(totals.written_bytes(), written, "{what}: {totals:?}");
    };
    let mut page: Vec<u8> = (0..PAGE).map(|at| (at * at / 7) as u8).collect();
    for round in 0..3_u8 {
        // More than a segment, so that its directory is written.
        for at in 0..900_u64 {
            page[at as usize] ^= round + 1;
            let change = Change::Write { object: 5, record_size: 8192, offset: at * 8192, data: &page };
            pool.dataset().apply(&[change]).unwrap();
            if at % 100 == 0 {
                pool.sync().unwrap();
            }
        }
        pool.sync().unwrap();
        assert_counted("commits");
        pool.snapshot(&[""], &format!("s{round}"), 1).unwrap();
        assert_counted("a snapshot");
        pool.checkpoint(false).unwrap();
        assert_counted("a checkpoint");
        pool.clean().unwrap();
        assert_counted("a cleaning pass");
        pool.sync().unwrap();
        pool.attest().unwrap();
        assert_counted("rest");
    }
    let (database, other) = pool.rewrites();
    assert_eq!((database.records, other.records), (0, 2 * 900), "all pages were written three times");
    assert_eq!(other.lengths.iter().map(|length| length.records).sum::<u64>(), other.records);
    assert!(other.bytes > 0 && other.bytes < pool.totals().data_bytes);
    let totals = pool.totals();
    for (what, bytes) in [
        ("pages", totals.data_bytes),
        ("deltas", totals.delta_bytes),
        ("trees", totals.tree_bytes),
        ("checkpoints", totals.checkpoint_bytes),
        ("framing", totals.framing_bytes),
    ] {
        assert!(bytes > 0, "{what}");
    }
    let waf = totals.write_amplification();
    assert!((waf - totals.written_bytes() as f64 / totals.accepted_bytes as f64).abs() < 1e-9);
}
