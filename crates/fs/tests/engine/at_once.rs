//! Writes that are done at once, on the thread that the kernel's request came to: they read nothing from the device.

use super::*;

const RECORD: u64 = 16 << 10;

/// Where a write of so many bytes begins, and whether it may be done at once when nothing of the file is in memory.
const COLD: [(u64, usize, bool); 7] = [
    (0, RECORD as usize, true),
    (RECORD, 2 * RECORD as usize, true),
    (100, 50, false),
    (RECORD - 10, 20, false),
    (10 * RECORD - 5, 5, false),
    // A record that is not there yet.
    (10 * RECORD, 100, true),
    (10 * RECORD - 10, 20, false),
];

fn with_a_file(pool: &Pool) -> (Arc<Fs>, Ino) {
    Fs::format(&*pool.dataset(), &ManualClock::default(), &FORMAT).unwrap();
    let fs = mount(pool.dataset());
    let file = fs.create(Ino::ROOT, b"file", 0o644, OpenFlags::default(), &USER).unwrap().ino;
    (fs, file)
}

#[test]
fn parts_of_records_that_are_in_memory_are_written_at_once() {
    let device = device();
    let pool = open(&device);
    let (fs, file) = with_a_file(&pool);
    let noise: Vec<u8> = (0..10 * RECORD).map(|at| (at * at / 7) as u8).collect();
    assert!(!fs.writes_at_once(file, 0, 100), "its recordsize is not known yet");
    fs.write(file, 0, &noise, WriteFlags::default()).unwrap();
    // All of it was written a moment ago.
    assert!(COLD.iter().all(|(at, len, _)| fs.writes_at_once(file, *at, *len)));
    drop(fs);
    pool.export().unwrap();
    drop(pool);

    for (at, len, at_once) in COLD {
        let pool = open(&device);
        let fs = mount(pool.dataset());
        fs.lookup(Ino::ROOT, b"file").unwrap();
        // The page map comes into memory, and no record that is written below.
        fs.read(file, 5 * RECORD, &mut [0; 100]).unwrap();
        assert_eq!(fs.writes_at_once(file, at, len), at_once, "{len} bytes at {at}");
        let reads = device.stats().counts().reads;
        fs.write(file, at, &vec![7; len], WriteFlags::default()).unwrap();
        assert_eq!(device.stats().counts().reads == reads, at_once, "{len} bytes at {at}");
        // Now its records are in memory.
        assert!(fs.writes_at_once(file, at + 1, 1) && fs.writes_at_once(file, at, len));
        let reads = device.stats().counts().reads;
        fs.write(file, at + 1, b"x", WriteFlags::default()).unwrap();
        assert_eq!(device.stats().counts().reads, reads);
    }
}

/// The bytes behind the end of a file that was cut are zeroed when it grows: the record may have to be read for that.
#[test]
fn a_file_that_was_cut_grows_later() {
    let device = device();
    let pool = open(&device);
    let (fs, file) = with_a_file(&pool);
    fs.write(file, 0, &[1; 3 * RECORD as usize], WriteFlags::default()).unwrap();
    fs.setattr(file, &SetAttr { size: Some(RECORD + 10), ..SetAttr::default() }).unwrap();
    assert!(!fs.writes_at_once(file, RECORD + 10, 10));
    assert!(fs.writes_at_once(file, RECORD, 10));
    fs.write(file, RECORD + 10, &[2; 10], WriteFlags::default()).unwrap();
    assert!(fs.writes_at_once(file, RECORD + 20, 10));
}
