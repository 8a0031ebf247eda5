//! Codes relation files, or generated ones, with the page codec and, beside it, with generic codecs: `pages [FILE...]`.
//!
//! Samples each file, learns a model, codes every page, verifies every record, and prints a table. Times are CPU time
//! of one thread, in microseconds per page.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use comfy_table::Table;
use pagefold_codec::testing::corpora;
use pagefold_codec::{Kinds, Model, Options, Scratch, learn};
use rustix::time::{ClockId, clock_gettime};

/// Bytes of a generic extent, for comparison with file systems that compress by 128 KiB.
const EXTENT: usize = 128 << 10;
const SECTOR: usize = 4 << 10;

#[derive(Debug, Parser)]
#[command(about = "Codes relation files page by page, beside generic codecs")]
struct Args {
    /// Relation files. Without any, generated relations are coded.
    files: Vec<PathBuf>,
    /// Pages of each generated relation.
    #[arg(long, default_value_t = 1500)]
    generated: usize,
    /// Writes generated relations to this folder as well.
    #[arg(long)]
    write: Option<PathBuf>,
    /// Bytes of a page.
    #[arg(long, default_value_t = 8192)]
    page: usize,
    /// Pages that models are learned from.
    #[arg(long, default_value_t = 400)]
    sample: usize,
    /// Level of zstd for text.
    #[arg(long, default_value_t = 3)]
    level: i32,
    /// Codes no more than so many pages of each file, spread evenly; 0 for all.
    #[arg(long, default_value_t = 0)]
    max_pages: usize,
    /// Shows the columns of each model.
    #[arg(long)]
    describe: bool,
    /// Code all pages by a dictionary of zstd, as `compression=zstd` does.
    #[arg(long)]
    dictionary: bool,
    /// Codes everything so often, and shows the mean time.
    #[arg(long, default_value_t = 1)]
    repeat: u32,
    /// Decodes everything so often, for profiles; 0 as often as it is encoded.
    #[arg(long, default_value_t = 0)]
    decodes: u32,
    /// Decodes everything so often in `decode_pages`, reads no clock, and prints no table: for instruments that count
    /// (scripts/decode-instructions).
    #[arg(long, default_value_t = 0)]
    count: u32,
    /// Leaves the generic codecs out.
    #[arg(long)]
    alone: bool,
    /// Leaves this relation (by the end of its file's name) out of the totals' second line.
    #[arg(long, default_value = "pgbench")]
    without: String,
}

fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Bytes and times of one codec.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    bytes: usize,
    encode: Duration,
    decode: Duration,
}

/// All figures that are measured of a file.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    pages: usize,
    plain: usize,
    /// Number of pages that the codec did not take.
    refused: usize,
    model: usize,
    page: Cost,
    verified: Duration,
    lz4: Cost,
    lzo: Cost,
    zstd1: Cost,
    zstd3: Cost,
    extent_zlib: usize,
    extent_zstd: usize,
    learning: Duration,
}

impl Measured {
    fn add(&mut self, other: &Self) {
        self.pages += other.pages;
        self.plain += other.plain;
        self.refused += other.refused;
        self.model += other.model;
        self.verified += other.verified;
        self.learning += other.learning;
        self.extent_zlib += other.extent_zlib;
        self.extent_zstd += other.extent_zstd;
        for (mine, theirs) in [
            (&mut self.page, &other.page),
            (&mut self.lz4, &other.lz4),
            (&mut self.lzo, &other.lzo),
            (&mut self.zstd1, &other.zstd1),
            (&mut self.zstd3, &other.zstd3),
        ] {
            mine.bytes += theirs.bytes;
            mine.encode += theirs.encode;
            mine.decode += theirs.decode;
        }
    }
}

impl Args {
    fn kinds(&self) -> Kinds {
        if self.dictionary { Kinds::Dictionaries } else { Kinds::Any }
    }
}

fn measure(args: &Args, name: &str, bytes: &[u8]) -> Result<Measured> {
    let all: Vec<&[u8]> = bytes.chunks_exact(args.page).filter(|page| page.iter().any(|&b| b != 0)).collect();
    if all.is_empty() {
        bail!("{name} has no page with data");
    }
    let sample: Vec<&[u8]> = all.iter().copied().step_by(all.len().div_ceil(args.sample)).collect();
    let begin = cpu();
    let options = Options { kinds: args.kinds(), level: args.level, relation_pages: all.len() as u64 };
    let learned = learn(&sample, options);
    let learning = cpu() - begin;
    let step = if args.max_pages == 0 { 1 } else { all.len().div_ceil(args.max_pages) };
    let pages: Vec<&[u8]> = all.iter().copied().step_by(step).collect();
    let mut measured =
        Measured { pages: pages.len(), plain: pages.len() * args.page, learning, ..Measured::default() };
    // The model is used as it was stored.
    let model = match learned {
        Some(learned) => {
            let stored = learned.to_bytes();
            measured.model = stored.len() / step;
            Some(Model::from_bytes(&stored)?)
        }
        None => None,
    };
    if let (Some(model), true) = (&model, args.describe) {
        println!("{name}, {} KiB in memory\n{}", model.memory_bytes() >> 10, model.describe());
    }
    if !args.alone {
        generic(&pages, &mut measured)?;
        extents(bytes, args, &mut measured, step)?;
    }
    let decodes = if args.decodes == 0 { args.repeat } else { args.decodes };
    own(&pages, model.as_ref(), (args.repeat, decodes), &mut measured)?;
    Ok(measured)
}

