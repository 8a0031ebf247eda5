//! Brings heap pages to the registry.

use super::{HeapModel, HeapPage, learn, read, write};
use crate::Corrupt;
use crate::columns::Buffers;
use crate::columns::plan::Plans;
use crate::entropy::{Decoder, Sink, Stream};
use crate::format::{Checksum, Facts, PageCoding, PageFormat};
use crate::postgres::FILES;
use crate::postgres::checksum::{check, clear};
use crate::postgres::page::verify_size;
use crate::stale::Stale;
use crate::wire::Reader;

/// PostgreSQL's tables.
pub(crate) enum PostgresHeap {}

impl PageFormat for PostgresHeap {
    type Page = HeapPage;
    type Model = HeapModel;

    const FACTS: &'static Facts = &Facts {
        name: "postgres-heap",
        coding: PageCoding::ByModel { codec: 16 },
        file: &FILES,
        title: Some("PostgreSQL tables"),
        is_weak: false,
    };

    fn recognise(parts: &mut HeapPage, page: &[u8]) -> bool {
        parts.parse(page)
    }

    /// A page's ctids tell its number, too.
    fn check(parts: &mut HeapPage, page: &[u8], number: Option<u32>) -> Checksum {
        check(page, number.or_else(|| parts.parse(page).then_some(parts.block)))
    }

    fn learn(pages: &[&[u8]], level: i32) -> Option<HeapModel> {
        learn::learn(pages, level)
    }

    fn write_model(model: &HeapModel, out: &mut Vec<u8>) {
        model.write_model(out);
    }

    fn read_model(reader: &mut Reader<'_>, page_bytes: usize) -> Result<HeapModel, Corrupt> {
        let model = HeapModel::read_model(reader)?;
        verify_size(page_bytes)?;
        Ok(model)
    }

    fn stream_count(model: &HeapModel) -> usize {
        model.plans.end
    }

    fn plans(model: &HeapModel) -> Vec<&Plans> {
        vec![&model.plans]
    }

    fn encode<S: Sink>(
        model: &HeapModel,
        parts: &mut HeapPage,
        page: &[u8],
        buffers: &mut Buffers,
        sink: &mut S,
    ) -> Option<[u16; 2]> {
        if !parts.parse(page) {
            return None;
        }
        write::put(model, parts, page, buffers, sink);
        Some(write::carried(parts.header.lsn, parts.block))
    }

    fn decode(
        model: &HeapModel,
        streams: &[Stream],
        decoder: Decoder<'_>,
        parts: &mut HeapPage,
        buffers: &mut Buffers,
        page: &mut [u8],
    ) -> Result<(), Corrupt> {
        read::get(model, streams, decoder, parts, buffers, page)
    }

    fn stale(parts: &mut HeapPage) -> Option<&mut Stale> {
        Some(&mut parts.stale)
    }

    fn clear_checksum(page: &mut [u8]) {
        clear(page);
    }

    fn write_checksum(parts: &HeapPage, page: &mut [u8]) {
        parts.write_checksum(page);
    }
}
