//! Serves one file, `data`, until it is unmounted: the bounds for benchmarks.
//!
//!     bench_server null DIR SIZE_BYTES [dev|ring [THREADS]]
//!     bench_server pass DIR FILE       [dev|ring [THREADS]]   (lines of standard input change what it does wrong:
//!                                                            `fail N`: N reads of a thousand fail; `delay N`: each
//!                                                            read takes N microseconds more)
//!     bench_server memory DIR SIZE_BYTES [dev|ring [THREADS]]   (a whole file system, in memory, without a limit)

use pagefold_fs::testing::MemDataset;
use pagefold_fs::{Caller, FormatOptions, Fs, FsOptions, Ino, OpenFlags, SystemClock, WriteFlags};
use pagefold_fuse::null::{FILE_NAME, NullServer, PassFaults, PassServer};
use pagefold_fuse::{Dispatch, Handler, MountOptions, Session, Transport};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, error::Error, io, path::Path, sync::Arc, thread};

/// A file system in memory with one file, as the other servers have it.
fn memory(size: u64) -> Result<Dispatch, Box<dyn Error>> {
    let dataset = Arc::new(MemDataset::new(u64::MAX));
    Fs::format(&*dataset, &SystemClock, &FormatOptions { seed: 1, uid: 0, gid: 0, perm: 0o755 })?;
    let options = FsOptions { recordsize: Some(8192), ..FsOptions::default() };
    let fs = Fs::mount(dataset, Arc::new(SystemClock), options)?;
    let file = fs.create(Ino::ROOT, FILE_NAME.as_bytes(), 0o644, OpenFlags::default(), &Caller::default())?;
    let data: Vec<u8> = (0..8192u32).map(|i| (i / 8) as u8 | 1).collect();
    for page in 0..size / 8192 {
        fs.write(file.ino, page * 8192, &data, WriteFlags::default())?;
    }
    Ok(Dispatch::new(fs))
}

/// Changes what a server does wrong, as standard input says.
fn obey(faults: &PassFaults) {
    for line in io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["fail", permille] => store(&faults.failing_permille, permille),
            ["delay", microseconds] => store(&faults.delay_us, microseconds),
            _ => eprintln!("{line}: neither `fail N` nor `delay N`"),
        }
    }
}

fn store(to: &AtomicU32, text: &str) {
    match text.parse() {
        Ok(number) => to.store(number, Ordering::Relaxed),
        Err(error) => eprintln!("{text}: {error}"),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [kind, dir, what, rest @ ..] = arguments.as_slice() else {
        return Err(
            "usage: bench_server null|memory DIR SIZE_BYTES | pass DIR FILE [dev|ring [THREADS]]".into()
        );
    };
    let handler: Arc<dyn Handler> = match kind.as_str() {
        "null" => Arc::new(NullServer::new(what.parse()?)),
        "memory" => Arc::new(memory(what.parse()?)?),
        "pass" => {
            let server = PassServer::new(Path::new(what))?;
            let faults = server.faults();
            thread::spawn(move || obey(&faults));
            Arc::new(server)
        }
        other => return Err(format!("{other} is neither null, pass nor memory").into()),
    };
    let transport = match rest.first().map(String::as_str) {
        None => Transport::Auto,
        Some("dev") => Transport::Dev,
        Some("ring") => Transport::IoUring,
        Some(other) => return Err(format!("{other} is neither dev nor ring").into()),
    };
    let threads_max = rest.get(1).map(|text| text.parse()).transpose()?;
    let options = MountOptions { source: kind.clone(), transport, threads_max, ..MountOptions::default() };
    let session = Session::mount_handler(handler, Path::new(dir), &options)?;
    println!("mounted {} ({:?})", session.dir().display(), session.agreement());
    session.wait();
    for one in session.stats().snapshot() {
        println!(
            "{:12} {:9} requests, {:6} errors, mean {:7.1} us, p50 < {:6.1} us, p99 < {:7.1} us",
            one.opcode.name(),
            one.requests,
            one.errors,
            one.mean_ns() as f64 / 1e3,
            one.quantile_ns(0.5) as f64 / 1e3,
            one.quantile_ns(0.99) as f64 / 1e3
        );
    }
    Ok(())
}
