//! Learns models from pages, and codes pages with them.

mod stored;

use crate::Corrupt;
use crate::columns::Buffers;
use crate::columns::plan::Plans;
use crate::entropy::{Counter, Decoder, Encoder, Sink, Stream};
use crate::innodb::page::Ends;
use crate::innodb::{self, InnodbModel};
use crate::limits::{MODEL_MAX, MODEL_PLAIN_MAX, PAGE_MAX, PAGE_MIN, STREAMS_MAX, TABLES_MAX};
use crate::log::redo::{self, RedoModel};
use crate::log::wal::{self, WalModel};
use crate::postgres::btree::{self, BtreeModel};
use crate::postgres::heap::{self, HeapModel};
use crate::postgres::page::CHECKSUM_AT;
use crate::scratch::Scratch;
use crate::sqlite::{self, SqliteModel};
use crate::text::{Dictionary, MAX_TEXT};
use crate::wire::{Reader, put_varint};

/// One of this many sampled pages is held out: the model has to gain on pages that it was not trained on.
const HELD_OUT: usize = 5;
/// The share that a model has to save of what zstd-3 makes of the held-out pages: more than one part in this many.
const MIN_GAIN: usize = 20;

/// Kinds of pages that a model can describe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// PostgreSQL's tables.
    PostgresHeap,
    /// PostgreSQL's B-tree indexes.
    PostgresBtree,
    /// InnoDB's tables and indexes: B-tree pages of a tablespace.
    Innodb,
    /// SQLite's tables and indexes: B-tree and overflow pages of a database file.
    Sqlite,
    /// PostgreSQL's write-ahead log.
    PostgresWal,
    /// InnoDB's redo log, as MariaDB 10.8 and later write it.
    InnodbRedo,
}

/// Options of learning.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Level of zstd for text, 1..=19.
    pub level: i32,
    /// Number of pages of the relation: the bytes of the model have to be fewer than it saves on that many pages.
    pub relation_pages: u64,
}

/// A model: layouts, frequent values and distributions that the pages of a relation have in common.
#[derive(Debug)]
pub struct Model {
    page_bytes: usize,
    level: i32,
    parts: Parts,
    streams: Vec<Stream>,
    dictionary: Dictionary,
}

#[derive(Debug)]
enum Parts {
    Heap(HeapModel),
    Btree(BtreeModel),
    Innodb(InnodbModel),
    Sqlite(SqliteModel),
    Wal(Box<WalModel>),
    Redo(Box<RedoModel>),
}

/// Flags of a record, which are its first byte.
mod flags {
    pub(super) const TEXT: u8 = 1;
    pub(super) const TEXT_FRAME: u8 = 2;
    pub(super) const STALE: u8 = 4;
    pub(super) const STALE_FRAME: u8 = 8;
    pub(super) const PLAIN: u8 = 16;
    pub(super) const ALL: u8 = 31;
}

/// Returns the kind of `page`, found from its content alone; `None` unless it parses exactly as a page that a model
/// could describe.
#[must_use]
pub fn recognise(scratch: &mut Scratch, page: &[u8]) -> Option<Kind> {
    let sized = page.len().is_power_of_two() && (PAGE_MIN..=PAGE_MAX).contains(&page.len());
    if sized && scratch.heap.parse(page) {
        Some(Kind::PostgresHeap)
    } else if sized && scratch.btree.parse(page) {
        Some(Kind::PostgresBtree)
    } else if sized && scratch.innodb.parse(page) {
        Some(Kind::Innodb)
    } else if sized && scratch.sqlite.parse(page, 0) {
        Some(Kind::Sqlite)
    } else if sized && wal::header_bytes(page).is_some() {
        Some(Kind::PostgresWal)
    } else if sized && redo::begin(page).is_some() {
        Some(Kind::InnodbRedo)
    } else {
        None
    }
}

/// Learns a model from sampled pages of one relation, all of one length, spread over the whole relation; some hundred
/// are enough. Returns `None` if the pages are of no known kind, or if the model, its own bytes counted, does not gain
/// on pages that it was not trained on.
#[must_use]
pub fn learn(pages: &[&[u8]], options: Options) -> Option<Model> {
    let page_bytes = pages.first()?.len();
    if !page_bytes.is_power_of_two() || !(PAGE_MIN..=PAGE_MAX).contains(&page_bytes) {
        return None;
    }
    let same: Vec<&[u8]> = pages.iter().copied().filter(|page| page.len() == page_bytes).collect();
    let held_out: Vec<&[u8]> = same.iter().copied().skip(HELD_OUT / 2).step_by(HELD_OUT).collect();
    let rest = same.iter().enumerate().filter(|(i, _)| i % HELD_OUT != HELD_OUT / 2);
    let training: Vec<&[u8]> = rest.map(|(_, page)| *page).collect();
    let model = Model::of(&training, options.level)?;
    model.gains(&held_out, options).then_some(model)
}

