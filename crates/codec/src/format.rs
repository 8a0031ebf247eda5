//! The door for page formats: what a format brings so that its pages are recognised, learned, coded and checked.
//!
//! A format is a folder with a type that implements [`PageFormat`], and a line in the list of [`crate::registry`].
//! Nothing else, in this crate or above it, lists formats. The methods of the trait that have a body are for formats
//! that need them: a format that only has a name and a sign by which its pages are recognised is coded as any other
//! bytes are.

pub(crate) mod files;
pub(crate) mod typed;

use std::fmt;

use crate::Corrupt;
use crate::columns::Buffers;
use crate::columns::plan::Plans;
use crate::entropy::{Decoder, Sink, Stream};
use crate::limits::DICTIONARY;
use crate::stale::Stale;
use crate::text::Dictionary;
use crate::wire::Reader;
use files::FileFormat;
use typed::AnyFormat;

/// Number of the first codec whose records name a model. The codecs below it need nothing but the record.
pub const FIRST_MODEL_CODEC: u8 = 16;

/// The way in which pages of a format are coded. `codec` is the number of the codec in stored records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCoding {
    /// By a model of the relation. The format's tag in stored models is `codec` less [`FIRST_MODEL_CODEC`].
    ByModel {
        /// From [`FIRST_MODEL_CODEC`] on.
        codec: u8,
    },
    /// By a dictionary of zstd that was learned from the file, whatever its pages are. It is stored as a model is.
    ByDictionary {
        /// From [`FIRST_MODEL_CODEC`] on.
        codec: u8,
    },
    /// Each page alone, without a model.
    Alone {
        /// Below [`FIRST_MODEL_CODEC`].
        codec: u8,
    },
    /// As any other bytes are, unless a page also parses as one of a format with a model.
    Generic,
}

/// Facts of a format, for reports and for those who store records.
#[derive(Debug)]
pub struct Facts {
    /// Name in reports: lower case, words with hyphens between them. The name without hyphens is that of the codec.
    pub name: &'static str,
    /// The way in which its pages are coded.
    pub coding: PageCoding,
    /// Files that consist of such pages.
    pub file: &'static FileFormat,
    /// Title in reports of a file most of whose pages are of this format; `None` if the title of the file's format says
    /// all.
    pub title: Option<&'static str>,
    /// True if pages are recognised by little, and slowly. Learning asks this format last, and only if no other describes
    /// half of the pages.
    pub is_weak: bool,
}

/// A page's own checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The page has none.
    Absent,
    /// It cannot be told: the checksum is of no kind that is known here, or depends on a page number that is not known.
    Unknown,
    /// The checksum is right.
    Right,
    /// The checksum is wrong.
    Wrong,
}

/// A format of pages. Its type has no values: it stands for what the methods do.
pub(crate) trait PageFormat: 'static {
    /// Buffers for a page that is taken apart. They are kept from page to page.
    type Page: Default + fmt::Debug + Send + 'static;
    /// All that the pages of a relation have in common, but for frequencies of symbols and words of text.
    type Model: fmt::Debug + Send + Sync + 'static;

    /// Facts of the format.
    const FACTS: &'static Facts;
    /// True if a page as a whole is text: its record is the frame of zstd, and nothing else.
    const IS_TEXT: bool = false;

    /// Returns true if `page` parses exactly as a page of the format.
    fn recognise(parts: &mut Self::Page, page: &[u8]) -> bool;

    /// Compares the page's checksum with its content. `number` is the page's number in its file, if it is known. The
    /// page was recognised.
    fn check(_: &mut Self::Page, _: &[u8], _number: Option<u32>) -> Checksum {
        Checksum::Absent
    }

    /// Returns how many of `pages`, which are from one file, are of the format.
    fn count(pages: &[&[u8]]) -> usize {
        let mut parts = Self::Page::default();
        pages.iter().filter(|page| Self::recognise(&mut parts, page)).count()
    }

    /// Makes a model of pages of one relation; `None` if none is of the format. `level` is zstd's.
    fn learn(_: &[&[u8]], _level: i32) -> Option<Self::Model> {
        None
    }

    /// Makes the dictionary for the texts of the pages.
    fn dictionary(texts: &[Vec<u8>], level: i32) -> Result<Dictionary, Corrupt> {
        Dictionary::train(texts, level, DICTIONARY)
    }

    /// Appends the model as it is stored.
    fn write_model(_: &Self::Model, _out: &mut Vec<u8>) {}

    /// Reads a model of pages of `page_bytes`.
    fn read_model(_: &mut Reader<'_>, _page_bytes: usize) -> Result<Self::Model, Corrupt> {
        Err(Corrupt("a model of a format that has none"))
    }

    /// Returns the number of streams of symbols that pages are coded by.
    fn stream_count(_: &Self::Model) -> usize {
        0
    }

    /// Returns the codings of columns.
    fn plans(_: &Self::Model) -> Vec<&Plans> {
        vec![]
    }

    /// Describes the model for people: one line per column, with its type and its coding.
    fn describe(model: &Self::Model) -> String {
        Self::plans(model).into_iter().map(Plans::describe).collect::<Vec<_>>().join("\n")
    }

    /// Writes a page's symbols, and leaves text and plain bytes in `buffers`. Returns the bits that the coder's two
    /// states carry; `None` if the model does not describe the page.
    fn encode<S: Sink>(
        _: &Self::Model,
        _: &mut Self::Page,
        _page: &[u8],
        _: &mut Buffers,
        _: &mut S,
    ) -> Option<[u16; 2]> {
        None
    }

    /// Reads a page from its symbols, all but stale bytes and checksums, into `page`, which is all zeros.
    fn decode(
        _: &Self::Model,
        _: &[Stream],
        _: Decoder<'_>,
        _: &mut Self::Page,
        _: &mut Buffers,
        _page: &mut [u8],
    ) -> Result<(), Corrupt> {
        Err(Corrupt("a record of a format that has no models"))
    }

    /// Returns the stale bytes of the page that was coded last; `None` if pages of the format have none.
    fn stale(_: &mut Self::Page) -> Option<&mut Stale> {
        None
    }

    /// Clears the checksum in `page`: stale bytes are compressed with the rest of the page as dictionary.
    fn clear_checksum(_page: &mut [u8]) {}

    /// Writes the checksum of `page`, in which all else is in place.
    fn write_checksum(_: &Self::Page, _page: &mut [u8]) {}

    /// Appends the record of `page` and returns true, or returns false and leaves `out` as it is: for formats whose
    /// pages are coded alone. The record was decoded and compared.
    fn encode_alone(_page: &[u8], _out: &mut Vec<u8>) -> bool {
        false
    }

    /// Fills `page` from a record that [`PageFormat::encode_alone`] made.
    fn decode_alone(_record: &[u8], _page: &mut [u8]) -> Result<(), Corrupt> {
        Err(Corrupt("a record of a format that needs a model"))
    }
}

