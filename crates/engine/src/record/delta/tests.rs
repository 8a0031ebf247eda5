use std::collections::HashMap;
use std::sync::Arc;

use pagefold_codec::Model;
use proptest::prelude::*;

use super::*;
use crate::record::{Compression, Encoder, ModelId, NoModels, Record, decode};

/// Records by address.
#[derive(Default)]
struct BaseRecords(HashMap<Addr, Arc<[u8]>>);

impl Models for BaseRecords {
    fn model(&self, id: ModelId) -> Result<Arc<Model>> {
        NoModels.model(id)
    }

    fn base(&self, addr: Addr) -> Result<Record> {
        self.0.get(&addr).map_or_else(|| NoModels.base(addr), |record| Ok(Record::from(&**record)))
    }
}

const PAGE: usize = 8192;

fn addr(slot: u32) -> Addr {
    Addr::new(5, slot)
}

fn noise(seed: u64, len_bytes: usize) -> Vec<u8> {
    let mut x = seed | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 32) as u8
    };
    (0..len_bytes).map(|_| next()).collect()
}

/// A page of noise, stored in full at slot 0.
fn known(page: &[u8]) -> BaseRecords {
    let mut record = Vec::new();
    Encoder::new().encode(page, Compression::Off, &mut record);
    BaseRecords(HashMap::from([(addr(0), record.into())]))
}

fn delta(before: &[u8], bases: u32, page: &[u8], small: bool) -> Option<Vec<u8>> {
    delta_by(before, bases, page, if small { Squeeze::Small } else { Squeeze::No })
}

fn delta_by(before: &[u8], bases: u32, page: &[u8], squeeze: Squeeze) -> Option<Vec<u8>> {
    let bases: Vec<Addr> = (0..bases).map(addr).collect();
    let mut out = b"kept".to_vec();
    let made = encode_delta(before, &bases, page, squeeze, &mut out);
    assert_eq!(&out[..4], b"kept");
    assert!(made || out.len() == 4);
    made.then(|| out.split_off(4))
}

#[test]
fn a_chain_of_deltas_gives_each_page() {
    let mut page = noise(1, PAGE);
    let mut known = known(&page);
    for n in 1..=BASES_MAX as u32 {
        let before = page.clone();
        page[n as usize * 1000..][..100].fill(n as u8);
        let record = delta(&before, n, &page, n.is_multiple_of(2)).unwrap();
        assert!(record.len() < 130, "{} bytes", record.len());
        assert_eq!(bases_of(&record).unwrap().len(), n as usize);
        let mut found = vec![0xee; PAGE];
        decode(&record, &known, &mut found).unwrap();
        assert_eq!(found, page);
        known.0.insert(addr(n), record.into());
    }
    assert!(delta(&page, BASES_MAX as u32 + 1, &[1; PAGE], true).is_none());
    assert!(delta(&page, 0, &[1; PAGE], true).is_none());
}

#[test]
fn appended_bytes_cost_little_more_than_themselves() {
    let mut before = noise(2, PAGE);
    before[3000..].fill(0);
    let mut page = before.clone();
    page[3000..3064].copy_from_slice(&noise(3, 64));
    let record = delta(&before, 1, &page, true).unwrap();
    assert!(record.len() <= 64 + 20, "{} bytes", record.len());
    // The page becomes shorter again.
    let record = delta(&page, 1, &before, true).unwrap();
    assert!(record.len() <= 20, "{} bytes", record.len());
    let mut found = vec![0; PAGE];
    decode(&record, &known(&page), &mut found).unwrap();
    assert_eq!(found, before);
}

#[test]
fn what_moved_is_found_by_zstd() {
    let before = noise(4, PAGE);
    let mut page = before.clone();
    page[2000..6000].rotate_right(80);
    assert!(delta(&before, 1, &page, false).is_some_and(|record| record.len() > 3000));
    let record = delta(&before, 1, &page, true).unwrap();
    assert!(record.len() < 200, "{} bytes", record.len());
    assert_eq!(record[0], Codec::DeltaZstd.id());
    let mut found = vec![0; PAGE];
    decode(&record, &known(&before), &mut found).unwrap();
    assert_eq!(found, page);
}

/// Words as texts have them.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let words = ["order ", "shipped ", "to ", "customer ", "with ", "invoice ", "of ", "2026-11-"];
    noise(seed, len).iter().flat_map(|byte| words[usize::from(byte % 8)].bytes()).take(len).collect()
}

