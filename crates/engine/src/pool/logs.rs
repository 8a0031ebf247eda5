//! Models of logs of databases: files of one kind in a dataset share a model.
//!
//! A log goes on in other files, or in the same one from its beginning: a model per file would come too late for each.
//! So the model of all logs of a kind is kept for an object that no file can be. It never codes what is committed,
//! since a log's last page is written again with every transaction: it codes pages that are coded again (`fold`, or the
//! background once a file is quiet).

use std::cell::RefCell;
use std::sync::Arc;

use pagefold_codec::{Kinds, LogFacts, Model, Scratch, recognise, registry};

use super::Pool;
use super::models::draw;
use crate::Result;
use crate::dataset::{Dataset, LiveDataset, ModelPin};

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

/// Returns the object that stands for all logs of a kind in a dataset: that of PostgreSQL's is the last number, that of
/// InnoDB's the one before.
fn object_of(log: LogFacts) -> u64 {
    u64::MAX - u64::from(log.number)
}

/// Returns true if a model's object stands for logs.
pub(super) fn stands_for_logs(object: u64) -> bool {
    registry().files().iter().any(|file| file.log.is_some_and(|log| object_of(log) == object))
}

/// Returns the object that stands for a file, of which `pages` are drawn, if it is a log: of the first kind of log of
/// whose pages there are enough among those that are not all zeros.
fn logs_of(pages: &[Vec<u8>]) -> Option<u64> {
    let filled = || pages.iter().filter(|page| page.iter().any(|&byte| byte != 0));
    let format = |page: &Vec<u8>| SCRATCH.with_borrow_mut(|scratch| recognise(scratch, page));
    let files: Vec<_> = filled().map(|page| format(page).map(|format| format.facts().file)).collect();
    let mut logs: Vec<_> = registry().files().iter().filter_map(|file| Some((file.log?, *file))).collect();
    logs.sort_by_key(|(log, _)| log.number);
    let is_log = |(log, of): &(LogFacts, _)| {
        let found = files.iter().filter(|file| **file == Some(*of)).count() as u64;
        log.one_in * found > files.len() as u64
    };
    logs.into_iter().find(is_log).map(|(log, _)| object_of(log))
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
        self.learn_pages(dataset.id, logs, &sampled, pages, (Kinds::Apart, LOG_LEVEL))?;
        Ok(self.pinned_model(dataset.id, logs))
    }
}
