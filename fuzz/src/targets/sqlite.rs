//! Attacks the codec for SQLite with models, records and pages.

use std::sync::OnceLock;

use pagefold_codec::testing::Random;
use pagefold_codec::testing::sqlite::{Tree, overflow_page, tree_page};
use pagefold_codec::{Kinds, Model, Scratch, recognise};

use super::models;

const PAGE_BYTES: usize = 4096;

/// Returns young and aged pages of a table and its index, with overflow pages between them.
fn pages() -> &'static [Vec<u8>] {
    static PAGES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    PAGES.get_or_init(|| {
        let mut random = Random::new(3);
        let trees = [Tree::simple(true), Tree::index(true), Tree::simple(false)];
        let page = |number: usize| match number % 6 {
            5 => overflow_page(&mut random, PAGE_BYTES, number),
            n => tree_page(&mut random, &trees[n % 3], number),
        };
        (0..240).map(page).collect()
    })
}

fn learned() -> Option<&'static Model> {
    static MODEL: OnceLock<Option<Model>> = OnceLock::new();
    MODEL.get_or_init(|| models::learned(pages(), Kinds::Apart)).as_ref()
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

pub(super) fn page_seeds() -> Vec<Vec<u8>> {
    pages().iter().take(24).cloned().collect()
}

/// Encodes a page. Pages are not trusted either, since a write may hold anything. A page that the encoder accepts must
/// come back, although the encoder does not verify that.
pub(super) fn page(bytes: &[u8]) -> bool {
    let Some(model) = learned() else { return false };
    let mut page = bytes.to_vec();
    page.resize(model.page_bytes(), 0);
    let mut scratch = Scratch::new();
    let known = recognise(&mut scratch, &page).is_some_and(|format| format.name() == "sqlite");
    let mut record = Vec::new();
    if model.encode_unverified(&mut scratch, &page, &mut record) {
        let mut again = vec![0; page.len()];
        let decoded = model.decode(&mut scratch, &record, &mut again);
        assert!(decoded.is_ok() && again == page, "a page did not come back: {decoded:?}");
    }
    known
}
