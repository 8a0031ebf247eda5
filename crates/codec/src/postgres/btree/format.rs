//! Brings B-tree pages to the registry.

use super::{BtreeModel, BtreePage, learn, read, write};
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

/// PostgreSQL's B-tree indexes.
pub(crate) enum PostgresBtree {}

impl PageFormat for PostgresBtree {
    type Page = BtreePage;
    type Model = BtreeModel;

    const FACTS: &'static Facts = &Facts {
        name: "postgres-btree",
        coding: PageCoding::ByModel { codec: 17 },
        file: &FILES,
        title: Some("PostgreSQL B-trees"),
        is_weak: false,
    };

    fn recognise(parts: &mut BtreePage, page: &[u8]) -> bool {
        parts.parse(page)
    }

    fn check(_: &mut BtreePage, page: &[u8], number: Option<u32>) -> Checksum {
        check(page, number)
    }

    fn learn(pages: &[&[u8]], level: i32) -> Option<BtreeModel> {
        learn::learn(pages, level)
    }

    fn write_model(model: &BtreeModel, out: &mut Vec<u8>) {
        model.write_model(out);
    }

    fn read_model(reader: &mut Reader<'_>, page_bytes: usize) -> Result<BtreeModel, Corrupt> {
        let model = BtreeModel::read_model(reader)?;
        verify_size(page_bytes)?;
        Ok(model)
    }

    fn stream_count(model: &BtreeModel) -> usize {
        model.plans.end
    }

    fn plans(model: &BtreeModel) -> Vec<&Plans> {
        vec![&model.plans]
    }

    fn encode<S: Sink>(
        model: &BtreeModel,
        parts: &mut BtreePage,
        page: &[u8],
        buffers: &mut Buffers,
        sink: &mut S,
    ) -> Option<[u16; 2]> {
        if !parts.parse(page) {
            return None;
        }
        write::put(model, parts, page, buffers, sink);
        Some(write::carried(parts))
    }

    fn decode(
        model: &BtreeModel,
        streams: &[Stream],
        decoder: Decoder<'_>,
        parts: &mut BtreePage,
        buffers: &mut Buffers,
        page: &mut [u8],
    ) -> Result<(), Corrupt> {
        read::get(model, streams, decoder, parts, buffers, page)
    }

    fn stale(parts: &mut BtreePage) -> Option<&mut Stale> {
        Some(&mut parts.stale)
    }

    fn clear_checksum(page: &mut [u8]) {
        clear(page);
    }

    fn write_checksum(parts: &BtreePage, page: &mut [u8]) {
        parts.header.write(page);
    }
}
