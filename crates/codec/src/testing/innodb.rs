//! Makes index pages as InnoDB does, from a seed. Written without the code under test.

use super::{Random, WORDS};

#[derive(Clone, Copy, Debug)]
enum InnodbType {
    Int(usize),
    Char(usize),
    /// Text of at most 255 bytes.
    Short,
    /// Text whose lengths above 127 have two bytes; long values go on elsewhere.
    Long,
}

/// Kinds of checksums, in the first four and the last eight bytes of a page.
#[derive(Clone, Copy, Debug)]
enum Sums {
    Full,
    Crc32,
    Wrong,
}

/// Columns of a table, and the state of its pages.
#[derive(Clone, Debug)]
pub struct InnodbTable {
    /// Type of each column, and whether it may be null.
    columns: Vec<(InnodbType, bool)>,
    /// True if pages were used before: they have free records, gaps, records out of order, garbage in the hole.
    pub aged: bool,
    /// Length of a page, in bytes.
    pub page_bytes: usize,
    sums: Sums,
}

impl InnodbTable {
    /// Draws any columns, in clean or aged pages of any size.
    pub fn random(random: &mut Random) -> Self {
        let all = [
            InnodbType::Int(4),
            InnodbType::Int(1),
            InnodbType::Int(2),
            InnodbType::Int(3),
            InnodbType::Int(8),
            InnodbType::Char(24),
            InnodbType::Char(90),
            InnodbType::Short,
            InnodbType::Short,
            InnodbType::Long,
        ];
        let nullable = random.once_in(2);
        let more = 1 + random.below(8);
        let mut columns =
            vec![(InnodbType::Int(4), false), (InnodbType::Int(6), false), (InnodbType::Int(7), false)];
        columns.extend((0..more).map(|_| (all[random.below(all.len())], nullable && random.once_in(2))));
        Self {
            columns,
            aged: random.once_in(2),
            page_bytes: [16_384, 16_384, 16_384, 4096, 8192, 32_768, 65_536][random.below(7)],
            sums: [Sums::Full, Sums::Full, Sums::Crc32, Sums::Wrong][random.below(4)],
        }
    }

    /// Makes a table of a few columns that compress well, in pages of 16 KiB.
    #[must_use]
    pub fn simple(aged: bool) -> Self {
        let columns = [
            InnodbType::Int(4),
            InnodbType::Int(6),
            InnodbType::Int(7),
            InnodbType::Int(4),
            InnodbType::Short,
            InnodbType::Char(24),
        ];
        Self {
            columns: columns.map(|column| (column, false)).to_vec(),
            aged,
            page_bytes: 16_384,
            sums: Sums::Full,
        }
    }

    /// Makes a table with columns of all kinds, some of which may be null.
    #[must_use]
    pub fn nullable(aged: bool) -> Self {
        let fixed =
            [InnodbType::Int(4), InnodbType::Int(6), InnodbType::Int(7)].map(|column| (column, false));
        let more = [
            (InnodbType::Short, true),
            (InnodbType::Int(3), true),
            (InnodbType::Short, false),
            (InnodbType::Long, true),
        ];
        let columns = fixed.into_iter().chain(more).collect();
        Self { columns, aged, page_bytes: 16_384, sums: Sums::Full }
    }

    /// Makes a record without its header: lengths and null bitmap, backwards; values.
    fn row(&self, random: &mut Random, n: usize, inner: bool) -> (Vec<u8>, Vec<u8>) {
        let (mut lengths, mut data) = (vec![], vec![]);
        let (mut bits, mut bit) = (0u64, 0);
        let columns = if inner { &self.columns[..1] } else { &self.columns[..] };
        for &(column, nullable) in columns {
            if nullable {
                bit += 1;
                if random.once_in(4) {
                    bits |= 1 << (bit - 1);
                    continue;
                }
            }
            value(random, column, n, &mut lengths, &mut data);
        }
        if inner {
            data.extend((n as u32 + 70).to_be_bytes());
        }
        let bitmap = bits.to_le_bytes();
        let mut before: Vec<u8> = lengths.into_iter().rev().collect();
        before.extend(bitmap[..usize::div_ceil(bit, 8)].iter().rev());
        (before, data)
    }
}