#[test]
fn text_that_is_appended_is_squeezed_fast() {
    let before = noise(11, PAGE);
    let mut page = before.clone();
    page[2000..5000].copy_from_slice(&text(12, 3000));
    let runs = delta_by(&before, 1, &page, Squeeze::No).unwrap();
    let fast = delta_by(&before, 1, &page, Squeeze::Fast).unwrap();
    assert_eq!((runs[0], fast[0]), (Codec::DeltaRuns.id(), Codec::DeltaLz4.id()));
    assert!(fast.len() * 2 < runs.len(), "{} of {} bytes", fast.len(), runs.len());
    let mut found = vec![0; PAGE];
    decode(&fast, &known(&before), &mut found).unwrap();
    assert_eq!(found, page);
    // A block that gives more than the page has room for is no delta.
    let mut block = vec![0; Codec::Lz4.bound(4 * PAGE)];
    let len = Codec::Lz4.compress(0, &vec![0; 4 * PAGE], &mut block).unwrap();
    let mut hostile = delta_by(&before, 1, &before, Squeeze::No).unwrap();
    hostile[0] = Codec::DeltaLz4.id();
    hostile.extend_from_slice(&block[..len]);
    assert!(decode(&hostile, &known(&before), &mut found).is_err());
    // Noise gains nothing.
    page[2000..5000].copy_from_slice(&noise(13, 3000));
    assert_eq!(delta_by(&before, 1, &page, Squeeze::Fast).unwrap()[0], Codec::DeltaRuns.id());
}

/// Samples of two sources, with few digits, as RRDtool stores them.
fn samples(seed: u64, count: usize) -> Vec<u8> {
    let random = noise(seed, count * 2);
    let value = |at: usize, source: usize| {
        let below = u32::from(random[at * 2 + source]);
        40.0 + 20.0 * (at as f64 / 900.0).sin() + f64::from(below) / 256.0
    };
    (0..count)
        .flat_map(|at| [0, 1].map(|source| (value(at, source) * 1e4).round() / 1e4))
        .flat_map(f64::to_le_bytes)
        .collect()
}

#[test]
fn samples_in_the_place_of_others_are_a_series() {
    let page_bytes = 4096;
    let before = samples(21, 256);
    let mut page = before.clone();
    page[1200..1200 + 90 * 16].copy_from_slice(&samples(22, 90));
    for squeeze in [Squeeze::Fast, Squeeze::Small] {
        let record = delta_by(&before, 1, &page, squeeze).unwrap();
        assert_eq!(record[0], Codec::DeltaDoubles.id());
        // 180 numbers of some 13 bits.
        assert!(record.len() < 380, "{} bytes", record.len());
        let mut found = vec![0xee; page_bytes];
        decode(&record, &known(&before), &mut found).unwrap();
        assert_eq!(found, page);
    }
    assert_eq!(delta_by(&before, 1, &page, Squeeze::No).unwrap()[0], Codec::DeltaRuns.id());
    // More than half of the page: bytes alone would be no delta.
    page[200..200 + 240 * 16].copy_from_slice(&samples(23, 240));
    assert!(delta_by(&before, 1, &page, Squeeze::No).is_none());
    let record = delta_by(&before, 1, &page, Squeeze::Small).unwrap();
    assert!(record.len() < 1000, "{} bytes", record.len());
    // The page ends within a word.
    page[page_bytes - 5..].fill(0);
    page[page_bytes - 6] |= 1;
    for squeeze in [Squeeze::Fast, Squeeze::Small] {
        let record = delta_by(&before, 1, &page, squeeze).unwrap();
        let mut found = vec![0xee; page_bytes];
        decode(&record, &known(&before), &mut found).unwrap();
        assert_eq!((record[0], found), (Codec::DeltaDoubles.id(), page.clone()));
    }
}

#[test]
fn unrelated_and_empty_pages_have_no_delta() {
    let before = noise(5, PAGE);
    assert!(delta(&before, 1, &noise(6, PAGE), true).is_none());
    assert!(delta(&before, 1, &[0; PAGE], true).is_none());
    assert!(delta(&before, 1, &before[..4096], true).is_none());
    // The same page again costs only the names of its bases.
    assert!(delta(&before, 1, &before, true).is_some_and(|record| record.len() < 16));
}

