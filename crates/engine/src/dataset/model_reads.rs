//! Models and bases for those who read records: from memory, or from the pool.

use std::collections::HashMap;
use std::sync::Arc;

use pagefold_codec::Model;

use super::deliver::Keep;
use super::shared::Shared;
use crate::record::{ModelId, Models, Record, codec_of, decode_metadata};
use crate::{Addr, Error, Result};

impl Models for Shared {
    fn model(&self, id: ModelId) -> Result<Arc<Model>> {
        if let Some(model) = self.models.in_memory(id) {
            return Ok(model);
        }
        let entry = self.models.get(id).ok_or_else(|| unknown(id))?;
        let bytes = decode_metadata(&self.read_record(entry.ptr.addr)?)?;
        let model = Model::from_bytes(&bytes).map_err(|why| {
            Error::corrupt(format!("model {id} (record {})", entry.ptr.addr), why.to_string())
        })?;
        if codec_of(&model) != entry.codec {
            return Err(Error::corrupt(format!("model {id}"), "it is for another codec than its entry says"));
        }
        let model = Arc::new(model);
        self.models.hold(id, &model);
        Ok(model)
    }

    fn base(&self, addr: Addr) -> Result<Record> {
        if let Some(record) = self.cache.get(addr) {
            return Ok(record);
        }
        let keep = Keep::of(self, false);
        let record = self.read_record(addr)?;
        keep.keep(self, addr, &record);
        Ok(record.into())
    }
}

/// Models and records that are in memory, for readers that must not wait. Others are answered with [`Error::Busy`].
pub(super) struct Loaded<'a>(pub(super) &'a Shared);

impl Models for Loaded<'_> {
    fn model(&self, id: ModelId) -> Result<Arc<Model>> {
        let found = self.0.models.in_memory(id);
        found.ok_or_else(|| Error::Busy(format!("model {id} is not in memory")))
    }

    fn base(&self, addr: Addr) -> Result<Record> {
        self.0.cache.get(addr).ok_or_else(|| Error::Busy(format!("record {addr} is not in memory")))
    }
}

/// As [`Shared`], with some records that were fetched beforehand.
pub(super) struct Fetched<'a> {
    pub(super) shared: &'a Shared,
    pub(super) bases: HashMap<Addr, Record>,
}

impl Models for Fetched<'_> {
    fn model(&self, id: ModelId) -> Result<Arc<Model>> {
        self.shared.model(id)
    }

    fn base(&self, addr: Addr) -> Result<Record> {
        self.bases.get(&addr).map_or_else(|| self.shared.base(addr), |record| Ok(record.clone()))
    }
}

fn unknown(id: ModelId) -> Error {
    Error::corrupt(format!("model {id}"), "the pool does not have it")
}
