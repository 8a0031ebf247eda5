//! Drives the programs that make load, each by a small typed interface.

pub(crate) mod aging;
pub(crate) mod corpus;
pub(crate) mod fio;
pub(crate) mod greedy;
pub(crate) mod overwrite;
pub(crate) mod postgres;
pub(crate) mod rrd;
mod tpcc;
pub(crate) mod transactions;
pub(crate) mod writers;
