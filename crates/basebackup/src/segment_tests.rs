use super::*;

const PAGE: usize = 8192;

/// A segment of 1 MiB whose log is written as a server would.
struct Segment {
    bytes: Vec<u8>,
    at: usize,
}

impl Segment {
    const ADDRESS: u64 = 7 << 20;

    fn new(continues: u32) -> Self {
        let mut segment = Self { bytes: vec![0; 1 << 20], at: 0 };
        segment.header(if continues > 0 { CONTINUES } else { 0 }, continues);
        segment
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn header(&mut self, flags: u16, rest: u32) {
        let address = Self::ADDRESS + self.at as u64;
        let mut header = vec![0; if self.at == 0 { LONG_HEADER } else { SHORT_HEADER }];
        header[..2].copy_from_slice(&0xD110_u16.to_le_bytes());
        header[2..4].copy_from_slice(&(flags | if self.at == 0 { LONG } else { 0 }).to_le_bytes());
        header[4..8].copy_from_slice(&1_u32.to_le_bytes());
        header[8..16].copy_from_slice(&address.to_le_bytes());
        header[16..20].copy_from_slice(&rest.to_le_bytes());
        if self.at == 0 {
            header[24..32].copy_from_slice(&77_u64.to_le_bytes());
            header[32..36].copy_from_slice(&(1_u32 << 20).to_le_bytes());
            header[36..40].copy_from_slice(&(PAGE as u32).to_le_bytes());
        }
        self.put(&header);
    }

    fn record(&mut self, info: u8, manager: u8, body: &[u8]) {
        let mut record = vec![0; RECORD_HEADER];
        record.extend_from_slice(body);
        let total = record.len() as u32;
        record[..4].copy_from_slice(&total.to_le_bytes());
        (record[16], record[17]) = (info, manager);
        let crc = crc32c::crc32c_append(crc32c::crc32c(&record[RECORD_HEADER..]), &record[..CRC_AT]);
        record[CRC_AT..RECORD_HEADER].copy_from_slice(&crc.to_le_bytes());
        let mut rest = record.as_slice();
        if self.at.is_multiple_of(PAGE) {
            self.header(0, 0);
        }
        while !rest.is_empty() {
            let room = PAGE - self.at % PAGE;
            let (now, later) = rest.split_at(room.min(rest.len()));
            self.put(now);
            rest = later;
            if !rest.is_empty() {
                self.header(CONTINUES, rest.len() as u32);
            }
        }
        self.at = self.at.next_multiple_of(ALIGNED);
    }

    fn end(&mut self, info: u8, seconds: i64) {
        let time = (seconds * 1_000_000 - EPOCH_US).to_le_bytes();
        self.record(
            info,
            MANAGER_TRANSACTIONS,
            &[&[ORIGIN, 1, 0, DATA_SHORT, 12], &time[..], &[9; 4]].concat(),
        );
    }
}

#[test]
fn times_of_commits_and_aborts_are_found_across_pages() {
    let mut segment = Segment::new(20);
    // The rest of a record that began before.
    segment.put(&[0xA5; 20]);
    segment.at = segment.at.next_multiple_of(ALIGNED);
    segment.record(0, 10, &[1; 3 * PAGE]);
    segment.end(0x80, 1_800_000_050);
    segment.record(0, 10, &vec![1; PAGE - segment.at % PAGE - RECORD_HEADER - 8]);
    segment.end(0x20, 1_800_000_040);
    segment.end(0x30, 1_800_000_060);
    // A record of prepare has a time, too, and no recovery stops there.
    segment.end(0x10, 1_900_000_000);
    let found = Times { first: 1_800_000_040_000_000, last: 1_800_000_060_000_000 };
    assert_eq!(times(&segment.bytes), Some(found));
    // Behind a switch there is nothing, whatever lies there.
    let mut switched = segment.bytes.clone();
    let at = segment.at;
    segment.record(SWITCH, MANAGER_LOG, &[]);
    segment.end(0, 1_800_000_070);
    assert_eq!(times(&segment.bytes), Some(found));
    // A record whose checksum is wrong ends it.
    switched[at - 40] ^= 1;
    assert_ne!(times(&switched), Some(Times { first: found.first, last: 1_900_000_000_000_000 }));
    assert_eq!(times(&Segment::new(0).bytes), None);
}

#[test]
fn a_segments_first_page_says_whose_it_is() {
    let segment = Segment::new(0);
    let head = Head::parse(&segment.bytes).unwrap();
    assert_eq!((head.system, head.timeline, head.address), (77, 1, Segment::ADDRESS));
    assert_eq!((head.segment_bytes, head.page_bytes), (1 << 20, 8192));
    assert_eq!(Head::parse(&segment.bytes[..39]), None);
    assert_eq!(Head::parse(&vec![0; 1 << 20]), None);
    for (at, byte) in [(2, 0), (32, 1), (36, 1), (8, 1)] {
        let mut odd = segment.bytes.clone();
        odd[at] ^= if at == 2 { LONG as u8 } else { 1 };
        assert_eq!(Head::parse(&odd), None, "{at} {byte}");
    }
}

#[test]
fn names_are_read_and_written() {
    for text in [
        "000000010000000A000000FE",
        "000000010000000A000000FE.partial",
        "000000010000000A000000FE.00000028.backup",
        "0000000B.history",
    ] {
        assert_eq!(Name::parse(text).unwrap().to_string(), text);
    }
    assert_eq!(Name::parse("000000010000000A000000FE").unwrap().number(16 << 20), 0xA * 256 + 0xFE);
    for text in [
        "",
        "x",
        "000000010000000a000000FE",
        "00000000.history",
        "000000010000000A000000FE.x",
        "RECOVERYXLOG",
    ] {
        assert_eq!(Name::parse(text), None, "{text}");
    }
    assert_eq!(Name::parse("000000010000000A000000FE.backup"), None);
    assert_eq!(Name::parse("é00000010000000A000000FE"), None);
}

/// Whatever bytes there are, the walk ends.
#[test]
fn hostile_segments_end() {
    let mut state = 1_u64;
    let mut segment = Segment::new(0);
    for round in 0..50 {
        segment.record(0, 10, &vec![round; 700]);
        segment.end(0, 1_800_000_000 + i64::from(round));
    }
    for _ in 0..300 {
        let mut bytes = segment.bytes.clone();
        for _ in 0..4 {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            let at = (state >> 33) as usize % 60_000;
            bytes[at] = (state >> 24) as u8;
        }
        times(&bytes);
    }
}
