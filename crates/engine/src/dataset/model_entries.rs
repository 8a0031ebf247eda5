//! Entries of models in the pool's own tree.

use std::sync::Arc;

use pagefold_codec::Model;

use super::live::LiveDataset;
use super::models::ModelEntry;
use crate::limits::MODELS_MAX;
use crate::record::ModelId;
use crate::tree::{Edit, Value};
use crate::{Error, Key, Result};

impl LiveDataset {
    /// Loads the entries of all models from the tree (when the pool is opened). For rescue, the parts of the tree that
    /// cannot be read are passed over.
    pub(crate) fn load_models(&self, rescue: bool) -> Result<()> {
        let all = (Key::model(0), Key::new(0, Key::MODEL + 1, 0));
        let parts = if rescue { self.tree.readable(&all.0, &all.1) } else { vec![all] };
        for (from, to) in parts {
            self.load_models_between(&from, &to, rescue)?;
        }
        Ok(())
    }

    fn load_models_between(&self, from: &Key, to: &Key, rescue: bool) -> Result<()> {
        // A pool that was made on purpose may have more, which would fill memory.
        let found = self.tree.range(from, to, MODELS_MAX + 1)?;
        if found.len() > MODELS_MAX && !rescue {
            return Err(Error::corrupt("models of the pool", "there are more than a pool can have"));
        }
        for (key, value) in found {
            let id = ModelId::try_from(key.offset).ok().filter(|id| *id > 0);
            let (Some(id), Value::Bytes(bytes)) = (id, value) else {
                return Err(Error::corrupt("models of the pool", "one has an impossible key or value"));
            };
            self.shared.models.insert(id, ModelEntry::decode(&bytes)?, None);
        }
        Ok(())
    }

    /// Puts the entry of a model into the tree. The model is in the log.
    pub(crate) fn put_model(&self, id: ModelId, entry: ModelEntry, model: Arc<Model>) -> Result<()> {
        let value = Value::Bytes(entry.encode().into());
        self.edit(&mut std::iter::once(Edit::Put(Key::model(id), value)))?;
        self.shared.models.insert(id, entry, Some(model));
        Ok(())
    }

    /// Replaces the entry of a model in the tree. The change is in the log.
    pub(crate) fn restate_model(&self, id: ModelId, entry: ModelEntry) -> Result<()> {
        let value = Value::Bytes(entry.encode().into());
        self.edit(&mut std::iter::once(Edit::Put(Key::model(id), value)))?;
        self.shared.models.insert(id, entry, None);
        Ok(())
    }

    /// Drops the models that nothing needs (M2). `codes` returns whether the object of a model has pages. The caller
    /// holds the gate's write side, and nothing is pending: the tree is what the log says.
    pub(crate) fn drop_models(&self, codes: &dyn Fn(&ModelEntry) -> Result<bool>) -> Result<()> {
        let all = self.shared.models.all();
        let Some((last, _)) = all.last().copied() else { return Ok(()) };
        self.shared.models.release_left();
        for (id, entry) in all {
            let used = self.shared.segments.users_of_model(id) > 0;
            let current = self.shared.models.own((entry.dataset, entry.object)) == Some(id);
            if used || id == last || (current && codes(&entry)?) || !self.shared.models.remove_unneeded(id) {
                continue;
            }
            let forgotten = self.edit(&mut std::iter::once(Edit::Delete(Key::model(id))));
            forgotten.inspect_err(|_| self.shared.models.insert(id, entry, None))?;
            self.shared.segments.mark_dead(&[entry.ptr]);
        }
        Ok(())
    }
}
