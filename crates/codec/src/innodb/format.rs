//! Brings index pages of InnoDB to the registry.

use super::files::FILES;
use super::page::Ends;
use super::{InnodbModel, InnodbPage, learn, read, write};
use crate::Corrupt;
use crate::columns::Buffers;
use crate::columns::plan::Plans;
use crate::entropy::{Decoder, Sink, Stream};
use crate::format::{Checksum, Facts, PageCoding, PageFormat};
use crate::stale::Stale;
use crate::wire::Reader;

/// InnoDB's tables and indexes: B-tree pages of a tablespace.
pub(crate) enum Innodb {}

impl PageFormat for Innodb {
    type Page = InnodbPage;
    type Model = InnodbModel;

    const FACTS: &'static Facts = &Facts {
        name: "innodb",
        coding: PageCoding::ByModel { codec: 18 },
        file: &FILES,
        title: None,
        is_weak: false,
    };

    fn recognise(parts: &mut InnodbPage, page: &[u8]) -> bool {
        parts.parse(page)
    }

    /// A checksum of another kind cannot be told from a wrong one.
    fn check(_: &mut InnodbPage, page: &[u8], _: Option<u32>) -> Checksum {
        match Ends::of(page) {
            Ends::Full | Ends::Crc32 => Checksum::Right,
            Ends::Other => Checksum::Unknown,
        }
    }

    fn learn(pages: &[&[u8]], level: i32) -> Option<InnodbModel> {
        learn::learn(pages, level)
    }

    fn write_model(model: &InnodbModel, out: &mut Vec<u8>) {
        model.write_model(out);
    }

    fn read_model(reader: &mut Reader<'_>, _: usize) -> Result<InnodbModel, Corrupt> {
        InnodbModel::read_model(reader)
    }

    fn stream_count(model: &InnodbModel) -> usize {
        model.end()
    }

    fn plans(model: &InnodbModel) -> Vec<&Plans> {
        model.branches.iter().map(|branch| &branch.plans).collect()
    }

    fn encode<S: Sink>(
        model: &InnodbModel,
        parts: &mut InnodbPage,
        page: &[u8],
        buffers: &mut Buffers,
        sink: &mut S,
    ) -> Option<[u16; 2]> {
        let taken = parts.parse(page) && write::put(model, parts, page, buffers, sink);
        taken.then(|| write::carried(parts))
    }

    fn decode(
        model: &InnodbModel,
        streams: &[Stream],
        decoder: Decoder<'_>,
        parts: &mut InnodbPage,
        buffers: &mut Buffers,
        page: &mut [u8],
    ) -> Result<(), Corrupt> {
        read::get(model, streams, decoder, parts, buffers, page)
    }

    fn stale(parts: &mut InnodbPage) -> Option<&mut Stale> {
        Some(&mut parts.stale)
    }

    fn clear_checksum(page: &mut [u8]) {
        Ends::clear(page);
    }

    fn write_checksum(parts: &InnodbPage, page: &mut [u8]) {
        parts.shape.ends.write(page, &parts.ends);
    }
}
