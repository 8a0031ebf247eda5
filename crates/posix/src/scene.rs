//! Runs scenes: steps of many calls, each with a verdict of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use pagefold_sim::random::Random;
use rustix::fs::{self, AtFlags, Mode, OFlags, RawDir};
use rustix::io::{Errno, Result};

/// Reads a listing in two parts, with changes in between. Names that stay must be listed exactly once, and names that
/// go or come at most once. Returns a text that tells what is wrong, or that nothing is.
///
/// # Errors
/// errno of a call that should not fail.
pub fn list_while(root: BorrowedFd<'_>, names: usize, read: usize, seed: u64) -> Result<String> {
    let mut random = Random::new(seed);
    let mode = Mode::from_bits_retain(0o700);
    match fs::mkdirat(root, "listing", mode) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = fs::openat(root, "listing", flags, Mode::empty())?;
    let make = |name: &str| {
        fs::openat(&dir, name, OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, mode).map(drop)
    };
    let mut staying: BTreeSet<String> = (0..names).map(|n| format!("name-{n}")).collect();
    for name in &staying {
        make(name)?;
    }
    let mut buffer = [MaybeUninit::uninit(); 512];
    let mut entries = RawDir::new(&dir, &mut buffer);
    let mut told: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    for _ in 0..read {
        let Some(entry) = entries.next() else { break };
        *told.entry(entry?.file_name().to_bytes().to_vec()).or_default() += 1;
    }
    for n in 0..random.below(names as u64) {
        let name = format!("name-{}", random.below(names as u64));
        if !staying.remove(&name) {
            continue;
        }
        match random.below(3) {
            0 => fs::unlinkat(&dir, &name, AtFlags::empty())?,
            1 => fs::renameat(&dir, &name, &dir, format!("renamed-{n}"))?,
            _ => {
                fs::unlinkat(&dir, &name, AtFlags::empty())?;
                make(&format!("new-{n}"))?;
            }
        }
    }
    while let Some(entry) = entries.next() {
        *told.entry(entry?.file_name().to_bytes().to_vec()).or_default() += 1;
    }
    staying.extend([".".to_owned(), "..".to_owned()]);
    let wrong: Vec<_> = staying.iter().filter(|name| told.get(name.as_bytes()).copied() != Some(1)).collect();
    let twice: Vec<_> = told.iter().filter(|(_, count)| **count > 1).collect();
    let again = fs::openat(root, "listing", flags, Mode::empty())?;
    for (name, _) in crate::side::list(again.as_fd())? {
        if name != b"." && name != b".." {
            fs::unlinkat(&dir, &name[..], AtFlags::empty())?;
        }
    }
    fs::unlinkat(root, "listing", AtFlags::REMOVEDIR)?;
    Ok(if wrong.is_empty() && twice.is_empty() {
        "each once".into()
    } else {
        format!("not once: {wrong:?}; twice: {twice:?}")
    })
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Tries opens of a program that runs, and a start of one that is open for writing: each excludes the other. Returns
/// the results in order.
///
/// # Errors
/// errno of a call that should not fail.
pub fn busy(dir: &Path) -> Result<String> {
    let open = |path: &Path, flags: OFlags| fs::open(path, flags | OFlags::CLOEXEC, Mode::empty());
    let (program, other) = (dir.join("program"), dir.join("other-program"));
    let io = |result: std::io::Result<()>| result.map_err(|error| errno(&error));
    io(std::fs::copy("/bin/cat", &program).map(drop))?;
    io(std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)))?;
    let mut told = Vec::new();
    // The kernel denies execution while anybody has the file open for writing.
    let writer = open(&program, OFlags::WRONLY)?;
    let start = || Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    told.push(match start() {
        Ok(mut child) => {
            drop(child.stdin.take());
            io(child.wait().map(drop))?;
            "ran while open for writing".into()
        }
        Err(error) => format!("{:?}", errno(&error)),
    });
    drop(writer);
    let mut child = start().map_err(|error| errno(&error))?;
    told.push(format!("{:?}", open(&program, OFlags::WRONLY).map(drop)));
    told.push(format!("{:?}", open(&program, OFlags::RDWR | OFlags::TRUNC).map(drop)));
    told.push(format!("{:?}", open(&program, OFlags::RDONLY).map(drop)));
    io(std::fs::write(&other, b"other"))?;
    told.push(format!("{:?}", fs::rename(&other, &program)));
    told.push(format!("{:?}", open(&program, OFlags::WRONLY).map(drop)));
    // The program that runs is the old file, which has no name by now.
    if let Some(mut stdin) = child.stdin.take() {
        io(std::io::Write::write_all(&mut stdin, b"echo"))?;
    }
    let mut echo = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        io(stdout.read_to_string(&mut echo).map(drop))?;
    }
    told.push(echo);
    told.push(format!("{:?}", child.wait().map(|status| status.code())));
    fs::unlink(&program)?;
    Ok(told.join(", "))
}
