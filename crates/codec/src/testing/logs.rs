//! Makes pages of logs as PostgreSQL and MariaDB do, from a seed. Written without the code under test.

use super::{Random, WORDS};

/// Kinds of records of a generated log: resource manager and operation.
const KINDS: [(u8, u8); 5] = [(10, 0x00), (10, 0x40), (11, 0x00), (1, 0x00), (0, 0xB0)];

fn pick16(random: &mut Random) -> [u8; 2] {
    (random.below(6000) as u16).to_le_bytes()
}

/// Makes a record without the fields that depend on its place in the log: the record before, and its checksum.
fn wal_record(random: &mut Random, xid: u32) -> Vec<u8> {
    let kind = random.below(KINDS.len());
    let (manager, info) = KINDS[kind];
    let odd = random.once_in(40);
    let mut head = vec![];
    let mut data = vec![];
    let blocks = match kind {
        3 => 0,
        1 => 1 + random.below(2),
        _ => 1,
    };
    for n in 0..blocks {
        let image = kind == 4 || random.once_in(30);
        let fields = random.bytes(2);
        let mut tuple = [&[3, 0, 2, 8, 24][..], WORDS[random.below(6)].as_bytes(), &fields].concat();
        tuple.extend((xid * 7).to_le_bytes());
        let same = n > 0 && random.once_in(2);
        head.extend([n as u8, if image { 0x10 } else { 0x20 } | if same { 0x80 } else { 0 }]);
        if image {
            let mut bytes: Vec<u8> = (0..random.below(700) as u32)
                .flat_map(|row| [row.to_le_bytes(), [1, 2, 3, 4]].concat())
                .collect();
            if bytes.len() > 200 && random.once_in(2) {
                bytes[12..14].copy_from_slice(&(24u16 + 80).to_le_bytes());
            }
            head.extend([0, 0]);
            head.extend((bytes.len() as u16).to_le_bytes());
            head.extend(pick16(random));
            // The image has a hole; or it is compressed and has a hole, which then has a length.
            let image_info = [1, 1, 1, 5][random.below(4)];
            head.push(image_info);
            if image_info == 5 {
                head.extend(pick16(random));
            }
            data.extend(bytes);
        } else {
            head.extend((tuple.len() as u16).to_le_bytes());
            data.extend(tuple);
        }
        if !same {
            let relations = if random.once_in(30) { 5000 } else { 4 };
            let relation = 16_384 + random.below(relations) as u32;
            head.extend([1663, 5, relation].map(u32::to_le_bytes).concat());
        }
        head.extend((random.below(1000) as u32).to_le_bytes());
    }
    let main = match kind {
        3 => (800_000_000_000_000 + u64::from(xid) * 1003).to_le_bytes().to_vec(),
        _ => vec![random.below(100) as u8, 0, random.below(3) as u8],
    };
    if odd {
        head.extend([253, 7, 0]);
    }
    if random.once_in(50) {
        head.push(254);
        head.extend((main.len() as u32).to_le_bytes());
    } else if !random.once_in(30) {
        head.extend([255, main.len() as u8]);
    } else {
        // The record has no main data at all.
        return finish_record([&head[..], &data].concat(), xid, manager, info);
    }
    finish_record([&head[..], &data, &main].concat(), xid, manager, info)
}

fn finish_record(body: Vec<u8>, xid: u32, manager: u8, info: u8) -> Vec<u8> {
    let mut record = ((24 + body.len()) as u32).to_le_bytes().to_vec();
    record.extend(if info == 0xB0 { 0 } else { xid }.to_le_bytes());
    record.extend([0; 8]);
    record.extend([info, manager, 0, 0, 0, 0, 0, 0]);
    record.extend(body);
    record
}