/// The model of a format whose pages are coded without one: it has no values.
#[derive(Debug)]
pub(crate) enum NoModel {}

/// An entry of the registry.
#[derive(Debug)]
pub(crate) struct Entry {
    facts: &'static Facts,
    erased: &'static dyn AnyFormat,
    /// Number of the codec in stored records; 0 for pages that are coded as any other bytes. It is in the facts, too.
    codec: u8,
    /// Place in the registry.
    position: u8,
}

impl Entry {
    /// Returns the entry of a format.
    pub(crate) const fn of<F: PageFormat>() -> Self {
        let codec = match F::FACTS.coding {
            PageCoding::ByModel { codec }
            | PageCoding::ByDictionary { codec }
            | PageCoding::Alone { codec } => codec,
            PageCoding::Generic => 0,
        };
        Self { facts: F::FACTS, erased: typed::Of::<F>::ERASED, codec, position: 0 }
    }

    /// Gives each entry its place.
    pub(crate) const fn number<const N: usize>(mut entries: [Self; N]) -> [Self; N] {
        let mut n = 0;
        while n < N {
            entries[n].position = n as u8;
            n += 1;
        }
        entries
    }
}

/// A format of the registry. Formats are ordered as the registry lists them.
#[derive(Clone, Copy)]
pub struct Format(pub(crate) &'static Entry);

impl Format {
    /// Returns the format's facts.
    #[must_use]
    pub fn facts(self) -> &'static Facts {
        self.0.facts
    }

    /// Returns the name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.facts.name
    }

    /// Returns the number of the codec in stored records; `None` if pages are coded as any other bytes.
    #[must_use]
    pub fn codec(self) -> Option<u8> {
        (self.0.codec != 0).then_some(self.0.codec)
    }

    /// Returns true if pages are coded by models.
    #[must_use]
    pub fn has_model(self) -> bool {
        self.0.codec >= FIRST_MODEL_CODEC
    }

    /// Returns true if pages are coded by a dictionary of zstd, whatever they are.
    #[must_use]
    pub fn is_dictionary(self) -> bool {
        matches!(self.0.facts.coding, PageCoding::ByDictionary { .. })
    }

    /// Returns true if pages are coded alone, without a model.
    #[must_use]
    pub fn is_alone(self) -> bool {
        (1..FIRST_MODEL_CODEC).contains(&self.0.codec)
    }

    /// Returns true if `page` parses exactly as a page of the format. Buffers are made for this one page: formats whose
    /// pages are coded alone need none.
    #[must_use]
    pub fn recognises(self, page: &[u8]) -> bool {
        self.0.erased.recognise_afresh(page)
    }

    /// Compares the checksum of a page that was recognised with its content. `number` is the page's number in its file,
    /// if it is known.
    #[must_use]
    pub fn check(self, page: &[u8], number: Option<u32>) -> Checksum {
        self.0.erased.check(page, number)
    }

    /// Appends the record of `page` to `out` and returns true, if the format's pages are coded alone and decoding the
    /// record gave `page` back. Otherwise returns false, and `out` is as it was.
    #[must_use]
    pub fn encode_alone(self, page: &[u8], out: &mut Vec<u8>) -> bool {
        self.0.erased.encode_alone(page, out)
    }

    /// Fills `page` from the record that [`Format::encode_alone`] made of a page of the same length.
    ///
    /// # Errors
    /// [`Corrupt`] if `record` cannot be such a record. The content of `page` is arbitrary then.
    pub fn decode_alone(self, record: &[u8], page: &mut [u8]) -> Result<(), Corrupt> {
        self.0.erased.decode_alone(record, page)
    }

    /// Returns the number of the format in stored models.
    pub(crate) fn tag(self) -> u8 {
        self.0.codec.wrapping_sub(FIRST_MODEL_CODEC)
    }

    pub(crate) fn erased(self) -> &'static dyn AnyFormat {
        self.0.erased
    }

    fn key(self) -> (u8, &'static str) {
        (self.0.position, self.0.facts.name)
    }
}

impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Format {}

impl PartialOrd for Format {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Format {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl std::hash::Hash for Format {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

/// Writes the name as a type would have it: `PostgresHeap`.
impl fmt::Debug for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for word in self.name().split('-') {
            let (first, rest) = word.split_at(1.min(word.len()));
            write!(f, "{}{rest}", first.to_ascii_uppercase())?;
        }
        Ok(())
    }
}
