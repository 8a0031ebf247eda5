//! Everything of a pool is killed at once, under writes that nobody waits for beside readers through the page cache:
//! the pool can be mounted again at once, clients get errors, and no process stays. Needs root and /dev/fuse.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::Duration;

use common::{Sandbox, can_mount, signal, wait_until};
use rustix::fs::{Advice, fadvise};
use rustix::process::Signal;

const PAGE: usize = 4096;
/// Pages of the file that all clients use.
const PAGES: u64 = 64;
const READERS: u64 = 4;
/// Writes that are under way at a time.
const WRITES: usize = 16;
/// Rounds; in one of two or three a thread of the dead server waits for a client.
const ROUNDS: usize = 4;

/// Random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Reads and writes through the page cache until that fails.
fn read_and_write(path: &Path, seed: u64) -> io::Error {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let (mut random, mut page) = (Random(seed), [b'c'; PAGE]);
    loop {
        let at = random.below(PAGES) * PAGE as u64;
        let done = match random.below(2) {
            0 => file.read_exact_at(&mut page, at),
            _ => file.write_all_at(&page, at),
        };
        if let Err(error) = done {
            return error;
        }
        if random.below(32) == 0 {
            fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        }
    }
}

/// `struct iocb` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Control {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// Writes past the page cache, several at a time and waiting for none alone, until that fails.
fn write_directly(path: &Path) -> i64 {
    const PWRITE: u16 = 1;
    let file = File::options().write(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    let bytes = vec![b'd'; 2 * PAGE];
    let page = bytes.as_ptr() as usize;
    let buffer = page.next_multiple_of(PAGE) as u64;
    let mut context: libc::c_ulong = 0;
    // SAFETY: the kernel writes one number, the context.
    assert_eq!(unsafe { libc::syscall(libc::SYS_io_setup, WRITES, &raw mut context) }, 0);
    let mut random = Random(7);
    loop {
        let file = file.as_raw_fd().cast_unsigned();
        let mut control = || Control {
            opcode: PWRITE,
            file,
            buffer,
            bytes: PAGE as u64,
            offset: (random.below(PAGES) * PAGE as u64).cast_signed(),
            ..Control::default()
        };
        let controls: Vec<Control> = (0..WRITES).map(|_| control()).collect();
        let pointers: Vec<*const Control> = controls.iter().map(std::ptr::from_ref).collect();
        // SAFETY: the kernel copies the control blocks; file and bytes outlive the writes, which are waited for below.
        let sent = unsafe { libc::syscall(libc::SYS_io_submit, context, WRITES, pointers.as_ptr()) };
        if sent != WRITES as i64 {
            return sent;
        }
        // Each event has four words; the third is the result.
        let mut events = [[0_i64; 4]; WRITES];
        let none = std::ptr::null_mut::<libc::timespec>();
        // SAFETY: there is room for as many events as are asked for.
        let got = unsafe {
            libc::syscall(libc::SYS_io_getevents, context, WRITES, WRITES, events.as_mut_ptr(), none)
        };
        assert_eq!(got, WRITES as i64);
        if let Some(failed) = events.iter().map(|event| event[2]).find(|result| *result != PAGE as i64) {
            return failed;
        }
    }
}

/// Returns a process and its children.
fn family(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let children: Vec<String> = children.collect();
    let children = children.iter().flat_map(|text| text.split_whitespace());
    std::iter::once(pid).chain(children.map(|child| child.parse().unwrap())).collect()
}

/// Returns true if a process has ended with all its threads.
fn has_ended(pid: i32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
        || fs::read_to_string(format!("/proc/{pid}/status"))
            .is_ok_and(|status| status.contains("State:\tZ") && status.contains("Threads:\t1\n"))
}

#[test]
fn a_pool_whose_processes_are_all_killed_is_mounted_again() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.dir("mnt");
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "512M"]);
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "mnt"]);
    let path = sandbox.path("mnt/file");
    for round in 0..ROUNDS as u64 {
        let file = File::create(&path).unwrap();
        file.write_all_at(&vec![b'o'; PAGES as usize * PAGE], 0).unwrap();
        file.sync_all().unwrap();
        let readers: Vec<_> = (0..READERS)
            .map(|reader| {
                let path = path.clone();
                thread::spawn(move || read_and_write(&path, 1 + reader + round * READERS))
            })
            .collect();
        let writer = {
            let path = path.clone();
            thread::spawn(move || write_directly(&path))
        };
        thread::sleep(Duration::from_millis(700 + 200 * round));
        let killed = family(i32::try_from(sandbox.pool()["pid"].as_i64().unwrap()).unwrap());
        assert_eq!(killed.len(), 2, "a server and its mounter");
        for pid in &killed {
            signal(*pid, Signal::KILL);
        }
        // Nothing is waited for in between: what was killed may still be there.
        sandbox.ok(&["mount", "-o", "takeover=off", "tank", "mnt"]);
        wait_until(|| killed.iter().all(|pid| has_ended(*pid)));
        wait_until(|| writer.is_finished() && readers.iter().all(thread::JoinHandle::is_finished));
        assert!(writer.join().unwrap() < 0, "a dead server has written");
        for reader in readers {
            reader.join().unwrap();
        }
        assert_eq!(fs::read(&path).unwrap().len(), PAGES as usize * PAGE);
    }
    sandbox.ok(&["unmount", "tank"]);
}

/// The kernel gives the number of a file system that was unmounted to the next one that is mounted.
#[test]
fn a_mounter_whose_server_is_killed_takes_no_mount_of_others_away() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    for pool in ["tank", "lake"] {
        sandbox.dir(pool);
        sandbox.ok(&["create", pool, &format!("{pool}.pf"), "--size", "256M"]);
    }
    sandbox.dir("monday");
    sandbox.ok(&["mount", "-o", "takeover=off", "tank", "tank"]);
    sandbox.ok(&["snapshot", "tank@monday"]);
    let number = |name: &str| fs::metadata(sandbox.path(name)).unwrap().dev();
    let mut of_monday = 0;
    // Someone else on this machine may mount something in between and be given the number.
    wait_until(|| {
        sandbox.ok(&["mount", "tank@monday", "monday"]);
        of_monday = number("monday");
        sandbox.ok(&["unmount", "monday"]);
        sandbox.ok(&["mount", "-o", "takeover=off", "lake", "lake"]);
        let is_again = number("lake") == of_monday;
        if !is_again {
            sandbox.ok(&["unmount", "lake"]);
        }
        is_again
    });
    let [server, mounter] = family(i32::try_from(sandbox.pool()["pid"].as_i64().unwrap()).unwrap())[..]
    else {
        panic!("a server and its mounter");
    };
    signal(server, Signal::KILL);
    wait_until(|| has_ended(server) && has_ended(mounter));
    fs::write(sandbox.path("lake/file"), b"kept").unwrap();
    assert_eq!(number("lake/file"), of_monday, "it lies below the mount, which has gone");
    sandbox.ok(&["sync", "lake"]);
    sandbox.ok(&["unmount", "lake"]);
}
