//! Choice of the codec of new pages: the object's own setting, that of the mount, the dataset's, or the pool's.
//!
//! An object's setting is a value of the dataset's tree ([`Key::COMPRESSION`]). The file system sets it in the change
//! that gives a file the object or the setting, so it is committed, snapshotted, cloned and sent with that file.

use std::collections::HashMap;

use super::live::LiveDataset;
use crate::record::Compression;
use crate::tree::Value;
use crate::{Key, Result};

/// Compression that was set for a dataset as a whole.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Setting {
    /// Value of the property `compression` of the dataset or of one above it, except for the pool's own.
    property: Option<Compression>,
    /// Value in the options of the dataset's mount.
    of_mount: Option<Compression>,
}

/// Codecs of the objects of one commit or one pass.
#[derive(Debug)]
pub(crate) struct Codecs {
    default: Compression,
    /// Codecs of the objects that have a setting of their own.
    own: HashMap<u64, Compression>,
}

impl Codecs {
    /// Returns the codec of new pages of `object`, which must be one of those that were asked for.
    pub(crate) fn of(&self, object: u64) -> Compression {
        self.own.get(&object).copied().unwrap_or(self.default)
    }

    /// Returns true if no object has pages that models may code.
    pub(crate) fn are_plain(&self) -> bool {
        self.default.model_level().is_none() && self.own.values().all(|own| own.model_level().is_none())
    }
}

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
