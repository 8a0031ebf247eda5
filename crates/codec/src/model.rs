//! Learns models from pages, and codes pages with them.

pub(crate) mod record;
mod stored;

use crate::Corrupt;
use crate::columns::plan::Plans;
use crate::entropy::{Counter, Stream};
use crate::format::Format;
use crate::format::typed::Learned;
use crate::limits::{MODEL_MAX, MODEL_PLAIN_MAX, PAGE_MAX, PAGE_MIN, STREAMS_MAX, TABLES_MAX};
use crate::registry::{REGISTRY, Registry};
use crate::scratch::Scratch;
use crate::text::Dictionary;

/// One of this many sampled pages is held out: the model has to gain on pages that it was not trained on.
const HELD_OUT: usize = 5;
/// The share that a model has to save of what zstd-3 makes of the held-out pages: more than one part in this many.
const MIN_GAIN: usize = 20;

/// Level of zstd for pages that are coded by a dictionary because no other model gains.
const ANY_LEVEL: i32 = 1;

/// Models among which learning may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// Those that take pages apart.
    Apart,
    /// Those that take pages apart; where none gains, a dictionary of zstd.
    Any,
    /// Dictionaries of zstd.
    Dictionaries,
}

/// Options of learning.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Models among which to choose.
    pub kinds: Kinds,
    /// Level of zstd for text, 1..=19; with [`Kinds::Dictionaries`] that of pages.
    pub level: i32,
    /// Number of pages of the relation: the bytes of the model have to be fewer than it saves on that many pages.
    pub relation_pages: u64,
}

/// A model: layouts, frequent values and distributions that the pages of a relation have in common.
#[derive(Debug)]
pub struct Model {
    page_bytes: usize,
    level: i32,
    format: Format,
    learned: Box<dyn Learned>,
    trained: Trained,
}

/// The parts of a model that are the same for every format: distributions of symbols, and words of text.
#[derive(Debug)]
pub(crate) struct Trained {
    pub(crate) streams: Vec<Stream>,
    pub(crate) dictionary: Dictionary,
}

/// Returns true if pages of `len` bytes are coded.
pub(crate) fn is_page_size(len: usize) -> bool {
    len.is_power_of_two() && (PAGE_MIN..=PAGE_MAX).contains(&len)
}

impl Registry {
    /// Learns a model from sampled pages of one relation, all of one length, spread over the whole relation; some
    /// hundred are enough. Returns `None` if no model of the kinds that are wanted gains, its own bytes counted, on pages
    /// that it was not trained on.
    #[must_use]
    pub fn learn(&'static self, pages: &[&[u8]], options: Options) -> Option<Model> {
        let page_bytes = pages.first()?.len();
        if !is_page_size(page_bytes) {
            return None;
        }
        let same: Vec<&[u8]> = pages.iter().copied().filter(|page| page.len() == page_bytes).collect();
        let held_out: Vec<&[u8]> = same.iter().copied().skip(HELD_OUT / 2).step_by(HELD_OUT).collect();
        let rest = same.iter().enumerate().filter(|(i, _)| i % HELD_OUT != HELD_OUT / 2);
        let training: Vec<&[u8]> = rest.map(|(_, page)| *page).collect();
        let gaining = |model: Option<Model>| model.filter(|model| model.gains(&held_out, options));
        let by_format = || gaining(Model::by(self, &training, options.level));
        let by_dictionary = |level| gaining(Model::of(self.of_any()?, &training, level));
        match options.kinds {
            Kinds::Apart => by_format(),
            Kinds::Any => by_format().or_else(|| by_dictionary(ANY_LEVEL)),
            Kinds::Dictionaries => by_dictionary(options.level),
        }
    }
}

/// Learns a model as [`Registry::learn`] does, of any format that is known.
#[must_use]
pub fn learn(pages: &[&[u8]], options: Options) -> Option<Model> {
    REGISTRY.learn(pages, options)
}

impl Model {
    /// Makes a model of `pages`, which have the same length, even if it does not gain: of the format of `registry` that
    /// most of them are of.
    pub(crate) fn by(registry: &'static Registry, pages: &[&[u8]], level: i32) -> Option<Self> {
        Self::of(registry.prevailing(pages)?, pages, level)
    }

