//! Makes pages of PostgreSQL's tables.

use super::{ColumnType, Random, Schema, WORDS, align, blank, put_header, put_line, put16, put32};
use crate::postgres::checksum::checksum;

impl Schema {
    /// Draws any columns, in clean or aged pages of any size.
    pub fn random(random: &mut Random) -> Self {
        let all = [
            ColumnType::Int(4),
            ColumnType::Int(2),
            ColumnType::Int(8),
            ColumnType::Flag,
            ColumnType::Uuid,
            ColumnType::Word,
            ColumnType::Letters,
            ColumnType::Text,
            ColumnType::Numeric,
            ColumnType::Prose,
            ColumnType::Long,
        ];
        let columns = 1 + random.below(9);
        Self {
            types: (0..columns).map(|_| all[random.below(all.len())]).collect(),
            nulls: random.once_in(2),
            aged: random.once_in(2),
            page_bytes: [8192, 8192, 8192, 1024, 32768][random.below(5)],
        }
    }

    /// Makes a table of an integer, a word and a numeric, in young pages.
    #[must_use]
    pub fn plain(page_bytes: usize) -> Self {
        Self {
            types: vec![ColumnType::Int(4), ColumnType::Word, ColumnType::Numeric],
            nulls: false,
            aged: false,
            page_bytes,
        }
    }

    /// Makes a table of a few columns that compress well, in pages of 8 KiB.
    #[must_use]
    pub fn simple(aged: bool) -> Self {
        let types = vec![
            ColumnType::Int(4),
            ColumnType::Int(8),
            ColumnType::Word,
            ColumnType::Flag,
            ColumnType::Text,
        ];
        Self { types, nulls: false, aged, page_bytes: 8192 }
    }

    /// Makes a row of the first `columns`: a bool per column that is true if it has a value, and data.
    fn row(&self, random: &mut Random, n: usize, columns: usize) -> (Vec<bool>, Vec<u8>) {
        let mut present = vec![];
        let mut data = vec![];
        for &column in &self.types[..columns] {
            let null = self.nulls && random.once_in(5);
            present.push(!null);
            if !null {
                value(random, column, n, &mut data);
            }
        }
        (present, data)
    }
}

fn value(random: &mut Random, column: ColumnType, n: usize, data: &mut Vec<u8>) {
    let mut varlena = |content: &[u8]| {
        if content.len() <= 126 {
            data.push(((content.len() + 1) << 1 | 1) as u8);
        } else {
            align(data, 4);
            data.extend_from_slice(&(((content.len() + 4) << 2) as u32).to_le_bytes());
        }
        data.extend_from_slice(content);
    };
    match column {
        ColumnType::Int(width) => {
            let value = match random.below(8) {
                0 => random.next(),
                1 => (random.below(100) as u64).wrapping_neg(),
                _ => n as u64 * 3,
            };
            align(data, width);
            data.extend_from_slice(&value.to_le_bytes()[..width]);
        }
        ColumnType::Flag => data.push(random.below(2) as u8),
        ColumnType::Uuid => data.extend(random.bytes(16)),
        ColumnType::Word => varlena(WORDS[random.below(WORDS.len())].as_bytes()),
        ColumnType::Letters => varlena(&[b'a' + random.below(26) as u8; 24]),
        ColumnType::Text => {
            let words: Vec<&str> = (0..random.below(9)).map(|_| WORDS[random.below(WORDS.len())]).collect();
            varlena(words.join(" ").as_bytes());
        }
        ColumnType::Prose => {
            let words: Vec<String> = (0..random.below(60))
                .map(|_| format!("{}{} ", WORDS[random.below(8)], random.below(50)))
                .collect();
            varlena(words.concat().as_bytes());
        }
        ColumnType::Numeric => {
            let mut content = vec![random.below(4) as u8, 0x80 | random.below(3) as u8];
            for _ in 0..random.below(4) {
                content.extend_from_slice(&(random.below(10_000) as u16).to_le_bytes());
            }
            if random.once_in(200) {
                content = random.bytes(3);
            }
            varlena(&content);
        }
        ColumnType::Long => {
            if random.once_in(20) {
                data.extend([1, 18]);
                data.extend(random.bytes(16));
            } else {
                let len = random.below(300);
                varlena(&random.bytes(len));
            }
        }
    }
}