fn value(random: &mut Random, column: InnodbType, n: usize, lengths: &mut Vec<u8>, data: &mut Vec<u8>) {
    match column {
        InnodbType::Int(width) => {
            let value = match random.below(8) {
                0 => random.next(),
                _ => 1 << (8 * width - 1) | (n as u64 * 3),
            };
            data.extend_from_slice(&value.to_be_bytes()[8 - width..]);
        }
        InnodbType::Char(width) => {
            let mut content = WORDS[random.below(WORDS.len())].as_bytes().to_vec();
            content.resize(width, b' ');
            data.extend(content);
        }
        InnodbType::Short => {
            let words: Vec<&str> = (0..random.below(5)).map(|_| WORDS[random.below(WORDS.len())]).collect();
            let content = words.join(" ");
            lengths.push(content.len() as u8);
            data.extend_from_slice(content.as_bytes());
        }
        InnodbType::Long => {
            let external = random.once_in(40);
            let most = [100, 400][random.below(2)];
            let len = if external { 20 } else { random.below(most) };
            if len > 127 || external {
                lengths.extend([0x80 | if external { 0x40 } else { 0 } | (len >> 8) as u8, len as u8]);
            } else {
                lengths.push(len as u8);
            }
            let text: Vec<u8> = WORDS.join(" ").into_bytes();
            data.extend(text.iter().cycle().skip(random.below(9)).take(len));
        }
    }
}

