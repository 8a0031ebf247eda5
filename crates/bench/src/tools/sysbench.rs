//! Runs sysbench's oltp_read_write on a server of either kind.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::number_after;
use crate::host::exec::{command, run_within};

/// Time that sysbench may take beyond the load itself, and to fill its tables.
const SLACK: Duration = Duration::from_secs(900);

/// A load of sysbench's oltp_read_write. Rows are chosen uniformly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Oltp {
    /// Number of tables.
    pub(crate) tables: u32,
    /// Rows of each table.
    pub(crate) rows: u64,
    /// Connections, each with a thread.
    pub(crate) threads: u32,
    /// Length of the load, in seconds.
    pub(crate) seconds: u64,
    /// Reads of single rows in a transaction; `None` for sysbench's default of 10, beside 4 reads of ranges and 4
    /// writes.
    pub(crate) point_reads: Option<u32>,
}

impl Oltp {
    /// Returns the command line. `connection` are the server's options, `verb` is `prepare` or `run`.
    pub(crate) fn command(&self, connection: &[String], verb: &str) -> Command {
        let mut bench = command("sysbench", ["oltp_read_write"]);
        bench.args(connection);
        bench.args([
            format!("--tables={}", self.tables),
            format!("--table-size={}", self.rows),
            format!("--threads={}", self.threads),
            format!("--time={}", self.seconds),
        ]);
        bench.args(self.point_reads.map(|reads| format!("--point-selects={reads}")));
        bench.args(["--rand-type=uniform", verb]);
        bench
    }

    /// Makes and fills the tables.
    ///
    /// # Errors
    /// When sysbench fails.
    pub(crate) fn prepare(&self, connection: &[String]) -> Result<()> {
        run_within(&mut self.command(connection, "prepare"), None, SLACK).map(drop)
    }

    /// Runs the load and returns transactions per second.
    ///
    /// # Errors
    /// When sysbench fails.
    pub(crate) fn run(&self, connection: &[String]) -> Result<f64> {
        let limit = SLACK + Duration::from_secs(self.seconds);
        let out = run_within(&mut self.command(connection, "run"), None, limit)?;
        let line = out.stdout.lines().find(|l| l.trim_start().starts_with("transactions:"));
        number_after(line.unwrap_or_default(), "(").context("read sysbench's output")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::exec::shown;

    #[test]
    fn options_of_the_load_follow_those_of_the_server() {
        let load = Oltp { tables: 4, rows: 1000, threads: 8, seconds: 45, point_reads: None };
        let connection = ["--db-driver=mysql".to_owned()];
        assert_eq!(
            shown(&load.command(&connection, "run")),
            "sysbench oltp_read_write --db-driver=mysql --tables=4 --table-size=1000 --threads=8 --time=45 \
             --rand-type=uniform run"
        );
        let reading = Oltp { point_reads: Some(19), ..load };
        assert!(shown(&reading.command(&connection, "run")).contains("--point-selects=19"));
    }
}
