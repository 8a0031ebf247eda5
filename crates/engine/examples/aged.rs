//! Where writers wait on a pool that is nearly full, and where the bytes go that its device is written.
//!
//! `cargo run --release -p pagefold-engine --example aged -- FILE [NAME=VALUE]...`: makes a pool in FILE (a block
//! device, or a file that is there and has the size that the pool is to have), fills it by `percent=95` of its capacity
//! with pages of 8 KiB that do not compress, and overwrites it at random by `writers=1`, `bytes=8192` at a time, until
//! `passes=3` times its size are written. A writer syncs after `sync=200` writes (0: never); `compression=off`. With
//! `bulk=N`, N MiB are then written to a new file. Prints for each pass how many bytes were written and for what, and
//! at the end how long writers waited, and for what. `AGED_LOG=1` shows what the cleaner does.
#![allow(clippy::unwrap_used, reason = "a tool for developers")]

#[allow(dead_code, reason = "not every example needs all of it")]
mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{PAGE, XorShift};
use pagefold_engine::dataset::{Change, Reason};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, Totals, create};

const OBJECT: u64 = 5;

fn noise(random: &mut XorShift, bytes: &mut [u8]) {
    bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
}

fn write(pool: &Pool, offset: u64, data: &[u8]) {
    let change = Change::Write { object: OBJECT, record_size: PAGE as u32, offset, data };
    pool.dataset().apply(&[change]).unwrap();
}

