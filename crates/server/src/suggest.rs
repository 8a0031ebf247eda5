//! Finds the valid name that is nearest to a mistyped one.

use strsim::osa_distance;

/// Returns the candidate closest to `given`, if it is close enough to have been meant. An edit inserts, deletes or
/// replaces a letter, or swaps two neighbours.
pub fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given_head = head(given);
    candidates
        .into_iter()
        .map(|candidate| (osa_distance(&given_head, &head(candidate)), candidate))
        .filter(|(edits, candidate)| *edits <= tolerance(given.len().max(candidate.len())))
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// Returns the largest number of edits between a word and the one that was meant: a third of its length.
fn tolerance(len: usize) -> usize {
    len.div_ceil(3).max(1)
}

/// Returns the first letters of a word, which are those that are compared: so words of any length take little time.
fn head(word: &str) -> String {
    word.to_lowercase().chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_find_what_was_meant() {
        let names = ["compression", "recordsize", "sync", "atime"];
        assert_eq!(nearest("compresion", names), Some("compression"));
        assert_eq!(nearest("record_size", names), Some("recordsize"));
        assert_eq!(nearest("snyc", names), Some("sync"));
        assert_eq!(nearest("ATIME", names), Some("atime"));
    }

    #[test]
    fn far_words_find_nothing() {
        assert_eq!(nearest("xyzzy", ["compression", "sync"]), None);
        assert_eq!(nearest("", ["compression"]), None);
    }
}
