//! Buffers that are kept from page to page: one set per thread.

use std::any::Any;

use crate::columns::Buffers;
use crate::entropy::rans::Ops;
use crate::stale::Stale;
use crate::text::Contexts;

/// Buffers and zstd's contexts, which coding needs beside the model. Make one per thread and keep it; it serves all
/// models.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) buffers: Buffers,
    /// Pages that are taken apart, one of each type that was needed so far; the one that was used last comes last.
    pages: Vec<Box<dyn Any + Send>>,
    pub(crate) none: Stale,
    pub(crate) ops: Ops,
    pub(crate) contexts: Contexts,
    /// Code of a page: the entropy coder's output.
    pub(crate) code: Vec<u8>,
    /// The page without its stale bytes; in `again` the decoded page, when a record is verified.
    pub(crate) page: Vec<u8>,
    pub(crate) again: Vec<u8>,
}

impl Scratch {
    /// Returns empty buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `body` with the buffers of a page of type `P`, which are made when they are needed first.
    pub(crate) fn with<P: Default + Send + 'static, R>(
        &mut self,
        body: impl FnOnce(&mut Self, &mut P) -> R,
    ) -> R {
        let kept = self.pages.iter().rposition(|page| page.is::<P>()).map(|at| self.pages.swap_remove(at));
        let mut page: Box<P> = kept.and_then(|page| page.downcast().ok()).unwrap_or_default();
        let done = body(self, &mut page);
        self.pages.push(page);
        done
    }
}
