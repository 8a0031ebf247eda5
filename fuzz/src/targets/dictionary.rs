//! Attacks pages that are coded by a dictionary of zstd, with models and records.

use std::sync::OnceLock;

use pagefold_codec::testing::Random;
use pagefold_codec::{Kinds, Model};

use super::models;

const PAGE_BYTES: usize = 4096;

/// Returns pages of words with random numbers between them.
fn pages() -> &'static [Vec<u8>] {
    static PAGES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    PAGES.get_or_init(|| {
        let mut random = Random::new(11);
        let page = |_| {
            let mut page = Vec::new();
            while page.len() < PAGE_BYTES {
                let word = [&b"invoice of customer "[..], b"shipped to ", b"returned by "][random.below(3)];
                page.extend_from_slice(word);
                page.extend(random.next().to_string().bytes());
            }
            page.truncate(PAGE_BYTES);
            page
        };
        (0..120).map(page).collect()
    })
}

fn learned() -> Option<&'static Model> {
    static MODEL: OnceLock<Option<Model>> = OnceLock::new();
    MODEL.get_or_init(|| models::learned(pages(), Kinds::Dictionaries)).as_ref()
}

pub(super) fn model_seeds() -> Vec<Vec<u8>> {
    learned().map(Model::to_bytes).into_iter().collect()
}

/// Decodes a model, and decodes and encodes by it.
pub(super) fn model(bytes: &[u8]) -> bool {
    models::tried(bytes, &record_seeds(), pages(), 6)
}

pub(super) fn record_seeds() -> Vec<Vec<u8>> {
    static RECORDS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    RECORDS.get_or_init(|| models::coded(learned(), &pages()[..24])).clone()
}

pub(super) fn record(bytes: &[u8]) -> bool {
    models::decodes(learned(), bytes)
}
