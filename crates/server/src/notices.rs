//! Lines for the user who waits for a command. The program that uses this crate says who prints them; without that they
//! are dropped.

use std::sync::OnceLock;

static TELL: OnceLock<fn(&str)> = OnceLock::new();

/// Sets the function that prints lines, once per process. It puts the program's name before each.
pub fn print_with(tell: fn(&str)) {
    // A second call changes nothing.
    let _ = TELL.set(tell);
}

/// Has a line printed.
pub(crate) fn tell(line: &str) {
    if let Some(tell) = TELL.get() {
        tell(line);
    }
}
