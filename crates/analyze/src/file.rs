//! Predicts what one file would take, and tells which pages it has.

use std::io;

use pagefold_codec::{FileFormat, Format, Kinds, Model, Scratch, files, registry};
use pagefold_engine::limits::RECORDSIZE_DEFAULT;
use pagefold_engine::pool::{LOG_EXPECTED_PAGES, LOG_LEVEL, LOG_SAMPLED_PAGES, LearnOptions, learn_better};
use pagefold_engine::record::{Compression, Encoded, Encoder, ModelId, encode_metadata, recordsize_hint};
use pagefold_engine::segment::RECORD_OVERHEAD_BYTES;
use serde::Serialize;

use crate::estimate::Estimate;
use crate::kind::Kind;
use crate::source::Source;
use crate::wal::{self, Images};
use crate::walk::Found;
use crate::{Options, walk};

/// Bytes that a copying program writes at once, and from which a pool would recognise the recordsize.
const FIRST_WRITE_BYTES: usize = 128 << 10;
/// Bytes that file systems which compress by extents compress at once.
const EXTENT_BYTES: u32 = 128 << 10;
/// Size in bytes to a multiple of which they round a compressed extent up.
const SECTOR_BYTES: usize = 4 << 10;
/// Largest number of extents that are tried of each file.
const EXTENTS_MAX: u64 = 32;
/// Number of the models; a file has one at most.
const MODEL: ModelId = ModelId::MAX >> 16;

/// Bytes that a pool keeps beside each record: its entry in its segment's directory, as pools count it, and its entry
/// in the tree, compressed (measured on copied databases).
const PAGE_OVERHEAD_BYTES: u64 = RECORD_OVERHEAD_BYTES + 6;
/// Bytes that a pool keeps beside each file: inode, name and usage.
const FILE_OVERHEAD_BYTES: u64 = 200;

/// Prediction for a file. All sizes are in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct FileReport {
    /// Path of the file.
    #[serde(serialize_with = "lossy")]
    pub path: std::path::PathBuf,
    /// Length of the file.
    pub size_bytes: u64,
    /// Kind of most of its pages.
    pub kind: Kind,
    /// Recordsize that it would get.
    pub recordsize_bytes: u32,
    /// Number of pages with data (not holes), of that size.
    pub pages: u64,
    /// Number of those pages that were tried.
    pub tried_pages: u64,
    /// Bytes of pages that are not all zeros, up to the end of the file.
    pub logical: Estimate,
    /// Bytes of their records, and of the file's model.
    pub stored: Estimate,
    /// Bytes that a pool keeps beside records.
    pub metadata: Estimate,
    /// Bytes of the model; 0 if there is none.
    pub model_bytes: u64,
    /// Bytes of the file by LZ4 in extents of 128 KiB, each rounded up to 4 KiB.
    pub lz4: Estimate,
    /// Bytes by zlib, level 3, in the same extents.
    pub zlib: Estimate,
    /// Bytes by Zstandard, level 3, in the same extents.
    pub zstd: Estimate,
    /// Bytes between the rows and their pointers in PostgreSQL's pages.
    pub free: Estimate,
    /// Page images in the log, if it is one.
    #[serde(skip)]
    pub(crate) images: Images,
}