    /// Makes a model of `format` of `pages`, which have the same length, even if it does not gain.
    pub(crate) fn of(format: Format, pages: &[&[u8]], level: i32) -> Option<Self> {
        let page_bytes = pages.first()?.len();
        let learned = format.erased().learn(pages, level)?;
        let trained = Trained::by(&*learned, pages, level)?;
        Some(Self { page_bytes, level, format, learned, trained })
    }

    /// Returns true if the model gains on `held_out`, the bytes of the model counted.
    fn gains(&self, held_out: &[&[u8]], options: Options) -> bool {
        let mut scratch = Scratch::new();
        let (mut with, mut without, mut record) = (0, 0, vec![]);
        for page in held_out {
            let generic =
                zstd::bulk::compress(page, 3).map_or(page.len(), |bytes| bytes.len().min(page.len()));
            record.clear();
            let coded = self.encode(&mut scratch, page, &mut record);
            with += if coded { record.len().min(generic) } else { generic };
            without += generic;
        }
        if held_out.is_empty() {
            return false;
        }
        let stored_bytes = self.to_bytes().len();
        let saved =
            without.saturating_sub(with) as f64 / held_out.len() as f64 * options.relation_pages as f64;
        with + without / MIN_GAIN < without && saved > stored_bytes as f64 && self.is_bounded(stored_bytes)
    }

    /// Returns true if [`Model::from_bytes`] accepts this model, whose stored form has `stored_bytes`.
    fn is_bounded(&self, stored_bytes: usize) -> bool {
        let streams = &self.trained.streams;
        let tables: usize = streams.iter().map(Stream::table_count).sum();
        let lengths = stored_bytes <= MODEL_MAX && self.to_plain().len() <= MODEL_PLAIN_MAX;
        lengths && tables <= TABLES_MAX && streams.len() <= STREAMS_MAX
    }

    /// Returns the format of the pages that the model describes.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the length of the pages that the model codes, in bytes.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Returns about how many bytes of memory the model takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let streams: usize = self.trained.streams.iter().map(Stream::memory_bytes).sum();
        let plans: usize = self.learned.plans().into_iter().map(Plans::memory_bytes).sum();
        streams + plans + self.trained.dictionary.memory_bytes()
    }

    /// Appends the record of `page` to `out` and returns true. Returns false, and leaves `out` as it was, if the page
    /// is not exactly what the model describes. The record has been decoded and compared with the page.
    pub fn encode(&self, scratch: &mut Scratch, page: &[u8], out: &mut Vec<u8>) -> bool {
        let begin = out.len();
        if page.len() != self.page_bytes || !self.encode_unverified(scratch, page, out) {
            out.truncate(begin);
            return false;
        }
        let mut again = std::mem::take(&mut scratch.again);
        again.resize(page.len(), 0);
        let same = self.decode(scratch, &out[begin..], &mut again);
        let same = same.is_ok() && again == page;
        scratch.again = again;
        if !same {
            out.truncate(begin);
        }
        same
    }

    /// As [`Model::encode`], but does not verify the record; for measuring what verification costs.
    #[doc(hidden)]
    pub fn encode_unverified(&self, scratch: &mut Scratch, page: &[u8], out: &mut Vec<u8>) -> bool {
        self.learned.encode(&self.trained, scratch, page, out)
    }

    /// Fills `page` from its record.
    ///
    /// # Errors
    /// [`Corrupt`] if `record` is not one that this model made of a page as long as `page`. The content of `page` is
    /// arbitrary then.
    pub fn decode(&self, scratch: &mut Scratch, record: &[u8], page: &mut [u8]) -> Result<(), Corrupt> {
        if page.len() != self.page_bytes {
            return Err(Corrupt("the page has another length"));
        }
        self.learned.decode(&self.trained, scratch, record, page)
    }

    /// Describes the model for people: one line per column, with its type and its coding.
    #[must_use]
    pub fn describe(&self) -> String {
        self.learned.describe()
    }
}

impl Trained {
    /// Counts the symbols that coding `pages` takes, and makes tables and a dictionary from them.
    fn by(learned: &dyn Learned, pages: &[&[u8]], level: i32) -> Option<Self> {
        let mut counter = Counter::new(learned.stream_count());
        let mut scratch = Scratch::new();
        let mut texts = vec![];
        for page in pages {
            if learned.count_symbols(&mut scratch, page, &mut counter) && !scratch.buffers.text.is_empty() {
                texts.push(scratch.buffers.text.clone());
            }
        }
        let streams = counter.train().0;
        let dictionary = learned.dictionary(&texts, level).ok()?;
        Some(Self { streams, dictionary })
    }
}