/// Serves to count instructions: learns and encodes, then decodes all pages `args.count` times in [`decode_pages`].
fn count(args: &Args, name: &str, bytes: &[u8]) -> Result<()> {
    let all: Vec<&[u8]> = bytes.chunks_exact(args.page).collect();
    let sample: Vec<&[u8]> = all.iter().copied().step_by(all.len().div_ceil(args.sample).max(1)).collect();
    let options = Options { kinds: args.kinds(), level: args.level, relation_pages: all.len() as u64 };
    let Some(model) = learn(&sample, options) else { bail!("{name} has no model") };
    let mut scratch = Scratch::new();
    let mut records = vec![];
    for page in &all {
        let mut record = vec![];
        if model.encode_unverified(&mut scratch, page, &mut record) {
            records.push(record);
        }
    }
    for _ in 0..args.count {
        decode_pages(&model, &mut scratch, &records)?;
    }
    println!("{name} {}", records.len() * args.count as usize);
    Ok(())
}

/// Decodes all records: a function of its own, so that instruments see decoding alone.
#[inline(never)]
fn decode_pages(model: &Model, scratch: &mut Scratch, records: &[Vec<u8>]) -> Result<()> {
    let mut page = vec![0; model.page_bytes()];
    for record in records {
        model.decode(scratch, record, &mut page)?;
    }
    Ok(())
}

/// Measures the page codec; pages that it does not take are stored as zstd-3 makes them.
fn own(
    pages: &[&[u8]],
    model: Option<&Model>,
    (repeat, decodes): (u32, u32),
    measured: &mut Measured,
) -> Result<()> {
    let mut scratch = Scratch::new();
    let mut records = vec![];
    let mut ends = vec![];
    let mut taken = vec![];
    let fallback = |page: &[u8], records: &mut Vec<u8>| -> Result<()> {
        let record = zstd::bulk::compress(page, 3)?;
        records.extend_from_slice(if record.len() < page.len() { &record } else { page });
        Ok(())
    };
    for _ in 0..repeat {
        records.clear();
        ends.clear();
        taken.clear();
        let begin = cpu();
        for page in pages {
            let coded = model.is_some_and(|model| model.encode_unverified(&mut scratch, page, &mut records));
            if !coded {
                fallback(page, &mut records)?;
            }
            taken.push(coded);
            ends.push(records.len());
        }
        measured.page.encode += (cpu() - begin) / repeat;
    }
    measured.page.bytes = records.len();
    measured.refused = taken.iter().filter(|&&coded| !coded).count();
    let mut again = vec![0; pages.first().map_or(0, |page| page.len())];
    let mut wrong = 0;
    for _ in 0..decodes {
        let begin = cpu();
        let mut from = 0;
        for ((page, &end), &coded) in pages.iter().zip(&ends).zip(&taken) {
            if let (Some(model), true) = (model, coded) {
                let done = model.decode(&mut scratch, &records[from..end], &mut again);
                wrong += usize::from(done.is_err() || again != *page);
            } else if end - from < page.len() {
                again = zstd::bulk::decompress(&records[from..end], page.len())?;
            }
            from = end;
        }
        measured.page.decode += (cpu() - begin) / decodes;
    }
    if wrong > 0 {
        bail!("{wrong} of {} pages did not come back", pages.len());
    }
    if let Some(model) = model {
        let begin = cpu();
        for page in pages {
            records.clear();
            model.encode(&mut scratch, page, &mut records);
        }
        measured.verified = cpu() - begin;
    }
    Ok(())
}

