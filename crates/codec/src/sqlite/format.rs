//! Brings pages of SQLite to the registry.

use super::files::FILES;
use super::{SqliteModel, SqlitePage, learn, read, write};
use crate::Corrupt;
use crate::columns::Buffers;
use crate::columns::plan::Plans;
use crate::entropy::{Decoder, Sink, Stream};
use crate::format::{Facts, PageCoding, PageFormat};
use crate::stale::Stale;
use crate::wire::Reader;

/// SQLite's tables and indexes: B-tree and overflow pages of a database file.
pub(crate) enum Sqlite {}

impl PageFormat for Sqlite {
    type Page = SqlitePage;
    type Model = SqliteModel;

    const FACTS: &'static Facts = &Facts {
        name: "sqlite",
        coding: PageCoding::ByModel { codec: 19 },
        file: &FILES,
        title: None,
        is_weak: false,
    };

    fn recognise(parts: &mut SqlitePage, page: &[u8]) -> bool {
        parts.parse(page, 0)
    }

    fn count(pages: &[&[u8]]) -> usize {
        let (mut parts, reserved) = (SqlitePage::default(), learn::reserved(pages));
        pages.iter().filter(|page| parts.parse(page, reserved)).count()
    }

    fn learn(pages: &[&[u8]], level: i32) -> Option<SqliteModel> {
        learn::learn(pages, level)
    }

    fn write_model(model: &SqliteModel, out: &mut Vec<u8>) {
        model.write_model(out);
    }

    fn read_model(reader: &mut Reader<'_>, _: usize) -> Result<SqliteModel, Corrupt> {
        SqliteModel::read_model(reader)
    }

    fn stream_count(model: &SqliteModel) -> usize {
        model.end()
    }

    fn plans(model: &SqliteModel) -> Vec<&Plans> {
        model.branches.iter().map(|branch| &branch.plans).collect()
    }

    fn encode<S: Sink>(
        model: &SqliteModel,
        parts: &mut SqlitePage,
        page: &[u8],
        buffers: &mut Buffers,
        sink: &mut S,
    ) -> Option<[u16; 2]> {
        write::put(model, parts, page, buffers, sink).then_some([0; 2])
    }

    fn decode(
        model: &SqliteModel,
        streams: &[Stream],
        decoder: Decoder<'_>,
        parts: &mut SqlitePage,
        buffers: &mut Buffers,
        page: &mut [u8],
    ) -> Result<(), Corrupt> {
        read::get(model, streams, decoder, parts, buffers, page)
    }

    fn stale(parts: &mut SqlitePage) -> Option<&mut Stale> {
        Some(&mut parts.stale)
    }
}
