//! Figures for people to look at: models, and the objects that have one or wait for one.

use std::collections::BTreeMap;

use super::Pool;
use super::logs::stands_for_logs;
use super::models::Watched;
use crate::Result;
use crate::dataset::{Dataset, ModelEntry};
use crate::record::{Codec, ModelId};

/// A model in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelInUse {
    /// Number of the model.
    pub id: ModelId,
    /// The codec of records by the model.
    pub codec: Codec,
    /// Length of the model as it is stored, in bytes.
    pub stored_bytes: u64,
    /// Number of models that were learned of the object, this one included.
    pub learned: u32,
    /// Number of pages that the model was learned from, of those that the object had then.
    pub sampled_pages: u32,
    /// Number of pages that the object had then.
    pub object_pages: u64,
    /// Average length of the sampled pages' records, in bytes.
    pub record_bytes: u32,
}

/// An object whose pages look like a database's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modelled {
    /// Number of its dataset.
    pub dataset: u64,
    /// The object; `None` for logs, which share one model.
    pub object: Option<u64>,
    /// The model of the object's new pages; `None` if it waits for one, or none gained.
    pub model: Option<ModelInUse>,
    /// Number of stored pages of the object.
    pub pages: u64,
    /// Number of pages that its model coded since it was learned or the pool was opened.
    pub coded_pages: u64,
    /// Length of these pages' records, in bytes.
    pub coded_bytes: u64,
    /// Number of pages that were stored without a model in that time.
    pub other_pages: u64,
    /// True if pages that were stored before the model was there wait to be coded again.
    pub waits: bool,
}

impl Pool {
    /// Returns the objects that have a model of their own, or whose pages are counted since one may gain on them, by
    /// dataset and number.
    ///
    /// # Errors
    /// Of reading what objects take.
    pub fn modelled(&self) -> Result<Vec<Modelled>> {
        let models = &self.shared.models;
        let (mut found, late) = {
            let watch = self.watch.lock();
            let counted: BTreeMap<(u64, u64), Watched> = watch.counted().collect();
            (counted, watch.late.clone())
        };
        // Those of a stream that were learned from another dataset code no object here.
        for (_, entry) in models.all().into_iter().filter(|(_, entry)| entry.object != 0) {
            found.entry((entry.dataset, entry.object)).or_default();
        }
        let mut all = Vec::with_capacity(found.len());
        for (of, watched) in found {
            let model = models.own(of).and_then(|id| models.get(id).map(|entry| in_use(id, &entry)));
            let Some(dataset) = self.dataset_by_id(of.0) else { continue };
            let shared = stands_for_logs(of.1);
            let pages = match dataset.usage(of.1) {
                _ if shared => 0,
                // The object was deleted; what its model coded may be in a snapshot.
                Ok(usage) if usage.pages == 0 => continue,
                Ok(usage) => usage.pages,
                // It hides no other object; `check` reports the damage.
                Err(error) if error.is_damage() => model.map_or(0, |model| model.object_pages),
                Err(error) => return Err(error),
            };
            all.push(Modelled {
                dataset: of.0,
                object: (!shared).then_some(of.1),
                model,
                pages,
                coded_pages: watched.coded,
                coded_bytes: watched.coded_bytes,
                other_pages: watched.others,
                waits: late.contains(&of),
            });
        }
        Ok(all)
    }
}

fn in_use(id: ModelId, entry: &ModelEntry) -> ModelInUse {
    ModelInUse {
        id,
        codec: entry.codec,
        stored_bytes: entry.ptr.len_bytes.into(),
        learned: entry.generation.saturating_add(1),
        sampled_pages: entry.sampled_pages,
        object_pages: entry.object_pages,
        record_bytes: entry.record_bytes,
    }
}
