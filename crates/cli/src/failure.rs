//! What a verb answers when it cannot do what was asked: what happened, to which object, what to do.

use std::fmt;

use crate::table;

/// The result of everything in this program that a user may see fail.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// A failure as the user reads it.
#[derive(Debug)]
pub struct Failure {
    usage: bool,
    status: Option<u8>,
    what: String,
    hint: Option<String>,
}

impl Failure {
    /// Something went wrong while doing what was asked (exit status 1).
    pub fn new(what: impl Into<String>) -> Self {
        Self { usage: false, status: None, what: what.into(), hint: None }
    }
    /// The command line itself makes no sense (exit status 2).
    pub fn usage(what: impl Into<String>) -> Self {
        Self { usage: true, status: None, what: what.into(), hint: None }
    }
    /// Adds what the user can do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
    /// Has the program exit with another status.
    #[must_use]
    pub fn status(mut self, status: u8) -> Self {
        self.status = Some(status);
        self
    }
    /// What happened, without the hint.
    pub fn what(&self) -> &str {
        &self.what
    }
    /// What to do about it, where something is known.
    pub fn advice(&self) -> Option<&str> {
        self.hint.as_deref()
    }
    /// 2 for usage, 1 for everything else, unless it was said otherwise.
    pub fn exit_status(&self) -> u8 {
        self.status.unwrap_or(if self.usage { 2 } else { 1 })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let printable =
            |text: &str| -> String { text.split('\n').map(table::printable).collect::<Vec<_>>().join("\n") };
        f.write_str(&printable(&self.what))?;
        match &self.hint {
            Some(hint) => write!(f, "\n  {}", printable(hint)),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

/// Names the object and the attempt that an error of a lower layer belongs to.
pub trait Context<T> {
    /// Prefixes the error with what was being done to what.
    fn context(self, doing: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Failure::new(format!("{}: {error}", doing())))
    }
}
