//! Hostile bytes for every decoder of what a device, the kernel or a socket says.
//!
//! A target takes any bytes, seals them where the real thing has a checksum (an enemy can compute one), decodes them, and
//! uses the result as the program would. Whatever the bytes: no panic (overflow checks are on), no allocation beyond
//! [`ALLOCATION_MAX`], an end within [`PATIENCE`]. What decodes must be what encodes, where that is promised.
//!
//! Inputs are mutations of seeds, which are real encodings made by the program itself; inputs that were found to break
//! something lie in `fuzz/found/` and are tried first. Why not a coverage-guided fuzzer:
//! docs/decisions/0013-fuzzing.md.

pub mod memory;
pub mod mutate;
// Messages of the control socket have paths in this form.
#[allow(dead_code, unreachable_pub, reason = "the program uses more of it")]
#[path = "../../crates/cli/src/raw.rs"]
mod raw;
pub mod run;
pub mod targets;

use std::time::Duration;

/// Largest single allocation that a decoder may make, in bytes: four chunks' worth of a device.
pub const ALLOCATION_MAX: usize = 16 << 20;
/// Longest processor time that one input may take.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Longest input in bytes.
pub const INPUT_MAX: usize = 64 << 10;

/// A decoder under attack.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name on the command line, and of its folder below `found/`.
    pub name: &'static str,
    /// Decodes. Returns whether the bytes were accepted.
    pub run: fn(&[u8]) -> bool,
    /// Real encodings.
    pub seeds: fn() -> Vec<Vec<u8>>,
}