fn put16(page: &mut [u8], at: usize, value: usize) {
    page[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
}

/// Makes page `number` of a table's clustered index.
pub fn index_page(random: &mut Random, table: &InnodbTable, number: usize) -> Vec<u8> {
    let inner = random.once_in(8);
    let mut page = vec![0; table.page_bytes];
    if table.aged && random.once_in(2) {
        page = random.bytes(table.page_bytes);
    }
    // Origins by number in the heap, from 2 on.
    let mut origins = vec![];
    let mut top = 120;
    let room = table.page_bytes - 8 - 64 - random.below(table.page_bytes / 3);
    for n in 0..random.below(900) {
        let (before, data) = table.row(random, number * 100 + n, inner);
        let gap = if table.aged && random.once_in(9) { random.below(20) } else { 0 };
        let end = top + before.len() + 5 + data.len() + gap;
        if end + origins.len() * 2 > room {
            break;
        }
        page[top..top + before.len()].copy_from_slice(&before);
        let origin = top + before.len() + 5;
        page[origin..origin + data.len()].copy_from_slice(&data);
        let deleted = if table.aged && random.once_in(12) { 0x20 } else { 0 };
        let owned = if table.aged { random.below(5) } else { 0 };
        page[origin - 5] = deleted | owned as u8;
        put16(&mut page, origin - 4, (origins.len() + 2) << 3 | usize::from(inner));
        // No layout describes a record with this info bit.
        if table.aged && random.once_in(80) {
            page[origin - 5] |= 0x80;
        }
        origins.push(origin);
        top = end;
    }
    let heap = origins.len() + 2;
    let last = origins.last().copied().unwrap_or(0);
    let (mut listed, mut free) = (origins, vec![]);
    if table.aged {
        for i in (1..listed.len()).rev().filter(|_| number.is_multiple_of(2)) {
            listed.swap(i, random.below(i + 1));
        }
        let keep = listed.len() - random.below(listed.len() / 2 + 1);
        free = listed.split_off(keep);
        if number % 2 == 1 {
            free.reverse();
        }
    }
    let links = std::iter::once(99).chain(listed.iter().copied()).chain(std::iter::once(112));
    let links: Vec<usize> = links.collect();
    page[94..120].copy_from_slice(b"\x01\0\x02\0\0infimum\0\x01\0\x0b\0\0supremum");
    for pair in links.windows(2) {
        put16(&mut page, pair[0] - 2, pair[1].wrapping_sub(pair[0]));
    }
    for (n, &origin) in free.iter().enumerate() {
        let next = free.get(n + 1).map_or(0, |next| next.wrapping_sub(origin));
        put16(&mut page, origin - 2, next);
    }
    let slots = put_directory(random, &mut page, table.aged, &listed);
    put_headers(random, &mut page, number, inner);
    let garbage = random.below(300);
    let words = [slots, top, heap | 0x8000, free.first().copied().unwrap_or(0), garbage, last];
    for (i, word) in words.into_iter().enumerate() {
        put16(&mut page, 38 + 2 * i, word);
    }
    put16(&mut page, 54, listed.len());
    if !table.aged {
        let end = table.page_bytes - 8 - 2 * slots;
        page[top..end].fill(0);
    }
    put_sums(random, &mut page, table.sums);
    page
}

/// Writes the directory: groups of records, and their owners. Returns the number of slots.
fn put_directory(random: &mut Random, page: &mut [u8], aged: bool, listed: &[usize]) -> usize {
    let end = page.len() - 8;
    for &origin in listed {
        page[origin - 5] &= 0xF0;
    }
    put16(page, end - 2, 99);
    let (mut slots, mut rest) = (1, listed);
    loop {
        let size = if aged { 4 + random.below(5) } else { 4 };
        if rest.len() < size {
            break;
        }
        let owner = rest[size - 1];
        page[owner - 5] |= size as u8;
        slots += 1;
        put16(page, end - 2 * slots, owner);
        rest = &rest[size..];
    }
    page[107] = rest.len() as u8 + 1;
    put16(page, end - 2 * (slots + 1), 112);
    slots + 1
}

fn put_headers(random: &mut Random, page: &mut [u8], number: usize, inner: bool) {
    page[..94].fill(0);
    let mut put32 = |at: usize, value: usize| page[at..at + 4].copy_from_slice(&(value as u32).to_be_bytes());
    put32(4, number);
    put32(8, if random.once_in(9) { u32::MAX as usize } else { number.wrapping_sub(1) });
    put32(12, if random.once_in(9) { random.below(1000) } else { number + 1 });
    put32(20, 1_000_000 + random.below(1 << 20));
    put32(34, 17);
    put16(page, 24, 17_855);
    put16(page, 50, [1, 2, 5][random.below(3)]);
    page[50] = 0;
    put16(page, 52, random.below(90));
    put16(page, 64, usize::from(inner));
    put16(page, 72, 130);
    if random.once_in(10) {
        page[74..94].copy_from_slice(&[7; 20]);
    }
}

fn put_sums(random: &mut Random, page: &mut [u8], sums: Sums) {
    let tail = page.len() - 8;
    let lsn = [page[20], page[21], page[22], page[23]];
    match sums {
        Sums::Full => {
            page[tail..tail + 4].copy_from_slice(&lsn);
            let sum = crc32c::crc32c(&page[..tail + 4]);
            page[tail + 4..].copy_from_slice(&sum.to_be_bytes());
        }
        Sums::Crc32 => {
            let sum = crc32c::crc32c(&page[4..26]) ^ crc32c::crc32c(&page[38..tail]);
            page[..4].copy_from_slice(&sum.to_be_bytes());
            page[tail..tail + 4].copy_from_slice(&sum.to_be_bytes());
            page[tail + 4..].copy_from_slice(&lsn);
        }
        Sums::Wrong => {
            let noise = random.bytes(12);
            page[..4].copy_from_slice(&noise[..4]);
            page[tail..].copy_from_slice(&noise[4..]);
        }
    }
}