/// Makes successive pages of a write-ahead log of PostgreSQL 15. The last one may end in zeros.
pub fn wal_pages(random: &mut Random, page_bytes: usize, count: usize) -> Vec<Vec<u8>> {
    let first = (1 << 30) + (random.below(1 << 20) * page_bytes) as u64;
    let mut pages: Vec<Vec<u8>> = vec![];
    let mut page: Vec<u8> = vec![];
    let (mut xid, mut before) = (1000, 0u64);
    let begin = |page: &mut Vec<u8>, number: usize, rest: usize| {
        let long = number.is_multiple_of(2048);
        page.extend(0xD110u16.to_le_bytes());
        page.extend((u16::from(rest > 0) | u16::from(long) << 1).to_le_bytes());
        page.extend(1u32.to_le_bytes());
        page.extend((first + (number * page_bytes) as u64).to_le_bytes());
        page.extend((rest as u32).to_le_bytes());
        page.extend([0; 4]);
        if long {
            page.extend(7_345_678_901_234_567_890u64.to_le_bytes());
            page.extend((16u32 << 20).to_le_bytes());
            page.extend((page_bytes as u32).to_le_bytes());
        }
    };
    begin(&mut page, 0, 0);
    while pages.len() < count {
        xid += u32::from(random.once_in(3));
        let mut record = wal_record(random, xid);
        record[8..16].copy_from_slice(&before.to_le_bytes());
        before = first + (pages.len() * page_bytes + page.len()) as u64;
        let mut crc = crc32c::crc32c_append(crc32c::crc32c(&record[24..]), &record[..20]);
        crc ^= u32::from(random.once_in(60));
        record[20..24].copy_from_slice(&crc.to_le_bytes());
        let mut rest = &record[..];
        loop {
            let (here, later) = rest.split_at(rest.len().min(page_bytes - page.len()));
            page.extend(here);
            rest = later;
            page.resize(page.len().next_multiple_of(8), 0);
            if page.len() < page_bytes {
                break;
            }
            pages.push(std::mem::take(&mut page));
            begin(&mut page, pages.len(), rest.len());
            if rest.is_empty() {
                break;
            }
        }
    }
    pages.truncate(count);
    if random.once_in(3)
        && let Some(last) = pages.last_mut()
    {
        // The log ends here for now: behind a record, or anywhere in one.
        let at = (page_bytes / 2 + random.below(page_bytes / 4)).next_multiple_of(8);
        last[at..].fill(0);
    }
    pages
}

/// Appends a number below 16,512 as InnoDB's redo log has it.
fn number(bytes: &mut Vec<u8>, value: usize) {
    if value < 0x80 {
        bytes.push(value as u8);
    } else {
        bytes.extend(((value as u16 - 0x80) | 0x8000).to_be_bytes());
    }
}

/// Makes successive blocks of a redo log of MariaDB 10.11.
pub fn redo_blocks(random: &mut Random, block_bytes: usize, count: usize) -> Vec<Vec<u8>> {
    let mut log = random.bytes(40);
    let mut row = 0u32;
    while log.len() < count * block_bytes {
        let begin = log.len();
        for n in 0..1 + random.below(4) {
            row += 1;
            let same = n > 0 && random.once_in(2);
            let mut body = vec![];
            if !same {
                number(
                    &mut body,
                    if random.once_in(20) { random.below(16_000) } else { 5 + random.below(3) },
                );
                number(&mut body, random.below(300));
            }
            let kind = [0x20, 0x30, 0x30, 0x40, 0x60][random.below(5)];
            body.push(if kind == 0x20 { 6 } else { random.below(100) as u8 });
            if kind != 0x40 {
                body.extend(row.to_be_bytes());
                body.extend(WORDS[random.below(8)].as_bytes());
            }
            if random.once_in(10) {
                body.extend(WORDS.concat().repeat(1 + random.below(4)).as_bytes());
            }
            let first = kind | if same { 0x80 } else { 0 };
            if body.len() < 16 {
                log.push(first | body.len() as u8);
            } else {
                log.push(first);
                // The length counts its own bytes, one or two, and is stored less 15.
                let bytes = if body.len() + 1 - 15 < 0x80 { 1 } else { 2 };
                number(&mut log, body.len() + bytes - 15);
            }
            log.extend(body);
        }
        let crc = crc32c::crc32c(&log[begin..]) ^ u32::from(random.once_in(200));
        log.push(1);
        log.extend(crc.to_be_bytes());
    }
    log.truncate(count * block_bytes);
    if random.once_in(3) {
        let end = log.len() - random.below(block_bytes);
        log[end..].fill(0);
    }
    log.chunks(block_bytes).map(<[u8]>::to_vec).collect()
}
