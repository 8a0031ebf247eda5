//! Tests the registry: its entries, the document that lists them, and the signs of pages without a codec.

use std::collections::BTreeSet;

use crate::registry::REGISTRY;
use crate::testing::innodb::{InnodbTable, index_page};
use crate::testing::logs::{redo_blocks, wal_pages};
use crate::testing::{Keys, Random, Schema, btree_page, heap_page};
use crate::{Checksum, FIRST_MODEL_CODEC, Format, Model, PageCoding, Scratch, recognise};

#[test]
fn names_and_codecs_are_of_one_format_each() {
    let formats: Vec<Format> = REGISTRY.formats().collect();
    let names: BTreeSet<&str> = formats.iter().map(|format| format.name()).collect();
    assert_eq!(names.len(), formats.len());
    let codecs: Vec<u8> = formats.iter().filter_map(|format| format.codec()).collect();
    assert_eq!(codecs.iter().collect::<BTreeSet<_>>().len(), codecs.len());
    for format in formats {
        assert_eq!(REGISTRY.by_name(format.name()), Some(format));
        assert!(format.is_dictionary() || REGISTRY.files().contains(&format.facts().file), "{format:?}");
        match format.facts().coding {
            PageCoding::ByModel { codec } | PageCoding::ByDictionary { codec } => {
                assert!((FIRST_MODEL_CODEC..128).contains(&codec));
            }
            PageCoding::Alone { codec } => assert!((5..FIRST_MODEL_CODEC).contains(&codec)),
            PageCoding::Generic => assert_eq!(format.codec(), None),
        }
    }
    let logs: Vec<u8> = REGISTRY.files().iter().filter_map(|file| Some(file.log?.number)).collect();
    assert_eq!(logs, [0, 1], "pools store these numbers");
}

/// `docs/CODEC.md` lists the formats in the order of the registry.
#[test]
fn the_document_lists_the_formats() {
    let document = include_str!("../../../../docs/CODEC.md");
    let rows = document.lines().skip_while(|line| !line.starts_with("| format |")).skip(2);
    let listed: Vec<Vec<&str>> = rows
        .take_while(|line| line.starts_with('|'))
        .map(|row| row.split('|').map(|cell| cell.trim().trim_matches('`')).collect())
        .collect();
    let listed: Vec<(&str, &str)> = listed.iter().map(|cells| (cells[1], cells[3])).collect();
    let codec = |format: Format| format.codec().map_or_else(String::new, |codec| codec.to_string());
    let known: Vec<(&str, String)> =
        REGISTRY.formats().map(|format| (format.name(), codec(format))).collect();
    assert_eq!(listed, known.iter().map(|(name, codec)| (*name, codec.as_str())).collect::<Vec<_>>());
}

/// Stored models have these tags, and records these codecs.
#[test]
fn tags_and_codecs_stay() {
    let kept = [
        ("postgres-heap", "PostgresHeap", 16, 0),
        ("postgres-btree", "PostgresBtree", 17, 1),
        ("innodb", "Innodb", 18, 2),
        ("sqlite", "Sqlite", 19, 3),
        ("postgres-wal", "PostgresWal", 20, 4),
        ("innodb-redo", "InnodbRedo", 21, 5),
        ("dictionary", "Dictionary", 22, 6),
    ];
    for (name, debug, codec, tag) in kept {
        let format = REGISTRY.by_codec(codec).unwrap();
        assert_eq!((format.name(), format!("{format:?}"), format.tag()), (name, debug.to_owned(), tag));
        assert_eq!(REGISTRY.by_tag(tag), Some(format));
    }
    assert_eq!(REGISTRY.by_name("doubles").and_then(Format::codec), Some(5));
    assert!(REGISTRY.by_tag(7).is_none() && Model::from_plain(&[0x80, 8, 1, 7]).is_err());
}

/// Returns an empty page of PostgreSQL with `special` at its end, and `content` behind its header.
fn page_of(special: &[u8], content: &[u8]) -> Vec<u8> {
    let mut page = vec![0; 8192];
    let at = page.len() - special.len();
    for (place, word) in [(12, 24), (14, at), (16, at), (18, 8192 | 4)] {
        page[place..place + 2].copy_from_slice(&(word as u16).to_le_bytes());
    }
    page[24..24 + content.len()].copy_from_slice(content);
    page[at..].copy_from_slice(special);
    page
}

#[test]
fn pages_of_postgresql_without_a_codec_have_names() {
    let mut scratch = Scratch::new();
    let mut named = |special: &[u8], content: &[u8]| {
        recognise(&mut scratch, &page_of(special, content)).map(Format::name)
    };
    let marked = |bytes: usize, mark: u16| [&vec![0; bytes - 2][..], &mark.to_le_bytes()].concat();
    assert_eq!(named(&marked(16, 0xFF80), &[]), Some("postgres-hash"));
    assert_eq!(named(&marked(16, 0xFF81), &[]), Some("postgres-gist"));
    assert_eq!(named(&marked(8, 0xFF82), &[]), Some("postgres-spgist"));
    assert_eq!(named(&marked(8, 0xF092), &[]), Some("postgres-brin"));
    assert_eq!(named(&marked(8, 0x83), &[]), Some("postgres-gin"));
    assert_eq!(named(&[0x17, 0x17, 0, 0, 0, 0, 0, 0], &[]), Some("postgres-other"), "a sequence");
    assert_eq!(named(&[], &[7, 5, 4, 1]), Some("postgres-vm"));
    assert_eq!(named(&[], &[2]), Some("postgres-other"), "frozen, but not visible");
    assert_eq!(named(&[], &[]), Some("postgres-other"));
    let mut tree = vec![0; 4 + 8164];
    tree[4 + 4095] = 9;
    let mut node = 4095;
    while node > 0 {
        node = (node - 1) / 2;
        tree[4 + node] = 9;
    }
    assert_eq!(named(&[], &tree), Some("postgres-fsm"));
    tree[4 + node] = 8;
    assert_ne!(named(&[], &tree), Some("postgres-fsm"));
}

#[test]
fn checksums_are_compared() {
    let mut random = Random::new(2);
    let check = |page: &[u8], number| recognise(&mut Scratch::new(), page).unwrap().check(page, number);
    let mut heap = heap_page(&mut random, &Schema::plain(8192), 3);
    let sum = crate::postgres_checksum(&heap, 3).to_le_bytes();
    heap[8..10].copy_from_slice(&sum);
    assert_eq!(
        [Some(3), None, Some(4)].map(|n| check(&heap, n)),
        [Checksum::Right, Checksum::Right, Checksum::Wrong]
    );
    heap[8..10].fill(0);
    assert_eq!(check(&heap, Some(3)), Checksum::Absent);
    let mut btree = btree_page(&mut random, Keys::Ints, false, 3);
    btree[8] = 1;
    assert_eq!(check(&btree, None), Checksum::Unknown);
    let mut index = index_page(&mut random, &InnodbTable::simple(false), 3);
    assert_eq!(check(&index, None), Checksum::Right);
    *index.last_mut().unwrap() ^= 1;
    assert_eq!(check(&index, None), Checksum::Unknown);
    let wal = wal_pages(&mut random, 8192, 4);
    assert_eq!(check(&wal[1], None), Checksum::Right);
    let redo = redo_blocks(&mut random, 4096, 9);
    assert!(redo.iter().any(|block| REGISTRY.by_codec(21).unwrap().check(block, None) == Checksum::Right));
}
