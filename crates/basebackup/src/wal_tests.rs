use std::os::unix::fs::FileExt as _;

use super::*;
use crate::control::Control;

const SEGMENT: u64 = 1 << 20;
const PAGE: u64 = 8192;

/// A log that is written record by record, as a server would.
struct Log {
    dir: tempfile::TempDir,
    at: u64,
    before: u64,
}

impl Log {
    /// One whose first record begins behind the header of segment `first`.
    fn new(first: u64) -> Self {
        let mut log = Self { dir: tempfile::tempdir().unwrap(), at: first * SEGMENT, before: 0 };
        log.header(0, 0);
        log
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let path = self.dir.path().join(segment_name(1, at / SEGMENT, SEGMENT));
        let file = File::options().create(true).truncate(false).write(true).open(path).unwrap();
        file.set_len(SEGMENT).unwrap();
        file.write_all_at(bytes, at % SEGMENT).unwrap();
    }

    fn header(&mut self, flags: u16, rest: u32) {
        let long = self.at.is_multiple_of(SEGMENT);
        let mut header = vec![0; if long { 40 } else { 24 }];
        header[..2].copy_from_slice(&0xD110_u16.to_le_bytes());
        header[2..4].copy_from_slice(&(flags | if long { LONG } else { 0 }).to_le_bytes());
        header[4..8].copy_from_slice(&1_u32.to_le_bytes());
        header[8..16].copy_from_slice(&self.at.to_le_bytes());
        header[16..20].copy_from_slice(&rest.to_le_bytes());
        self.put(self.at, &header);
        self.at += header.len() as u64;
    }

    /// Writes a record with `bytes` bytes behind its header; returns the place where it begins.
    fn record(&mut self, bytes: usize, operation: u8) -> u64 {
        if self.at.is_multiple_of(PAGE) {
            self.header(0, 0);
        }
        let start = self.at;
        let mut record = vec![0xA5; RECORD_HEADER + bytes];
        let total = record.len() as u32;
        record[..4].copy_from_slice(&total.to_le_bytes());
        record[8..16].copy_from_slice(&self.before.to_le_bytes());
        record[16..18].copy_from_slice(&[operation, 0]);
        let sum = crc32c::crc32c_append(crc32c::crc32c(&record[RECORD_HEADER..]), &record[..CRC_AT]);
        record[CRC_AT..RECORD_HEADER].copy_from_slice(&sum.to_le_bytes());
        let mut rest = record.as_slice();
        loop {
            let room = (PAGE - self.at % PAGE) as usize;
            let (part, left) = rest.split_at(room.min(rest.len()));
            self.put(self.at, part);
            self.at += part.len() as u64;
            rest = left;
            if rest.is_empty() {
                break;
            }
            self.header(CONTINUES, rest.len() as u32);
        }
        self.before = start;
        self.at = self.at.next_multiple_of(ALIGNED);
        if operation == SWITCH {
            self.at = self.at.next_multiple_of(SEGMENT);
        }
        start
    }

    fn open(&self) -> Wal {
        Wal::open(self.dir.path(), &control(0, 0)).unwrap()
    }
}

fn control(redo: u64, checkpoint: u64) -> Control {
    Control {
        system: 1,
        is_shut_down: false,
        checkpoint,
        redo,
        timeline: 1,
        min_recovery: 0,
        is_unfinished_backup: false,
        page_bytes: 8192,
        segment_pages: 131_072,
        wal_page_bytes: PAGE as u32,
        wal_segment_bytes: SEGMENT as u32,
        has_checksums: true,
    }
}

#[test]
fn names_of_segments() {
    assert_eq!(segment_name(1, 3, 16 << 20), "000000010000000000000003");
    assert_eq!(parse_segment("00000002000000010000000A", 16 << 20), Some((2, 0x10A)));
    for name in ["00000002000000010000000a", "00000002000000010000000", "0000000200000001000000XX", "x"] {
        assert_eq!(parse_segment(name, 16 << 20), None, "{name}");
    }
    assert!(
        is_history("0000000A.history")
            && !is_history("A.history")
            && !is_history("00000001000000000000000A.partial")
    );
}

