//! Tells which block devices answer, so that nobody waits for one that does not.
//!
//! A thread that waits for a device cannot be ended, and a process ends only with all of its threads. So another
//! process reads the devices, and is left alone if it does not end.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use pagefold_engine::pool;

use crate::failure::{Context, Result};
use crate::spawn::{self, Purpose};

/// Time after which it is told that a device is waited for.
const TOLD_AFTER: Duration = Duration::from_secs(2);
/// Time after which a device is left out. A disc that stood still answers earlier.
const PATIENCE: Duration = Duration::from_secs(30);

/// Devices, by whether they have answered.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    pub answered: Vec<PathBuf>,
    pub silent: Vec<PathBuf>,
}

/// Reads block devices, each as [`pool::scan`] does; other files count as answered. Calls `waiting` with each device
/// that has not answered for two seconds.
pub(crate) fn ask(paths: Vec<PathBuf>, waiting: &mut dyn FnMut(&Path)) -> Result<Asked> {
    let is_block =
        |path: &PathBuf| std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device());
    let asked: Vec<usize> = (0..paths.len()).filter(|at| paths.get(*at).is_some_and(is_block)).collect();
    if asked.is_empty() {
        return Ok(Asked { answered: paths, silent: Vec::new() });
    }
    let devices: Vec<&PathBuf> = asked.iter().filter_map(|at| paths.get(*at)).collect();
    let (mut child, answers) = start(&devices)?;
    let mut silent: Vec<usize> = (0..devices.len()).collect();
    let told = wait(&answers, &mut silent, TOLD_AFTER);
    if !told {
        silent.iter().filter_map(|at| devices.get(*at)).for_each(|device| waiting(device));
        if !wait(&answers, &mut silent, PATIENCE - TOLD_AFTER) {
            // It ends when its devices answer, or never: nobody waits for that.
            let _best_effort = child.kill();
        }
    }
    if silent.is_empty() {
        child.wait().context(|| "cannot wait for the process that reads devices".into())?;
    }
    let is_silent: Vec<usize> = silent.iter().filter_map(|at| asked.get(*at).copied()).collect();
    let mut all = Asked::default();
    for (at, path) in paths.into_iter().enumerate() {
        if is_silent.contains(&at) { all.silent.push(path) } else { all.answered.push(path) }
    }
    Ok(all)
}

/// Starts the process that reads the devices. Their numbers come when they have answered.
fn start(devices: &[&PathBuf]) -> Result<(Child, Receiver<usize>)> {
    let doing = || "cannot start the process that reads devices".to_owned();
    let program = std::env::current_exe().context(|| "cannot find this program's own file".into())?;
    let mut command = Command::new(program);
    spawn::set_environment(&mut command, Purpose::Ours);
    let mut child = command
        .args(["read-devices", "--"])
        .args(devices)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context(doing)?;
    let (sender, answers) = mpsc::channel();
    let output = child.stdout.take();
    std::thread::Builder::new()
        .name("answers".into())
        .spawn(move || {
            let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines());
            for number in lines.map_while(|line| line.ok()?.parse().ok()) {
                if sender.send(number).is_err() {
                    return;
                }
            }
        })
        .context(doing)?;
    Ok((child, answers))
}

/// Removes the devices that answer from `silent`. Returns true if there are no more, false when `time` is over.
fn wait(answers: &Receiver<usize>, silent: &mut Vec<usize>, time: Duration) -> bool {
    let end = Instant::now() + time;
    while !silent.is_empty() {
        match answers.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(number) => silent.retain(|at| *at != number),
            Err(RecvTimeoutError::Timeout) => return false,
            // The process could not have ended if it still waited for a device.
            Err(RecvTimeoutError::Disconnected) => silent.clear(),
        }
    }
    true
}

/// Does the work of the process that reads devices: prints the number of each when it has answered, be it with an error.
pub fn answer(devices: &[PathBuf]) -> Result<()> {
    spawn::settle(None, false)?;
    std::thread::scope(|scope| {
        for (number, device) in devices.iter().enumerate() {
            let work = move || {
                pool::read_as_scan(device);
                // If nobody reads it any more, nobody waits for the rest.
                let _best_effort = writeln!(std::io::stdout(), "{number}");
            };
            std::thread::Builder::new()
                .spawn_scoped(scope, work)
                .context(|| "cannot start a thread for each device".into())?;
        }
        Ok(())
    })
}
