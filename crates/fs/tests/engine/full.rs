//! A pool that is full to the last byte: what makes a file shorter works all the same.

use std::sync::Arc;

use pagefold_engine::dataset::{Change, Dataset};
use pagefold_engine::types::Key;
use pagefold_engine::{Error, Result};
use pagefold_fs::testing::ManualClock;
use pagefold_fs::{Fs, FsError, Ino, OpenFlags, SetAttr, WriteFlags};

use super::{FORMAT, USER, device, mount, open};

/// A kind of keys that the file system does not use.
const OTHER_KIND: u8 = 0x7F;

/// Stores values until not even an empty one fits.
fn fill(dataset: &dyn Dataset) {
    let value = |len: usize| -> Vec<u8> {
        let mut state = len as u64 | 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 32) as u8
        };
        (0..len).map(|_| next()).collect()
    };
    let mut number = 0;
    let mut put = |len: usize| -> Result<()> {
        number += 1;
        dataset.apply(&[Change::Put(Key::new(1 << 40, OTHER_KIND, number), value(len))])
    };
    let mut len = 3000;
    loop {
        match put(len) {
            Ok(()) => {}
            Err(Error::NoSpace(_)) if len > 0 => len /= 2,
            Err(Error::NoSpace(_)) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

#[test]
fn a_full_pool_lets_truncate_where_no_record_goes() {
    let device = device();
    let pool = open(&device);
    Fs::format(&*pool.dataset(), &ManualClock::default(), &FORMAT).unwrap();
    let fs = mount(pool.dataset());
    let create = |name: &[u8]| fs.create(Ino::ROOT, name, 0o644, OpenFlags::default(), &USER).unwrap().ino;
    let (within, zeros, empty) = (create(b"within"), create(b"zeros"), create(b"empty"));
    fs.write(within, 0, &[7; 10_000], WriteFlags::default()).unwrap();
    fs.write(zeros, 0, &[0; 10_000], WriteFlags::default()).unwrap();
    fill(&*pool.dataset());
    let chmod = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let refused = || assert!(matches!(fs.setattr(within, &chmod), Err(FsError::NoSpace(_))));
    refused();
    assert_eq!(fs.setattr(within, &size(100)).unwrap().size, 100);
    assert_eq!(fs.setattr(zeros, &size(5000)).unwrap().size, 5000);
    assert_eq!(fs.setattr(zeros, &size(0)).unwrap().size, 0);
    let truncate = OpenFlags { truncate: true, ..OpenFlags::default() };
    assert_eq!(fs.open(empty, truncate).unwrap().size, 0);
    refused();
    // Growing asks for room.
    assert!(matches!(fs.setattr(zeros, &size(1)), Err(FsError::NoSpace(_))));
    let mut out = [1; 200];
    assert_eq!(fs.read(within, 0, &mut out).unwrap(), 100);
    assert_eq!(out[..100], [7; 100]);
    drop(fs);
    pool.sync().unwrap();
    let again = mount(Arc::clone(&pool).dataset());
    assert_eq!(again.getattr(within).unwrap().size, 100);
    assert_eq!(again.getattr(zeros).unwrap().size, 0);
}
