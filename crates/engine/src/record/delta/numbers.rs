//! Changes of arrays of floating-point numbers, as files of RRDtool are.
//!
//! An update of such a file puts some hundred numbers in the place of others. They are as good as random to a codec of
//! bytes, but are the next numbers of a series: [`pagefold_codec::doubles`] codes them in a byte or two each.
//!
//! | field | meaning |
//! |---|---|
//! | count | varint: number of runs of words of 8 bytes that differ |
//! | per run | number of words that stay as they were, number of words that differ: varints |
//! | numbers | the words of all runs, one behind the other, as `doubles` codes them |

use std::ops::Range;

use pagefold_codec::doubles;

use crate::wire::{Reader, put_varint};
use crate::{Error, Result};

const WORD: usize = 8;
/// Least number of words that differ: fewer are no series.
const WORDS_MIN: usize = 8;
/// Largest number of equal words between two runs that are coded with them. In a series a number may be what another
/// was before by chance.
const GAP_WORDS: usize = 2;

/// Returns the change from `before` to `page`, of which `logical_bytes` count: zeros follow. `None` if what differs are no
/// numbers.
pub(super) fn encode(before: &[u8], page: &[u8], logical_bytes: usize) -> Option<Vec<u8>> {
    let runs = runs(before, page, logical_bytes)?;
    let differing: usize = runs.iter().map(ExactSizeIterator::len).sum();
    if differing < WORDS_MIN {
        return None;
    }
    let mut words = Vec::with_capacity(differing * WORD);
    for run in &runs {
        words.extend_from_slice(page.get(run.start * WORD..run.end * WORD)?);
    }
    if !doubles::has_many(&words) {
        return None;
    }
    let mut out = Vec::new();
    put_varint(&mut out, runs.len() as u64);
    let mut end_of_last = 0;
    for run in &runs {
        put_varint(&mut out, (run.start - end_of_last) as u64);
        put_varint(&mut out, run.len() as u64);
        end_of_last = run.end;
    }
    doubles::encode(&words, &mut out).then_some(out)
}

/// Returns the runs of words in which `page` differs from `before`; `None` if they have half a word at their end.
fn runs(before: &[u8], page: &[u8], logical_bytes: usize) -> Option<Vec<Range<usize>>> {
    let (were, []) = before.as_chunks::<WORD>() else { return None };
    let (are, []) = page.as_chunks::<WORD>() else { return None };
    let mut runs: Vec<Range<usize>> = Vec::new();
    let words = were.iter().zip(are).take(logical_bytes.div_ceil(WORD));
    for (at, _) in words.enumerate().filter(|(_, (was, is))| was != is) {
        match runs.last_mut() {
            Some(run) if at - run.end <= GAP_WORDS => run.end = at + 1,
            _ => runs.push(at..at + 1),
        }
    }
    Some(runs)
}

/// Puts the words of a change into `page`.
pub(super) fn apply(change: &[u8], page: &mut [u8]) -> Result<()> {
    let bad = |why: &str| Error::corrupt("delta", why);
    let mut reader = Reader::new(change, "delta");
    let count = reader.varint()?;
    let mut runs = Vec::new();
    let (mut at, mut differing) = (0_usize, 0);
    for _ in 0..count {
        let (same, other) = (reader.varint_u32()? as usize, reader.varint_u32()? as usize);
        let begin = at + same;
        at = begin + other;
        // Each run has a word, so there are no more of them than the page has words.
        if other == 0 || at * WORD > page.len() {
            return Err(bad("a run of words is out of range"));
        }
        runs.push(begin * WORD..at * WORD);
        differing += other;
    }
    let mut words = vec![0; differing * WORD];
    doubles::decode(reader.take(reader.remaining())?, &mut words)
        .map_err(|corrupt| bad(&corrupt.to_string()))?;
    let mut rest = words.as_slice();
    for run in runs {
        let to = page.get_mut(run).ok_or_else(|| bad("a run of words is out of range"))?;
        let (here, behind) = rest.split_at_checked(to.len()).ok_or_else(|| bad("words are missing"))?;
        to.copy_from_slice(here);
        rest = behind;
    }
    Ok(())
}
