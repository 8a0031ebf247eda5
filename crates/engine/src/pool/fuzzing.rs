//! Opens decoders of this room to fuzz targets.

use super::image::{CatalogueHead, Image};
use super::label::Guid;
use super::lacks::Lacks;
use super::root::{PlacedRecord, Root, TablePage, decode_dead, decode_list, encode_dead, encode_lists};
use super::spare_label::SpareLabel;
use crate::segment::{DirRef, Located, PageIds, Part};
use crate::space::{Chunk, Extent};
use crate::wal::Position;
use crate::{Addr, Ptr};

pub use super::send::fuzzing::checksummed as checksummed_stream;

use std::collections::BTreeMap;

/// Returns the stored form of the label of a spare, without its checksum and some of the zeros before it.
pub fn spare_label_seed() -> Vec<u8> {
    let label = SpareLabel { pool: Guid(*b"0123456789abcdef"), id: 7, name: "hostile".into() };
    label.encode().get(..3200).unwrap_or_default().to_vec()
}

/// Returns stored roots, lists of pages of the segment table and of dead records, catalogues, and what members lack.
pub fn root_seeds() -> Vec<Vec<u8>> {
    let addr = |slot| Addr::new(9, slot);
    let place = |offset| Located { device: 0, offset, len_bytes: 4000, checksum: 77 };
    let placed =
        |slot, offset| PlacedRecord { addr: addr(slot), first: place(offset), second: place(offset << 1) };
    let chunk = |index| Chunk { device: 0, index };
    let part = |first_slot, start| {
        let directory = Some(DirRef { start: 900, len_bytes: 60, index_bytes: 20, second: 0, checksum: 5 });
        Part { first_slot, extent: Extent { chunk: chunk(4), start, len_bytes: 960 }, directory }
    };
    let root = Root {
        checkpoint: 12,
        position: Position {
            segment: 10,
            chunk: chunk(2),
            used: 8192,
            slots: 5,
            next: chunk(3),
            batch: 99,
            chain: 1,
        },
        open_directory: vec![1; 60],
        page_ids: PageIds::default(),
        lists: vec![placed(1, 8 << 20)],
        dead: vec![placed(8, 14 << 20)],
        own: Some(Ptr { addr: addr(2), len_bytes: 900 }),
        catalogue: vec![placed(4, 9 << 20)],
        copies: vec![(9, vec![part(0, 4096)]), (10, vec![part(0, 8192), part(70, 16384)])],
        lacks: vec![placed(9, 15 << 20)],
    };
    let page = |page| TablePage { page, placed: placed(3, page << 13) };
    let mut seeds = encode_lists(&[page(0), page(1), page(700)]);
    let dead = |slot| Ptr { addr: addr(slot), len_bytes: 3000 };
    seeds.extend(encode_dead(&[dead(1), dead(77), dead(4000)]));
    seeds.push(root.encode());
    seeds.extend(Lacks::samples().iter().map(Lacks::encode));
    let pages = [(0, vec![placed(5, 11 << 20)]), (7, vec![placed(6, 12 << 20), placed(7, 13 << 20)])];
    seeds.extend(Image::sample().encode_head(&pages));
    seeds.extend(Image::sample().encode_pages().into_values());
    seeds
}

/// Decodes a root, a list of either kind, a catalogue, or what a member lacks. Returns true if `bytes` are one. Asserts that what was decoded
/// is the same after it was encoded and decoded again.
pub fn root(bytes: &[u8]) -> bool {
    if let Ok(pages) = decode_list(bytes) {
        let again: Vec<_> =
            encode_lists(&pages).iter().filter_map(|list| decode_list(list).ok()).flatten().collect();
        assert_eq!(again, pages);
        return true;
    }
    if let Ok(dead) = decode_dead(bytes) {
        let again: Vec<_> =
            encode_dead(&dead).iter().filter_map(|list| decode_dead(list).ok()).flatten().collect();
        assert_eq!(again, dead);
        return true;
    }
    if let Ok(head) = CatalogueHead::decode(bytes) {
        let image = Image {
            next_id: head.next_id,
            next_list: head.next_list,
            versions: BTreeMap::new(),
            unreferenced: head.unreferenced.clone(),
        };
        assert_eq!(CatalogueHead::decode(&image.encode_head(&head.pages).concat()).ok(), Some(head));
        return true;
    }
    if let Some(image) = Image::of_page(bytes) {
        let again = image.encode_pages().into_values().next().unwrap_or_default();
        assert_eq!(Image::of_page(&again), Some(image));
        return true;
    }
    if let Ok(lacks) = Lacks::decode(bytes) {
        assert_eq!(Lacks::decode(&lacks.encode()).ok(), Some(lacks));
        return true;
    }
    let Ok(root) = Root::decode(bytes) else { return false };
    assert_eq!(Root::decode(&root.encode()).ok(), Some(root));
    true
}
