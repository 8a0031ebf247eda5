//! Attacks pages that are coded by a dictionary of zstd, with models and records.

use std::sync::OnceLock;

use pagefold_codec::testing::Random;
use pagefold_codec::{Kinds, Model, Options, Scratch, learn};

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
    let learn = || {
        let pages: Vec<&[u8]> = pages().iter().map(Vec::as_slice).collect();
        learn(&pages, Options { kinds: Kinds::Dictionaries, level: 1, relation_pages: 100_000 })
    };
    MODEL.get_or_init(learn).as_ref()
}

pub(super) fn model_seeds() -> Vec<Vec<u8>> {
    learned().map(Model::to_bytes).into_iter().collect()
}

/// Decodes a model, and decodes and encodes by it.
pub(super) fn model(bytes: &[u8]) -> bool {
    let Ok(model) = Model::from_bytes(bytes) else { return false };
    let mut scratch = Scratch::new();
    let mut page = vec![0; model.page_bytes()];
    for record in record_seeds().iter().take(6) {
        let _accepted = model.decode(&mut scratch, record, &mut page);
    }
    for page in &pages()[..6] {
        let _coded = model.encode(&mut scratch, page, &mut Vec::new());
    }
    true
}

pub(super) fn record_seeds() -> Vec<Vec<u8>> {
    let Some(model) = learned() else { return Vec::new() };
    let coded = |page: &Vec<u8>| {
        let mut record = Vec::new();
        model.encode(&mut Scratch::new(), page, &mut record).then_some(record)
    };
    pages().iter().take(24).filter_map(coded).collect()
}

pub(super) fn record(bytes: &[u8]) -> bool {
    let Some(model) = learned() else { return false };
    let mut page = vec![0; model.page_bytes()];
    model.decode(&mut Scratch::new(), bytes, &mut page).is_ok()
}
