//! Has helpers for learning from pages of every kind.

use crate::columns::Grid;
use crate::columns::learn::Sampled;

/// Returns the middle one of `values`, or the default if there are none.
pub(crate) fn median<T: Copy + Default + Ord>(mut values: Vec<T>) -> T {
    let middle = values.len() / 2;
    if middle == values.len() {
        return T::default();
    }
    *values.select_nth_unstable(middle).1
}

/// Returns at most `count` of `pages`, spread evenly, each with the places of its values as `locate` gives them. Leaves
/// out the pages for which `locate` returns `None`.
pub(crate) fn sample<'p>(
    pages: &[&'p [u8]],
    count: usize,
    locate: impl Fn(&[u8]) -> Option<Grid>,
) -> Vec<Sampled<'p>> {
    let step = pages.len().div_ceil(count).max(1);
    let spread = pages.iter().copied().step_by(step);
    spread.filter_map(|page| Some(Sampled { page, grid: locate(page)? })).collect()
}