fn generic(pages: &[&[u8]], measured: &mut Measured) -> Result<()> {
    let mut out = vec![0; 2 * pages.first().map_or(0, |page| page.len())];
    let mut again = out.clone();
    for page in pages {
        let begin = cpu();
        let len = lz4::block::compress_to_buffer(page, None, false, &mut out)?;
        let middle = cpu();
        lz4::block::decompress_to_buffer(&out[..len], Some(page.len() as i32), &mut again)?;
        measured.lz4.encode += middle - begin;
        measured.lz4.decode += cpu() - middle;
        measured.lz4.bytes += len.min(page.len());
    }
    let mut dictionary = lzokay_native::Dict::new();
    for page in pages {
        let begin = cpu();
        let record = lzokay_native::compress_with_dict(page, &mut dictionary)?;
        let middle = cpu();
        lzokay_native::decompress_all(&record, Some(page.len()))?;
        measured.lzo.encode += middle - begin;
        measured.lzo.decode += cpu() - middle;
        measured.lzo.bytes += record.len().min(page.len());
    }
    for (level, cost) in [(1, &mut measured.zstd1), (3, &mut measured.zstd3)] {
        let mut compressor = zstd::bulk::Compressor::new(level)?;
        let mut decompressor = zstd::bulk::Decompressor::new()?;
        for page in pages {
            let begin = cpu();
            let len = compressor.compress_to_buffer(page, &mut out)?;
            let middle = cpu();
            decompressor.decompress_to_buffer(&out[..len], &mut again)?;
            cost.encode += middle - begin;
            cost.decode += cpu() - middle;
            cost.bytes += len.min(page.len());
        }
    }
    Ok(())
}

fn extents(bytes: &[u8], args: &Args, measured: &mut Measured, step: usize) -> Result<()> {
    let mut zlib = libdeflater::Compressor::new(libdeflater::CompressionLvl::new(3).unwrap_or_default());
    let mut out = vec![0; EXTENT + 4096];
    let step = if args.max_pages == 0 { 1 } else { step };
    for extent in bytes.chunks(EXTENT).step_by(step) {
        let rounded = |len: usize| len.next_multiple_of(SECTOR).min(extent.len());
        measured.extent_zlib += rounded(zlib.zlib_compress(extent, &mut out).unwrap_or(extent.len()));
        measured.extent_zstd += rounded(zstd::bulk::compress(extent, 3)?.len());
    }
    Ok(())
}

fn row(name: &str, m: &Measured) -> Vec<String> {
    let ratio = |bytes: usize| {
        if bytes == 0 { "-".to_owned() } else { format!("{:.2}", m.plain as f64 / bytes as f64) }
    };
    let us = |time: Duration| time.as_secs_f64() * 1e6 / m.pages.max(1) as f64;
    let times = |cost: &Cost| format!("{:.1}/{:.1}", us(cost.encode), us(cost.decode));
    vec![
        name.to_owned(),
        m.pages.to_string(),
        format!("{:.1}%", 100.0 * m.refused as f64 / m.pages.max(1) as f64),
        m.model.to_string(),
        ratio(m.page.bytes + m.model),
        times(&m.page),
        format!("{:.1}", us(m.verified)),
        format!("{} {}", ratio(m.lz4.bytes), times(&m.lz4)),
        format!("{} {}", ratio(m.lzo.bytes), times(&m.lzo)),
        format!("{} {}", ratio(m.zstd1.bytes), times(&m.zstd1)),
        format!("{} {}", ratio(m.zstd3.bytes), times(&m.zstd3)),
        ratio(m.extent_zlib),
        ratio(m.extent_zstd),
        format!("{:.2}", m.learning.as_secs_f64()),
    ]
}

fn main() -> Result<()> {
    let args = Args::parse();
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header([
        "relation",
        "pages",
        "refused",
        "model",
        "ratio",
        "us enc/dec",
        "verified",
        "lz4",
        "lzo",
        "zstd-1",
        "zstd-3",
        "zlib 128K",
        "zstd 128K",
        "learn s",
    ]);
    let (mut all, mut without) = (Measured::default(), Measured::default());
    let mut one = |name: &str, bytes: &[u8]| -> Result<()> {
        if args.count > 0 {
            return count(&args, name, bytes);
        }
        let measured = measure(&args, name, bytes)?;
        table.add_row(row(name, &measured));
        all.add(&measured);
        if !name.contains(&args.without) {
            without.add(&measured);
        }
        Ok(())
    };
    for path in &args.files {
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        one(&name, &std::fs::read(path).with_context(|| format!("read {}", path.display()))?)?;
    }
    for (name, bytes) in corpora::relations(args.generated).take_while(|_| args.files.is_empty()) {
        if let Some(folder) = &args.write {
            std::fs::write(folder.join(name), &bytes)?;
        }
        one(name, &bytes)?;
    }
    if args.count > 0 {
        return Ok(());
    }
    table.add_row(row("all", &all));
    table.add_row(row(&format!("without {}", args.without), &without));
    println!("{table}");
    Ok(())
}
