//! Runs fio: one job at a time, and reads the figures that we use from its JSON.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

use crate::host::exec;

/// A job for fio.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    /// Name in fio's output.
    pub(crate) name: String,
    /// File or device.
    pub(crate) target: PathBuf,
    /// fio's `rw`.
    pub(crate) rw: String,
    /// fio's `bs`.
    pub(crate) block: String,
    /// Length of the measurement in seconds.
    pub(crate) seconds: f64,
    /// Further options, as on the command line.
    pub(crate) extra: Vec<String>,
}

impl Job {
    /// Makes a job without options beyond the necessary ones.
    pub(crate) fn new(name: &str, target: &Path, rw: &str, block: &str, seconds: f64) -> Self {
        Self {
            name: name.to_owned(),
            target: target.to_owned(),
            rw: rw.to_owned(),
            block: block.to_owned(),
            seconds,
            extra: Vec::new(),
        }
    }

    /// Makes a job of 8 KiB random O_DIRECT reads.
    pub(crate) fn random_reads(target: &Path, jobs: u32, depth: u32, seconds: f64) -> Self {
        let mut job = Self::new("randread", target, "randread", "8k", seconds);
        let engine = if depth == 1 { "psync" } else { "libaio" };
        job.extra = vec![
            "--direct=1".to_owned(),
            format!("--ioengine={engine}"),
            format!("--iodepth={depth}"),
            format!("--numjobs={jobs}"),
            "--norandommap".to_owned(),
            "--randrepeat=0".to_owned(),
        ];
        job
    }

    /// Returns the command line.
    pub(crate) fn command(&self) -> Command {
        let mut command = exec::command("fio", ["--output-format=json", "--group_reporting", "--time_based"]);
        command.arg(format!("--name={}", self.name)).arg(format!("--filename={}", self.target.display()));
        command.arg(format!("--rw={}", self.rw)).arg(format!("--bs={}", self.block));
        command.arg(format!("--runtime={}", self.seconds)).arg("--allow_file_create=0");
        command.args(&self.extra);
        command
    }
}

/// Figures of reads, or of writes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Direction {
    /// Operations per second.
    pub(crate) per_second: f64,
    /// Bytes per second.
    pub(crate) bytes_per_second: f64,
    /// Median completion latency in microseconds; 0 if nothing was done.
    pub(crate) median_us: f64,
}

/// Figures of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct JobFigures {
    /// Reads.
    pub(crate) read: Direction,
    /// Writes.
    pub(crate) write: Direction,
}

/// Runs a job.
///
/// # Errors
/// When fio fails or any of its requests did.
pub(crate) fn run(job: &Job) -> Result<JobFigures> {
    run_with(job, &mut job.command())
}

/// Runs a job by another command than its own, such as its own in a cgroup.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_with(job: &Job, command: &mut Command) -> Result<JobFigures> {
    let done = exec::run(command)?;
    parse(&done.stdout).with_context(|| format!("read the output of `{}`", exec::shown(&job.command())))
}

fn parse(text: &str) -> Result<JobFigures> {
    // fio prints notes before the object.
    let start = text.find('{').ok_or_else(|| anyhow!("fio printed no JSON: {}", text.trim()))?;
    let root: Value = serde_json::from_str(text.get(start..).unwrap_or_default())?;
    let job = root.pointer("/jobs/0").ok_or_else(|| anyhow!("no job in fio's output"))?;
    let error = job.get("error").and_then(Value::as_i64).unwrap_or(0);
    if error != 0 {
        return Err(anyhow!("fio reports error {error}"));
    }
    Ok(JobFigures { read: direction(job, "read")?, write: direction(job, "write")? })
}

fn direction(job: &Value, name: &str) -> Result<Direction> {
    let number = |pointer: &str| job.pointer(pointer).and_then(Value::as_f64);
    let need = |pointer: String| number(&pointer).ok_or_else(|| anyhow!("no {pointer} in fio's output"));
    Ok(Direction {
        per_second: need(format!("/{name}/iops"))?,
        bytes_per_second: need(format!("/{name}/bw_bytes"))?,
        median_us: number(&format!("/{name}/clat_ns/percentile/50.000000")).unwrap_or(0.0) / 1000.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_behind_notes() {
        let text = r#"fio: a note
            {"jobs":[{"error":0,
              "read":{"iops":1234.5,"bw_bytes":1000,"clat_ns":{"percentile":{"50.000000":81000}}},
              "write":{"iops":0.0,"bw_bytes":0}}]}"#;
        let outcome = parse(text).unwrap();
        assert_eq!(outcome.read, Direction { per_second: 1234.5, bytes_per_second: 1000.0, median_us: 81.0 });
        assert_eq!(outcome.write.per_second, 0.0);
        assert!(parse(r#"{"jobs":[{"error":5}]}"#).is_err());
        assert!(parse("nothing").is_err());
    }
}