impl Model {
    /// Makes a model of `pages`, which have the same length, even if it does not gain.
    pub(crate) fn of(pages: &[&[u8]], level: i32) -> Option<Self> {
        let page_bytes = pages.first()?.len();
        let parts = Parts::learn(pages, level)?;
        Self::train(parts, pages, page_bytes, level)
    }

    /// Counts the symbols that coding `pages` takes, and makes tables and a dictionary from them.
    fn train(parts: Parts, pages: &[&[u8]], page_bytes: usize, level: i32) -> Option<Self> {
        let mut counter = Counter::new(parts.end());
        let mut scratch = Scratch::new();
        let mut texts = vec![];
        for page in pages {
            if parts.write(page, &mut scratch, &mut counter).is_some() && !scratch.buffers.text.is_empty() {
                texts.push(scratch.buffers.text.clone());
            }
        }
        let streams = counter.train().0;
        let dictionary = match parts {
            Parts::Wal(_) | Parts::Redo(_) => Dictionary::train_from_pieces(&texts, level),
            _ => Dictionary::train(&texts, level),
        };
        let dictionary = dictionary.ok()?;
        Some(Self { page_bytes, level, parts, streams, dictionary })
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
        let tables: usize = self.streams.iter().map(Stream::table_count).sum();
        let lengths = stored_bytes <= MODEL_MAX && self.to_plain().len() <= MODEL_PLAIN_MAX;
        lengths && tables <= TABLES_MAX && self.streams.len() <= STREAMS_MAX
    }

