//! Tests layouts of real types, and a real page.

use crate::columns::Column;
use crate::columns::infer::{Sample, infer};
use crate::innodb;
use crate::innodb::page::Ends;
use crate::postgres::checksum::checksum;
use crate::testing::innodb::{InnodbTable, index_page};
use crate::testing::{Random, align};

fn varlena(content: &[u8]) -> Vec<u8> {
    [&[((content.len() + 1) << 1 | 1) as u8], content].concat()
}

/// Infers the layout of rows that `row` makes, each from its number.
fn inferred(columns: usize, row: impl Fn(&mut Random, usize, &mut Vec<u8>)) -> Option<Vec<Column>> {
    let mut random = Random::new(17);
    let rows: Vec<Vec<u8>> = (0..80)
        .map(|n| {
            let mut data = vec![];
            row(&mut random, n, &mut data);
            data
        })
        .collect();
    let present = (1 << columns) - 1;
    let samples: Vec<Sample<'_>> = rows.iter().map(|data| Sample { data, columns, present }).collect();
    infer(&samples, columns, true)
}

#[test]
fn columns_of_an_order_line_are_found() {
    let found = inferred(6, |random, n, data| {
        data.extend((n as u32 / 10).to_le_bytes());
        data.extend((n as u16 % 10).to_le_bytes());
        data.extend(varlena(&[b'a' + random.below(26) as u8; 24]));
        align(data, 8);
        data.extend((848_484_000_000_000 + random.below(1 << 30) as u64).to_le_bytes());
        data.extend((random.below(100_000) as u32).to_le_bytes());
        let comment = vec![b'x'; random.below(20)];
        data.extend(varlena(&comment));
    });
    let expected = [
        Column::fixed(4, 4),
        Column::fixed(2, 2),
        Column::varlena(4),
        Column::fixed(8, 8),
        Column::fixed(4, 4),
        Column::varlena(4),
    ];
    assert_eq!(found.unwrap(), expected);
}

#[test]
fn guids_are_told_from_integers() {
    let found = inferred(3, |random, n, data| {
        data.extend(random.bytes(16));
        data.extend((1000 + 500 * random.below(900) as u32).to_le_bytes());
        data.extend(varlena(format!("street {n}").as_bytes()));
    });
    assert_eq!(found.unwrap(), [Column::fixed(16, 1), Column::fixed(4, 4), Column::varlena(4)]);
}

#[test]
fn no_layout_is_found_where_there_is_none() {
    let found = inferred(3, |random, _, data| {
        let len = 5 + random.below(90);
        data.extend(random.bytes(len));
    });
    assert_eq!(found, None);
}

/// Block 0 of `CREATE TABLE t (a int); INSERT INTO t VALUES (1), (7)`, by PostgreSQL 15 with data checksums.
#[test]
fn the_checksum_is_that_of_postgresql() {
    let mut page = vec![0; 8192];
    let mut put = |at: usize, hex: &str| {
        for i in 0..hex.len() / 2 {
            page[at + i] = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
        }
    };
    put(4, "4894750121ce00002000c01f0020042000000000e09f3800c09f3800");
    put(8128, "d40200000000000001000000000000000200010000081800070000000000");
    put(8160, "d40200000000000001000000000000000100010000081800010000000000");
    assert_eq!(checksum(&page, 0), 0xCE21);
    assert_ne!(checksum(&page, 1), 0xCE21);
}

/// Returns the fields of a table's leaf pages: width, bit of the null bitmap, and whether lengths may have two bytes.
fn fields_of(table: &InnodbTable) -> Vec<(u16, Option<u8>, bool)> {
    let mut random = Random::new(23);
    let mut parts = innodb::InnodbPage::default();
    let mut pages: Vec<Vec<u8>> = (0..60).map(|number| index_page(&mut random, table, number)).collect();
    pages.retain(|page| parts.parse(page) && parts.header.level == 0);
    let pages: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
    let layout = innodb::infer::infer(&pages);
    for page in &pages {
        assert!(parts.parse(page) && parts.parse_columns(page, &layout));
        let odd = parts.records.iter().filter(|record| record.odd).count();
        assert!(
            odd * 20 <= parts.records.len(),
            "{odd} of {} records are not described",
            parts.records.len()
        );
    }
    layout.fields.iter().map(|field| (field.width, field.null, field.long)).collect()
}

#[test]
fn columns_of_an_index_of_innodb_are_found() {
    for aged in [false, true] {
        let fields = fields_of(&InnodbTable::simple(aged));
        let widths: u16 = fields.iter().map(|(width, ..)| width).sum();
        assert_eq!(widths, 4 + 6 + 7 + 4 + 24, "{fields:?}");
        assert_eq!(fields.iter().filter(|(width, ..)| *width == 0).count(), 1, "{fields:?}");
    }
}

#[test]
fn what_may_be_null_is_found() {
    for aged in [false, true] {
        let fields = fields_of(&InnodbTable::nullable(aged));
        let mut varying: Vec<_> = fields.iter().filter(|(width, ..)| *width == 0).collect();
        // The first two have the same values, so nothing tells which of them is null.
        varying[..2].sort();
        assert_eq!(varying, [&(0, None, false), &(0, Some(0), false), &(0, Some(2), true)], "{fields:?}");
        let own =
            |bit| fields.iter().filter(|(_, null, _)| *null == bit).map(|(width, ..)| width).sum::<u16>();
        assert_eq!((own(None), own(Some(1))), (17, 3), "{fields:?}");
    }
}

/// Page 3 of `CREATE TABLE t (a int primary key, b varchar(9)); INSERT INTO t VALUES (1, 'x'), (7, NULL)`, by MariaDB
/// 10.11 with `innodb_checksum_algorithm` full_crc32 and crc32.
#[test]
fn pages_and_checksums_are_those_of_mariadb() {
    let ends = [
        (
            Ends::Full,
            "\
             0000000000000003ffffffffffffffff000000000000b77545bf000000000000000000000005000200a880\
             04000000000097000200010002",
            "00000000007000630000b775c995f21d",
        ),
        (
            Ends::Crc32,
            "\
             277add4100000003ffffffffffffffff000000000000b6ef45bf000000000000000000000005000200a880\
             04000000000097000200010002",
            "0000000000700063277add410000b6ef",
        ),
    ];
    let rows = "\
             0017000000050000000200f200000005000000020032010002001c696e66696d756d0003000b0000737570\
             72656d756d0100000010001880000001000000000013840000013401107801000018ffd980000007000000\
             0000138400000134011c";
    for (expected, head, tail) in ends {
        let mut page = vec![0; 16_384];
        for (at, hex) in [(0, head), (72, rows), (16_368, tail)] {
            for i in 0..hex.len() / 2 {
                page[at + i] = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
            }
        }
        let mut parts = innodb::InnodbPage::default();
        assert!(parts.parse(&page));
        assert_eq!((parts.header.number, parts.header.records, parts.header.slots), (3, 2, 2));
        assert_eq!(Ends::of(&page), expected);
        let mut again = page.clone();
        Ends::clear(&mut again);
        expected.write(&mut again, &[0; innodb::page::ENDS]);
        assert!(again == page);
        page[150] ^= 1;
        assert_eq!(Ends::of(&page), Ends::Other);
    }
}
