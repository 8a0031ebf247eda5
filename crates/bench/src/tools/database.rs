//! Runs sysbench's tables on a database of either kind, with a cache of a given size.

use anyhow::Result;

use super::mariadb::{self, MariaDb, MariaSettings, Tables};
use super::postgres::{self, copy_cluster};
use crate::bench::Bench;
use crate::data::{OLTP_TABLES, oltp_rows};
use crate::host::memory::Limit;
use crate::systems::{System, Volume};

/// Size of InnoDB's buffer pool while its tables are filled, in MiB.
const FILLING_MIB: u64 = 512;

/// A kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Database {
    /// MariaDB with InnoDB.
    Innodb,
    /// PostgreSQL.
    Postgres,
}

/// Settings that differ between measurements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheSettings {
    /// Size of `innodb_buffer_pool_size` or `shared_buffers`, in MiB.
    pub(crate) mib: u64,
    /// `innodb_flush_method`; PostgreSQL has no such choice.
    pub(crate) flush_method: &'static str,
}

impl Database {
    /// Returns its name in the ids of lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Innodb => "innodb",
            Self::Postgres => "postgres",
        }
    }

    /// Makes sysbench's tables on a volume, about `bytes` large.
    ///
    /// # Errors
    /// When the database or sysbench fails.
    pub(crate) fn fill(
        self,
        bench: &Bench,
        volume: &Volume,
        bytes: u64,
        limit: Option<&Limit>,
    ) -> Result<()> {
        match self {
            Self::Innodb => {
                let data = volume.path().join("my");
                mariadb::init(&data)?;
                let cache = CacheSettings { mib: FILLING_MIB, flush_method: "O_DIRECT" };
                let server = MariaDb::start(bench, &data, &innodb_settings(volume.system(), cache), limit)?;
                server.fill(Tables::Plain, OLTP_TABLES, oltp_rows(bytes))?;
                server.stop()
            }
            Self::Postgres => {
                let cluster = bench.prepared().oltp(bench, bytes)?;
                copy_cluster(&cluster, &volume.path().join("pg"))
            }
        }
    }

    /// Starts a server on the tables of a volume.
    ///
    /// # Errors
    /// When it does not come up; the message holds what it printed.
    pub(crate) fn start(
        self,
        bench: &Bench,
        volume: &Volume,
        cache: CacheSettings,
        limit: Option<&Limit>,
    ) -> Result<AnyServer> {
        match self {
            Self::Innodb => {
                let settings = innodb_settings(volume.system(), cache);
                MariaDb::start(bench, &volume.path().join("my"), &settings, limit).map(AnyServer::Innodb)
            }
            Self::Postgres => {
                let settings = postgres_settings(volume.system(), cache.mib);
                let server = bench.postgres()?.start(&volume.path().join("pg"), &settings, limit)?;
                Ok(AnyServer::Postgres(server))
            }
        }
    }

    /// Returns the options of its server, as one line for the report.
    pub(crate) fn described(self, system: System, cache: CacheSettings) -> String {
        match self {
            Self::Innodb => innodb_settings(system, cache).options().join(" "),
            Self::Postgres => postgres::describe(&postgres_settings(system, cache.mib)),
        }
    }
}

fn innodb_settings(system: System, cache: CacheSettings) -> MariaSettings {
    let CacheSettings { mib, flush_method } = cache;
    // Pagefold never tears a page.
    MariaSettings { tables: Tables::Plain, buffer_mib: mib, doublewrite: !system.is_ours(), flush_method }
}

fn postgres_settings(system: System, shared_buffers_mib: u64) -> postgres::Settings {
    postgres::Settings { full_page_writes: !system.is_ours(), shared_buffers_mib, max_wal_mib: 1024 }
}

/// A server of either kind.
#[derive(Debug)]
pub(crate) enum AnyServer {
    /// MariaDB.
    Innodb(MariaDb),
    /// PostgreSQL.
    Postgres(postgres::Running),
}

impl AnyServer {
    /// Returns sysbench's options that connect it to this server.
    pub(crate) fn connection(&self) -> Vec<String> {
        match self {
            Self::Innodb(server) => server.connection(),
            Self::Postgres(server) => server.connection(),
        }
    }

    /// Reads all rows of sysbench's tables and MariaDB's second indexes, and has PostgreSQL reuse what updates have left,
    /// so that each measurement begins alike.
    ///
    /// # Errors
    /// When a statement fails.
    pub(crate) fn settle(&self) -> Result<()> {
        for table in 1..=OLTP_TABLES {
            let sum = format!("SELECT SUM(LENGTH(pad)) FROM sbtest{table}");
            match self {
                Self::Innodb(server) => {
                    server.sql_of_tables(&sum)?;
                    server.sql_of_tables(&format!(
                        "SELECT SUM(k) FROM sbtest{table} FORCE INDEX (k_{table})"
                    ))?;
                }
                Self::Postgres(server) => {
                    server.sql("postgres", &format!("VACUUM sbtest{table}"))?;
                    server.sql("postgres", &sum)?;
                }
            }
        }
        if let Self::Postgres(server) = self {
            server.sql("postgres", "CHECKPOINT")?;
        }
        Ok(())
    }

    /// Stops the server in an orderly way.
    ///
    /// # Errors
    /// When it had to be killed.
    pub(crate) fn stop(self) -> Result<()> {
        match self {
            Self::Innodb(server) => server.stop(),
            Self::Postgres(server) => server.stop(),
        }
    }
}
