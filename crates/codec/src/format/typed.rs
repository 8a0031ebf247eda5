//! Formats and models behind pointers: one dispatch per page, and all code behind it is compiled for its format.

use std::fmt;
use std::marker::PhantomData;

use super::{Checksum, PageFormat};
use crate::Corrupt;
use crate::columns::plan::Plans;
use crate::entropy::Counter;
use crate::model::Trained;
use crate::model::record;
use crate::scratch::Scratch;
use crate::text::Dictionary;
use crate::wire::Reader;

/// A format without its types: what the registry has of it. Methods are those of [`PageFormat`].
pub(crate) trait AnyFormat: fmt::Debug + Sync {
    fn recognise(&self, scratch: &mut Scratch, page: &[u8]) -> bool;
    /// As `recognise`, with buffers for this one page.
    fn recognise_afresh(&self, page: &[u8]) -> bool;
    fn check(&self, page: &[u8], number: Option<u32>) -> Checksum;
    fn count(&self, pages: &[&[u8]]) -> usize;
    fn learn(&self, pages: &[&[u8]], level: i32) -> Option<Box<dyn Learned>>;
    fn read_model(&self, reader: &mut Reader<'_>, page_bytes: usize) -> Result<Box<dyn Learned>, Corrupt>;
    fn encode_alone(&self, page: &[u8], out: &mut Vec<u8>) -> bool;
    fn decode_alone(&self, record: &[u8], page: &mut [u8]) -> Result<(), Corrupt>;
}

/// A format's model without its type.
pub(crate) trait Learned: fmt::Debug + Send + Sync {
    fn write_model(&self, out: &mut Vec<u8>);
    fn stream_count(&self) -> usize;
    fn plans(&self) -> Vec<&Plans>;
    fn describe(&self) -> String;
    fn dictionary(&self, texts: &[Vec<u8>], level: i32) -> Result<Dictionary, Corrupt>;
    /// Counts the symbols of `page`, and leaves its text in the buffers. Returns false if the page is refused.
    fn count_symbols(&self, scratch: &mut Scratch, page: &[u8], counter: &mut Counter) -> bool;
    /// Appends the record of `page`; returns false, with any bytes behind those of `out`, if the page is refused.
    fn encode(&self, trained: &Trained, scratch: &mut Scratch, page: &[u8], out: &mut Vec<u8>) -> bool;
    fn decode(
        &self,
        trained: &Trained,
        scratch: &mut Scratch,
        record: &[u8],
        page: &mut [u8],
    ) -> Result<(), Corrupt>;
}

/// Stands for a format.
pub(crate) struct Of<F>(PhantomData<fn() -> F>);

impl<F: PageFormat> Of<F> {
    pub(crate) const ERASED: &'static dyn AnyFormat = &Self(PhantomData);
}

impl<F: PageFormat> fmt::Debug for Of<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(F::FACTS.name)
    }
}

impl<F: PageFormat> AnyFormat for Of<F> {
    fn recognise(&self, scratch: &mut Scratch, page: &[u8]) -> bool {
        scratch.with::<F::Page, _>(|_, parts| F::recognise(parts, page))
    }

    fn recognise_afresh(&self, page: &[u8]) -> bool {
        F::recognise(&mut F::Page::default(), page)
    }

    fn check(&self, page: &[u8], number: Option<u32>) -> Checksum {
        F::check(&mut F::Page::default(), page, number)
    }

    fn count(&self, pages: &[&[u8]]) -> usize {
        F::count(pages)
    }

    fn learn(&self, pages: &[&[u8]], level: i32) -> Option<Box<dyn Learned>> {
        Some(Box::new(Typed::<F>(F::learn(pages, level)?)))
    }

    fn read_model(&self, reader: &mut Reader<'_>, page_bytes: usize) -> Result<Box<dyn Learned>, Corrupt> {
        Ok(Box::new(Typed::<F>(F::read_model(reader, page_bytes)?)))
    }

    fn encode_alone(&self, page: &[u8], out: &mut Vec<u8>) -> bool {
        F::encode_alone(page, out)
    }

    fn decode_alone(&self, record: &[u8], page: &mut [u8]) -> Result<(), Corrupt> {
        F::decode_alone(record, page)
    }
}

/// A model of a format.
struct Typed<F: PageFormat>(F::Model);

impl<F: PageFormat> fmt::Debug for Typed<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<F: PageFormat> Learned for Typed<F> {
    fn write_model(&self, out: &mut Vec<u8>) {
        F::write_model(&self.0, out);
    }

    fn stream_count(&self) -> usize {
        F::stream_count(&self.0)
    }

    fn plans(&self) -> Vec<&Plans> {
        F::plans(&self.0)
    }

    fn describe(&self) -> String {
        F::describe(&self.0)
    }

    fn dictionary(&self, texts: &[Vec<u8>], level: i32) -> Result<Dictionary, Corrupt> {
        F::dictionary(texts, level)
    }

    fn count_symbols(&self, scratch: &mut Scratch, page: &[u8], counter: &mut Counter) -> bool {
        scratch.with::<F::Page, _>(|scratch, parts| {
            F::encode(&self.0, parts, page, &mut scratch.buffers, counter).is_some()
        })
    }

    fn encode(&self, trained: &Trained, scratch: &mut Scratch, page: &[u8], out: &mut Vec<u8>) -> bool {
        scratch.with::<F::Page, _>(|scratch, parts| {
            record::write::<F>((&self.0, trained), (scratch, parts), page, out)
        })
    }

    fn decode(
        &self,
        trained: &Trained,
        scratch: &mut Scratch,
        record: &[u8],
        page: &mut [u8],
    ) -> Result<(), Corrupt> {
        scratch.with::<F::Page, _>(|scratch, parts| {
            record::read::<F>((&self.0, trained), (scratch, parts), record, page)
        })
    }
}
