//! Models pass to the dataset that goes on with the objects of theirs: the one that a stream has completed in place of an
//! earlier one, or a clone that was promoted.

use std::collections::BTreeSet;

use super::Pool;
use super::logs::stands_for_logs;
use crate::Result;
use crate::dataset::{Dataset, ModelEntry};
use crate::record::ModelId;

impl Pool {
    /// Lets the models of the dataset `from` code new pages of the dataset `to`, which goes on with its objects. Without
    /// that they would be learned anew, so a failure costs no more than that.
    pub(super) fn pass_models_on(&self, from: u64, to: u64) {
        if let Err(error) = self.try_pass_models_on(from, to) {
            tracing::warn!(%error, from, to, "models do not pass to another dataset, and are learned anew");
        }
    }

    fn try_pass_models_on(&self, from: u64, to: u64) -> Result<()> {
        let Some(dataset) = self.dataset_by_id(to) else { return Ok(()) };
        let models = &self.shared.models;
        let mut of_from: Vec<(ModelId, ModelEntry)> = models.all();
        of_from.retain(|(_, entry)| entry.dataset == from && entry.object != 0);
        let mut passing = BTreeSet::new();
        for object in of_from.iter().map(|(_, entry)| entry.object).collect::<BTreeSet<u64>>() {
            // An object of that number that came later is another one. A model that does not fit it is soon replaced.
            let is_there = match dataset.usage(object) {
                _ if stands_for_logs(object) => true,
                Ok(usage) => usage.pages > 0,
                Err(error) if error.is_damage() => false,
                Err(error) => return Err(error),
            };
            if is_there && models.own((to, object)).is_none() {
                passing.insert(object);
            }
        }
        for (id, entry) in of_from.into_iter().filter(|(_, entry)| passing.contains(&entry.object)) {
            self.restate_model_as(id, &|entry| ModelEntry { dataset: to, ..entry })?;
            if entry.late {
                self.watch.lock().late.insert((to, entry.object));
            }
        }
        Ok(())
    }
}
