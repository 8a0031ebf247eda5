//! Makes pages of PostgreSQL's B-tree indexes.

use super::{Random, Schema, WORDS, align, blank, put_header, put_line, put16, put32};

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
