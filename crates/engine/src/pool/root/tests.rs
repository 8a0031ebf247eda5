use super::*;

fn page(page: u64) -> TablePage {
    let first = Located { device: 3, offset: u64::MAX >> 1, len_bytes: 900_000, checksum: u32::MAX };
    let second = Located { offset: u64::MAX, checksum: 0, ..first };
    let addr = Addr::new(COPIES - 1, page as u32);
    TablePage { page: (1 << 40) - 1 - page, placed: PlacedRecord { addr, first, second } }
}

#[test]
fn a_table_of_any_size_fits_records() {
    for count in [0, 1, LIST_PAGES, 3 * LIST_PAGES + 1] {
        let table: Vec<TablePage> = (0..count as u64).map(page).collect();
        let lists = encode_lists(&table);
        assert_eq!(lists.len(), count.div_ceil(LIST_PAGES));
        assert!(lists.iter().all(|list| list.len() <= RECORD_BYTES_MAX));
        let read: Vec<TablePage> = lists.iter().flat_map(|list| decode_list(list).unwrap()).collect();
        assert!(read == table);
    }
}

#[test]
fn damaged_lists_are_refused() {
    let list = &encode_lists(&[page(1), page(2)])[0];
    for len in 0..list.len() {
        assert!(decode_list(&list[..len]).is_err(), "{len} bytes of it");
    }
    let mut longer = list.clone();
    longer.push(0);
    assert!(decode_list(&longer).is_err());
}

#[test]
fn pages_are_listed_once_and_in_order() {
    let mut table = Vec::new();
    append_list(&mut table, vec![page(9), page(8)]).unwrap();
    append_list(&mut table, vec![page(7)]).unwrap();
    for list in [vec![page(7)], vec![page(8)], vec![page(5), page(6)]] {
        assert!(append_list(&mut table, list).is_err());
    }
    assert!(table == [page(9), page(8), page(7)]);
}
