//! Models of a backup: read when a record needs one, and kept while there is room.

use std::sync::Arc;

use pagefold_backup::{Contents, ModelRef};
use pagefold_codec::Model;
use pagefold_engine::record::{ModelId, Models as FindModels};
use pagefold_engine::wire::Reader;
use pagefold_engine::{Error, Result};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::kept::kept;
use crate::limits::{MODEL_CACHE_BYTES, OTHERS_OFTEN};
use crate::patience::Waiting;

/// Largest length in bytes of a stored model: that of a stream's model.
const MODEL_BYTES_MAX: usize = 512 << 10;
/// Number of varints before a model's bytes (docs/FORMAT.md, "Streams").
const NUMBERS_BEFORE: usize = 6;

#[derive(Clone)]
struct ModelWeight;

impl Weighter<u128, Arc<Model>> for ModelWeight {
    fn weight(&self, _: &u128, model: &Arc<Model>) -> u64 {
        model.memory_bytes().max(1) as u64
    }
}

/// The models of a backup.
pub(crate) struct Models {
    contents: Arc<Contents>,
    waiting: Arc<Waiting>,
    kept: Cache<u128, Arc<Model>, ModelWeight>,
}

impl Models {
    pub(crate) fn new(contents: Arc<Contents>, waiting: Arc<Waiting>) -> Self {
        Self { contents, waiting, kept: kept(MODEL_CACHE_BYTES, OTHERS_OFTEN, ModelWeight) }
    }

    pub(crate) fn get(&self, model: &ModelRef) -> Result<Arc<Model>> {
        self.kept.get_or_insert_with(&model.hash, || {
            let what = || format!("a model in {}", model.block.pack.path());
            let body = self.waiting.read(&self.contents, &what, || self.contents.model(model))?;
            let bytes = bytes_of(&body)?;
            let model = Model::from_bytes(bytes).map_err(|why| Error::corrupt(what(), why.to_string()))?;
            Ok(Arc::new(model))
        })
    }
}

/// Returns the model's own bytes.
fn bytes_of(body: &[u8]) -> Result<&[u8]> {
    let mut reader = Reader::new(body, "model of a backup");
    for _ in 0..NUMBERS_BEFORE {
        reader.varint()?;
    }
    let bytes = reader.bytes(MODEL_BYTES_MAX)?;
    reader.end()?;
    Ok(bytes)
}

/// The only model that a record has, whatever number the record gives it: that number is one of the pool that made the
/// record.
pub(crate) struct Only(pub(crate) Option<Arc<Model>>);

impl FindModels for Only {
    fn model(&self, _: ModelId) -> Result<Arc<Model>> {
        let none = || Error::corrupt("record", "it is coded by a model, and its manifest names none");
        self.0.clone().ok_or_else(none)
    }
}
