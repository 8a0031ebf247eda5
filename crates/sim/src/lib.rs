//! Deterministic simulation: random histories of a pool on simulated devices, with power cuts, failing calls and
//! flipped bits, compared step by step with a model.
//!
//! One `u64` seed decides a history and everything that happens in it, so a failure is a number.
//!
//! The verified properties:
//! - reads at any time give the content of the model;
//! - after a crash the pool has the content that the model had after some change, no earlier than the last that was
//!   acknowledged as durable (contract W1 to W3);
//! - no change that was refused has left a trace, and a change that only frees space is never refused (W5);
//! - after a failed write nothing is acknowledged until the pool was opened again (W6);
//! - wherever bits flipped or reads failed, a read gives an error or the right bytes (W4);
//! - snapshots and clones are copies, whatever becomes of the dataset;
//! - operations on the catalogue are done as a whole, and are durable on return;
//! - destroying snapshots frees as many bytes as the pool told before, to the byte;
//! - all of this holds with pages coded by models, too, while models are learned and dropped, and pages coded again;
//! - each device of a mirror that is whole has everything by itself; none that has left comes back, or stays on its way
//!   out;
//! - a pool that is split is two afterwards, or one, and the half holds what the pool held;
//! - a check of the pool finds no error, and its accounts are equal to what is counted.

pub mod flips;
mod fuse;
mod graft;
pub mod history;
mod images;
pub mod model;
mod pools;
pub mod random;
pub mod run;
pub mod shrink;
mod verify;
pub mod world;