/// Bytes to the device, and for what.
fn parts(totals: &Totals) -> [(&'static str, u64); 6] {
    [
        ("data", totals.data_bytes),
        ("framing", totals.framing_bytes),
        ("nodes", totals.tree_bytes),
        ("table", totals.checkpoint_bytes),
        ("copies", totals.copy_bytes),
        ("cleaning", totals.moved_bytes),
    ]
}

fn told(before: &Totals, after: &Totals, seconds: f64) {
    let bytes = after.accepted_bytes - before.accepted_bytes;
    let parts: Vec<(&str, f64)> = parts(before)
        .iter()
        .zip(parts(after))
        .map(|(before, (name, now))| (name, (now - before.1) as f64 / bytes as f64))
        .collect();
    let sum: f64 = parts.iter().map(|(_, part)| part).sum();
    let parts: Vec<String> = parts.iter().map(|(name, part)| format!("{name} {part:.3}")).collect();
    println!(
        "{:.1} MB/s; to the device for each byte {sum:.3}: {}; {} checkpoints, {} passes gained {}",
        bytes as f64 / 1e6 / seconds,
        parts.join(", "),
        after.checkpoints - before.checkpoints,
        after.clean_passes - before.clean_passes,
        after.chunks_gained - before.chunks_gained,
    );
}

fn longest(pool: &Pool, writes: &mut [(Duration, Duration)], syncs: &mut [Duration]) {
    for (reason, name) in Reason::ALL.iter().zip(["gate", "commit", "log", "room", "delay", "all"]) {
        let waited = pool.take_waits(*reason);
        let counted: Vec<String> = waited
            .steps
            .iter()
            .enumerate()
            .filter(|(step, count)| *step >= 9 && **count > 0)
            .map(|(step, count)| format!("{}ms:{count}", f64::from(1 << step) / 1024.0))
            .collect();
        println!(
            "waits for {name:6} longest {:>8.1?}, together {:>8.1?}; {}",
            waited.longest,
            waited.total,
            counted.join(" ")
        );
    }
    writes.sort_unstable();
    syncs.sort_unstable();
    let at = |part: f64| writes.get((writes.len() as f64 * part) as usize).copied().unwrap_or_default().0;
    println!(
        "{} writes: half {:.1?}, 99 % {:.1?}, 99.9 % {:.1?}; the longest {:?}",
        writes.len(),
        at(0.5),
        at(0.99),
        at(0.999),
        writes.iter().rev().take(8).map(|(took, at)| format!("{took:.0?} at {at:.1?}")).collect::<Vec<_>>()
    );
    let at = |part: f64| syncs.get((syncs.len() as f64 * part) as usize).copied().unwrap_or_default();
    println!(
        "{} syncs: half {:.1?}, 99 % {:.1?}, the longest {:.1?}",
        syncs.len(),
        at(0.5),
        at(0.99),
        syncs.last().copied().unwrap_or_default()
    );
}

fn main() {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(args.next().unwrap());
    let named: BTreeMap<String, String> = args
        .map(|arg| arg.split_once('=').map(|(name, value)| (name.into(), value.into())).unwrap())
        .collect();
    let number = |name: &str, otherwise: u64| named.get(name).map_or(otherwise, |text| text.parse().unwrap());
    let (percent, passes, writers) = (number("percent", 95), number("passes", 3), number("writers", 1));
    let (len, sync_every, bulk) =
        (number("bytes", PAGE as u64) as usize, number("sync", 200), number("bulk", 0));
    if std::env::var_os("AGED_LOG").is_some() {
        tracing::subscriber::set_global_default(EventPrinter(Instant::now())).unwrap();
    }
    // A number of its own, so that nothing of an older pool in this file is taken for a part of this one.
    let guid = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    create(
        "aged",
        std::slice::from_ref(&path),
        &CreateOptions { force: true, created: 0, guid: Guid(guid.to_le_bytes()) },
    )
    .unwrap();
    let pool = Pool::open(std::slice::from_ref(&path), &OpenOptions::default()).unwrap();
    pool.set_compression(named.get("compression").map_or("off", String::as_str).parse().unwrap());
    let background = pool.run().unwrap();
    let pages = pool.space().available_bytes / 100 * percent / PAGE as u64;
    let pages = pages / (len / PAGE) as u64 * (len / PAGE) as u64;
    let mut random = XorShift::new(1);
    let mut run = vec![0; 1 << 20];
    for at in (0..pages * PAGE as u64).step_by(run.len()) {
        noise(&mut random, &mut run);
        let left = (pages * PAGE as u64 - at).min(run.len() as u64) as usize;
        write(&pool, at, &run[..left]);
    }
    pool.sync().unwrap();
    let size = pool.status().devices.iter().map(|device| device.size_bytes).sum::<u64>();
    println!(
        "{} MiB on {} MiB, that say to hold {}",
        (pages * PAGE as u64) >> 20,
        size >> 20,
        pool.space().capacity_bytes >> 20
    );
    let seen: (Vec<(Duration, Duration)>, Vec<Duration>) = {
        let all = parking_lot::Mutex::new((Vec::new(), Vec::new()));
        let start = Instant::now();
        for reason in Reason::ALL {
            pool.take_waits(reason);
        }
        for pass in 0..passes {
            let (begun, before) = (Instant::now(), pool.totals());
            let left = AtomicU64::new(size / len as u64);
            std::thread::scope(|scope| {
                for writer in 0..writers {
                    let (pool, all, left) = (&pool, &all, &left);
                    scope.spawn(move || {
                        let mut random = XorShift::new(1 + pass * writers + writer);
                        let (mut writes, mut syncs) = (Vec::new(), Vec::new());
                        let mut page = vec![0; len];
                        while left
                            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                            .is_ok()
                        {
                            noise(&mut random, &mut page);
                            let at = random.next() % (pages * PAGE as u64 / len as u64) * len as u64;
                            let begun = Instant::now();
                            write(pool, at, &page);
                            writes.push((begun.elapsed(), start.elapsed()));
                            if sync_every > 0 && (writes.len() as u64).is_multiple_of(sync_every) {
                                let begun = Instant::now();
                                pool.sync().unwrap();
                                syncs.push(begun.elapsed());
                            }
                        }
                        let mut all = all.lock();
                        all.0.append(&mut writes);
                        all.1.append(&mut syncs);
                    });
                }
            });
            pool.sync().unwrap();
            told(&before, &pool.totals(), begun.elapsed().as_secs_f64());
        }
        all.into_inner()
    };
    let (mut writes, mut syncs) = seen;
    longest(&pool, &mut writes, &mut syncs);
    if bulk > 0 {
        let (begun, before) = (Instant::now(), pool.totals());
        let (mut writes, available) = (Vec::new(), pool.space().available_bytes);
        for at in 0..bulk {
            noise(&mut random, &mut run);
            let begun = Instant::now();
            let change =
                Change::Write { object: OBJECT + 1, record_size: 1 << 17, offset: at << 20, data: &run };
            if let Err(error) = pool.dataset().apply(&[change]) {
                println!("after {at} MiB, where {} were available: {error}", available >> 20);
                break;
            }
            writes.push((begun.elapsed(), begun.elapsed()));
        }
        pool.sync().unwrap();
        told(&before, &pool.totals(), begun.elapsed().as_secs_f64());
        longest(&pool, &mut writes, &mut []);
    }
    background.stop();
    pool.verify_reserves().unwrap();
    pool.export().unwrap();
}

/// Prints what the engine tells.
struct EventPrinter(Instant);

struct Fields(String);

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl tracing::Subscriber for EventPrinter {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("pagefold_engine::pool")
    }
    fn new_span(&self, _span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _span: &tracing::span::Id, _values: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _span: &tracing::span::Id, _follows: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        println!("{:9.3?} {}", self.0.elapsed().as_secs_f64(), fields.0);
    }
    fn enter(&self, _span: &tracing::span::Id) {}
    fn exit(&self, _span: &tracing::span::Id) {}
}
