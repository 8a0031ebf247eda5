//! Deterministic simulation: random histories of a pool on simulated devices, with power cuts, failing calls and
//! flipped bits, compared step by step with a model.
//!
//! One `u64` seed decides a history and everything that happens in it, so a failure is a number.
//!
//! What is verified:
//! - reads at any time give what the model holds;
//! - after a crash the pool holds what the model held after some change, no earlier than the last that was
//!   acknowledged as durable (contract W1 to W3);
//! - no change that was refused has left a trace, and what only frees space is never refused (W5);
//! - after a failed write nothing is acknowledged until the pool was opened again (W6);
//! - wherever bits flipped or reads failed: an error, or the right bytes (W4);
//! - snapshots and clones are copies, whatever becomes of the dataset: deeds are done as a whole, and durable on return;
//! - what destroying snapshots is told to free is what it frees, to the byte;
//! - all of it with pages coded by models, too, learned and dropped, and coded again, at any time;
//! - a check of the pool finds no error, and its accounts are what can be counted.

pub mod flips;
mod graft;
pub mod history;
mod images;
pub mod model;
pub mod random;
pub mod run;
pub mod shrink;
mod verify;
pub mod world;