/// Writes a path as text: names of files need not be UTF-8.
fn lossy<S: serde::Serializer>(path: &std::path::Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// A model, and its stored length in bytes.
type Learned = (Model, u64);

/// Examines one file. Its pages are coded by `shared` if there is one (the file is a log), or else by a model of its
/// own. A read that fails is an error that names no file.
pub(crate) fn look(found: &Found, options: &Options, shared: Option<&Model>) -> io::Result<FileReport> {
    let source = Source::open(&found.path)?;
    let name = found.path.file_name().map(|name| name.to_string_lossy().into_owned());
    let first = source.head(0, FIRST_WRITE_BYTES)?;
    let recordsize_bytes = recordsize_hint(0, &first, name.as_deref()).unwrap_or(RECORDSIZE_DEFAULT);
    let format = registry().recognise_file(0, &first, name.as_deref()).map(|(format, _)| format);
    let mut random = fastrand::Rng::with_seed(options.seed ^ found.size_bytes);
    let images = if format == Some(files::POSTGRES_LOG) { wal::images(&source)? } else { Images::default() };
    let extents = Source::open(&found.path)?.paged(EXTENT_BYTES)?;
    let [lz4, zlib, zstd] = by_extents(&extents, found, &mut random)?;
    let source = source.paged(recordsize_bytes)?;
    let own = if shared.is_some() { None } else { learn(&source, options)? };
    let model = shared.or(own.as_ref().map(|(model, _)| model));
    let tried = try_pages(&source, model, options, &mut random)?;
    let pages = source.pages();
    let model_bytes = own.map_or(0, |(_, bytes)| bytes);
    let of = |values: &[f64]| Estimate::of(values, pages);
    let logical = of(&tried.logical);
    let records = logical.bytes() / u64::from(recordsize_bytes);
    Ok(FileReport {
        path: found.path.clone(),
        size_bytes: found.size_bytes,
        kind: tried.kind(format),
        recordsize_bytes,
        pages,
        tried_pages: tried.stored.len() as u64,
        // The last page may reach beyond the end of the file.
        logical: logical.at_most(found.size_bytes),
        stored: of(&tried.stored).plus(Estimate::exact(model_bytes)),
        metadata: Estimate::exact(FILE_OVERHEAD_BYTES + records * PAGE_OVERHEAD_BYTES),
        model_bytes,
        lz4,
        zlib,
        zstd,
        free: of(&tried.free),
        images,
    })
}

/// Returns the model that a pool would learn from the file once it is folded, and its stored length.
fn learn(source: &Source, options: &Options) -> io::Result<Option<Learned>> {
    let wanted = LearnOptions::RECOMPRESSION;
    let Some(level) = options.compression.model_level() else { return Ok(None) };
    if source.pages() < wanted.pages_min {
        return Ok(None);
    }
    Ok(learn_from(&registry().worth_learning(spread(source, wanted.sample_pages)?), level, source.pages()))
}

/// Makes `shared` the model that a pool would have once it has folded this log after those before. Returns the stored
/// length in bytes of a model that was learned; 0 if none was.
pub(crate) fn fold_log(log: &FileReport, shared: &mut Option<Model>) -> io::Result<u64> {
    let source = Source::open(&log.path)?.paged(log.recordsize_bytes)?;
    let sampled = spread_filled(&source, LOG_SAMPLED_PAGES)?;
    if sampled.is_empty() {
        return Ok(0);
    }
    let expected = source.pages().max(LOG_EXPECTED_PAGES);
    let current = shared.as_ref().map(|model| (MODEL, model));
    let Some(learned) = learn_better(&sampled, current, expected, (Kinds::Apart, LOG_LEVEL)) else {
        return Ok(0);
    };
    *shared = Some(learned.model);
    Ok(encode_metadata(learned.bytes).len() as u64)
}

/// Reads up to `wanted` pages that hold something, spread over a file as a pool draws them: pages of zeros are holes
/// there.
fn spread_filled(source: &Source, wanted: u64) -> io::Result<Vec<Vec<u8>>> {
    let (pages, take) = (source.pages(), wanted.min(source.pages()));
    let (mut found, mut next) = (Vec::new(), 0);
    for at in 0..take {
        let mut from = next.max((u128::from(at) * u128::from(pages) / u128::from(take)) as u64);
        let mut page = Vec::new();
        while from < pages {
            source.read(from, &mut page)?;
            if page.iter().any(|&byte| byte != 0) {
                break;
            }
            from += 1;
        }
        if from >= pages {
            break;
        }
        next = from + 1;
        found.push(page);
    }
    Ok(found)
}

/// Reads up to `wanted` pages, spread over a file.
fn spread(source: &Source, wanted: u64) -> io::Result<Vec<Vec<u8>>> {
    let take = wanted.min(source.pages());
    let read = |at: u64| {
        let mut page = Vec::new();
        source.read((u128::from(at) * u128::from(source.pages()) / u128::from(take)) as u64, &mut page)?;
        Ok(page)
    };
    (0..take).map(read).collect()
}

fn learn_from(pages: &[Vec<u8>], level: u8, relation_pages: u64) -> Option<Learned> {
    let pages: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
    let learning = pagefold_codec::Options { kinds: Kinds::Any, level: level.into(), relation_pages };
    let stored = pagefold_codec::learn(&pages, learning)?.to_bytes();
    // A pool codes with the model that it reads back.
    let model = Model::from_bytes(&stored).ok()?;
    Some((model, encode_metadata(stored).len() as u64))
}

/// Figures of the sampled pages; each list has a value per page, in bytes.
#[derive(Default)]
struct Tried {
    logical: Vec<f64>,
    stored: Vec<f64>,
    free: Vec<f64>,
    formats: Vec<Format>,
}

impl Tried {
    fn kind(&self, file: Option<&'static FileFormat>) -> Kind {
        Kind::of(file, &self.formats, self.stored.len())
    }
}

fn try_pages(
    source: &Source,
    model: Option<&Model>,
    options: &Options,
    random: &mut fastrand::Rng,
) -> io::Result<Tried> {
    let (mut page, mut record) = (Vec::new(), Vec::new());
    let mut scratch = Scratch::new();
    let mut tried = Tried::default();
    for index in source.draw(options.sample_pages.into(), random) {
        source.read(index, &mut page)?;
        record.clear();
        let encoder = Encoder::new();
        let encoded = match model {
            Some(model) => encoder.encode_by(&page, (MODEL, model), options.compression, &mut record),
            None => encoder.encode(&page, options.compression, &mut record),
        };
        let logical = if encoded == Encoded::Zero { 0 } else { page.len() };
        tried.logical.push(logical as f64);
        tried.stored.push(record.len() as f64);
        let format = pagefold_codec::recognise(&mut scratch, &page);
        let is_postgres = format.is_some_and(|format| format.facts().file == files::POSTGRES);
        tried.formats.extend(format);
        tried.free.push(if is_postgres { f64::from(hole_bytes(&page)) } else { 0.0 });
    }
    Ok(tried)
}

/// Returns the bytes between `pd_lower` and `pd_upper` of a page of PostgreSQL (bufpage.h: at 12 and 14).
fn hole_bytes(page: &[u8]) -> u32 {
    let word = |at: usize| page.get(at..at + 2).map_or(0, |b| u32::from(u16::from_le_bytes([b[0], b[1]])));
    word(14).saturating_sub(word(12))
}

/// Estimates what a file takes by LZ4, zlib-3 and zstd-3, in extents.
fn by_extents(source: &Source, found: &walk::Found, random: &mut fastrand::Rng) -> io::Result<[Estimate; 3]> {
    let codecs = [Compression::Lz4, Compression::Zlib(3), Compression::Zstd(3)];
    let mut sizes: [Vec<f64>; 3] = Default::default();
    let (mut extent, mut record) = (Vec::new(), Vec::new());
    for index in source.draw(EXTENTS_MAX, random) {
        source.read(index, &mut extent)?;
        let whole =
            (found.size_bytes.saturating_sub(index * u64::from(EXTENT_BYTES))).min(EXTENT_BYTES.into());
        let plain_bytes = (whole as usize).next_multiple_of(SECTOR_BYTES);
        for (compression, sizes) in codecs.into_iter().zip(&mut sizes) {
            record.clear();
            Encoder::new().encode(&extent, compression, &mut record);
            let rounded = record.len().next_multiple_of(SECTOR_BYTES).max(SECTOR_BYTES);
            sizes.push(rounded.min(plain_bytes) as f64);
        }
    }
    Ok(sizes.map(|sizes| Estimate::of(&sizes, source.pages())))
}
