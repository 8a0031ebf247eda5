//! Tries thousands of inputs on a target.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use pagefold_sim::random::Random;
use rustix::time::{ClockId, clock_gettime};

use crate::{ALLOCATION_MAX, PATIENCE, Target, memory, mutate};

/// Counts of what a run has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Number of inputs.
    pub executions: u64,
    /// Number of those that were accepted.
    pub accepted: u64,
}

/// An input that broke something.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The input.
    pub bytes: Vec<u8>,
    /// Description of what broke.
    pub what: String,
}

/// Tries one input. Returns true if it was accepted.
///
/// # Errors
/// Tells what it broke.
pub fn try_input(target: &Target, bytes: &[u8]) -> std::result::Result<bool, String> {
    memory::take_largest();
    let started = cpu_time();
    let result = catch_unwind(AssertUnwindSafe(|| (target.run)(bytes)));
    let largest = memory::take_largest();
    let accepted = result.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "a panic".into())
    })?;
    if largest > ALLOCATION_MAX {
        return Err(format!("an allocation of {largest} bytes"));
    }
    // Processor time counts, not the time on the wall: a machine that does other things is no finding.
    let took = cpu_time().saturating_sub(started);
    if took > PATIENCE {
        return Err(format!("{took:?} for one input"));
    }
    Ok(accepted)
}

/// Returns the processor time that this process has had.
pub fn cpu_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default()
}

/// Tries seeds, then mutations of them, until `limit` inputs or the processor time `time` are used up.
///
/// # Errors
/// The first input that broke something.
pub fn attack(
    target: &Target,
    seed: u64,
    limit: u64,
    time: Duration,
) -> std::result::Result<Stats, Box<Finding>> {
    let seeds = (target.seeds)();
    let mut random = Random::new(seed);
    let mut stats = Stats::default();
    let started = cpu_time();
    let mut next = seeds.iter().cloned();
    while stats.executions < limit
        && (stats.executions % 64 != 0 || cpu_time().saturating_sub(started) < time)
    {
        let bytes = next.next().unwrap_or_else(|| mutate::input(&mut random, &seeds));
        match try_input(target, &bytes) {
            Ok(accepted) => stats.accepted += u64::from(accepted),
            Err(what) => return Err(Box::new(Finding { bytes, what })),
        }
        stats.executions += 1;
    }
    Ok(stats)
}

/// Returns inputs that broke something once, from the target's folder below `found`, with their paths.
///
/// # Errors
/// When they cannot be read.
pub fn found(target: &Target, found: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let dir = found.join(target.name);
    if !dir.exists() {
        return Ok(Vec::new());
    }
    let mut cases = Vec::new();
    for entry in std::fs::read_dir(&dir).with_context(|| format!("read {}", dir.display()))? {
        let path = entry?.path();
        cases.push((path.display().to_string(), std::fs::read(&path)?));
    }
    cases.sort();
    Ok(cases)
}
