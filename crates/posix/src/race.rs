//! Lets several processes race for the same names and files. It is chance who wins, but this must hold whoever wins:
//!
//! - one of all who make a name exclusively wins, and one of all who remove it. So the names at the end are those that
//!   were made, or added by links, and not removed; renames that replace nothing do not change their number;
//! - records that are appended stay whole, and none is lost;
//! - a page that several overwrite holds what one of them wrote.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use pagefold_sim::random::Random;
use rustix::fs::{self, AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::side::list;

/// Number of processes that race.
pub const ACTORS: u64 = 4;
/// Number of calls of each.
const CALLS: u64 = 1_500;
/// Number of names that they race for, in each of two directories.
const NAMES: u64 = 5;
/// Bytes of a record that is appended.
const RECORD_BYTES: usize = 700;
/// Number of pages that all overwrite.
const PAGES: u64 = 8;
const PAGE_BYTES: usize = 8192;

/// Runs a race below `dir`, and judges its outcome. `program` is this program, which is started once per actor.
///
/// # Errors
/// Tells the property that does not hold, or the call that must not fail.
pub fn race(program: &Path, dir: &Path, seed: u64) -> Result<()> {
    for name in ["", "one", "two"] {
        std::fs::create_dir(dir.join(name)).context("make a directory to race in")?;
    }
    std::fs::write(dir.join("log"), b"")?;
    std::fs::write(dir.join("pages"), vec![0; PAGE_BYTES * PAGES as usize])?;
    let mut actors = Vec::new();
    for actor in 1..=ACTORS {
        let child = Command::new(program)
            .arg("actor")
            .args([dir.as_os_str(), actor.to_string().as_ref(), seed.to_string().as_ref()])
            .stdout(Stdio::piped())
            .spawn()
            .context("start an actor")?;
        actors.push(child);
    }
    let (mut there, mut appended) = (0_i64, 0_u64);
    for actor in actors {
        let output = actor.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "an actor failed: {text}");
        let mut numbers = text.split_whitespace();
        there += numbers.next().context("no count")?.parse::<i64>()?;
        appended += numbers.next().context("no count")?.parse::<u64>()?;
    }
    judge(dir, there, appended)?;
    std::fs::remove_dir_all(dir).context("remove what was raced for")
}

fn judge(dir: &Path, there: i64, appended: u64) -> Result<()> {
    let mut found = 0;
    for name in ["one", "two"] {
        let sub = fs::open(dir.join(name), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let (names, links) = (list(sub.as_fd())?.len() as i64 - 2, fs::fstat(&sub)?.st_nlink);
        let dirs = list_kinds(&sub)?;
        ensure!(links == dirs + 2, "{name} has {links} links and {dirs} directories");
        found += names;
    }
    ensure!(found == there, "{found} names are there, but {there} were made and not removed");
    let log = std::fs::read(dir.join("log"))?;
    ensure!(log.len() as u64 == appended * RECORD_BYTES as u64, "{} bytes of {appended} records", log.len());
    let torn = log.chunks(RECORD_BYTES).position(|record| record.iter().any(|b| b != &record[0]));
    ensure!(torn.is_none(), "record {torn:?} is not whole");
    let pages = std::fs::read(dir.join("pages"))?;
    let torn = pages.chunks(PAGE_BYTES).position(|page| page.iter().any(|b| b != &page[0]));
    ensure!(torn.is_none(), "page {torn:?} is not whole");
    Ok(())
}

fn list_kinds(dir: &OwnedFd) -> Result<u64> {
    let again = fs::openat(dir, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let names = list(again.as_fd())?;
    let dirs = names.iter().filter(|(name, kind)| kind == "Directory" && name != b"." && name != b"..");
    Ok(dirs.count() as u64)
}

/// Runs one actor. Prints the number of names that it has added (less those that it removed), and the number of records
/// that it has appended.
///
/// # Errors
/// An errno that no race explains.
pub fn act(dir: &Path, actor: u64, seed: u64) -> Result<()> {
    let mut random = Random::new(seed.wrapping_mul(1_000_003) ^ actor);
    let open = |name: &str, flags: OFlags| fs::open(dir.join(name), flags | OFlags::CLOEXEC, Mode::empty());
    let subs = [open("one", OFlags::DIRECTORY)?, open("two", OFlags::DIRECTORY)?];
    let log = open("log", OFlags::WRONLY | OFlags::APPEND)?;
    let pages = open("pages", OFlags::WRONLY)?;
    let (mut there, mut appended) = (0_i64, 0_u64);
    for _ in 0..CALLS {
        let (from, to) = (&subs[random.below(2) as usize], &subs[random.below(2) as usize]);
        let (name, other) = (random.below(NAMES).to_string(), random.below(NAMES).to_string());
        let mode = Mode::from_bits_retain(0o755);
        let result = match random.below(12) {
            0..3 => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                fs::openat(from, &name, flags, mode).map(|_| 1)
            }
            3 => fs::mkdirat(from, &name, mode).map(|()| 1),
            4 => fs::symlinkat("nowhere", from, &name).map(|()| 1),
            5 => fs::unlinkat(from, &name, AtFlags::empty()).map(|()| -1),
            6 => fs::unlinkat(from, &name, AtFlags::REMOVEDIR).map(|()| -1),
            7 => fs::renameat_with(from, &name, to, &other, RenameFlags::NOREPLACE).map(|()| 0),
            8 => fs::renameat_with(from, &name, to, &other, RenameFlags::EXCHANGE).map(|()| 0),
            9 => fs::linkat(from, &name, to, &other, AtFlags::empty()).map(|()| 1),
            10 => {
                let record = [random.bits() as u8; RECORD_BYTES];
                ensure!(rustix::io::write(&log, &record)? == RECORD_BYTES, "an append was cut short");
                appended += 1;
                continue;
            }
            _ => {
                let page = vec![random.bits() as u8; PAGE_BYTES];
                let at = random.below(PAGES) * PAGE_BYTES as u64;
                ensure!(rustix::io::pwrite(&pages, &page, at)? == PAGE_BYTES, "a write was cut short");
                continue;
            }
        };
        match result {
            Ok(more) => there += more,
            // Another actor was first, or the name is of another kind by now.
            Err(
                Errno::EXIST
                | Errno::NOENT
                | Errno::ISDIR
                | Errno::NOTDIR
                | Errno::PERM
                | Errno::NOTEMPTY
                | Errno::INVAL,
            ) => {}
            Err(errno) => anyhow::bail!("{errno:?} for {name}, {other}"),
        }
    }
    println!("{there} {appended}");
    Ok(())
}
