//! Steps that targets with a model have in common.

use pagefold_codec::{Kinds, Model, Options, Scratch, learn};

/// Learns a model of pages.
pub(super) fn learned(pages: &[Vec<u8>], kinds: Kinds) -> Option<Model> {
    let pages: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
    learn(&pages, Options { kinds, level: 1, relation_pages: 100_000 })
}

/// Returns the records of pages that a model takes.
pub(super) fn coded(model: Option<&Model>, pages: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let Some(model) = model else { return Vec::new() };
    let record = |page: &Vec<u8>| {
        let mut record = Vec::new();
        model.encode(&mut Scratch::new(), page, &mut record).then_some(record)
    };
    pages.iter().filter_map(record).collect()
}

/// Decodes a record; returns whether it was accepted.
pub(super) fn decodes(model: Option<&Model>, record: &[u8]) -> bool {
    let Some(model) = model else { return false };
    let mut page = vec![0; model.page_bytes()];
    model.decode(&mut Scratch::new(), record, &mut page).is_ok()
}

/// Decodes a model, and decodes and encodes a few records and pages by it; returns whether it was accepted.
pub(super) fn tried(bytes: &[u8], records: &[Vec<u8>], pages: &[Vec<u8>], few: usize) -> bool {
    let Ok(model) = Model::from_bytes(bytes) else { return false };
    let mut scratch = Scratch::new();
    let mut page = vec![0; model.page_bytes()];
    for record in records.iter().take(few) {
        let _accepted = model.decode(&mut scratch, record, &mut page);
    }
    for page in pages.iter().take(few) {
        let _coded = model.encode(&mut scratch, page, &mut Vec::new());
    }
    true
}
