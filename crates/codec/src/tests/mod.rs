//! Properties of the whole: pages of every kind and age come back byte by byte; damage is never more than an error.

mod entropy;
mod generate;
mod hostile;
mod round_trip;

use crate::model::Model;

/// A model of `pages`, whether it gains or not.
fn model_of(pages: &[Vec<u8>]) -> Model {
    let pages: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
    Model::of(&pages, 1).unwrap()
}
