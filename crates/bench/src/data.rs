//! Prepares databases and pages once on the disc below, from where they are copied to every system.

use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::bench::Bench;
use crate::tools::corpus::Corpus;
use crate::tools::postgres::{self, Running, Settings};
use crate::tools::sysbench::Oltp;

/// Bytes that pgbench's tables take per unit of scale, about.
const TPCB_BYTES_PER_SCALE: u64 = 15_700_000;
/// Bytes that a row of sysbench takes with its two index entries, about.
const OLTP_BYTES_PER_ROW: u64 = 245;
/// Bytes that TPC-C's tables and indexes take per warehouse, about.
const TPCC_BYTES_PER_WAREHOUSE: u64 = 135_000_000;
/// Number of sysbench's tables.
pub(crate) const OLTP_TABLES: u32 = 4;

const PREPARING: Settings = Settings { full_page_writes: false, shared_buffers_mib: 256, max_wal_mib: 4096 };

/// The folder of prepared clusters and pages.
#[derive(Debug)]
pub(crate) struct Prepared {
    dir: PathBuf,
    corpus: OnceCell<Corpus>,
}

/// Returns pgbench's scale for a database of `bytes`.
pub(crate) fn tpcb_scale(bytes: u64) -> u64 {
    bytes.div_ceil(TPCB_BYTES_PER_SCALE)
}

/// Returns sysbench's rows per table for a database of `bytes`.
pub(crate) fn oltp_rows(bytes: u64) -> u64 {
    bytes / OLTP_BYTES_PER_ROW / u64::from(OLTP_TABLES)
}

/// Returns sysbench's load of so many threads on the tables of [`Prepared::oltp`].
pub(crate) fn oltp_load(rows: u64, threads: u32, seconds: u64) -> Oltp {
    Oltp { tables: OLTP_TABLES, rows, threads, seconds, point_reads: None }
}

/// Returns TPC-C's number of warehouses for a database of `bytes`.
pub(crate) fn tpcc_warehouses(bytes: u64) -> u64 {
    (bytes / TPCC_BYTES_PER_WAREHOUSE).max(1)
}

