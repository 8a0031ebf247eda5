//! Properties of the whole: pages of every kind and age come back byte by byte; damage is never more than an error.

mod doubles;
mod entropy;
mod golden;
mod hostile;
mod layout;
mod logs;
mod round_trip;
mod sqlite;

use crate::model::Model;

/// Cases of each property: PAGEFOLD_CODEC_CASES, for campaigns.
fn cases() -> u32 {
    std::env::var("PAGEFOLD_CODEC_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(24)
}

/// A model of `pages`, whether it gains or not.
fn model_of(pages: &[Vec<u8>]) -> Model {
    let pages: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
    Model::of(&pages, 1).unwrap()
}
