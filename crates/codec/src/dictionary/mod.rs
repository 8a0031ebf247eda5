//! Pages of any kind, by a dictionary of zstd that was learned from their file.
//!
//! A page of 8 KiB is too short for zstd to learn what the file repeats, and a frame of its own has its own tables. Both
//! are in the dictionary, once for the file: the page's frame refers to them, is shorter, and is decoded in less time.

use crate::Corrupt;
use crate::columns::Buffers;
use crate::entropy::Sink;
use crate::format::files::FileFormat;
use crate::format::{Facts, PageCoding, PageFormat};
use crate::text::Dictionary;
use crate::wire::Reader;

/// Largest dictionary, in bytes: one of 110 KiB gains no more on pages of 8 KiB (docs/CODEC.md, "Dictionaries"), and
/// takes more of the processor's cache.
const DICTIONARY_MAX: usize = 16 << 10;

/// Pages of any kind. No page is recognised as one: the registry asks for this format where no other one describes pages.
pub(crate) enum AnyPage {}

/// Files of which nothing is known.
static FILES: FileFormat = FileFormat { name: "any", title: "Others", ..FileFormat::UNTOLD };

impl PageFormat for AnyPage {
    type Page = ();
    type Model = ();

    const FACTS: &'static Facts = &Facts {
        name: "dictionary",
        coding: PageCoding::ByDictionary { codec: 22 },
        file: &FILES,
        title: None,
        is_weak: true,
    };

    const IS_TEXT: bool = true;

    fn recognise((): &mut (), _: &[u8]) -> bool {
        false
    }

    fn learn(_: &[&[u8]], _level: i32) -> Option<()> {
        Some(())
    }

    fn dictionary(pages: &[Vec<u8>], level: i32) -> Result<Dictionary, Corrupt> {
        Dictionary::train(pages, level, DICTIONARY_MAX)
    }

    fn read_model(_: &mut Reader<'_>, _page_bytes: usize) -> Result<(), Corrupt> {
        Ok(())
    }

    fn describe((): &()) -> String {
        "zstd with a dictionary".to_owned()
    }

    /// Leaves the page as the text to train with.
    fn encode<S: Sink>(
        (): &(),
        (): &mut (),
        page: &[u8],
        buffers: &mut Buffers,
        _: &mut S,
    ) -> Option<[u16; 2]> {
        buffers.plain.clear();
        buffers.text.clear();
        buffers.text.extend_from_slice(page);
        Some([0; 2])
    }
}

#[cfg(test)]
mod tests;
