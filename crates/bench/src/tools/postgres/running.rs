//! A server that runs, and the clients that load it.

use std::io::{Seek, SeekFrom, Write};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};

use super::{PORT, ROW_BYTES, Running, TABLES_SQL, USER};
use crate::host::exec::{run, run_with_input};
use crate::tools::number_after;

impl Running {
    /// Runs SQL in one session and returns what psql printed, unaligned and without headers.
    ///
    /// # Errors
    /// When a statement fails.
    pub(crate) fn sql(&self, database: &str, sql: &str) -> Result<String> {
        Ok(run(&mut self.psql(database, sql))?.stdout)
    }

    /// Runs SQL in one session and returns the seconds of wall-clock time that it took.
    ///
    /// # Errors
    /// When a statement fails.
    pub(crate) fn timed_sql(&self, database: &str, sql: &str) -> Result<f64> {
        Ok(run(&mut self.psql(database, sql))?.seconds)
    }

    /// Makes [`TABLES`](super::TABLES) with about `bytes` bytes of heap each.
    ///
    /// # Errors
    /// When a statement fails.
    pub(crate) fn make_tables(&self, bytes: u64) -> Result<()> {
        let mut psql = self.postgres.client("psql");
        psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", "postgres", "-f", "-"]);
        for (table, row_bytes) in ROW_BYTES {
            psql.arg("-v").arg(format!("{table}={}", bytes / row_bytes));
        }
        let mut script = tempfile::tempfile()?;
        script.write_all(TABLES_SQL.as_bytes())?;
        script.seek(SeekFrom::Start(0))?;
        run_with_input(&mut psql, Some(script))?;
        Ok(())
    }

    fn psql(&self, database: &str, sql: &str) -> Command {
        let mut psql = self.postgres.client("psql");
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", database, "-c", sql]);
        psql
    }

    /// Runs statements at the same time, one connection each. Returns the seconds until the last has ended.
    ///
    /// # Errors
    /// When one of them fails.
    pub(crate) fn concurrent_sql(&self, database: &str, statements: &[String]) -> Result<f64> {
        let started = std::time::Instant::now();
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                statements.iter().map(|sql| scope.spawn(move || self.sql(database, sql).map(drop))).collect();
            threads
                .into_iter()
                .try_for_each(|t| t.join().unwrap_or_else(|_| Err(anyhow!("a connection's thread panicked"))))
        })?;
        Ok(started.elapsed().as_secs_f64())
    }

    /// Fills pgbench's tables.
    ///
    /// # Errors
    /// When pgbench fails.
    pub(crate) fn pgbench_init(&self, scale: u64) -> Result<()> {
        let mut init = self.postgres.client("pgbench");
        init.args(["-i", "-q", "-I", "dtgvp", "-s", &scale.to_string(), "postgres"]);
        run(&mut init)?;
        Ok(())
    }

    /// Returns pgbench's command line for TPC-B.
    pub(crate) fn pgbench_command(&self, clients: u32, seconds: u64) -> Command {
        let mut bench = self.postgres.client("pgbench");
        bench.args([
            "-n",
            "-M",
            "prepared",
            "-c",
            &clients.to_string(),
            "-j",
            "2",
            "-T",
            &seconds.to_string(),
        ]);
        bench.arg("postgres");
        bench
    }

    /// Runs TPC-B and returns transactions per second.
    ///
    /// # Errors
    /// When pgbench fails or a client was aborted.
    pub(crate) fn pgbench(&self, clients: u32, seconds: u64) -> Result<f64> {
        let out = run(&mut self.pgbench_command(clients, seconds))?;
        if out.stderr.contains("aborted") {
            bail!("pgbench: {}", out.stderr.trim());
        }
        number_after(&out.stdout, "tps = ").context("read pgbench's output")
    }

    /// Returns sysbench's options that connect it to this server.
    pub(crate) fn connection(&self) -> Vec<String> {
        vec![
            "--db-driver=pgsql".to_owned(),
            format!("--pgsql-host={}", self.postgres.sockets.display()),
            format!("--pgsql-port={PORT}"),
            format!("--pgsql-user={USER}"),
            "--pgsql-db=postgres".to_owned(),
        ]
    }

    /// Stops the server with a checkpoint.
    ///
    /// # Errors
    /// When it had to be killed.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.server.stop()
    }
}
