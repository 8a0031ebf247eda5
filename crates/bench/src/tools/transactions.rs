//! Reads the transactions of a run of pgbench, one by one, from its log.

use std::fs;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail};

use super::postgres::Running;
use crate::host::exec::run;

/// A transaction that was committed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Transaction {
    /// Time of its end.
    pub(crate) ended: SystemTime,
    /// Its duration.
    pub(crate) took: Duration,
}

impl Transaction {
    /// Returns true if it was under way at some moment between two.
    pub(crate) fn meets(&self, (from, to): (SystemTime, SystemTime)) -> bool {
        self.ended >= from && self.ended - self.took <= to
    }

    /// Parses a line of pgbench's log: client, number, duration in microseconds, script, and time of the end in seconds
    /// since the epoch and microseconds ("pgbench", "Per-Transaction Logging" in PostgreSQL's documentation).
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace().skip(2).map(str::parse::<u64>);
        let mut next = || fields.next()?.ok();
        let took = Duration::from_micros(next()?);
        let _script = next()?;
        let ended = Duration::from_secs(next()?) + Duration::from_micros(next()?);
        Some(Self { ended: SystemTime::UNIX_EPOCH.checked_add(ended)?, took })
    }
}

impl Running {
    /// Runs TPC-B for `seconds` seconds and returns all its transactions.
    ///
    /// # Errors
    /// When pgbench fails, a client was aborted, or a line of the log has another form.
    pub(crate) fn noted_pgbench(&self, clients: u32, seconds: u64) -> Result<Vec<Transaction>> {
        let dir = tempfile::tempdir()?;
        let mut pgbench = self.pgbench_command(clients, seconds);
        pgbench.arg("--log").arg(format!("--log-prefix={}", dir.path().join("log").display()));
        let out = run(&mut pgbench)?;
        if out.stderr.contains("aborted") {
            bail!("pgbench: {}", out.stderr.trim());
        }
        let mut all = Vec::new();
        for entry in fs::read_dir(dir.path())? {
            let path = entry?.path();
            let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            for line in text.lines() {
                all.push(Transaction::parse(line).ok_or_else(|| anyhow!("pgbench's log: {line}"))?);
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_transaction_and_what_else_is_none() {
        let one = Transaction::parse("0 199 2241 0 1175850568 995598").unwrap();
        assert_eq!(one.took, Duration::from_micros(2241));
        assert_eq!(one.ended, SystemTime::UNIX_EPOCH + Duration::from_micros(1_175_850_568_995_598));
        for line in ["", "0 199 2241 0 1175850568", "0 199 skipped 0 1175850568 995598"] {
            assert_eq!(Transaction::parse(line), None, "{line}");
        }
    }

    #[test]
    fn what_meets_what() {
        let at = |ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        let one = Transaction { ended: at(20), took: Duration::from_millis(10) };
        for (from, to, meets) in
            [(0, 9, false), (0, 10, true), (15, 16, true), (20, 30, true), (21, 30, false)]
        {
            assert_eq!(one.meets((at(from), at(to))), meets, "{from} to {to}");
        }
    }
}