#[test]
fn the_end_is_that_of_the_last_whole_record() {
    let mut log = Log::new(3);
    let first = log.record(100, 0);
    let mut starts = Vec::new();
    // Records within a page, over pages, and over the end of a segment.
    for n in 0..400 {
        starts.push(log.record(n * 37 % 20_000, 0));
    }
    let end = log.at;
    assert!(end / SEGMENT > 4, "the log is longer than a segment");
    let wal = log.open();
    let range = wal.after_crash(&control(first, starts[7])).unwrap();
    assert_eq!(range, Range { timeline: 1, start: first, end });
    assert_eq!(wal.files(&range).unwrap().len() as u64, end / SEGMENT - 3 + 1);
    // From wherever it begins.
    assert_eq!(wal.after_crash(&control(starts[100], starts[120])).unwrap().end, end);
    // A flipped bit anywhere in a record ends the log before it.
    for at in [starts[200], starts[200] + 9, starts[200] + 17, starts[200] + 21] {
        let path = log.dir.path().join(segment_name(1, at / SEGMENT, SEGMENT));
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at % SEGMENT).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at % SEGMENT).unwrap();
        let found = wal.after_crash(&control(first, starts[7])).unwrap().end;
        assert!(found <= starts[200] && found > starts[199], "{at}: {found} {}", starts[200]);
        // The checkpoint is behind that.
        assert!(matches!(wal.after_crash(&control(first, starts[300])), Err(Error::Damaged(_))));
        file.write_all_at(&byte, at % SEGMENT).unwrap();
    }
    assert_eq!(wal.after_crash(&control(first, starts[7])).unwrap().end, end);
}

#[test]
fn after_a_switch_the_next_segment_goes_on() {
    let mut log = Log::new(1);
    let first = log.record(50, 0);
    log.record(0, SWITCH);
    let next = log.record(80, 0);
    assert_eq!(next / SEGMENT, 2);
    assert_eq!(log.open().after_crash(&control(first, first)).unwrap().end, log.at);
}

#[test]
fn a_backup_ends_where_the_server_says() {
    let mut log = Log::new(1);
    let first = log.record(50, 0);
    let stop = log.record(80, 0);
    log.record(90, 0);
    let wal = log.open();
    assert_eq!(wal.between(1, first, stop).unwrap(), Range { timeline: 1, start: first, end: stop });
    // Not in the midst of a record, not beyond the end, not on another timeline.
    for (timeline, stop) in [(1, stop + 8), (1, log.at + 8), (2, stop)] {
        assert!(matches!(wal.between(timeline, first, stop), Err(Error::Damaged(_))));
    }
}

#[test]
fn segments_that_are_not_written_yet_are_left_out_and_others_are_not() {
    let mut log = Log::new(1);
    let first = log.record(50, 0);
    let end = log.at;
    // Recycled: it still says where it lay before.
    log.at = 9 * SEGMENT;
    log.header(0, 0);
    let recycled = log.dir.path().join(segment_name(1, 2, SEGMENT));
    std::fs::rename(log.dir.path().join(segment_name(1, 9, SEGMENT)), &recycled).unwrap();
    let range = Range { timeline: 1, start: first, end };
    assert_eq!(log.open().files(&range).unwrap(), [segment_name(1, 1, SEGMENT)]);
    log.at = 2 * SEGMENT;
    log.header(0, 0);
    assert_eq!(log.open().files(&range).unwrap().len(), 2);
    // A file that is too short is none.
    File::options().write(true).open(&recycled).unwrap().set_len(100).unwrap();
    assert_eq!(log.open().files(&range).unwrap().len(), 1);
}

#[test]
fn a_record_that_a_crash_cut_off_is_passed_over() {
    let mut log = Log::new(1);
    let first = log.record(50, 0);
    let before = log.before;
    // It goes on to a page on which the server, started again, has begun anew.
    log.record(20_000, 0);
    log.at = SEGMENT + PAGE;
    log.before = before;
    log.header(OVERWRITES, 0);
    log.record(70, 0);
    assert_eq!(log.open().after_crash(&control(first, first)).unwrap().end, log.at);
}

#[test]
fn a_newer_timeline_without_a_checkpoint_is_told() {
    let mut log = Log::new(1);
    let first = log.record(50, 0);
    std::fs::copy(
        log.dir.path().join(segment_name(1, 1, SEGMENT)),
        log.dir.path().join(segment_name(2, 1, SEGMENT)),
    )
    .unwrap();
    let told = log.open().after_crash(&control(first, first)).unwrap_err();
    assert!(matches!(&told, Error::Unsuited(why) if why.contains("from timeline 1 to 2")), "{told}");
}
