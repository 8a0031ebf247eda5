//! Tests of dictionaries: on documents, which no other format describes.

use crate::testing::Random;
use crate::{Kinds, Model, Options, Scratch, learn, registry};

const PAGE: usize = 8 << 10;

/// A page of documents with the same keys, random identifiers and some words.
fn page(random: &mut Random) -> Vec<u8> {
    const WORDS: [&str; 6] = ["pending", "shipped", "cancelled", "express", "standard", "returned"];
    let mut page = Vec::new();
    while page.len() < PAGE {
        let (id, state, kind) = (random.next(), WORDS[random.below(3)], WORDS[3 + random.below(3)]);
        let quantity = random.below(500);
        page.extend(
            format!(r#"{{"order":"{id:016x}","state":"{state}","delivery":"{kind}","quantity":{quantity}}}"#)
                .bytes(),
        );
    }
    page.truncate(PAGE);
    page
}

fn pages(count: usize) -> Vec<Vec<u8>> {
    let mut random = Random::new(5);
    (0..count).map(|_| page(&mut random)).collect()
}

fn learned(pages: &[Vec<u8>], kinds: Kinds) -> Option<Model> {
    let slices: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
    learn(&slices, Options { kinds, level: 3, relation_pages: 5_000 })
}

#[test]
fn documents_are_coded_by_a_dictionary_where_that_is_wanted() {
    let pages = pages(200);
    assert!(learned(&pages, Kinds::Apart).is_none());
    let mut scratch = Scratch::new();
    for kinds in [Kinds::Any, Kinds::Dictionaries] {
        let model = learned(&pages, kinds).unwrap();
        assert!(model.format().is_dictionary() && model.format().has_model());
        assert_eq!(registry().by_codec(22), Some(model.format()));
        let again = Model::from_bytes(&model.to_bytes()).unwrap();
        let (mut coded, mut alone) = (0, 0);
        for page in &pages {
            let (mut record, mut decoded) = (vec![], vec![0xAA; PAGE]);
            assert!(again.encode(&mut scratch, page, &mut record));
            model.decode(&mut scratch, &record, &mut decoded).unwrap();
            assert!(decoded == *page);
            (coded, alone) = (coded + record.len(), alone + zstd::bulk::compress(page, 3).unwrap().len());
        }
        assert!(coded * 20 < alone * 19, "{coded} bytes with a dictionary, {alone} without");
        assert!(model.memory_bytes() < 512 << 10, "{} bytes", model.memory_bytes());
    }
}

#[test]
fn random_bytes_get_no_dictionary() {
    let mut random = Random::new(7);
    let pages: Vec<Vec<u8>> = (0..100).map(|_| random.bytes(PAGE)).collect();
    assert!(learned(&pages, Kinds::Any).is_none());
    assert!(learned(&pages, Kinds::Dictionaries).is_none());
}

#[test]
fn damaged_records_are_refused_or_decode_to_something() {
    let pages = pages(100);
    let model = learned(&pages, Kinds::Any).unwrap();
    let (mut scratch, mut record, mut decoded) = (Scratch::new(), vec![], vec![0; PAGE]);
    assert!(model.encode(&mut scratch, &pages[0], &mut record));
    for len in 0..record.len() {
        assert!(model.decode(&mut scratch, &record[..len], &mut decoded).is_err(), "{len} bytes");
    }
    let mut random = Random::new(9);
    for _ in 0..2_000 {
        let mut damaged = record.clone();
        let at = random.below(damaged.len());
        damaged[at] ^= 1 << random.below(8);
        let _ = model.decode(&mut scratch, &damaged, &mut decoded);
    }
    // A record of a page of another length.
    assert!(model.decode(&mut scratch, &record, &mut vec![0; 2 * PAGE]).is_err());
}
