//! The error type of the verbs. It tells what happened, to which object, and what to do.

use std::fmt;

use crate::raw;

/// Result of anything in this program that can fail visibly to a user.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// A failure as the user reads it.
#[derive(Debug)]
pub struct Failure {
    usage: bool,
    status: Option<u8>,
    needs_replay: bool,
    what: String,
    hint: Option<String>,
}

impl Failure {
    /// Creates a failure of the work itself (exit status 1).
    pub fn new(what: impl Into<String>) -> Self {
        Self { usage: false, status: None, needs_replay: false, what: what.into(), hint: None }
    }
    /// Creates a failure for a command line that makes no sense (exit status 2).
    pub fn usage(what: impl Into<String>) -> Self {
        Self { usage: true, ..Self::new(what) }
    }
    /// Adds advice to the user.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
    /// Sets another exit status for the program.
    #[must_use]
    pub fn status(mut self, status: u8) -> Self {
        self.status = Some(status);
        self
    }
    /// Says that a pool has to be opened for writing before it can be read.
    #[must_use]
    pub fn until_replayed(mut self) -> Self {
        self.needs_replay = true;
        self
    }
    /// Returns true if a pool has to be opened for writing before it can be read.
    pub fn needs_replay(&self) -> bool {
        self.needs_replay
    }
    /// Returns what happened, without the advice.
    pub fn what(&self) -> &str {
        &self.what
    }
    /// Returns the advice, if there is any.
    pub fn advice(&self) -> Option<&str> {
        self.hint.as_deref()
    }
    /// Returns the exit status: 2 for usage, 1 for everything else, unless another one was set.
    pub fn exit_status(&self) -> u8 {
        self.status.unwrap_or(if self.usage { 2 } else { 1 })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let printable =
            |text: &str| -> String { text.split('\n').map(raw::printable).collect::<Vec<_>>().join("\n") };
        f.write_str(&printable(&self.what))?;
        match &self.hint {
            Some(hint) => write!(f, "\n  {}", printable(hint)),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

/// Adds to an error of a lower layer what was attempted, and with which object.
pub trait Context<T> {
    /// Prefixes the error with the text of `doing`.
    fn context(self, doing: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Failure::new(format!("{}: {error}", doing())))
    }
}