/// Makes a heap page, of block `block`.
pub fn heap_page(random: &mut Random, schema: &Schema, block: usize) -> Vec<u8> {
    let mut page = blank(random, schema);
    let special = page.len();
    let mut tuples: Vec<(usize, Vec<u8>)> = vec![];
    let mut lines: Vec<(usize, usize)> = vec![];
    let mut room = special - 24;
    let wanted = 1 + random.below(200);
    while lines.len() < wanted {
        let kind = if schema.aged { random.below(12) } else { 3 };
        let target = 1 + random.below(lines.len() + 4);
        match kind {
            0 => lines.push((0, 0)),
            1 => lines.push((3, 0)),
            2 => lines.push((2, target)),
            _ => {
                let tuple = heap_tuple(random, schema, block, lines.len() + 1);
                let need = tuple.len().next_multiple_of(8) + 4 + 8;
                if room < need + 64 {
                    break;
                }
                room -= need;
                tuples.push((lines.len(), tuple));
                lines.push((1, 0));
            }
        }
        room = room.saturating_sub(4);
        if room < 64 {
            break;
        }
    }
    if lines.is_empty() {
        lines.push((0, 0));
    }
    let count = lines.len();
    for (n, &(state, to)) in lines.iter().enumerate() {
        put_line(&mut page, n, if state == 2 { to.min(count) } else { 0 }, state, 0);
    }
    if schema.aged && random.once_in(2) {
        for i in (1..tuples.len()).rev() {
            tuples.swap(i, random.below(i + 1));
        }
    }
    let mut end = special;
    for (n, tuple) in &tuples {
        let gap = if schema.aged && random.once_in(30) { 8 } else { 0 };
        end = end - tuple.len().next_multiple_of(8) - gap;
        put_line(&mut page, *n, end, 1, tuple.len());
        page[end..end + tuple.len()].copy_from_slice(tuple);
        if !schema.aged {
            page[end + tuple.len()..end + tuple.len().next_multiple_of(8)].fill(0);
        }
    }
    let slack = if schema.aged && random.once_in(8) && end >= 24 + 4 * count + 16 { 16 } else { 0 };
    put_header(random, &mut page, count, end - slack, special);
    match random.below(3) {
        0 => {}
        1 => {
            let sum = checksum(&page, block as u32);
            put16(&mut page, 8, usize::from(sum));
        }
        _ => put16(&mut page, 8, 1 + random.below(65_535)),
    }
    page
}

/// Makes the header of a tuple of these columns, some of which may be null. Nobody has changed the tuple since it was
/// inserted; transaction ids are left out.
pub(super) fn tuple_head(present: &[bool], block: usize, line: usize) -> Vec<u8> {
    let nulls = present.iter().any(|present| !present);
    let bitmap = if nulls { present.len().div_ceil(8) } else { 0 };
    let hoff = (23 + bitmap).next_multiple_of(8);
    let mut head = vec![0; hoff];
    put16(&mut head, 12, block >> 16);
    put16(&mut head, 14, block);
    put16(&mut head, 16, line);
    put16(&mut head, 18, present.len());
    put16(&mut head, 20, 0x0902 | usize::from(nulls));
    head[22] = hoff as u8;
    for (i, _) in present.iter().enumerate().filter(|(_, present)| **present && nulls) {
        head[23 + i / 8] |= 1 << (i % 8);
    }
    head
}

fn heap_tuple(random: &mut Random, schema: &Schema, block: usize, line: usize) -> Vec<u8> {
    let all = schema.types.len();
    let columns = if schema.aged && random.once_in(6) { 1 + random.below(all) } else { all };
    let (present, data) = schema.row(random, line, columns);
    let mut tuple = tuple_head(&present, block, line);
    let xid = |random: &mut Random| 700 + random.next() % if schema.aged { 50 } else { 1 };
    put32(&mut tuple, 0, xid(random));
    if schema.aged && random.once_in(3) {
        let xmax = xid(random);
        put32(&mut tuple, 4, xmax);
    }
    put32(&mut tuple, 8, random.below(3) as u64);
    let mut flags = 0;
    if schema.aged && random.once_in(4) {
        put16(&mut tuple, 16, 1 + random.below(40));
        flags |= [0x8000, 0x4000, 0xC000][random.below(3)];
    }
    if schema.aged && random.once_in(40) {
        put16(&mut tuple, 14, block + 7);
    }
    put16(&mut tuple, 18, columns | flags);
    tuple.extend(data);
    // No layout describes a tuple with a byte too many.
    if schema.aged && random.once_in(60) {
        tuple.push(7);
    }
    tuple
}
