//! Finds what records need beside themselves, models (page codecs) and other records (deltas), and codes pages by
//! models.

use std::cell::RefCell;
use std::sync::Arc;

use pagefold_codec::{Model, Scratch};

use super::header::{append_header, parse};
use super::{Codec, Record};
use crate::wire::{Reader, put_varint};
use crate::{Addr, Error, Result};

/// Number of a model in its pool, from 1 on. It is never used twice.
pub type ModelId = u32;

/// Finds the models and bases that records name.
pub trait Models {
    /// Returns the model with this number. [`Error::Corrupt`] if there is none.
    fn model(&self, id: ModelId) -> Result<Arc<Model>>;

    /// Returns the verified record at `addr`. [`Error::Corrupt`] if there is none.
    fn base(&self, addr: Addr) -> Result<Record> {
        Err(Error::corrupt(format!("record {addr}"), "it is no base of records of this kind"))
    }
}

/// The source for records that need no models and bases, such as metadata. It has none.
#[derive(Clone, Copy, Debug)]
pub struct NoModels;

impl Models for NoModels {
    fn model(&self, id: ModelId) -> Result<Arc<Model>> {
        Err(Error::corrupt(format!("model {id}"), "there are no models for records of this kind"))
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::new());
}

/// Returns the number of the model that a record needs; `None` if it needs none, or if `record` is no record.
pub fn model_of(record: &[u8]) -> Option<ModelId> {
    let (header, payload) = parse(record).ok()?;
    let modelled = Codec::from_id(header.codec).is_some_and(Codec::has_model);
    if modelled { Some(split(payload).ok()?.0) } else { None }
}

/// Needs of a record beside itself for being decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Number of a model.
    pub model: Option<ModelId>,
    /// True for a delta: it needs the records that [`super::bases_of`] names.
    pub bases: bool,
}

/// Looks at the head of a record that is said to be of a page of `record_size` bytes, without decoding it.
///
/// # Errors
/// [`Error::Corrupt`] if it cannot be the record of such a page; [`Error::Unsupported`] for a codec that is not known
/// here.
pub(crate) fn needs(record: &[u8], record_size: u32) -> Result<Needs> {
    let (header, payload) = parse(record).map_err(|why| Error::corrupt("record", why))?;
    let Some(codec) = Codec::from_id(header.codec) else {
        return Err(Error::Unsupported(format!(
            "a record is coded with codec {}, which this version does not know",
            header.codec
        )));
    };
    if header.logical_bytes > record_size as usize {
        let detail = format!("it says to hold {} bytes of a page of {record_size}", header.logical_bytes);
        return Err(Error::corrupt("record", detail));
    }
    let model = if codec.has_model() { Some(split(payload)?.0) } else { None };
    Ok(Needs { model, bases: codec.has_bases() })
}

/// Returns the record that says the same by a model of another number; a record that needs no model as it is.
///
/// # Errors
/// [`Error::Corrupt`] for what is no record.
pub(crate) fn with_model(record: &[u8], id: ModelId) -> Result<Vec<u8>> {
    let (header, payload) = parse(record).map_err(|why| Error::corrupt("record", why))?;
    if !Codec::from_id(header.codec).is_some_and(Codec::has_model) {
        return Ok(record.to_vec());
    }
    let (_, coded) = split(payload)?;
    let mut out = Vec::with_capacity(record.len() + 4);
    out.extend_from_slice(record.get(..record.len() - payload.len()).unwrap_or_default());
    put_varint(&mut out, id.into());
    out.extend_from_slice(coded);
    Ok(out)
}

/// Splits a payload into the model's number and what follows it.
fn split(payload: &[u8]) -> Result<(ModelId, &[u8])> {
    let mut reader = Reader::new(payload, "record");
    let id = reader.varint_u32()?;
    if id == 0 {
        return Err(reader.bad("its model has no number"));
    }
    Ok((id, reader.take(reader.remaining())?))
}

/// Returns the codec of pages that `model` describes.
pub(crate) fn codec_of(model: &Model) -> Codec {
    Codec::Page(model.format())
}

/// Appends the record of `page` to `out` and returns true, or leaves `out` as it is and returns false if the model does
/// not describe the page. The model has decoded and compared what it coded.
pub(super) fn encode(id: ModelId, model: &Model, page: &[u8], out: &mut Vec<u8>) -> bool {
    let begin = out.len();
    append_header(codec_of(model), page.len(), out);
    put_varint(out, id.into());
    let coded = SCRATCH.with_borrow_mut(|scratch| model.encode(scratch, page, out));
    if !coded {
        out.truncate(begin);
    }
    coded
}

/// Fills `page` from the payload of a record.
pub(super) fn decode(codec: Codec, payload: &[u8], models: &dyn Models, page: &mut [u8]) -> Result<()> {
    let (id, coded) = split(payload)?;
    let model = models.model(id)?;
    if codec_of(&model) != codec {
        return Err(Error::corrupt(
            "record",
            format!("it is coded with {codec:?}, and model {id} is for another codec"),
        ));
    }
    SCRATCH
        .with_borrow_mut(|scratch| model.decode(scratch, coded, page))
        .map_err(|why| Error::corrupt("record", format!("coded by model {id}: {why}")))
}
