//! Findings of a check.

use super::RecordSet;
use crate::Error;

/// Largest number of errors that are reported one by one.
const ERRORS_MAX: usize = 100;

/// Findings of a check.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Number of records that were read, verified and decoded.
    pub records: u64,
    /// Stored bytes of these records.
    pub bytes: u64,
    /// Number of tree nodes among them.
    pub nodes: u64,
    /// Number of pages that trees of datasets and snapshots refer to, each counted in every tree.
    pub pages: u64,
    /// Number of models of pages.
    pub models: u64,
    /// Number of datasets and snapshots.
    pub versions: u64,
    /// Number of records that are accounted as live and that nothing refers to.
    pub leaked: u64,
    /// Number of errors.
    pub errors: u64,
    /// The first hundred different errors; of one that was met several times, the number of times.
    pub messages: Vec<String>,
    /// Number of times that each of them was met, until [`CheckReport::tell_repeats`].
    times: Vec<u64>,
    /// Records that cannot be read, or not be decoded: see [`Pool::unreadable`].
    pub(in crate::pool) damaged: RecordSet,
    /// True if tree nodes or parts of the segment table cannot be read: that a record was not reached is no finding
    /// then.
    pub(super) incomplete: bool,
}

impl CheckReport {
    /// Notes that a tree node cannot be read.
    pub(super) fn lost_node(&mut self, error: &Error) {
        self.incomplete = true;
        self.error(error.to_string());
    }

    pub(in crate::pool) fn error(&mut self, message: String) {
        self.errors += 1;
        if let Some(at) = self.messages.iter().position(|told| *told == message) {
            if let Some(times) = self.times.get_mut(at) {
                *times += 1;
            }
        } else if self.messages.len() < ERRORS_MAX {
            self.messages.push(message);
            self.times.push(1);
        }
    }

    /// Adds to each message how many times it was met. No error comes after that.
    pub(super) fn tell_repeats(&mut self) {
        for (message, times) in self.messages.iter_mut().zip(self.times.drain(..)) {
            if times > 1 {
                message.push_str(&format!(" ({times} times)"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_is_met_again_and_again_is_told_once() {
        let mut report = CheckReport::default();
        for number in 0..300 {
            report.error("a directory".into());
            report.error(format!("record {number}"));
        }
        report.tell_repeats();
        assert_eq!(report.errors, 600);
        assert_eq!(report.messages.len(), ERRORS_MAX);
        assert_eq!(report.messages[..2], ["a directory (300 times)", "record 0"]);
    }
}
