//! Writes lines to standard error for processes that others depend on. `eprintln!` panics where that fails, on a full disc
//! for instance, and a supervisor that panics ends all mounts of its pool.

use std::io::{self, Write};

/// Writes a line about this program. If that fails, the line is lost: there is no other place to report it.
pub fn write_line(what: &str) {
    // One write, so that lines of several processes do not mix.
    let _ = io::stderr().write_all(format!("pagefold: {what}\n").as_bytes());
}
