//! A record that no encoder made: its lengths are beyond what the fields of a page can hold.

use super::super::page::{CONTINUES, MAIN_LONG, MAIN_SHORT, RECORD_HEADER, SHORT_HEADER};
use super::super::{END, NO_SLOT, RecordPattern, WalModel, stream};
use super::walk;
use crate::Corrupt;
use crate::log::LogPage;
use crate::log::io::Io;
use crate::log::slots::Slots;
use crate::log::wal::page::BLOCKS_MAX;

const PAGE: usize = 1024;

/// Tells of a page with one record, which begins behind `rest` bytes of another one and has `main` bytes of data.
struct Told {
    rest: u64,
    main: u64,
    patterns: usize,
}

impl Io for Told {
    const WRITES: bool = false;

    fn symbol(&mut self, id: usize, _: u8, _: u8) -> u8 {
        if id != stream::PATTERN {
            return 0;
        }
        self.patterns += 1;
        if self.patterns == 1 { 0 } else { END }
    }

    fn number(&mut self, id: usize, ctx: u8, _: u64) -> u64 {
        match (id, ctx) {
            (stream::HEAD, 1) => CONTINUES.into(),
            (stream::HEAD, 4) => self.rest,
            (stream::MAIN, _) => self.main,
            _ => 0,
        }
    }

    fn plain(&mut self, _: &mut [u8]) -> Result<(), Corrupt> {
        Ok(())
    }

    fn text(&mut self, _: &mut [u8]) -> Result<(), Corrupt> {
        Ok(())
    }
}

/// Reads a page whose last `left` bytes begin with a record, the length of whose main data is `main`.
fn read(left: usize, kind: u8, main: u64) -> Result<(), Corrupt> {
    let model = WalModel {
        magic: 0,
        timeline: 0,
        address: 0,
        xid: 0,
        rels: vec![],
        patterns: vec![RecordPattern { key: vec![0, 0, kind], slots: [NO_SLOT; 1 + 2 * BLOCKS_MAX] }],
        by_key: Default::default(),
        rel_numbers: Default::default(),
        slots: Slots::default(),
    };
    let rest = (PAGE - left - SHORT_HEADER) as u64;
    let mut told = Told { rest, main, patterns: 0 };
    walk(&model, &mut told, &mut LogPage::default(), &mut [0; PAGE])
}

#[test]
fn a_length_that_its_field_cannot_hold_is_an_error() {
    for left in [RECORD_HEADER + 8, 64, 512] {
        for (kind, most) in [(MAIN_SHORT, u64::from(u8::MAX)), (MAIN_LONG, u64::from(u32::MAX))] {
            assert_eq!(read(left, kind, most), Ok(()));
            let wrapped = (1..=PAGE as u64).step_by(8).map(|less| 0_u64.wrapping_sub(less));
            for main in wrapped.chain([most + 1]) {
                assert!(read(left, kind, main).is_err(), "{main} bytes of data, {left} from the end");
            }
        }
    }
}
