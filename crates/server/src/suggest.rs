//! Finds the valid name that is nearest to a mistyped one.

/// Returns the candidate closest to `given`, if it is close enough to have been meant.
pub fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given_lower = given.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (distance(&given_lower, &candidate.to_lowercase()), candidate))
        .filter(|(edits, candidate)| *edits <= tolerance(given.len().max(candidate.len())))
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// Returns the largest number of edits between a word and the one that was meant: a third of its length.
fn tolerance(len: usize) -> usize {
    len.div_ceil(3).max(1)
}

/// Returns the number of edits (insert, delete, replace, swap of neighbours) between two words: optimal string
/// alignment distance.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().take(64).collect());
    let mut rows = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replace.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
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
