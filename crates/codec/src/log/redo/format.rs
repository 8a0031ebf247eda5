//! Brings blocks of InnoDB's log to the registry.

use super::files::FILES;
use super::page::begin;
use super::{RedoModel, learn};
use crate::Corrupt;
use crate::columns::Buffers;
use crate::entropy::{Decoder, Sink, Stream};
use crate::format::{Checksum, Facts, PageCoding, PageFormat};
use crate::log::LogPage;
use crate::text::Dictionary;
use crate::wire::Reader;

/// InnoDB's redo log, as MariaDB 10.8 and later write it.
pub(crate) enum InnodbRedo {}

impl PageFormat for InnodbRedo {
    type Page = LogPage;
    type Model = RedoModel;

    const FACTS: &'static Facts = &Facts {
        name: "innodb-redo",
        coding: PageCoding::ByModel { codec: 21 },
        file: &FILES,
        title: None,
        is_weak: true,
    };

    fn recognise(_: &mut LogPage, page: &[u8]) -> bool {
        begin(page).is_some()
    }

    /// A block is recognised by a mini-transaction whose checksum is right.
    fn check(_: &mut LogPage, page: &[u8], _: Option<u32>) -> Checksum {
        if begin(page).is_some() { Checksum::Right } else { Checksum::Absent }
    }

    fn learn(pages: &[&[u8]], level: i32) -> Option<RedoModel> {
        learn(pages, level)
    }

    fn dictionary(texts: &[Vec<u8>], level: i32) -> Result<Dictionary, Corrupt> {
        Dictionary::train_from_pieces(texts, level)
    }

    fn write_model(model: &RedoModel, out: &mut Vec<u8>) {
        model.write_model(out);
    }

    fn read_model(reader: &mut Reader<'_>, _: usize) -> Result<RedoModel, Corrupt> {
        RedoModel::read_model(reader)
    }

    fn stream_count(model: &RedoModel) -> usize {
        model.end()
    }

    fn describe(model: &RedoModel) -> String {
        model.describe()
    }

    fn encode<S: Sink>(
        model: &RedoModel,
        parts: &mut LogPage,
        page: &[u8],
        buffers: &mut Buffers,
        sink: &mut S,
    ) -> Option<[u16; 2]> {
        model.put(page, parts, buffers, sink)
    }

    fn decode(
        model: &RedoModel,
        streams: &[Stream],
        decoder: Decoder<'_>,
        parts: &mut LogPage,
        buffers: &mut Buffers,
        page: &mut [u8],
    ) -> Result<(), Corrupt> {
        model.get(streams, decoder, parts, buffers, page)
    }
}
