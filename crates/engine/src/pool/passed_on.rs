//! Properties that pass to the dataset that takes another one's place.
//!
//! They are read before the place is taken, which may wait for a checkpoint. If they were set meanwhile, they are read
//! again.

use std::collections::BTreeMap;

use super::catalogue::Catalogue;
use crate::{Error, Result};

const CHANGED: &str = "its properties were changed meanwhile";

/// Takes the place of a dataset: calls `take`, which reads the properties and checks them ([`check`]) when they pass on,
/// again and again while they are set meanwhile.
///
/// # Errors
/// Other errors of `take`.
pub(super) fn retake(take: impl Fn() -> Result<()>) -> Result<()> {
    loop {
        match take() {
            Err(Error::Busy(why)) if why == CHANGED => {}
            done => return done,
        }
    }
}

/// Returns an error if a dataset that is replaced has other properties by now than those that pass to another one.
pub(super) fn check(catalogue: &Catalogue, id: u64, properties: &BTreeMap<String, String>) -> Result<()> {
    match catalogue.get(id)?.properties == *properties {
        true => Ok(()),
        false => Err(Error::Busy(CHANGED.into())),
    }
}
