//! Brings arrays of numbers, and the files that have them, to the registry.

use super::{decode, encode, plausible};
use crate::Corrupt;
use crate::format::files::{FileBytes, FileFormat};
use crate::format::{Facts, NoModel, PageCoding, PageFormat};

/// Arrays of floating-point numbers.
pub(crate) enum Doubles {}

impl PageFormat for Doubles {
    type Page = ();
    type Model = NoModel;

    const FACTS: &'static Facts = &Facts {
        name: "doubles",
        coding: PageCoding::Alone { codec: 5 },
        file: &FILES,
        title: None,
        is_weak: false,
    };

    fn recognise((): &mut (), page: &[u8]) -> bool {
        plausible(page)
    }

    fn encode_alone(page: &[u8], out: &mut Vec<u8>) -> bool {
        encode(page, out)
    }

    fn decode_alone(record: &[u8], page: &mut [u8]) -> Result<(), Corrupt> {
        decode(record, page)
    }
}

/// Round-robin databases of RRDtool.
pub(crate) static FILES: FileFormat =
    FileFormat { name: "rrd", title: "RRD", by_bytes: page_bytes, ..FileFormat::UNTOLD };

/// Returns the recordsize: the files are small, and updated a few bytes at a time.
fn page_bytes(file: FileBytes<'_>) -> Option<u32> {
    (file.offset == 0 && file.data.starts_with(b"RRD\0")).then_some(4096)
}
