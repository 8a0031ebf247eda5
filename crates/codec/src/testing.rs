//! Makes pages as PostgreSQL and ([`innodb`]) InnoDB do, from a seed: for tests of this crate and of those above it.
//! Written without the code under test, except checksums of PostgreSQL and [`sqlite`].

pub mod corpora;
pub mod innodb;
pub mod logs;
pub mod sqlite;

use crate::postgres::checksum::checksum;

/// Random numbers that a seed determines: xorshift64*.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Begins the numbers of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns the next 56 bits.
    #[allow(clippy::should_implement_trait, reason = "an iterator would have an end")]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 8
    }

    /// Returns a number below `n`, or 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// Returns true once in `n` times on average.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Returns `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

#[derive(Clone, Copy, Debug)]
enum ColumnType {
    Int(usize),
    Flag,
    Uuid,
    Word,
    Letters,
    Text,
    Numeric,
    /// Text that is long enough for zstd.
    Prose,
    Long,
}

const WORDS: [&str; 8] = ["carefully", "final", "deposits", "sleep", "GREEN LANE", "furiously", "x", ""];

/// Columns of a relation, and the state of its pages.
#[derive(Clone, Debug)]
pub struct Schema {
    types: Vec<ColumnType>,
    nulls: bool,
    /// True if pages were used before: they have garbage in holes and behind tuples, pruned tuples, update chains.
    pub aged: bool,
    /// Length of a page, in bytes.
    pub page_bytes: usize,
}

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

