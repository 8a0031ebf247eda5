//! Attacks every decoder of bytes from a device, the kernel or a socket with hostile bytes.
//!
//! A target takes any bytes, gives them checksums where the real encoding has them (an enemy can compute them), decodes
//! the bytes, and uses the result as the program would. For all bytes there must be no panic (overflow checks are on),
//! no allocation beyond [`ALLOCATION_MAX`], and an end within [`PATIENCE`]. Where the decoder promises it, bytes that
//! were decoded must be the same when they are encoded again.
//!
//! Inputs are mutations of seeds, which are real encodings made by the program itself. Inputs that once broke
//! something lie in `fuzz/found/` and are tried first. `fuzz/guided` runs the targets under libFuzzer;
//! docs/decisions/0013-fuzzing.md compares the two.

pub mod memory;
pub mod mutate;
// Messages of the control socket have paths in this form.
#[allow(dead_code, unreachable_pub, reason = "the program uses more of it")]
#[path = "../../crates/server/src/raw.rs"]
mod raw;
pub mod run;
pub mod targets;

use std::time::Duration;

/// Largest single allocation that a decoder may make, in bytes: the size of four chunks.
pub const ALLOCATION_MAX: usize = 16 << 20;
/// Longest processor time that one input may take.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Longest input in bytes.
pub const INPUT_MAX: usize = 64 << 10;

/// A decoder under attack.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name on the command line, which is also that of its folder below `found/`.
    pub name: &'static str,
    /// Decodes bytes. Returns true if they were accepted.
    pub run: fn(&[u8]) -> bool,
    /// Returns real encodings.
    pub seeds: fn() -> Vec<Vec<u8>>,
}
