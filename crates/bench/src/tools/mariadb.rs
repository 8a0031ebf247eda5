//! Drives MariaDB: fresh data folders, servers on a file system under test, and sysbench's tables in several kinds of
//! storage.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::bench::Bench;
use crate::host::cleanup::{Noted, note_server};
use crate::host::exec::{Server, command, run, run_within};
use crate::host::memory::Limit;
use crate::host::user::{as_user, give};

const USER: &str = "mysql";
const DATABASE: &str = "sbtest";
/// Rows that one statement inserts.
const BATCH: u64 = 50_000;
/// Longest time that filling a table may take.
const FILL_LIMIT: Duration = Duration::from_secs(3600);
/// Time that a server has to write its dirty pages when it ends.
const STOPS_WITHIN: Duration = Duration::from_secs(600);
const MYROCKS: &str = "/usr/lib/mysql/plugin/ha_rocksdb.so";

/// How tables are stored, by MariaDB's own means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tables {
    /// InnoDB as it is by default.
    Plain,
    /// InnoDB with ROW_FORMAT=COMPRESSED and blocks of 8 KiB.
    RowCompressed,
    /// InnoDB with PAGE_COMPRESSED: each page is compressed by zlib, and a hole is punched behind it.
    PageCompressed,
    /// MyRocks with Zstandard at the last level and LZ4 above.
    MyRocks,
}

impl Tables {
    /// Returns the options of CREATE TABLE.
    fn options(self) -> &'static str {
        match self {
            Self::Plain => "ENGINE=InnoDB",
            Self::RowCompressed => "ENGINE=InnoDB ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=8",
            Self::PageCompressed => "ENGINE=InnoDB PAGE_COMPRESSED=1",
            Self::MyRocks => "ENGINE=ROCKSDB",
        }
    }

    /// Returns an error if this machine cannot make such tables.
    ///
    /// # Errors
    /// When the plugin of MyRocks is not installed.
    pub(crate) fn check(self) -> Result<()> {
        if self == Self::MyRocks && !Path::new(MYROCKS).exists() {
            bail!("MyRocks is not installed (apt install mariadb-plugin-rocksdb)");
        }
        Ok(())
    }
}

/// MariaSettings of a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MariaSettings {
    /// How tables are stored.
    pub(crate) tables: Tables,
    /// Size of the buffer pool, or of MyRocks' block cache, in MiB.
    pub(crate) buffer_mib: u64,
    /// `innodb_doublewrite`.
    pub(crate) doublewrite: bool,
    /// `innodb_flush_method`.
    pub(crate) flush_method: &'static str,
}

impl MariaSettings {
    /// Returns them as options of the server.
    pub(crate) fn options(&self) -> Vec<String> {
        let switch = |on| if on { "ON" } else { "OFF" };
        let mut options = vec![
            format!("--innodb-doublewrite={}", switch(self.doublewrite)),
            format!("--innodb-flush-method={}", self.flush_method),
            "--innodb-flush-log-at-trx-commit=1".to_owned(),
            "--innodb-log-file-size=256M".to_owned(),
            "--skip-log-bin".to_owned(),
            "--performance-schema=OFF".to_owned(),
        ];
        if self.tables == Tables::MyRocks {
            options.extend([
                // InnoDB holds the system tables alone.
                "--innodb-buffer-pool-size=16M".to_owned(),
                "--plugin-load-add=ha_rocksdb".to_owned(),
                format!("--rocksdb-block-cache-size={}M", self.buffer_mib),
                "--rocksdb-flush-log-at-trx-commit=1".to_owned(),
                "--rocksdb-default-cf-options=write_buffer_size=16m;target_file_size_base=32m;\
                 max_bytes_for_level_base=128m;compression_per_level=kNoCompression:kLZ4Compression:kLZ4Compression;\
                 bottommost_compression=kZSTD"
                    .to_owned(),
            ]);
        } else {
            options.push(format!("--innodb-buffer-pool-size={}M", self.buffer_mib));
        }
        options
    }
}

/// A data folder's server, and the clients that load it.
#[derive(Debug)]
pub(crate) struct MariaDb {
    server: Server,
    _noted: Noted,
    socket: PathBuf,
}

/// Makes the system tables in `data`.
///
/// # Errors
/// When MariaDB is not installed, or its installer fails.
pub(crate) fn init(data: &Path) -> Result<()> {
    fs::create_dir_all(data)?;
    give(data, USER)?;
    let mut install = as_user(USER, "mariadb-install-db");
    install.arg("--no-defaults").arg(format!("--datadir={}", data.display()));
    install.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
    run(&mut install).context("make MariaDB's system tables (apt install mariadb-server)")?;
    Ok(())
}

impl MariaDb {
    /// Starts a server on a data folder and waits until it answers.
    ///
    /// # Errors
    /// When it does not come up; the message holds what it printed.
    pub(crate) fn start(
        bench: &Bench,
        data: &Path,
        settings: &MariaSettings,
        limit: Option<&Limit>,
    ) -> Result<Self> {
        settings.tables.check()?;
        let places = bench.dir().join("maria");
        fs::create_dir_all(&places)?;
        give(&places, USER)?;
        let socket = places.join("s");
        let mut server = as_user(USER, "mariadbd");
        server.arg("--no-defaults").arg(format!("--datadir={}", data.display()));
        server.arg(format!("--socket={}", socket.display())).arg(format!("--tmpdir={}", places.display()));
        server.arg(format!("--pid-file={}", places.join("pid").display()));
        server.args(["--skip-networking", "--skip-grant-tables"]).args(settings.options());
        if let Some(limit) = limit {
            server = limit.wrap(&server);
            server.current_dir("/");
        }
        let mut server = Server::start(&mut server, Signal::TERM, STOPS_WITHIN)?;
        let noted = note_server(bench.dir(), server.pid())?;
        server.wait_ready(|_| {
            let mut probe = command("mariadb-admin", ["--no-defaults", "--connect-timeout=2"]);
            probe.arg(format!("--socket={}", socket.display())).arg("ping");
            run(&mut probe).is_ok()
        })?;
        Ok(Self { server, _noted: noted, socket })
    }

