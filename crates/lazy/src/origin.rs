//! The place where the rest of an incomplete dataset is.

use std::fmt;

use pagefold_engine::Result;
use pagefold_engine::dataset::Dataset;
use pagefold_engine::wire::{Reader, put_bytes, put_varint};
use xxhash_rust::xxh3::xxh3_128;

use crate::absent::ORIGIN_KEY;
use crate::limits::NAME_BYTES_MAX;

const VERSION: u8 = 1;

/// The place where the rest of a dataset is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Id of the repository.
    pub repository: [u8; 16],
    /// Number of the backup in the repository.
    pub backup: u64,
    /// Place of the repository, as it was named.
    pub place: String,
    /// Name of the backup.
    pub name: String,
}

impl Origin {
    /// Returns the token that names the backup among all, and so the process that reads it.
    pub fn token(&self) -> Token {
        Token::new(&self.repository, self.backup)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.repository);
        put_varint(&mut out, self.backup);
        put_bytes(&mut out, self.place.as_bytes());
        put_bytes(&mut out, self.name.as_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "origin of a dataset that is not complete");
        if reader.u8()? != VERSION {
            return Err(pagefold_engine::Error::Unsupported(
                "the rest of the dataset is described in a way that this version does not know".into(),
            ));
        }
        let mut repository = [0; 16];
        repository.copy_from_slice(reader.take(16)?);
        let backup = reader.varint()?;
        let mut text = || {
            let text = std::str::from_utf8(reader.bytes(NAME_BYTES_MAX)?);
            text.map(str::to_owned).map_err(|_| reader.bad("a name is not UTF-8"))
        };
        let (place, name) = (text()?, text()?);
        reader.end()?;
        Ok(Self { repository, backup, place, name })
    }
}

/// Name of a backup among all: the process that reads it listens at a socket of this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(pub [u8; 16]);

impl Token {
    /// Returns the token of a backup of a repository.
    pub fn new(repository: &[u8; 16], backup: u64) -> Self {
        let mut bytes = repository.to_vec();
        bytes.extend_from_slice(&backup.to_le_bytes());
        Self(xxh3_128(&bytes).to_be_bytes())
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Returns where the rest of a dataset is; `None` if it is complete.
///
/// # Errors
/// Errors of reading the dataset.
pub fn origin_of(dataset: &dyn Dataset) -> Result<Option<Origin>> {
    dataset.get(&ORIGIN_KEY)?.map(|bytes| Origin::decode(&bytes)).transpose()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn origins_survive_and_damage_is_told() {
        let origin = Origin {
            repository: [8; 16],
            backup: 300,
            place: "s3://bucket/tank".into(),
            name: "tank/db@monday".into(),
        };
        let bytes = origin.encode();
        assert_eq!(Origin::decode(&bytes).unwrap(), origin);
        let other = Origin { backup: 301, ..origin.clone() };
        assert_ne!(origin.token(), other.token());
        assert_eq!(origin.token().to_string().len(), 32);
        for len in 0..bytes.len() {
            assert!(Origin::decode(&bytes[..len]).is_err());
        }
    }

    #[test]
    fn they_are_stored_as_docs_backup_format_has_it() {
        let origin =
            Origin { repository: [0xAB; 16], backup: 300, place: "/srv".into(), name: "tank@a".into() };
        let expected = [&[1][..], &[0xAB; 16], &[0xAC, 2], &[4], b"/srv", &[6], b"tank@a"].concat();
        assert_eq!(origin.encode(), expected);
    }
}
