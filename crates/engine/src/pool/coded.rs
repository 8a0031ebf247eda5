//! Pages as they are coded for the log.

use std::collections::HashMap;
use std::sync::Arc;

use pagefold_codec::Model;

use crate::record::ModelId;

/// Models in use for the objects of a commit.
pub(super) type Current = HashMap<u64, (ModelId, Arc<Model>)>;

/// A page's record, and the model that it uses; `None` for a page of zeros.
pub(super) type PageRecord = Option<(Vec<u8>, Option<ModelId>)>;

/// A page as it is stored.
pub(super) struct Coded {
    pub(super) stored: PageRecord,
    /// Number of the page's former records that are bases of this one.
    pub(super) kept: u8,
    /// True if it was coded fast instead of small ([`super::in_haste`]).
    pub(super) in_haste: bool,
}

impl Coded {
    pub(super) fn full(stored: PageRecord) -> Self {
        Self { stored, kept: 0, in_haste: false }
    }
}
