//! Compression of a dataset: what is set, and what follows for an object.

use std::collections::HashMap;

use super::codecs::Codecs;
use super::live::LiveDataset;
use crate::record::Compression;
use crate::tree::Value;
use crate::{Key, Result};

impl LiveDataset {
    /// Sets the value of the property `compression` of the dataset or of one above it; `None` stands for that of the
    /// pool. Returns true if the value has changed.
    pub(crate) fn set_compression(&self, property: Option<Compression>) -> bool {
        let before = std::mem::replace(&mut self.compression.lock().property, property);
        before != property
    }

    /// Sets the compression that holds as long as the dataset is mounted, and that takes precedence over the property;
    /// `None` unsets it.
    pub fn set_mount_compression(&self, of_mount: Option<Compression>) {
        self.compression.lock().of_mount = of_mount;
    }

    /// Returns the codec of new pages of objects that have no setting of their own.
    pub(crate) fn compression(&self) -> Compression {
        let setting = *self.compression.lock();
        setting.of_mount.or(setting.property).unwrap_or_else(|| *self.shared.compression.read())
    }

    /// Returns the setting that `object` has of its own.
    ///
    /// # Errors
    /// Errors of reading; [`crate::Error::Corrupt`] if the value is no setting.
    pub(crate) fn own_compression(&self, object: u64) -> Result<Option<Compression>> {
        match self.tree.get(&Key::new(object, Key::COMPRESSION, 0))? {
            Some(Value::Bytes(bytes)) => Compression::from_stored(&bytes).map(Some),
            _ => Ok(None),
        }
    }

    /// Returns the codec of new pages of `object`. If the object's setting cannot be read, the codec is the dataset's,
    /// and an error is logged.
    pub(crate) fn compression_of(&self, object: u64) -> Compression {
        let own = self.own_compression(object).unwrap_or_else(|error| {
            tracing::error!(%error, object, "its setting of compression cannot be read; the dataset's is used");
            None
        });
        own.unwrap_or_else(|| self.compression())
    }

    /// Returns the codecs of `objects`. Each object is looked up once where equal ones follow one another.
    pub(crate) fn codecs(&self, objects: impl Iterator<Item = u64>) -> Codecs {
        let mut codecs = Codecs { default: self.compression(), own: HashMap::new() };
        let mut last = None;
        for object in objects {
            if last.replace(object) != Some(object) {
                let of = self.compression_of(object);
                if of != codecs.default {
                    codecs.own.insert(object, of);
                }
            }
        }
        codecs
    }
}