#[test]
fn a_delta_is_refused_without_its_bases() {
    let before = noise(7, PAGE);
    let mut page = before.clone();
    page[5] ^= 1;
    let record = delta(&before, 1, &page, true).unwrap();
    let mut out = vec![0; PAGE];
    let corrupt = |done: Result<()>| assert!(matches!(done, Err(Error::Corrupt { .. })), "{done:?}");
    corrupt(decode(&record, &NoModels, &mut out));
    // A delta at the bottom must not lead to endless recursion.
    corrupt(decode(&record, &BaseRecords(HashMap::from([(addr(0), record.clone().into())])), &mut out));
    // The record in between belongs to another chain, or is no delta.
    let mut known = known(&before);
    let top = delta(&before, 3, &page, true).unwrap();
    for middle in [record.clone(), known.0[&addr(0)].to_vec()] {
        known.0.insert(addr(1), record.clone().into());
        known.0.insert(addr(2), middle.into());
        corrupt(decode(&top, &known, &mut out));
    }
    // The page is too short for its base and for its record.
    corrupt(decode(&record, &known, &mut vec![0; PAGE / 2]));
}

#[test]
fn pays_where_it_saves_a_quarter_and_all_takes_twice_the_full_record_at_most() {
    let of = |codec: Codec, len_bytes: usize| {
        let mut record = vec![0; len_bytes];
        record[0] = codec.id();
        record
    };
    let pays = |len_bytes, base_bytes, full_bytes| {
        delta_pays(&of(Codec::DeltaRuns, len_bytes), base_bytes, full_bytes)
    };
    assert!(pays(750, 1250, 1000));
    assert!(!pays(751, 0, 1000));
    assert!(!pays(100, 1901, 1000));
    assert!(!pays(1, 0, 1));
    let numbers = of(Codec::DeltaDoubles, 750);
    assert!(delta_pays(&numbers, 2250, 1000));
    assert!(!delta_pays(&numbers, 2251, 1000));
}

#[test]
fn runs_cover_every_difference() {
    let before = vec![7_u8; 300];
    for gap in 0..12 {
        for from in [0, 1, 30, 31, 32, 33, 255, 280] {
            let mut page = before.clone();
            page[from] = 1;
            page[(from + gap).min(299)] = 2;
            let record = delta(&before, 1, &page, false).unwrap();
            let mut found = vec![0; 300];
            decode(&record, &known(&before), &mut found).unwrap();
            assert_eq!(found, page, "at {from} and {gap} on");
        }
    }
}

proptest! {
    #[test]
    fn pages_survive(
        seed: u64,
        kind in 0..4_u8,
        changes in prop::collection::vec((0..PAGE, 1..400_usize, any::<u8>()), 0..12),
        cut in 0..=PAGE,
        squeeze in 0..3_usize,
    ) {
        let squeeze = [Squeeze::No, Squeeze::Fast, Squeeze::Small][squeeze];
        let mut before = match kind {
            0 => noise(seed, PAGE),
            1 => b"pages of a database, ".repeat(400)[..PAGE].to_vec(),
            2 => samples(seed, PAGE / 16),
            _ => vec![0; PAGE],
        };
        before[0] |= 1;
        let mut page = before.clone();
        for (at, len, byte) in changes {
            let end = (at + len).min(PAGE);
            match byte & 3 {
                0 => page[at..end].fill(byte),
                1 => page[at & !7..end & !7].copy_from_slice(&samples(seed ^ u64::from(byte), PAGE / 16)[..(end & !7) - (at & !7)]),
                _ => page[at..end].rotate_left((end - at) / 3),
            }
        }
        if seed.is_multiple_of(4) {
            page[cut..].fill(0);
        }
        if let Some(record) = delta_by(&before, 1, &page, squeeze) {
            prop_assert!(record.len() < PAGE / 2 + 16);
            let mut found = vec![0xee; PAGE];
            decode(&record, &known(&before), &mut found).unwrap();
            prop_assert_eq!(found, page);
        }
    }

    #[test]
    fn hostile_bytes_do_no_harm(mut bytes: Vec<u8>, codec in 0_usize..4) {
        let before = noise(9, 4096);
        let known = known(&before);
        let mut record = delta(&before, 1, &before, false).unwrap();
        record[0] = [Codec::DeltaRuns, Codec::DeltaZstd, Codec::DeltaLz4, Codec::DeltaDoubles][codec].id();
        record.append(&mut bytes);
        let mut out = vec![0; 4096];
        let _ = decode(&record, &known, &mut out);
        let _ = decode(&record[..record.len() / 2], &known, &mut out);
    }
}
