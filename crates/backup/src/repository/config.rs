//! The object that describes a repository.

use bytes::Bytes;
use pagefold_engine::wire::{Reader, put_bytes};
use xxhash_rust::xxh3::xxh3_64;

use super::{Config, Repository};
use crate::block::Kind;
use crate::error::{Error, Result};
use crate::keys::Derivation;
use crate::limits::CONFIG_BYTES_MAX;
use crate::pack::seal_name;
use crate::store::Store;
use crate::verify::Checked;

const MAGIC: [u8; 8] = *b"PFbkup\x01\0";
/// Path of the object that describes a repository.
pub(crate) const CONFIG: &str = "repository";
/// Path of its copy, which is read if the object itself is damaged or missing.
pub(crate) const CONFIG_COPY: &str = "repository-copy";
const FLAG_ENCRYPTED: u32 = 1;

impl Config {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.id);
        out.extend_from_slice(&self.created.to_le_bytes());
        let flags = if self.key.is_some() { FLAG_ENCRYPTED } else { 0 };
        out.extend_from_slice(&flags.to_le_bytes());
        if let Some((derivation, key)) = &self.key {
            out.extend_from_slice(&derivation.kib.to_le_bytes());
            out.extend_from_slice(&derivation.passes.to_le_bytes());
            out.extend_from_slice(&derivation.salt);
            put_bytes(&mut out, key);
        }
        let sum = xxh3_64(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let (body, sum) =
            bytes.split_last_chunk::<8>().ok_or_else(|| Error::damaged(CONFIG, "it is truncated"))?;
        if xxh3_64(body).to_le_bytes() != *sum {
            return Err(Error::damaged(CONFIG, "its checksum does not hold"));
        }
        if !bytes.starts_with(&MAGIC) {
            return Err(match bytes.starts_with(b"PFbkup") {
                true => Error::Unsupported("the repository is of another version of Pagefold".into()),
                false => Error::damaged(CONFIG, "it does not describe a repository"),
            });
        }
        let read = || {
            let mut reader = Reader::new(body.get(8..).unwrap_or_default(), "description");
            let mut id = [0; 16];
            id.copy_from_slice(reader.take(16)?);
            let (created, flags) = (reader.u64()?, reader.u32()?);
            if flags & !FLAG_ENCRYPTED != 0 {
                return Err(pagefold_engine::Error::Unsupported(
                    "the repository has features that this version does not know".into(),
                ));
            }
            let mut key = None;
            if flags != 0 {
                let (kib, passes) = (reader.u32()?, reader.u32()?);
                let mut salt = [0; 16];
                salt.copy_from_slice(reader.take(16)?);
                key = Some((Derivation { kib, passes, salt }, reader.bytes(256)?.to_vec()));
            }
            reader.end()?;
            Ok(Self { id, created, key })
        };
        read().map_err(Error::in_object(CONFIG))
    }
}

impl Config {
    /// Reads the object that describes the repository of a store, or else its copy. Also returns its bytes.
    pub(super) fn read(store: &Store) -> Result<(Self, Bytes)> {
        let read = |object: &str| {
            let bytes = store.get(object, CONFIG_BYTES_MAX)?;
            let bytes = bytes.ok_or_else(|| Error::Missing { object: object.into() })?;
            Ok((Self::decode(&bytes)?, bytes))
        };
        let error = match read(CONFIG) {
            Err(error @ (Error::Damaged { .. } | Error::Missing { .. })) => error,
            other => return other,
        };
        match read(CONFIG_COPY) {
            Ok(found) => {
                let doing = "the repository is opened by its copy 'repository-copy'; pagefold backup check --repair writes the object anew";
                tracing::warn!(%error, "{doing}");
                Ok(found)
            }
            Err(Error::Damaged { .. } | Error::Missing { .. }) => Err(error),
            Err(other) => Err(other),
        }
    }
}

impl Repository {
    /// Returns the damage to an object that describes the repository: `None` if it is as it was written.
    fn description_fault(&self, object: &str) -> Result<Option<Error>> {
        match self.store.get(object, CONFIG_BYTES_MAX) {
            Ok(Some(bytes)) if bytes == self.config => Ok(None),
            Ok(Some(_)) => Ok(Some(Error::damaged(object, "it does not describe this repository"))),
            Ok(None) => Ok(Some(Error::Missing { object: object.into() })),
            Err(error @ Error::Damaged { .. }) => Ok(Some(error)),
            Err(error) => Err(error),
        }
    }

    /// Notes damage to the object that describes the repository, and to its copy. Repositories of the first versions
    /// have no copy.
    pub(crate) fn check_description(&self, checked: &mut Checked) -> Result<()> {
        for object in [CONFIG, CONFIG_COPY] {
            match self.description_fault(object)? {
                Some(Error::Missing { .. }) if object == CONFIG_COPY => {}
                Some(fault) => checked.note(0, fault)?,
                None => {}
            }
        }
        Ok(())
    }

    /// Writes the object that describes the repository, and its copy, if they are damaged or missing. Returns the damage,
    /// one by one.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn repair_description(&self) -> Result<Vec<String>> {
        let mut told = Vec::new();
        for object in [CONFIG, CONFIG_COPY] {
            if let Some(fault) = self.description_fault(object)? {
                self.store.put(object, self.config.clone())?;
                told.push(fault.to_string());
            }
        }
        Ok(told)
    }
}

#[cfg(any(test, feature = "fuzzing"))]
impl Config {
    /// One of an encrypted repository.
    pub(crate) fn sample() -> Self {
        let derivation = Derivation { kib: 65_536, passes: 3, salt: *b"a salt 16 bytes." };
        Self { id: crate::samples::REPOSITORY, created: 100, key: Some((derivation, vec![0xEE; 72])) }
    }
}

/// Returns the name to which the seal of the repository's key is bound.
pub(super) fn key_name(id: &[u8; 16]) -> [u8; 37] {
    seal_name(id, Kind::Key, &[0; 16], 0)
}