    /// Returns the kind of pages that the model describes.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.parts {
            Parts::Heap(_) => Kind::PostgresHeap,
            Parts::Btree(_) => Kind::PostgresBtree,
            Parts::Innodb(_) => Kind::Innodb,
            Parts::Sqlite(_) => Kind::Sqlite,
            Parts::Wal(_) => Kind::PostgresWal,
            Parts::Redo(_) => Kind::InnodbRedo,
        }
    }

    /// Returns the length of the pages that the model codes, in bytes.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Returns about how many bytes of memory the model takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let streams: usize = self.streams.iter().map(Stream::memory_bytes).sum();
        let plans: usize = self.parts.plans().map(Plans::memory_bytes).sum();
        streams + plans + self.dictionary.memory_bytes()
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
        let mut ops = std::mem::take(&mut scratch.ops);
        let mut encoder = Encoder::new(&self.streams, &mut ops);
        let carried = self.parts.write(page, scratch, &mut encoder);
        let done = carried.is_some_and(|carried| {
            scratch.code.clear();
            ops.finish(carried, &mut scratch.code);
            self.finish_record(scratch, page, out)
        });
        scratch.ops = ops;
        done
    }

    fn finish_record(&self, scratch: &mut Scratch, page: &[u8], out: &mut Vec<u8>) -> bool {
        let Buffers { text, plain, .. } = &scratch.buffers;
        let stale = match self.parts {
            Parts::Heap(_) => &scratch.heap.stale,
            Parts::Btree(_) => &scratch.btree.stale,
            Parts::Innodb(_) => &scratch.innodb.stale,
            Parts::Sqlite(_) => &scratch.sqlite.stale,
            Parts::Wal(_) | Parts::Redo(_) => &scratch.none,
        };
        if text.len() >= MAX_TEXT || stale.bytes.len() >= MAX_TEXT {
            return false;
        }
        let at = out.len();
        let mut mode = 0;
        out.push(0);
        if !plain.is_empty() || !text.is_empty() || !stale.bytes.is_empty() {
            put_varint(out, scratch.code.len() as u64);
        }
        if !plain.is_empty() {
            mode |= flags::PLAIN;
            put_varint(out, plain.len() as u64);
        }
        if !text.is_empty() {
            put_varint(out, text.len() as u64);
        }
        out.extend_from_slice(&scratch.code);
        out.extend_from_slice(plain);
        if !text.is_empty() {
            mode |= flags::TEXT;
            scratch.code.clear();
            if scratch.contexts.compress(text, &self.dictionary, &mut scratch.code) {
                mode |= flags::TEXT_FRAME;
            }
            if !stale.bytes.is_empty() {
                put_varint(out, scratch.code.len() as u64);
            }
            out.extend_from_slice(&scratch.code);
        }
        if !stale.bytes.is_empty() {
            mode |= flags::STALE;
            scratch.page.clear();
            scratch.page.extend_from_slice(page);
            stale.fill(&mut scratch.page, true);
            if scratch.contexts.compress_after(&stale.bytes, self.live(&mut scratch.page), 1, out) {
                mode |= flags::STALE_FRAME;
            }
        }
        out[at] = mode;
        true
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
        let mut reader = Reader::new(record);
        let mode = reader.byte()?;
        if mode & !flags::ALL != 0 {
            return Err(Corrupt("a record's mode"));
        }
        let (has_text, has_stale) = (mode & flags::TEXT != 0, mode & flags::STALE != 0);
        let has_plain = mode & flags::PLAIN != 0;
        let code_bytes = if has_plain || has_text || has_stale {
            reader.at_most(record.len())?
        } else {
            reader.rest().len()
        };
        let plain_bytes = if has_plain { reader.at_most(record.len())? } else { 0 };
        let text_bytes = if has_text { reader.at_most(MAX_TEXT - 1)? } else { 0 };
        let code = reader.take(code_bytes)?;
        let Scratch { buffers, heap, btree, innodb, sqlite, log, none, contexts, .. } = scratch;
        buffers.plain.clear();
        buffers.plain.extend_from_slice(reader.take(plain_bytes)?);
        buffers.text.clear();
        if has_text {
            let stored =
                if has_stale { reader.bytes(record.len())? } else { reader.take(reader.rest().len())? };
            if mode & flags::TEXT_FRAME != 0 {
                buffers.text.resize(text_bytes, 0);
                contexts.decompress(stored, &self.dictionary, &mut buffers.text)?;
            } else if stored.len() == text_bytes {
                buffers.text.extend_from_slice(stored);
            } else {
                return Err(Corrupt("a text's length"));
            }
        }
        page.fill(0);
        let decoder = Decoder::new(code)?;
        let stale = match &self.parts {
            Parts::Heap(model) => {
                heap::read::get(model, &self.streams, decoder, heap, buffers, page)?;
                &mut heap.stale
            }
            Parts::Btree(model) => {
                btree::read::get(model, &self.streams, decoder, btree, buffers, page)?;
                &mut btree.stale
            }
            Parts::Innodb(model) => {
                innodb::read::get(model, &self.streams, decoder, innodb, buffers, page)?;
                &mut innodb.stale
            }
            Parts::Sqlite(model) => {
                sqlite::read::get(model, &self.streams, decoder, sqlite, buffers, page)?;
                &mut sqlite.stale
            }
            Parts::Wal(model) => {
                model.get(&self.streams, decoder, log, buffers, page)?;
                none
            }
            Parts::Redo(model) => {
                model.get(&self.streams, decoder, log, buffers, page)?;
                none
            }
        };
        if buffers.text_taken != buffers.text.len() || buffers.plain_taken != buffers.plain.len() {
            return Err(Corrupt("more bytes than belong to the page"));
        }
        if has_stale {
            let stored = reader.rest();
            stale.bytes.clear();
            if mode & flags::STALE_FRAME != 0 {
                let len = stale.len();
                stale.bytes.resize(len, 0);
                contexts.decompress_after(stored, self.live(page), &mut stale.bytes)?;
            } else if stored.len() == stale.len() {
                stale.bytes.extend_from_slice(stored);
            } else {
                return Err(Corrupt("stale bytes are of another length"));
            }
            stale.fill(page, false);
        } else if stale.len() != 0 {
            return Err(Corrupt("stale bytes are missing"));
        }
        // Checksums come last: they cover the whole page.
        match self.parts {
            Parts::Heap(_) => heap.write_checksum(page),
            Parts::Btree(_) => btree.header.write(page),
            Parts::Innodb(_) => innodb.shape.ends.write(page, &innodb.ends),
            Parts::Sqlite(_) | Parts::Wal(_) | Parts::Redo(_) => {}
        }
        Ok(())
    }

    /// Describes the model for people: one line per column, with its type and its coding.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.parts {
            Parts::Wal(model) => model.describe(),
            Parts::Redo(model) => model.describe(),
            parts => parts.plans().map(Plans::describe).collect::<Vec<_>>().join("\n"),
        }
    }

    /// Clears the checksum in `page`, and returns `page`: stale bytes are compressed with these bytes as dictionary.
    fn live<'p>(&self, page: &'p mut [u8]) -> &'p [u8] {
        match self.parts {
            Parts::Heap(_) | Parts::Btree(_) => page[CHECKSUM_AT..CHECKSUM_AT + 2].fill(0),
            Parts::Innodb(_) => Ends::clear(page),
            Parts::Sqlite(_) | Parts::Wal(_) | Parts::Redo(_) => {}
        }
        page
    }
}

