//! Which codec new pages get: the object's own setting, that of the mount, the dataset's, or the pool's.
//!
//! An object's setting is a value of the dataset's tree ([`Key::COMPRESSION`]). The file system sets it in the change that
//! gives a file the object or the setting, so it is committed, snapshotted, cloned and sent with what it belongs to.

use std::collections::HashMap;

use super::live::LiveDataset;
use crate::record::Compression;
use crate::tree::Value;
use crate::{Key, Result};

/// What was set for a dataset as a whole.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Setting {
    /// By the property `compression` of the dataset or of one above it, the pool's own excepted.
    property: Option<Compression>,
    /// By the options of its mount.
    of_mount: Option<Compression>,
}

/// Codecs of the objects of one commit or one pass.
#[derive(Debug)]
pub struct Codecs {
    default: Compression,
    /// Of the objects that have a setting of their own.
    own: HashMap<u64, Compression>,
}

impl Codecs {
    /// The codec of new pages of `object`, which is one of those that were asked for.
    pub fn of(&self, object: u64) -> Compression {
        self.own.get(&object).copied().unwrap_or(self.default)
    }

    /// Whether no object has pages that models may code.
    pub fn are_plain(&self) -> bool {
        self.default.model_level().is_none() && self.own.values().all(|own| own.model_level().is_none())
    }
}

impl LiveDataset {
    /// Sets what the property `compression` of the dataset or of one above it says; `None`: as the pool's. Whether that is another than before.
    pub fn set_compression(&self, property: Option<Compression>) -> bool {
        let before = std::mem::replace(&mut self.compression.lock().property, property);
        before != property
    }

    /// Sets what holds as long as the dataset is mounted, and goes before the property; `None`: nothing.
    pub fn set_mount_compression(&self, of_mount: Option<Compression>) {
        self.compression.lock().of_mount = of_mount;
    }

    /// The codec of new pages of objects that have no setting of their own.
    pub fn compression(&self) -> Compression {
        let setting = *self.compression.lock();
        setting.of_mount.or(setting.property).unwrap_or_else(|| *self.shared.compression.read())
    }

    /// The setting that `object` has of its own.
    ///
    /// # Errors
    /// Of reading; [`crate::Error::Corrupt`] where it is no setting.
    pub fn own_compression(&self, object: u64) -> Result<Option<Compression>> {
        match self.tree.get(&Key::new(object, Key::COMPRESSION, 0))? {
            Some(Value::Bytes(bytes)) => Compression::from_stored(&bytes).map(Some),
            _ => Ok(None),
        }
    }

    /// The codec of new pages of `object`. One whose setting cannot be read gets the dataset's, and the log tells.
    pub fn compression_of(&self, object: u64) -> Compression {
        let own = self.own_compression(object).unwrap_or_else(|error| {
            tracing::error!(%error, object, "its setting of compression cannot be read; the dataset's is used");
            None
        });
        own.unwrap_or_else(|| self.compression())
    }

    /// The codecs of `objects`, each of which is looked up once where the same follow one another.
    pub fn codecs(&self, objects: impl Iterator<Item = u64>) -> Codecs {
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
