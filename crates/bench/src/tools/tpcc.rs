//! Makes TPC-C's tables on PostgreSQL, and runs its mix of new orders, payments and deliveries, by psql and pgbench
//! alone. The laboratory uses the same files (`lab/tpcc.py`). The results are not comparable with published ones of
//! TPC-C.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::number_after;
use super::postgres::Running;
use crate::host::exec::{run, run_with_input};

const LOAD_SQL: &str = include_str!("tpcc/load.sql");
/// Scripts of the mix and their weights; the transactions of TPC-C that only read are left out.
const MIX: [(&str, u32, &str); 3] = [
    ("new_order", 45, include_str!("tpcc/new_order.sql")),
    ("payment", 43, include_str!("tpcc/payment.sql")),
    ("delivery", 4, include_str!("tpcc/delivery.sql")),
];
/// Number of tries of a transaction. If two wait for each other, one of them fails and is tried again.
const TRIES: &str = "--max-tries=10";

impl Running {
    /// Makes and fills the tables. With `random_strings`, strings are as the specification wants them, and otherwise as
    /// sysbench-tpcc makes them.
    ///
    /// # Errors
    /// When a statement fails.
    pub(crate) fn tpcc_init(&self, warehouses: u64, random_strings: bool) -> Result<()> {
        let mut psql = self.postgres.client("psql");
        psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", "postgres", "-f", "-"]);
        psql.arg("-v").arg(format!("warehouses={warehouses}"));
        psql.arg("-v").arg(format!("random_strings={}", u8::from(random_strings)));
        let mut script = tempfile::tempfile()?;
        script.write_all(LOAD_SQL.as_bytes())?;
        script.seek(SeekFrom::Start(0))?;
        run_with_input(&mut psql, Some(script))?;
        Ok(())
    }

    /// Returns pgbench's command line for the mix.
    ///
    /// # Errors
    /// When the scripts cannot be written.
    pub(crate) fn tpcc_command(&self, warehouses: u64, clients: u32, seconds: u64) -> Result<Command> {
        let folder = self.postgres.dir.join("tpcc");
        fs::create_dir_all(&folder)?;
        let mut bench = self.postgres.client("pgbench");
        bench.args(["-n", "-M", "prepared", "-j", "2", TRIES, "-D", &format!("warehouses={warehouses}")]);
        for (name, weight, sql) in MIX {
            let path = folder.join(format!("{name}.sql"));
            fs::write(&path, sql).with_context(|| format!("write {}", path.display()))?;
            bench.arg("-f").arg(format!("{}@{weight}", path.display()));
        }
        bench.args(["-c", &clients.to_string(), "-T", &seconds.to_string(), "postgres"]);
        Ok(bench)
    }

    /// Runs the mix and returns transactions per second, of all kinds together.
    ///
    /// # Errors
    /// When pgbench fails or a client was aborted.
    pub(crate) fn tpcc(&self, warehouses: u64, clients: u32, seconds: u64) -> Result<f64> {
        let out = run(&mut self.tpcc_command(warehouses, clients, seconds)?)?;
        if out.stderr.contains("aborted") {
            bail!("pgbench: {}", out.stderr.trim());
        }
        number_after(&out.stdout, "\ntps = ").context("read pgbench's output")
    }
}
