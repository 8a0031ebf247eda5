//! A format of pages that nothing in the crate knows but a registry: what a further format has to bring.
//!
//! A page has a mark, the number of its values, the sum of its other bytes, and values that rise; the rest is stale.

use crate::columns::Buffers;
use crate::entropy::{Decoder, Sink, Stream, number};
use crate::format::files::FileFormat;
use crate::format::{Checksum, Entry, Facts, PageCoding, PageFormat};
use crate::registry::Registry;
use crate::sampling::median;
use crate::stale::Stale;
use crate::testing::Random;
use crate::wire::{Reader, le16, le32, put_varint};
use crate::{Corrupt, Kinds, Model, Options, Scratch};

const MARK: &[u8] = b"TOY!";
const HEADER: usize = 8;
const SUM_AT: usize = 6;

static REGISTRY: Registry = Registry { entries: &Entry::number([Entry::of::<Toy>()]), files: &[&FILES] };
static FILES: FileFormat = FileFormat {
    name: "toys",
    title: "Toys",
    by_bytes: |file| file.data.starts_with(MARK).then_some(1024),
    begins: |page| page.starts_with(MARK),
    ..FileFormat::UNTOLD
};

enum Toy {}

/// A page that is taken apart: its values are written as they are met.
#[derive(Debug, Default)]
struct ToyPage {
    stale: Stale,
}

fn sum(page: &[u8]) -> u16 {
    page[HEADER..].iter().fold(0, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
}

fn end(page: &[u8]) -> usize {
    HEADER + 4 * usize::from(le16(page, 4))
}

impl PageFormat for Toy {
    type Page = ToyPage;
    /// A usual first value.
    type Model = u32;

    const FACTS: &'static Facts = &Facts {
        name: "toy",
        coding: PageCoding::ByModel { codec: 99 },
        file: &FILES,
        title: None,
        is_weak: false,
    };

    fn recognise(_: &mut ToyPage, page: &[u8]) -> bool {
        page.starts_with(MARK)
            && end(page) <= page.len()
            && Self::check(&mut ToyPage::default(), page, None) == Checksum::Right
    }

    fn check(_: &mut ToyPage, page: &[u8], _: Option<u32>) -> Checksum {
        if le16(page, SUM_AT) == sum(page) { Checksum::Right } else { Checksum::Wrong }
    }

    fn learn(pages: &[&[u8]], _: i32) -> Option<u32> {
        Some(median(pages.iter().map(|page| le32(page, HEADER)).collect()))
    }

    fn write_model(usual: &u32, out: &mut Vec<u8>) {
        put_varint(out, (*usual).into());
    }

    fn read_model(reader: &mut Reader<'_>, _: usize) -> Result<u32, Corrupt> {
        Ok(reader.at_most(u32::MAX as usize)? as u32)
    }

    fn stream_count(_: &u32) -> usize {
        2
    }

    fn encode<S: Sink>(
        usual: &u32,
        parts: &mut ToyPage,
        page: &[u8],
        buffers: &mut Buffers,
        sink: &mut S,
    ) -> Option<[u16; 2]> {
        buffers.text.clear();
        buffers.plain.clear();
        if !Self::recognise(parts, page) {
            return None;
        }
        number::put(sink, 0, 0, le16(page, 4).into());
        let mut before = *usual;
        for at in (HEADER..end(page)).step_by(4) {
            number::put(sink, 1, 0, le32(page, at).wrapping_sub(before).into());
            before = le32(page, at);
        }
        parts.stale.clear();
        parts.stale.note(end(page), page.len());
        parts.stale.collect(page);
        Some([0; 2])
    }

    fn decode(
        usual: &u32,
        streams: &[Stream],
        mut decoder: Decoder<'_>,
        parts: &mut ToyPage,
        buffers: &mut Buffers,
        page: &mut [u8],
    ) -> Result<(), Corrupt> {
        buffers.begin_reading();
        let count = number::get(&mut decoder, &streams[0], 0).1 as usize;
        let values = page.get_mut(HEADER..).and_then(|rest| rest.get_mut(..count.checked_mul(4)?));
        let mut before = *usual;
        for value in values.ok_or(Corrupt("more values than a page has"))?.chunks_mut(4) {
            before = before.wrapping_add(number::get(&mut decoder, &streams[1], 0).1 as u32);
            value.copy_from_slice(&before.to_le_bytes());
        }
        page[..4].copy_from_slice(MARK);
        page[4..6].copy_from_slice(&(count as u16).to_le_bytes());
        parts.stale.clear();
        parts.stale.note(end(page), page.len());
        decoder.finish().map(drop)
    }

    fn stale(parts: &mut ToyPage) -> Option<&mut Stale> {
        Some(&mut parts.stale)
    }

    fn write_checksum(_: &ToyPage, page: &mut [u8]) {
        let sum = sum(page);
        page[SUM_AT..HEADER].copy_from_slice(&sum.to_le_bytes());
    }
}

fn toy_page(random: &mut Random, n: u32) -> Vec<u8> {
    let mut page = random.bytes(1024);
    page[..4].copy_from_slice(MARK);
    page[4..6].copy_from_slice(&200_u16.to_le_bytes());
    for (value, at) in (7_000 * n..).step_by(3).zip((HEADER..HEADER + 800).step_by(4)) {
        page[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    Toy::write_checksum(&ToyPage::default(), &mut page);
    page
}

#[test]
fn a_format_of_a_registry_is_recognised_learned_coded_and_checked() {
    let mut random = Random::new(1);
    let mut pages: Vec<Vec<u8>> = (0..40).map(|n| toy_page(&mut random, n)).collect();
    let slices: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
    let (options, mut scratch) =
        (Options { kinds: Kinds::Any, level: 1, relation_pages: 1000 }, Scratch::new());
    let model = REGISTRY.learn(&slices, options).unwrap();
    let format = REGISTRY.recognise(&mut scratch, slices[3]).unwrap();
    assert_eq!((model.format(), format.name(), format.codec()), (format, "toy", Some(99)));
    assert_eq!(REGISTRY.recognise_file(0, slices[0], None), Some((&FILES, 1024)));
    assert!(REGISTRY.looks_like_database(slices[0]) && crate::recognise(&mut scratch, slices[0]).is_none());
    let again = Model::from_bytes_by(&REGISTRY, &model.to_bytes()).unwrap();
    assert!(Model::from_bytes(&model.to_bytes()).is_err(), "other registries do not know the format");
    for page in &slices {
        let (mut record, mut decoded) = (vec![], vec![0xAA; page.len()]);
        assert!(again.encode(&mut scratch, page, &mut record) && record.len() < 400, "{}", record.len());
        model.decode(&mut scratch, &record, &mut decoded).unwrap();
        assert!(decoded == *page);
    }
    pages[3][900] ^= 1;
    assert_eq!([2, 3].map(|n| format.check(&pages[n], None)), [Checksum::Right, Checksum::Wrong]);
    assert!(!model.encode(&mut scratch, &pages[3], &mut vec![]));
}
