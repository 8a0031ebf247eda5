//! Attacks the codec for the logs of PostgreSQL and InnoDB with models, records and pages.

use std::sync::OnceLock;

use pagefold_codec::testing::Random;
use pagefold_codec::testing::logs::{redo_blocks, wal_pages};
use pagefold_codec::{Kinds, Model, Scratch, recognise};

use super::models;

const PAGE_BYTES: usize = 1024;

/// Pages of one kind of log, its model, and some records.
struct Log {
    pages: Vec<Vec<u8>>,
    model: Option<Model>,
    records: Vec<Vec<u8>>,
}

impl Log {
    fn new(pages: Vec<Vec<u8>>) -> Self {
        let model = models::learned(&pages, Kinds::Apart);
        let records = models::coded(model.as_ref(), &pages[..16]);
        Self { pages, model, records }
    }
}

/// Returns both logs.
fn logs() -> &'static [Log; 2] {
    static LOGS: OnceLock<[Log; 2]> = OnceLock::new();
    LOGS.get_or_init(|| {
        let mut random = Random::new(3);
        [wal_pages(&mut random, PAGE_BYTES, 300), redo_blocks(&mut random, PAGE_BYTES, 300)].map(Log::new)
    })
}

pub(super) fn model_seeds() -> Vec<Vec<u8>> {
    logs().iter().filter_map(|log| log.model.as_ref()).map(Model::to_bytes).collect()
}

/// Decodes a model, and decodes and encodes by it.
pub(super) fn model(bytes: &[u8]) -> bool {
    let Ok(model) = Model::from_bytes(bytes) else { return false };
    let mut scratch = Scratch::new();
    let mut page = vec![0; model.page_bytes()];
    for log in logs() {
        for record in log.records.iter().take(2) {
            let _accepted = model.decode(&mut scratch, record, &mut page);
        }
        let mut record = Vec::new();
        let _coded = model.encode(&mut scratch, &log.pages[0], &mut record);
    }
    true
}

/// Returns records of both logs, each behind a byte that tells its log.
pub(super) fn record_seeds() -> Vec<Vec<u8>> {
    let all = logs().iter().zip(0..);
    all.flat_map(|(log, which)| log.records.iter().map(move |record| [&[which][..], record].concat()))
        .collect()
}

pub(super) fn record(bytes: &[u8]) -> bool {
    let Some((which, record)) = bytes.split_first() else { return false };
    models::decodes(logs()[usize::from(which & 1)].model.as_ref(), record)
}

pub(super) fn page_seeds() -> Vec<Vec<u8>> {
    logs().iter().flat_map(|log| log.pages.iter().take(16).cloned()).collect()
}

/// Encodes a page. Pages are not trusted either, since a write may hold anything.
pub(super) fn page(bytes: &[u8]) -> bool {
    let mut page = bytes.to_vec();
    page.resize(PAGE_BYTES, 0);
    let mut scratch = Scratch::new();
    let format = recognise(&mut scratch, &page);
    for log in logs() {
        if let Some(model) = &log.model {
            let _coded = model.encode(&mut scratch, &page, &mut Vec::new());
        }
    }
    format.is_some_and(|format| format.facts().file.log.is_some())
}
