//! Drives the programs that make load, each by a small typed interface.

pub(crate) mod aging;
pub(crate) mod corpus;
pub(crate) mod database;
pub(crate) mod fio;
pub(crate) mod greedy;
pub(crate) mod mariadb;
pub(crate) mod overwrite;
pub(crate) mod postgres;
pub(crate) mod rrd;
pub(crate) mod sysbench;
mod tpcc;
pub(crate) mod transactions;
pub(crate) mod writers;

use anyhow::{Context, Result, anyhow};

/// Returns the number behind `mark` in a program's output.
fn number_after(text: &str, mark: &str) -> Result<f64> {
    let rest = text.split_once(mark).ok_or_else(|| anyhow!("no {mark:?} in {text:?}"))?.1;
    let digits: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    digits.parse().with_context(|| format!("no number behind {mark:?} in {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found() {
        let pgbench = "latency average = 1.2 ms\ntps = 1834.25 (without initial connection time)\n";
        assert_eq!(number_after(pgbench, "tps = ").unwrap(), 1834.25);
        assert_eq!(number_after("    transactions:   1234   (123.40 per sec.)", "(").unwrap(), 123.4);
        assert!(number_after("tps = no", "tps = ").is_err());
    }
}
