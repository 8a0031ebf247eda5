//! Collects the failures of several tasks, each of which is done even if others fail.

use pagefold_server::failure::{Failure, Result};
use serde_json::{Value, json};

use crate::table;

/// Failures, each with the name of its object.
#[derive(Debug, Default)]
pub struct Failures {
    tried: usize,
    failed: Vec<(String, Failure)>,
    /// Names of those whose failure was told at once.
    told: Vec<String>,
}

impl Failures {
    /// Creates an empty collection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the value of a result, or keeps its failure under the name `what`. Either way the task counts as tried.
    pub fn take<T>(&mut self, what: &str, result: Result<T>) -> Option<T> {
        self.tried += 1;
        match result {
            Ok(result) => Some(result),
            Err(failure) => {
                self.failed.push((what.to_owned(), failure));
                None
            }
        }
    }

    /// Does the same as [`Failures::take`] for a step before the task itself, which counts as tried only if that step
    /// fails.
    pub fn need<T>(&mut self, what: &str, result: Result<T>) -> Option<T> {
        if result.is_ok() { result.ok() } else { self.take(what, result) }
    }

    /// Adds a failure of a task that was counted already and was not done in full.
    pub fn also(&mut self, what: &str, failure: Failure) {
        self.failed.push((what.to_owned(), failure));
    }

    /// Prints a failure of a task that was counted already, at once: the others may go on for long.
    pub fn tell(&mut self, what: &str, failure: &Failure) {
        eprintln!("pagefold: {}: {failure}", table::printable(what));
        self.told.push(what.to_owned());
    }

    /// Returns true if nothing has failed.
    pub fn is_empty(&self) -> bool {
        self.failed.is_empty() && self.told.is_empty()
    }

    /// Returns the failures as a field of JSON output.
    pub fn json(&self) -> Value {
        let one = |(what, failure): &(String, Failure)| json!({ "name": what, "what": failure.what(), "hint": failure.advice() });
        self.failed.iter().map(one).collect()
    }

    /// Ends a verb that was asked for `asked` things by name (0: for all that exist). If there was one and it failed,
    /// returns its failure; if others failed, prints each failure with its name and returns one for the verb.
    pub fn finish(self, asked: usize, done: &str) -> Result<()> {
        let Self { tried, mut failed, told } = self;
        if asked == 1
            && failed.len() == 1
            && told.is_empty()
            && let Some((_, failure)) = failed.pop()
        {
            return Err(failure);
        }
        if failed.is_empty() && told.is_empty() {
            return Ok(());
        }
        for (what, failure) in &failed {
            eprintln!("pagefold: {}: {failure}", table::printable(what));
        }
        let failed = failed.iter().map(|(what, _)| what);
        let names: Vec<String> = told.iter().chain(failed).map(|what| table::printable(what)).collect();
        Err(Failure::new(format!("{} of {tried} could not be {done}: {}", names.len(), names.join(", "))))
    }

    /// Does the same as [`Failures::finish`] for a verb that was asked for all that exist.
    pub fn finish_all(self, done: &str) -> Result<()> {
        self.finish(0, done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> Failures {
        let mut failures = Failures::new();
        assert_eq!(failures.take("tank", Ok(1)), Some(1));
        assert_eq!(failures.take::<()>("vault", Err(Failure::new("it is away").hint("fetch it"))), None);
        failures
    }

    #[test]
    fn what_failed_is_named_and_the_rest_is_there() {
        assert_eq!(failed().json()[0]["name"], "vault");
        assert_eq!(failed().finish_all("listed").unwrap_err().what(), "1 of 2 could not be listed: vault");
        assert!(Failures::new().finish_all("listed").is_ok());
    }

    #[test]
    fn of_one_the_failure_is_that_of_the_verb() {
        let mut one = Failures::new();
        one.take::<()>("vault", Err(Failure::new("it is away")));
        assert_eq!(one.finish(1, "listed").unwrap_err().what(), "it is away");
    }
}
