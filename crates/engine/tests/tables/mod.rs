//! The tables of docs/FORMAT.md, read so that tests can compare them with the code.
//!
//! A table follows a line `<!-- table: NAME -->`. One with a column `example` documents a structure: walking over the bytes
//! of a known value by the sizes that the table gives must meet the example's bytes, and end with the last row.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of several tests, none of which uses all"
)]

use std::collections::BTreeMap;

const FORMAT: &str = include_str!("../../../../docs/FORMAT.md");

/// A row: column to cell.
pub(crate) type Row = BTreeMap<&'static str, &'static str>;

/// The rows of a table.
pub(crate) fn table(name: &str) -> Vec<Row> {
    let start = FORMAT.find(&format!("<!-- table: {name} -->")).unwrap_or_else(|| panic!("no table {name}"));
    let mut lines = FORMAT[start..].lines().skip(1).take_while(|line| line.starts_with('|'));
    let cells = |line: &'static str| -> Vec<&'static str> {
        line.trim().trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect()
    };
    let head = cells(lines.next().unwrap());
    lines.skip(1).map(|line| head.iter().copied().zip(cells(line)).collect()).collect()
}

/// Names of all tables.
pub(crate) fn names() -> Vec<&'static str> {
    FORMAT.lines().filter_map(|line| line.strip_prefix("<!-- table: ")?.strip_suffix(" -->")).collect()
}

/// Two columns of a table as numbers (decimal or 0x) and text.
pub(crate) fn codes(name: &str, code: &str, text: &str) -> Vec<(u64, &'static str)> {
    table(name).iter().map(|row| (number(row[code]), row[text])).collect()
}

pub(crate) fn number(cell: &str) -> u64 {
    let parsed = match cell.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => cell.parse(),
    };
    parsed.unwrap_or_else(|_| panic!("{cell} is no number"))
}

fn hex(bytes: &[u8]) -> String {
    if bytes.len() > 8 && bytes.iter().all(|byte| *byte == bytes[0]) {
        return format!("{:02x} × {}", bytes[0], bytes.len());
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

/// The bytes of an example cell.
pub(crate) fn unhex(cell: &str) -> Vec<u8> {
    let byte =
        |text: &str| u8::from_str_radix(text, 16).unwrap_or_else(|_| panic!("{cell} is not hexadecimal"));
    match cell.split_once(" × ") {
        Some((repeated, count)) => vec![byte(repeated); count.parse().unwrap()],
        None => cell.split_whitespace().map(byte).collect(),
    }
}

/// Returns the length in bytes of the field at the start of `bytes`, as its cell `size` says.
fn field_bytes(size: &str, bytes: &[u8]) -> usize {
    let varint = |bytes: &[u8]| bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
    match size {
        "varint" | "zigzag" => varint(bytes),
        "varint + n" => {
            let head = varint(bytes);
            let len = bytes[..head].iter().rev().fold(0, |len, byte| len << 7 | usize::from(byte & 0x7f));
            head + len
        }
        _ => number(size.strip_prefix("n = ").unwrap_or(size)) as usize,
    }
}

/// Compares `bytes` with a table, field by field.
pub(crate) fn assert_example(name: &str, bytes: &[u8]) {
    let mut at = 0;
    let mut wrong = Vec::new();
    for row in table(name) {
        if let Some(offset) = row.get("offset") {
            assert_eq!(number(offset) as usize, at, "table {name}: offset of {}", row["field"]);
        }
        let len = field_bytes(row["size"], &bytes[at..]);
        let field = &bytes[at..at + len];
        if row["example"] == "?" || unhex(row["example"]) != field {
            wrong.push(format!("{name}\t{}\t{}", row["field"], hex(field)));
        }
        at += len;
    }
    assert!(wrong.is_empty(), "docs/FORMAT.md differs from the code, which writes:\n{}", wrong.join("\n"));
    assert_eq!(at, bytes.len(), "table {name} documents another length");
}

/// The bytes of a table's example.
pub(crate) fn example(name: &str) -> Vec<u8> {
    table(name).iter().flat_map(|row| unhex(row["example"])).collect()
}
