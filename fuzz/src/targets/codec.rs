//! Attacks the codecs for pages of databases with models, records and pages.

use std::sync::OnceLock;

use pagefold_codec::testing::innodb::{InnodbTable, index_page};
use pagefold_codec::{Kinds, Model, Scratch, recognise};
use pagefold_sim::random::Random;

use super::models;

const PAGE_BYTES: usize = 8192;

/// Makes a heap page as PostgreSQL lays it out: header, line pointers, tuples from the end.
fn heap_page(random: &mut Random, block: u32) -> Vec<u8> {
    let mut page = vec![0; PAGE_BYTES];
    let (mut lower, mut upper) = (24, PAGE_BYTES);
    for row in 0..100_u32 {
        let name = format!("customer-{}-{}", block * 100 + row, random.below(9000));
        let mut tuple = vec![0; 24];
        tuple[..4].copy_from_slice(&700_u32.to_le_bytes());
        tuple[12..16].copy_from_slice(&(block << 16).to_le_bytes());
        tuple[16..18].copy_from_slice(&(row as u16 + 1).to_le_bytes());
        tuple[18..20].copy_from_slice(&3_u16.to_le_bytes());
        tuple[20..22].copy_from_slice(&0x0902_u16.to_le_bytes());
        tuple[22] = 24;
        tuple.extend((block * 100 + row).to_le_bytes());
        tuple.push((name.len() as u8 + 1) << 1 | 1);
        tuple.extend(name.as_bytes());
        tuple.extend((random.below(100) as u32).to_le_bytes());
        let start = (upper - tuple.len()) / 8 * 8;
        if start < lower + 4 {
            break;
        }
        page[start..start + tuple.len()].copy_from_slice(&tuple);
        let pointer = start as u32 | 1 << 15 | (tuple.len() as u32) << 17;
        page[lower..lower + 4].copy_from_slice(&pointer.to_le_bytes());
        (lower, upper) = (lower + 4, start);
    }
    page[4..8].copy_from_slice(&(block * 500).to_le_bytes());
    page[12..14].copy_from_slice(&(lower as u16).to_le_bytes());
    page[14..16].copy_from_slice(&(upper as u16).to_le_bytes());
    page[16..18].copy_from_slice(&(PAGE_BYTES as u16).to_le_bytes());
    page[18..20].copy_from_slice(&(PAGE_BYTES as u16 | 4).to_le_bytes());
    page
}

fn pages() -> &'static [Vec<u8>] {
    static PAGES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    PAGES.get_or_init(|| {
        let mut random = Random::new(3);
        (0..200).map(|block| heap_page(&mut random, block)).collect()
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
    models::tried(bytes, &page_seeds(), pages(), 2)
}

pub(super) fn page_seeds() -> Vec<Vec<u8>> {
    static RECORDS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    RECORDS.get_or_init(|| models::coded(learned(), &pages()[..8])).clone()
}

pub(super) fn page(bytes: &[u8]) -> bool {
    models::decodes(learned(), bytes)
}

/// Makes aged pages of an index of InnoDB.
fn innodb_pages() -> &'static [Vec<u8>] {
    static PAGES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    PAGES.get_or_init(|| {
        let mut random = pagefold_codec::testing::Random::new(3);
        let mut table = InnodbTable::simple(true);
        table.page_bytes = 4096;
        (0..200).map(|number| index_page(&mut random, &table, number)).collect()
    })
}

fn innodb_learned() -> Option<&'static Model> {
    static MODEL: OnceLock<Option<Model>> = OnceLock::new();
    MODEL.get_or_init(|| models::learned(innodb_pages(), Kinds::Apart)).as_ref()
}

pub(super) fn innodb_model_seeds() -> Vec<Vec<u8>> {
    innodb_learned().map(Model::to_bytes).into_iter().collect()
}

/// Decodes a model, and decodes and encodes by it.
pub(super) fn innodb_model(bytes: &[u8]) -> bool {
    models::tried(bytes, &innodb_record_seeds(), innodb_pages(), 2)
}

pub(super) fn innodb_record_seeds() -> Vec<Vec<u8>> {
    static RECORDS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    RECORDS.get_or_init(|| models::coded(innodb_learned(), &innodb_pages()[..16])).clone()
}

pub(super) fn innodb_record(bytes: &[u8]) -> bool {
    models::decodes(innodb_learned(), bytes)
}

pub(super) fn innodb_page_seeds() -> Vec<Vec<u8>> {
    innodb_pages().iter().take(16).cloned().collect()
}

/// Encodes a page. Pages are not trusted either, since a write may hold anything.
pub(super) fn innodb_page(bytes: &[u8]) -> bool {
    let Some(model) = innodb_learned() else { return false };
    let mut page = bytes.to_vec();
    page.resize(model.page_bytes(), 0);
    let mut scratch = Scratch::new();
    let known = recognise(&mut scratch, &page).is_some_and(|format| format.name() == "innodb");
    let mut record = Vec::new();
    model.encode(&mut scratch, &page, &mut record) && known
}
