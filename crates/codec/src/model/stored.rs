//! Writes and reads stored models: a version, and all that coding needs, compressed.

use zstd::zstd_safe;

use super::{Model, Trained};
use crate::Corrupt;
use crate::entropy::Stream;
use crate::limits::{DICTIONARY, MODEL_MAX, MODEL_PLAIN_MAX, PAGE_MAX, PAGE_MIN, STREAMS_MAX, TABLES_MAX};
use crate::registry::{REGISTRY, Registry};
use crate::text::Dictionary;
use crate::wire::{Reader, put_bytes, put_varint};

/// Version of stored models.
const VERSION: u8 = 2;

impl Model {
    /// Returns the model as it is stored.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let plain = self.to_plain();
        let mut out = vec![VERSION];
        put_varint(&mut out, plain.len() as u64);
        // Compression cannot fail: level 12 exists, and the buffer that it writes to has zstd's upper bound.
        out.extend(zstd::bulk::compress(&plain, 12).unwrap_or_default());
        out
    }

    /// Returns the model's bytes before they are compressed.
    pub(crate) fn to_plain(&self) -> Vec<u8> {
        let mut plain = vec![];
        put_varint(&mut plain, self.page_bytes as u64);
        plain.push(self.level as u8);
        plain.push(self.format.tag());
        self.learned.write_model(&mut plain);
        put_varint(&mut plain, self.trained.streams.len() as u64);
        for stream in &self.trained.streams {
            stream.write(&mut plain);
        }
        put_bytes(&mut plain, self.trained.dictionary.bytes());
        plain
    }

    /// Reads a model that [`Model::to_bytes`] wrote.
    ///
    /// # Errors
    /// [`Corrupt`] if `bytes` are not a stored model of this version, within its bounds.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Corrupt> {
        Self::from_bytes_by(&REGISTRY, bytes)
    }

    /// As [`Model::from_bytes`], of a format of `registry`.
    pub(crate) fn from_bytes_by(registry: &'static Registry, bytes: &[u8]) -> Result<Self, Corrupt> {
        let mut reader = Reader::new(bytes);
        if bytes.len() > MODEL_MAX || reader.byte()? != VERSION {
            return Err(Corrupt("a model of another version, or too long"));
        }
        let plain_bytes = reader.at_most(MODEL_PLAIN_MAX)?;
        let mut plain = vec![0; plain_bytes];
        let done = zstd_safe::decompress(&mut plain[..], reader.rest());
        if done != Ok(plain_bytes) {
            return Err(Corrupt("a model's frame"));
        }
        Self::from_plain_by(registry, &plain)
    }

    /// Reads a model that [`Model::to_plain`] wrote.
    #[cfg(test)]
    pub(crate) fn from_plain(plain: &[u8]) -> Result<Self, Corrupt> {
        Self::from_plain_by(&REGISTRY, plain)
    }

    /// Reads a model that [`Model::to_plain`] wrote, of a format of `registry`.
    pub(crate) fn from_plain_by(registry: &'static Registry, plain: &[u8]) -> Result<Self, Corrupt> {
        let mut reader = Reader::new(plain);
        let page_bytes = reader.at_most(PAGE_MAX)?;
        if !page_bytes.is_power_of_two() || page_bytes < PAGE_MIN {
            return Err(Corrupt("a model's page size"));
        }
        let level = i32::from(reader.byte()?).clamp(1, 22);
        let format = registry.by_tag(reader.byte()?).ok_or(Corrupt("a model's kind"))?;
        let learned = format.erased().read_model(&mut reader, page_bytes)?;
        let count = reader.at_most(STREAMS_MAX)?;
        if count != learned.stream_count() {
            return Err(Corrupt("a model's streams"));
        }
        let mut tables = TABLES_MAX;
        let streams =
            (0..count).map(|_| Stream::read(&mut reader, &mut tables)).collect::<Result<Vec<_>, _>>()?;
        let dictionary = Dictionary::new(reader.bytes(DICTIONARY)?, level)?;
        if !reader.is_empty() {
            return Err(Corrupt("a model is too long"));
        }
        let trained = Trained { streams, dictionary };
        Ok(Self { page_bytes, level, format, learned, trained })
    }
}