impl Prepared {
    /// Uses the folder `dir`.
    pub(crate) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), corpus: OnceCell::new() }
    }

    /// Returns a cluster that `fill` has filled, and makes it if it is not there.
    fn cluster(
        &self,
        bench: &Bench,
        name: &str,
        fill: impl FnOnce(&Running) -> Result<()>,
    ) -> Result<PathBuf> {
        let done = self.dir.join(name);
        if done.exists() {
            return Ok(done);
        }
        bench.progress(&format!("preparing the database {name}"));
        let part = self.dir.join(format!("{name}.part"));
        if part.exists() {
            fs::remove_dir_all(&part)?;
        }
        fs::create_dir_all(&self.dir)?;
        let postgres = bench.postgres()?;
        postgres.init(&part)?;
        let running = postgres.start(&part, &PREPARING, None)?;
        fill(&running)?;
        // VACUUM leaves no writes of the preparation to servers that use the copies.
        running.sql("postgres", "VACUUM (FREEZE)")?;
        running.stop()?;
        // The log is reset, since gigabytes of segments kept for reuse would only be copied.
        postgres.reset_log(&part)?;
        fs::rename(&part, &done).with_context(|| format!("keep {}", done.display()))?;
        Ok(done)
    }

    /// Returns a cluster with nothing in it.
    ///
    /// # Errors
    /// When PostgreSQL fails.
    pub(crate) fn empty(&self, bench: &Bench) -> Result<PathBuf> {
        self.cluster(bench, "empty", |_| Ok(()))
    }

    /// Returns a cluster with the five tables of the scan.
    ///
    /// # Errors
    /// When PostgreSQL fails.
    pub(crate) fn tables(&self, bench: &Bench) -> Result<PathBuf> {
        let bytes = bench.scale().table_bytes;
        let heaps = self.dir.join(format!("heaps-{bytes}"));
        self.cluster(bench, &format!("tables-{bytes}"), |server| {
            server.make_tables(bytes)?;
            let paths = postgres::heap_files(server)?;
            let text: Vec<String> = paths.iter().map(|p| p.to_string_lossy().into_owned()).collect();
            Ok(fs::write(&heaps, text.join("\n"))?)
        })
    }

    /// Returns the heap files of the five tables, all segments of each, relative to the cluster.
    ///
    /// # Errors
    /// When PostgreSQL fails.
    pub(crate) fn heaps(&self, bench: &Bench) -> Result<Vec<PathBuf>> {
        let cluster = self.tables(bench)?;
        let text = fs::read_to_string(self.dir.join(format!("heaps-{}", bench.scale().table_bytes)))?;
        let mut all = Vec::new();
        for first in text.lines() {
            all.push(PathBuf::from(first));
            all.extend(
                (1..).map(|n| PathBuf::from(format!("{first}.{n}"))).take_while(|p| cluster.join(p).exists()),
            );
        }
        Ok(all)
    }

    /// Returns the pages of the five tables.
    ///
    /// # Errors
    /// When PostgreSQL fails.
    pub(crate) fn corpus(&self, bench: &Bench) -> Result<&Corpus> {
        if let Some(found) = self.corpus.get() {
            return Ok(found);
        }
        let cluster = self.tables(bench)?;
        let paths: Vec<PathBuf> = self.heaps(bench)?.iter().map(|p| cluster.join(p)).collect();
        let corpus = Corpus::from_files(&paths)?;
        let ratios = corpus.ratios()?;
        bench.results().borrow_mut().corpus_ratios = Some((ratios.lz4, ratios.zstd));
        Ok(self.corpus.get_or_init(|| corpus))
    }

    /// Returns a cluster with pgbench's tables, about `bytes` large.
    ///
    /// # Errors
    /// When PostgreSQL fails.
    pub(crate) fn tpcb(&self, bench: &Bench, bytes: u64) -> Result<PathBuf> {
        let scale = tpcb_scale(bytes);
        self.cluster(bench, &format!("tpcb-{scale}"), |server| server.pgbench_init(scale))
    }

    /// Returns a cluster with sysbench's tables, about `bytes` large.
    ///
    /// # Errors
    /// When PostgreSQL or sysbench fails.
    pub(crate) fn oltp(&self, bench: &Bench, bytes: u64) -> Result<PathBuf> {
        let rows = oltp_rows(bytes);
        self.cluster(bench, &format!("oltp-{rows}"), |server| {
            oltp_load(rows, 2, 0).prepare(&server.connection())
        })
    }

    /// Returns a cluster with sysbench's tables, whose rows fill each page to `fillfactor` per cent. With 100, it is about
    /// `bytes` large.
    ///
    /// # Errors
    /// When PostgreSQL or sysbench fails.
    pub(crate) fn oltp_filled(&self, bench: &Bench, bytes: u64, fillfactor: u32) -> Result<PathBuf> {
        if fillfactor == 100 {
            return self.oltp(bench, bytes);
        }
        let rows = oltp_rows(bytes);
        self.cluster(bench, &format!("oltp-{rows}-{fillfactor}"), |server| {
            oltp_load(rows, 2, 0).prepare(&server.connection())?;
            for table in 1..=OLTP_TABLES {
                let sql = format!("ALTER TABLE sbtest{table} SET (fillfactor = {fillfactor})");
                server.sql("postgres", &sql)?;
                server.sql("postgres", &format!("VACUUM FULL sbtest{table}"))?;
            }
            Ok(())
        })
    }

    /// Removes a cluster, for scenarios whose devices need its room.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub(crate) fn discard(&self, cluster: &Path) -> Result<()> {
        fs::remove_dir_all(cluster).with_context(|| format!("remove {}", cluster.display()))
    }

    /// Returns a cluster with TPC-C's tables, about `bytes` large. With `random_strings`, strings are as the
    /// specification wants them, and otherwise as sysbench-tpcc makes them.
    ///
    /// # Errors
    /// When PostgreSQL fails.
    pub(crate) fn tpcc(&self, bench: &Bench, bytes: u64, random_strings: bool) -> Result<PathBuf> {
        let warehouses = tpcc_warehouses(bytes);
        let strings = if random_strings { "-random" } else { "" };
        self.cluster(bench, &format!("tpcc{strings}-{warehouses}"), |server| {
            server.tpcc_init(warehouses, random_strings)
        })
    }

    /// Returns a file for COPY, about `bytes` large, with rows of price_paid.
    ///
    /// # Errors
    /// When PostgreSQL fails.
    pub(crate) fn copy_file(&self, bench: &Bench, bytes: u64) -> Result<PathBuf> {
        let done = self.dir.join(format!("price_paid-{bytes}.copy"));
        if done.exists() {
            return Ok(done);
        }
        let cluster = self.tables(bench)?;
        bench.progress("preparing the file that COPY reads");
        let server = bench.postgres()?.start(&cluster, &PREPARING, None)?;
        let rows = server.sql("postgres", "COPY (SELECT * FROM price_paid LIMIT 200000) TO STDOUT")?;
        server.stop()?;
        let mut out = std::io::BufWriter::new(fs::File::create(&done)?);
        let mut written = 0;
        for copy in 0_u64.. {
            if written >= bytes {
                break;
            }
            // Each copy of the rows gets other ids, so that no two rows are equal.
            let mark = format!("{copy:04x}");
            for line in rows.lines() {
                let tail = line.get(4..).unwrap_or_default();
                written += std::io::Write::write(&mut out, format!("{mark}{tail}\n").as_bytes())? as u64;
            }
        }
        std::io::Write::flush(&mut out)?;
        Ok(done)
    }

    /// Returns the SQL that makes the table for [`Prepared::copy_file`].
    pub(crate) fn copy_table() -> &'static str {
        "DROP TABLE IF EXISTS copied; CREATE TABLE copied (id uuid, price int, transfer_date date, postcode text, \
         property_type text, new_build text, paon text, street text, town text, county text)"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_are_as_large_as_asked() {
        assert_eq!(tpcb_scale(1 << 30), 69);
        assert!(oltp_rows(1 << 30) > 1_000_000);
        assert_eq!((tpcc_warehouses(1 << 30), tpcc_warehouses(1)), (7, 1));
    }
}
