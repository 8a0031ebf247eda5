//! Attacks the codec for arrays of numbers, with pages and records.

use pagefold_codec::doubles::{decode, encode, plausible};
use pagefold_codec::testing::Random;

const PAGE_BYTES: usize = 4096;

/// Makes pages of samples of one to three sources that take turns, with gaps.
pub(super) fn page_seeds() -> Vec<Vec<u8>> {
    let mut random = Random::new(5);
    let mut page = |lanes: usize| -> Vec<u8> {
        let mut levels = vec![500.0; lanes];
        let words = (0..PAGE_BYTES / 8).map(|at| {
            let level: &mut f64 = &mut levels[at % lanes];
            *level = ((*level + random.below(1000) as f64 / 100.0 - 5.0) * 100.0).round() / 100.0;
            if at / 50 % 3 == 2 { f64::NAN } else { *level / lanes as f64 }
        });
        words.flat_map(f64::to_le_bytes).collect()
    };
    (1..=3).map(&mut page).collect()
}

pub(super) fn record_seeds() -> Vec<Vec<u8>> {
    let coded = |page: Vec<u8>| {
        let mut record = Vec::new();
        encode(&page, &mut record).then_some(record)
    };
    page_seeds().into_iter().filter_map(coded).collect()
}

/// Decodes the bytes as records of pages of several lengths.
pub(super) fn record(bytes: &[u8]) -> bool {
    let lens = [1, 8, 13, 512, PAGE_BYTES, 65_536];
    lens.iter().filter(|&&len| decode(bytes, &mut vec![0xEE; len]).is_ok()).count() > 0
}

/// Encodes any page. [`encode`] verifies that the page comes back, which must never fail.
pub(super) fn page(bytes: &[u8]) -> bool {
    let mut record = Vec::new();
    assert!(encode(bytes, &mut record), "numbers did not come back");
    plausible(bytes)
}
