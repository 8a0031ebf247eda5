//! Attacks the codec for SQLite with models, records and pages.

use std::sync::OnceLock;

use pagefold_codec::testing::Random;
use pagefold_codec::testing::sqlite::{Tree, overflow_page, tree_page};
use pagefold_codec::{Kinds, Model, Options, Scratch, learn, recognise};

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
    let learn = || {
        let pages: Vec<&[u8]> = pages().iter().map(Vec::as_slice).collect();
        learn(&pages, Options { kinds: Kinds::Apart, level: 1, relation_pages: 100_000 })
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
    let mut record = Vec::new();
    for page in &pages()[..6] {
        let _coded = model.encode(&mut scratch, page, &mut record);
    }
    true
}

pub(super) fn record_seeds() -> Vec<Vec<u8>> {
    static RECORDS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    let coded = || {
        let mut records = Vec::new();
        let Some(model) = learned() else { return records };
        for page in pages().iter().take(24) {
            let mut record = Vec::new();
            if model.encode(&mut Scratch::new(), page, &mut record) {
                records.push(record);
            }
        }
        records
    };
    RECORDS.get_or_init(coded).clone()
}

pub(super) fn record(bytes: &[u8]) -> bool {
    let Some(model) = learned() else { return false };
    let mut page = vec![0; model.page_bytes()];
    model.decode(&mut Scratch::new(), bytes, &mut page).is_ok()
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
