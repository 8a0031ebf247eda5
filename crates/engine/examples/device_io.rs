//! Random 4 KiB reads of a device: blocking reads from many threads beside batches of one thread.
//!
//! ```text
//! cargo run --release -p pagefold-engine --example device_io -- PATH
//! ```
//!
//! PATH must not exist; a file of 1 GiB is made there, written once and removed at the end.

use std::path::Path;
use std::time::{Duration, Instant};

use pagefold_engine::Result;
use pagefold_engine::device::{AlignedBuf, Device, FileDevice, OpenMode, create_file_device};

const SIZE_BYTES: u64 = 1 << 30;
const READ_BYTES: u64 = 4096;
const RUN: Duration = Duration::from_secs(2);

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: device_io PATH (a file to be made and removed)")?;
    let path = Path::new(&path);
    create_file_device(path, SIZE_BYTES)?;
    let outcome = measure(path);
    std::fs::remove_file(path)?;
    Ok(outcome?)
}

fn measure(path: &Path) -> Result<()> {
    let device = FileDevice::open(path, OpenMode::ReadWrite)?;
    // Blocks never written read as zeros without reaching the device.
    let filler = AlignedBuf::from_bytes(&vec![0xA5; 1 << 20]);
    for offset in (0..SIZE_BYTES).step_by(filler.len()) {
        device.write(offset, &filler, false)?;
    }
    device.flush()?;
    println!("{:<28} {:>9} {:>12} {:>12}", "random reads of 4 KiB", "IOPS", "us per call", "CPU us each");
    for threads in [1, 2, 16, 64] {
        run(&format!("{threads} threads, blocking"), threads, |seed| reader(&device, seed))?;
    }
    for depth in [4, 16, 64] {
        run(&format!("1 thread, batches of {depth}"), 1, |seed| batches(&device, seed, depth))?;
    }
    run("2 threads, batches of 64", 2, |seed| batches(&device, seed, 64))
}

/// Runs `work` on so many threads; it returns how many calls and reads it made.
fn run(name: &str, threads: u64, work: impl Fn(u64) -> Result<(u64, u64)> + Sync) -> Result<()> {
    let (started, cpu_before) = (Instant::now(), cpu_seconds());
    let sums: Result<(u64, u64)> = std::thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..threads).map(|seed| scope.spawn(move || work(seed + 1))).collect();
        workers.into_iter().try_fold((0, 0), |(calls, reads), worker| {
            let (c, r) = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok((calls + c, reads + r))
        })
    });
    let (calls, reads) = sums?;
    let seconds = started.elapsed().as_secs_f64();
    let (iops, call_us) = (reads as f64 / seconds, seconds * 1e6 * threads as f64 / calls as f64);
    let cpu_us = (cpu_seconds() - cpu_before) * 1e6 / reads as f64;
    println!("{name:<28} {iops:>9.0} {call_us:>12.0} {cpu_us:>12.1}");
    Ok(())
}

fn reader(device: &FileDevice, seed: u64) -> Result<(u64, u64)> {
    let mut buf = AlignedBuf::scratch(READ_BYTES as usize);
    let (started, mut reads, mut place) = (Instant::now(), 0, seed);
    while started.elapsed() < RUN {
        device.read(next(&mut place), &mut buf)?;
        reads += 1;
    }
    Ok((reads, reads))
}

fn batches(device: &FileDevice, seed: u64, depth: u64) -> Result<(u64, u64)> {
    let mut requests: Vec<_> = (0..depth).map(|_| (0, AlignedBuf::scratch(READ_BYTES as usize))).collect();
    let (started, mut calls, mut place) = (Instant::now(), 0, seed);
    while started.elapsed() < RUN {
        requests.iter_mut().for_each(|(offset, _)| *offset = next(&mut place));
        device.read_many(&mut requests.iter_mut().collect::<Vec<_>>())?;
        calls += 1;
    }
    Ok((calls, calls * depth))
}

/// The next place to read: a linear congruential sequence (Knuth's MMIX constants).
fn next(place: &mut u64) -> u64 {
    *place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*place >> 32) % (SIZE_BYTES / READ_BYTES) * READ_BYTES
}

/// CPU time of this process so far, user and system.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
