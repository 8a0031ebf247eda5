//! Models of logs of databases: files of one kind in a dataset share a model.
//!
//! A log goes on in other files, or in the same one from its beginning: a model per file would come too late for each.
//! So the model of all logs of a kind is kept for an object that no file can be. It never codes what is committed,
//! since a log's last page is written again with every transaction: it codes pages that are coded again (`fold`, or the
//! background once a file is quiet).

use std::cell::RefCell;
use std::sync::Arc;

use pagefold_codec::{Kind, Model, Scratch, recognise};

use super::Pool;
use super::models::draw;
use crate::Result;
use crate::dataset::{Dataset, LiveDataset, ModelPin};

/// The object that stands for all logs of PostgreSQL in a dataset; the next one stands for those of InnoDB.
const WAL_LOGS: u64 = u64::MAX;
const REDO_LOGS: u64 = u64::MAX - 1;
/// Number of pages by which a file is recognised.
const LOOKED_AT: u64 = 16;
/// Number of pages that a log's model is learned from.
pub const LOG_SAMPLED_PAGES: u64 = 400;
/// Number of pages of the log that a model is expected to code: as many as PostgreSQL keeps in files at the least
/// (`min_wal_size`, 80 MB).
pub const LOG_EXPECTED_PAGES: u64 = 10 << 10;
/// Level of zstd for what a log's model leaves: it is compressed once, in the background.
pub const LOG_LEVEL: u8 = 9;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::new());
}

/// Returns true if a model's object stands for logs.
pub(super) const fn stands_for_logs(object: u64) -> bool {
    object >= REDO_LOGS
}

/// Returns the object that stands for a file, of which `pages` are drawn, if it is a log: more than half of those that
/// are not all zeros are PostgreSQL's, or more than a third InnoDB's.
fn logs_of(pages: &[Vec<u8>]) -> Option<u64> {
    let (mut wal, mut redo, mut filled) = (0, 0, 0);
    for page in pages.iter().filter(|page| page.iter().any(|&byte| byte != 0)) {
        filled += 1;
        match SCRATCH.with_borrow_mut(|scratch| recognise(scratch, page)) {
            Some(Kind::PostgresWal) => wal += 1,
            Some(Kind::InnodbRedo) => redo += 1,
            _ => {}
        }
    }
    // A third is enough for InnoDB: a block in the middle of a long mini-transaction looks like nothing.
    if 2 * wal > filled {
        Some(WAL_LOGS)
    } else if 3 * redo > filled {
        Some(REDO_LOGS)
    } else {
        None
    }
}

impl Pool {
    /// Returns the model by which pages of `object` are coded again, if it is a log. If its first page is among them
    /// (`begins`) a model is learned from this file, which replaces the present one if it gains on it: so what logs are
    /// coded by does not depend on which came first.
    pub(super) fn model_of_log(
        &self,
        dataset: &LiveDataset,
        object: u64,
        begins: bool,
    ) -> Result<Option<(ModelPin, Arc<Model>)>> {
        let Some(logs) = logs_of(&draw(dataset, object, LOOKED_AT)?) else { return Ok(None) };
        let current = self.pinned_model(dataset.id, logs);
        if current.is_some() && !begins {
            return Ok(current);
        }
        drop(current);
        let pages = dataset.usage(object)?.pages.max(LOG_EXPECTED_PAGES);
        let sampled = draw(dataset, object, LOG_SAMPLED_PAGES)?;
        self.learn_pages(dataset.id, logs, &sampled, pages, LOG_LEVEL)?;
        Ok(self.pinned_model(dataset.id, logs))
    }
}