    /// Runs SQL and returns its rows, fields separated by tabs.
    ///
    /// # Errors
    /// When a statement fails.
    pub(crate) fn sql(&self, sql: &str) -> Result<String> {
        Ok(run_within(&mut self.client(sql), None, FILL_LIMIT)?.stdout)
    }

    /// Runs SQL on sysbench's tables and returns its rows.
    ///
    /// # Errors
    /// When a statement fails.
    pub(crate) fn sql_of_tables(&self, sql: &str) -> Result<String> {
        self.sql(&format!("USE {DATABASE}; {sql}"))
    }

    fn client(&self, sql: &str) -> Command {
        let mut client =
            command("mariadb", ["--no-defaults", "--user=root", "--batch", "--skip-column-names"]);
        client.arg(format!("--socket={}", self.socket.display())).args(["-e", sql]);
        client
    }

    /// Makes tables of the form that sysbench uses, and fills each with `rows` rows: two tables at a time, keys and
    /// texts at random as sysbench makes them, the second index at the end. sysbench's own `prepare` cannot give tables
    /// options.
    ///
    /// # Errors
    /// When a statement fails.
    pub(crate) fn fill(&self, kind: Tables, tables: u32, rows: u64) -> Result<()> {
        self.sql(&format!("CREATE DATABASE {DATABASE}"))?;
        let numbers: Vec<u32> = (1..=tables).collect();
        for pair in numbers.chunks(2) {
            std::thread::scope(|scope| {
                let running: Vec<_> = pair
                    .iter()
                    .map(|&number| scope.spawn(move || self.sql(&fill_sql(kind, number, rows)).map(drop)))
                    .collect();
                running.into_iter().try_for_each(|thread| match thread.join() {
                    Ok(filled) => filled,
                    Err(_) => bail!("a thread that fills a table panicked"),
                })
            })?;
        }
        Ok(())
    }

    /// Returns sysbench's options that connect it to this server.
    pub(crate) fn connection(&self) -> Vec<String> {
        vec![
            "--db-driver=mysql".to_owned(),
            format!("--mysql-socket={}", self.socket.display()),
            "--mysql-user=root".to_owned(),
            format!("--mysql-db={DATABASE}"),
        ]
    }

    /// Stops the server in an orderly way.
    ///
    /// # Errors
    /// When it had to be killed.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.server.stop()
    }
}

/// Returns the SQL that makes and fills one of sysbench's tables.
fn fill_sql(kind: Tables, number: u32, rows: u64) -> String {
    let digits = |groups: usize| {
        let one = "LPAD(FLOOR(RAND() * 100000000000), 11, '0')";
        format!("CONCAT_WS('-', {})", vec![one; groups].join(", "))
    };
    let mut sql = format!(
        "USE {DATABASE}; CREATE TABLE sbtest{number} (id INTEGER NOT NULL AUTO_INCREMENT, k INTEGER DEFAULT 0 NOT NULL, \
         c CHAR(120) DEFAULT '' NOT NULL, pad CHAR(60) DEFAULT '' NOT NULL, PRIMARY KEY (id)) {};",
        kind.options()
    );
    for first in (1..=rows).step_by(usize::try_from(BATCH).unwrap_or(usize::MAX)) {
        let last = (first + BATCH - 1).min(rows);
        sql.push_str(&format!(
            "INSERT INTO sbtest{number} (k, c, pad) SELECT 1 + FLOOR(RAND() * {rows}), {}, {} FROM seq_{first}_to_{last};",
            digits(10),
            digits(5)
        ));
    }
    sql.push_str(&format!("CREATE INDEX k_{number} ON sbtest{number} (k);"));
    sql
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_filled_to_its_last_row() {
        let sql = fill_sql(Tables::RowCompressed, 3, 120_000);
        assert!(sql.contains("CREATE TABLE sbtest3 (") && sql.contains("KEY_BLOCK_SIZE=8;"), "{sql}");
        for part in ["seq_1_to_50000;", "seq_50001_to_100000;", "seq_100001_to_120000;", "k_3 ON sbtest3"] {
            assert!(sql.contains(part), "{part} in {sql}");
        }
        assert_eq!(sql.matches("INSERT").count(), 3);
    }

    #[test]
    fn each_kind_has_its_own_cache() {
        let options = |tables| {
            let settings =
                MariaSettings { tables, buffer_mib: 300, doublewrite: false, flush_method: "O_DIRECT" };
            settings.options().join(" ")
        };
        assert!(options(Tables::Plain).contains("--innodb-buffer-pool-size=300M"));
        assert!(options(Tables::MyRocks).contains("--rocksdb-block-cache-size=300M"));
        assert!(options(Tables::PageCompressed).contains("--innodb-doublewrite=OFF"));
    }
}