/// Appends zeros up to a multiple of `to`.
pub(crate) fn align(data: &mut Vec<u8>, to: usize) {
    data.resize(data.len().next_multiple_of(to), 0);
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

fn put16(page: &mut [u8], at: usize, value: usize) {
    page[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
}

fn put32(page: &mut [u8], at: usize, value: u64) {
    page[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
}

fn put_line(page: &mut [u8], n: usize, off: usize, state: usize, len: usize) {
    put32(page, 24 + 4 * n, (off | state << 15 | len << 17) as u64);
}

fn put_header(random: &mut Random, page: &mut [u8], lines: usize, upper: usize, special: usize) {
    put32(page, 0, random.below(3) as u64);
    let lsn = if random.once_in(30) { random.next() } else { random.next() & !7 };
    put32(page, 4, lsn);
    put16(page, 8, 0);
    put16(page, 10, random.below(8));
    put16(page, 12, 24 + 4 * lines);
    put16(page, 14, upper);
    put16(page, 16, special);
    put16(page, 18, page.len() | 4);
    put32(page, 20, if random.once_in(3) { 700 + random.next() % 50 } else { 0 });
}

/// Makes a page of zeros or, if pages are aged, of bytes that were there before.
fn blank(random: &mut Random, schema: &Schema) -> Vec<u8> {
    match random.below(3) {
        _ if !schema.aged => vec![0; schema.page_bytes],
        0 => random.bytes(schema.page_bytes),
        1 => b"stale row of text ".iter().copied().cycle().take(schema.page_bytes).collect(),
        _ => vec![0; schema.page_bytes],
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
fn tuple_head(present: &[bool], block: usize, line: usize) -> Vec<u8> {
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

/// Kinds of keys of generated indexes.
#[derive(Clone, Copy, Debug)]
pub enum Keys {
    /// Integers.
    Ints,
    /// Two integers.
    Pairs,
    /// Text.
    Words,
}

/// Makes a B-tree page, of block `block`, with keys in order.
pub fn btree_page(random: &mut Random, keys: Keys, aged: bool, block: usize) -> Vec<u8> {
    let schema = Schema { types: vec![], nulls: false, aged, page_bytes: 8192 };
    let mut page = blank(random, &schema);
    let special = page.len() - 16;
    let inner = random.once_in(6);
    let rightmost = random.once_in(5);
    let mut items: Vec<Vec<u8>> = vec![];
    let mut key = block * 1000;
    let mut room = special - 24;
    let mut row = block * 300;
    if !rightmost {
        items.push(pivot(random, keys, key + 900, 0));
    }
    if inner {
        let mut first = vec![0; 8];
        put16(&mut first, 6, 0x2000 | 8);
        items.push(first);
    }
    for _ in 0..random.below(300) {
        key += random.below(4);
        row = if random.once_in(3) { random.below(100_000) } else { row + 1 };
        let item = if inner { pivot(random, keys, key, row) } else { leaf(random, keys, key, row) };
        if room < item.len() + 512 {
            break;
        }
        room -= item.len() + 4;
        items.push(item);
    }
    if items.is_empty() {
        items.push(pivot(random, keys, 1, 1));
    }
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.rotate_left(usize::from(!rightmost).min(items.len()));
    if aged {
        for _ in 0..random.below(30) {
            let (a, b) = (random.below(order.len()), random.below(order.len()));
            order.swap(a, b);
        }
    }
    let mut end = special;
    for &n in &order {
        end -= items[n].len();
        let state = if aged && random.once_in(9) { 3 } else { 1 };
        put_line(&mut page, n, end, state, items[n].len());
        page[end..end + items[n].len()].copy_from_slice(&items[n]);
    }
    put_header(random, &mut page, items.len(), end, special);
    put32(&mut page, special, block.saturating_sub(1) as u64);
    put32(&mut page, special + 4, if rightmost { 0 } else { block as u64 + 1 });
    put32(&mut page, special + 8, u64::from(inner));
    put16(&mut page, special + 12, usize::from(!inner) | if aged { random.below(2) << 6 } else { 0 });
    put16(&mut page, special + 14, if aged { random.below(3) } else { 0 });
    page
}

fn key_bytes(keys: Keys, key: usize) -> Vec<u8> {
    match keys {
        Keys::Ints => (key as u32).to_le_bytes().to_vec(),
        Keys::Pairs => [((key / 10) as u32).to_le_bytes(), ((key % 10) as u32).to_le_bytes()].concat(),
        Keys::Words => {
            let text = format!("{} {:06}", WORDS[key / 1000 % 6], key);
            let mut bytes = vec![((text.len() + 1) << 1 | 1) as u8];
            bytes.extend_from_slice(text.as_bytes());
            bytes
        }
    }
}

fn tid(bytes: &mut [u8], at: usize, row: usize) {
    put16(bytes, at, (row / 100) >> 16);
    put16(bytes, at + 2, row / 100);
    put16(bytes, at + 4, row % 100 + 1);
}

fn leaf(random: &mut Random, keys: Keys, key: usize, row: usize) -> Vec<u8> {
    let mut item = vec![0; 8];
    item.extend(key_bytes(keys, key));
    align(&mut item, 8);
    if random.once_in(20) {
        let count = 2 + random.below(20);
        let from = item.len();
        for i in 0..count {
            item.extend([0; 6]);
            tid(&mut item, from + 6 * i, row + i * 3);
        }
        align(&mut item, 8);
        put16(&mut item, 2, from);
        put16(&mut item, 4, 0x2000 | count);
        let info = 0x2000 | item.len();
        put16(&mut item, 6, info);
    } else {
        tid(&mut item, 0, row);
        let flags = if matches!(keys, Keys::Words) { 0x4000 } else { 0 };
        let info = flags | item.len();
        put16(&mut item, 6, info);
    }
    item
}

fn pivot(random: &mut Random, keys: Keys, key: usize, down: usize) -> Vec<u8> {
    let mut item = vec![0; 8];
    item.extend(key_bytes(keys, key));
    align(&mut item, 8);
    let columns = if matches!(keys, Keys::Pairs) { 2 } else { 1 };
    let mut offset = columns;
    if random.once_in(4) {
        let from = item.len();
        item.extend([0; 8]);
        tid(&mut item, from + 2, key);
        offset |= 0x1000;
    }
    put16(&mut item, 2, down);
    put16(&mut item, 4, offset);
    let info = 0x2000 | item.len();
    put16(&mut item, 6, info);
    item
}
