//! Tests properties of the whole crate: pages of every kind and age come back byte by byte; damage is never more than
//! an error.

mod doubles;
mod entropy;
mod files;
mod golden;
mod hostile;
mod layout;
mod logs;
mod registry;
mod round_trip;
mod sqlite;
mod toy;

use crate::model::Model;
use crate::registry::REGISTRY;

/// Returns the number of cases of each property; PAGEFOLD_CODEC_CASES sets it, for campaigns.
fn cases() -> u32 {
    std::env::var("PAGEFOLD_CODEC_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(24)
}

/// Makes a model of `pages`, even if it does not gain.
fn model_of(pages: &[Vec<u8>]) -> Model {
    let pages: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
    Model::by(&REGISTRY, &pages, 1).unwrap()
}
