//! Brings pages of PostgreSQL's log to the registry.

use super::files::FILES;
use super::page::{CRC_AT, RECORD_HEADER, checksum, header_bytes, heads};
use super::{WalModel, learn};
use crate::Corrupt;
use crate::columns::Buffers;
use crate::entropy::{Decoder, Sink, Stream};
use crate::format::{Checksum, Facts, PageCoding, PageFormat};
use crate::log::LogPage;
use crate::text::Dictionary;
use crate::wire::{Reader, le32};

/// PostgreSQL's write-ahead log.
pub(crate) enum PostgresWal {}

impl PageFormat for PostgresWal {
    type Page = LogPage;
    type Model = WalModel;

    const FACTS: &'static Facts = &Facts {
        name: "postgres-wal",
        coding: PageCoding::ByModel { codec: 20 },
        file: &FILES,
        title: None,
        is_weak: false,
    };

    fn recognise(_: &mut LogPage, page: &[u8]) -> bool {
        header_bytes(page).is_some()
    }

    /// Records have checksums, pages have none. Records that go on in another page tell nothing here.
    fn check(_: &mut LogPage, page: &[u8], _: Option<u32>) -> Checksum {
        let mut found = Checksum::Absent;
        for (at, _) in heads(page) {
            let record = page.get(at..).and_then(|rest| rest.get(..le32(page, at) as usize));
            let Some(record) = record.filter(|record| record.len() >= RECORD_HEADER) else { continue };
            if checksum(record) != le32(record, CRC_AT) {
                return Checksum::Wrong;
            }
            found = Checksum::Right;
        }
        found
    }

    fn learn(pages: &[&[u8]], level: i32) -> Option<WalModel> {
        learn(pages, level)
    }

    fn dictionary(texts: &[Vec<u8>], level: i32) -> Result<Dictionary, Corrupt> {
        Dictionary::train_from_pieces(texts, level)
    }

    fn write_model(model: &WalModel, out: &mut Vec<u8>) {
        model.write_model(out);
    }

    fn read_model(reader: &mut Reader<'_>, _: usize) -> Result<WalModel, Corrupt> {
        WalModel::read_model(reader)
    }

    fn stream_count(model: &WalModel) -> usize {
        model.end()
    }

    fn describe(model: &WalModel) -> String {
        model.describe()
    }

    fn encode<S: Sink>(
        model: &WalModel,
        parts: &mut LogPage,
        page: &[u8],
        buffers: &mut Buffers,
        sink: &mut S,
    ) -> Option<[u16; 2]> {
        model.put(page, parts, buffers, sink)
    }

    fn decode(
        model: &WalModel,
        streams: &[Stream],
        decoder: Decoder<'_>,
        parts: &mut LogPage,
        buffers: &mut Buffers,
        page: &mut [u8],
    ) -> Result<(), Corrupt> {
        model.get(streams, decoder, parts, buffers, page)
    }
}
