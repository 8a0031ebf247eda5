//! Makes and updates round-robin databases as collectd's rrdtool plugin does.
//!
//! The plugin's defaults are a step of 10 s and five time spans of 1200 rows each, with minimum, average and maximum.
//! Values are cached, and written as one update of a file once about 15 minutes, 90 samples, have come together.
//! rrdtool itself writes through mmap.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::overwrite::Random;
use crate::host::exec::{command, run_with_input};

/// collectd's interval, in seconds.
const STEP: u64 = 10;
/// Number of samples that one flush of a file writes.
pub(crate) const SAMPLES: u64 = 90;
const ROWS: u64 = 1200;
/// collectd's `RRATimespan` defaults, in seconds.
const SPANS: [u64; 5] = [3600, 86_400, 604_800, 2_678_400, 31_622_400];
const START: u64 = 1_790_000_000;

/// Returns the number of data sources of file `n`: collectd's types have one (cpu, memory), two (interfaces, discs) or
/// three (load).
fn sources_of(n: u64) -> u64 {
    n % 3 + 1
}

/// A set of files that are flushed one after the other.
#[derive(Debug)]
pub(crate) struct Set {
    dir: PathBuf,
    files: u64,
    flushed: u64,
}

impl Set {
    /// Creates `files` files in `dir`.
    ///
    /// # Errors
    /// When rrdtool fails.
    pub(crate) fn create(dir: &Path, files: u64) -> Result<Self> {
        let set = Self { dir: dir.to_owned(), files, flushed: 0 };
        let mut script = String::new();
        for n in 0..files {
            let begin = START - STEP;
            write!(script, "create {} --start {begin} --step {STEP}", set.file(n))?;
            for source in 0..sources_of(n) {
                write!(script, " DS:value{source}:GAUGE:{}:U:U", 2 * STEP)?;
            }
            for span in SPANS {
                let per_row = span.div_ceil(ROWS * STEP).max(1);
                let rows = span.div_ceil(per_row * STEP);
                for function in ["AVERAGE", "MIN", "MAX"] {
                    write!(script, " RRA:{function}:0.1:{per_row}:{rows}")?;
                }
            }
            script.push('\n');
        }
        rrdtool(&script)?;
        Ok(set)
    }

    fn file(&self, n: u64) -> String {
        self.dir.join(format!("metric-{n}.rrd")).to_string_lossy().into_owned()
    }

    /// Flushes the next `count` files, each with 90 new samples.
    ///
    /// # Errors
    /// When rrdtool fails.
    pub(crate) fn flush(&mut self, count: u64) -> Result<()> {
        let mut script = String::new();
        for _ in 0..count {
            let (n, round) = (self.flushed % self.files, self.flushed / self.files);
            let mut random = Random::new(self.flushed);
            write!(script, "update {}", self.file(n))?;
            for sample in 0..SAMPLES {
                let at = START + (round * SAMPLES + sample) * STEP;
                write!(script, " {at}")?;
                for _ in 0..sources_of(n) {
                    let value =
                        40.0 + 20.0 * ((at as f64) / 9000.0).sin() + random.below(1000) as f64 / 250.0;
                    write!(script, ":{value:.4}")?;
                }
            }
            script.push('\n');
            self.flushed += 1;
        }
        rrdtool(&script)
    }
}

/// Runs commands in one rrdtool process, as its remote-control mode does.
fn rrdtool(script: &str) -> Result<()> {
    let mut input = tempfile::tempfile()?;
    input.write_all(script.as_bytes())?;
    input.seek(SeekFrom::Start(0))?;
    let input: File = input;
    let done = run_with_input(&mut command("rrdtool", ["-"]), Some(input)).context("run rrdtool")?;
    if let Some(line) = done.stdout.lines().find(|l| l.starts_with("ERROR")) {
        bail!("rrdtool: {line}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_arrive_in_files_of_collectds_size() {
        let dir = tempfile::tempdir().unwrap();
        let mut set = Set::create(dir.path(), 2).unwrap();
        let path = dir.path().join("metric-0.rrd");
        let before = std::fs::read(&path).unwrap();
        set.flush(3).unwrap();
        let after = std::fs::read(&path).unwrap();
        assert_eq!(before.len(), after.len());
        assert_ne!(before, after);
        assert!((100_000..200_000).contains(&after.len()), "{}", after.len());
        // A bad update is an error, and is not passed over in silence.
        set.flushed = 0;
        assert!(set.flush(1).is_err());
    }
}