impl Parts {
    /// Learns a model of the kind that most of `pages` are of.
    fn learn(pages: &[&[u8]], level: i32) -> Option<Self> {
        let (mut heap, mut btree) = (heap::HeapPage::default(), btree::BtreePage::default());
        let mut innodb = innodb::InnodbPage::default();
        let mut sqlite_parts = sqlite::SqlitePage::default();
        let heaps = pages.iter().filter(|page| heap.parse(page)).count();
        let btrees = pages.iter().filter(|page| btree.parse(page)).count();
        let innodbs = pages.iter().filter(|page| innodb.parse(page)).count();
        let reserved = sqlite::learn::reserved(pages);
        let sqlites = pages.iter().filter(|page| sqlite_parts.parse(page, reserved)).count();
        let logs = pages.iter().filter(|page| wal::header_bytes(page).is_some()).count();
        if logs > sqlites.max(innodbs).max(heaps).max(btrees) {
            wal::learn(pages, level).map(|model| Self::Wal(Box::new(model)))
        } else if sqlites.max(innodbs).max(heaps).max(btrees) * 2 < pages.len()
            && 2 * pages.iter().filter(|page| redo::begin(page).is_some()).count() > pages.len()
        {
            redo::learn(pages, level).map(|model| Self::Redo(Box::new(model)))
        } else if sqlites > innodbs.max(heaps).max(btrees) {
            sqlite::learn::learn(pages, level).map(Self::Sqlite)
        } else if innodbs > heaps.max(btrees) {
            innodb::learn::learn(pages, level).map(Self::Innodb)
        } else if heaps >= btrees {
            heap::learn::learn(pages, level).map(Self::Heap)
        } else {
            btree::learn::learn(pages, level).map(Self::Btree)
        }
    }

    fn plans(&self) -> impl Iterator<Item = &Plans> {
        let (one, innodb, sqlite) = match self {
            Self::Heap(model) => (Some(&model.plans), &[][..], &[][..]),
            Self::Btree(model) => (Some(&model.plans), &[][..], &[][..]),
            Self::Innodb(model) => (None, &model.branches[..], &[][..]),
            Self::Sqlite(model) => (None, &[][..], &model.branches[..]),
            Self::Wal(_) | Self::Redo(_) => (None, &[][..], &[][..]),
        };
        let many = innodb.iter().map(|branch| &branch.plans).chain(sqlite.iter().map(|branch| &branch.plans));
        one.into_iter().chain(many)
    }

    /// Returns the number of streams that all parts of the model have together.
    fn end(&self) -> usize {
        match self {
            Self::Heap(model) => model.plans.end,
            Self::Btree(model) => model.plans.end,
            Self::Innodb(model) => model.end(),
            Self::Sqlite(model) => model.end(),
            Self::Wal(model) => model.end(),
            Self::Redo(model) => model.end(),
        }
    }

    /// Writes a page's symbols. Returns the bits that the coder's two states carry, or `None` if the page is refused.
    fn write<S: Sink>(&self, page: &[u8], scratch: &mut Scratch, sink: &mut S) -> Option<[u16; 2]> {
        match self {
            Self::Heap(model) => {
                let Scratch { buffers, heap, .. } = scratch;
                if !heap.parse(page) {
                    return None;
                }
                heap::write::put(model, heap, page, buffers, sink);
                Some(heap::write::carried(heap.header.lsn, heap.block))
            }
            Self::Btree(model) => {
                let Scratch { buffers, btree, .. } = scratch;
                if !btree.parse(page) {
                    return None;
                }
                btree::write::put(model, btree, page, buffers, sink);
                Some(btree::write::carried(btree))
            }
            Self::Innodb(model) => {
                let Scratch { buffers, innodb, .. } = scratch;
                let taken = innodb.parse(page) && innodb::write::put(model, innodb, page, buffers, sink);
                taken.then(|| innodb::write::carried(innodb))
            }
            Self::Sqlite(model) => {
                let Scratch { buffers, sqlite, .. } = scratch;
                sqlite::write::put(model, sqlite, page, buffers, sink).then_some([0; 2])
            }
            Self::Wal(model) => {
                let Scratch { buffers, log, .. } = scratch;
                model.put(page, log, buffers, sink)
            }
            Self::Redo(model) => {
                let Scratch { buffers, log, .. } = scratch;
                model.put(page, log, buffers, sink)
            }
        }
    }
}
