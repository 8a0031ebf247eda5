//! Choice of the codec of new pages: the object's own setting, that of the mount, the dataset's, or the pool's.
//!
//! An object's setting is a value of the dataset's tree ([`Key::COMPRESSION`]). The file system sets it in the change
//! that gives a file the object or the setting, so it is committed, snapshotted, cloned and sent with that file.

use std::collections::HashMap;

use crate::record::Compression;

/// Compression that was set for a dataset as a whole.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Setting {
    /// Value of the property `compression` of the dataset or of one above it, except for the pool's own.
    pub(super) property: Option<Compression>,
    /// Value in the options of the dataset's mount.
    pub(super) of_mount: Option<Compression>,
}

/// Codecs of the objects of one commit or one pass.
#[derive(Debug)]
pub(crate) struct Codecs {
    pub(super) default: Compression,
    /// Codecs of the objects that have a setting of their own.
    pub(super) own: HashMap<u64, Compression>,
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
