//! Codes and decodes pages of real databases by the million: `round_trips --pages N FILE...`.
//!
//! Learns a model of each relation. Then it draws pages, most of them changed as ageing may change them, codes them by
//! the model of their relation or of another one, decodes the records, and compares. The encoder's own comparison is
//! left out, so that an encoder that errs is found. Ends with an error if a page did not come back; such pages are
//! kept.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use pagefold_codec::testing::Random;
use pagefold_codec::{Kinds, Model, Options, Scratch, learn, registry};

/// Sizes of pages, the usual ones first.
const PAGE_BYTES: [usize; 6] = [8192, 16_384, 4096, 32_768, 1024, 2048];
/// Number of pages that tell the size of a file's pages.
const LOOKED_AT: usize = 64;
/// Largest number of pages that a model is learned from.
const SAMPLE: usize = 400;
/// Number of pages that a thread takes on at once.
const BATCH: u64 = 1000;
/// Largest number of kept pages, of those that did not come back.
const KEPT_MAX: u64 = 20;
/// One page in this many is coded by the model of another relation.
const STRANGERS: usize = 16;

#[derive(Debug, Parser)]
#[command(about = "Codes and decodes pages of real databases, also changed ones, and compares")]
struct Args {
    /// Relation files, and folders of them.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Round trips to make.
    #[arg(long, default_value_t = 100_000)]
    pages: u64,
    /// Ends after so many seconds, however many were made.
    #[arg(long)]
    seconds: Option<u64>,
    #[arg(long, default_value_t = 2)]
    threads: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for pages that did not come back, and the models they were coded by.
    #[arg(long, default_value = "out/round-trips")]
    keep: PathBuf,
}

/// A relation's pages, and its model as it was stored.
struct Relation {
    name: String,
    page_bytes: usize,
    bytes: Vec<u8>,
    model: Model,
}

impl Relation {
    fn page(&self, random: &mut Random) -> &[u8] {
        let at = random.below(self.bytes.len() / self.page_bytes) * self.page_bytes;
        &self.bytes[at..at + self.page_bytes]
    }
}

/// Counts of what was done so far.
#[derive(Debug, Default)]
struct Counts {
    /// Number of pages drawn.
    drawn: AtomicU64,
    /// Number of pages that a model took: as they are in the file, and changed.
    as_found: AtomicU64,
    changed: AtomicU64,
    record_bytes: AtomicU64,
    mismatches: AtomicU64,
}

impl Counts {
    fn done(&self) -> u64 {
        self.as_found.load(Relaxed) + self.changed.load(Relaxed)
    }
}

fn all_files(paths: &[PathBuf], found: &mut Vec<PathBuf>) -> Result<()> {
    for path in paths {
        if path.is_dir() {
            let inside: std::io::Result<Vec<_>> =
                std::fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect();
            let mut inside = inside?;
            inside.sort();
            all_files(&inside, found)?;
        } else {
            found.push(path.clone());
        }
    }
    Ok(())
}

/// Returns the page size with which the most pages are recognised, if any are.
fn page_bytes(bytes: &[u8]) -> Option<usize> {
    let known = |size: usize| {
        let all = bytes.len() / size;
        let some = bytes.chunks_exact(size).step_by(all.div_ceil(LOOKED_AT).max(1));
        // A page of a hash or GiST index may be coded as one of a B-tree: the model decides, not the name.
        let has_model =
            |page: &[u8]| registry().formats().any(|format| format.has_model() && format.recognises(page));
        some.filter(|page| has_model(page)).count()
    };
    let counted = PAGE_BYTES.map(|size| (known(size), size));
    // Of sizes with equally many recognised pages, the first is the usual one.
    counted
        .into_iter()
        .rev()
        .max_by_key(|(known, _)| *known)
        .filter(|(known, _)| *known > 0)
        .map(|(_, size)| size)
}

/// Reads a relation, and learns its model; returns `None` if no model gains there.
fn relation(path: &Path) -> Result<Option<Relation>> {
    let mut bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let Some(page_bytes) = page_bytes(&bytes) else { return Ok(None) };
    bytes.truncate(bytes.len() / page_bytes * page_bytes);
    let pages: Vec<&[u8]> =
        bytes.chunks_exact(page_bytes).filter(|page| page.iter().any(|&b| b != 0)).collect();
    let sample: Vec<&[u8]> = pages.iter().copied().step_by(pages.len().div_ceil(SAMPLE)).collect();
    let options = Options { kinds: Kinds::Any, level: 3, relation_pages: pages.len() as u64 };
    let Some(learned) = learn(&sample, options) else { return Ok(None) };
    let model = Model::from_bytes(&learned.to_bytes())?;
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Ok(Some(Relation { name, page_bytes, bytes, model }))
}

/// Changes a page as use may: rows of other pages, rubbish in unused places, counters that went on, flags, damage.
fn change(page: &mut [u8], other: &[u8], random: &mut Random) {
    let len = page.len();
    for _ in 0..1 + random.below(3) {
        match random.below(6) {
            // Bytes that another page has there: a row of another version.
            0 => {
                let bytes = 1 + random.below(200);
                let at = random.below(len - bytes);
                page[at..at + bytes].copy_from_slice(&other[at..at + bytes]);
            }
            // Bytes that were in a place before it was free.
            1 => {
                let at = random.below(len);
                let hole = page[at..].iter().position(|&b| b == 0).map_or(len, |zero| at + zero);
                let end = page[hole..].iter().position(|&b| b != 0).map_or(len, |some| hole + some);
                // Most of the time the place does not border on bytes in use.
                let from = hole + random.below((end - hole).min(64));
                let end = from + random.below(end - from + 1);
                page[from..end].copy_from_slice(&other[from..end]);
            }
            // Numbers that went on.
            2 => {
                for _ in 0..1 + random.below(8) {
                    let at = random.below(len / 4) * 4;
                    let (by, big_endian) = (1 + random.below(300) as u32, random.once_in(2));
                    let Some(word) = page.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<4>()) else {
                        continue;
                    };
                    *word = if big_endian {
                        u32::from_be_bytes(*word).wrapping_add(by).to_be_bytes()
                    } else {
                        u32::from_le_bytes(*word).wrapping_add(by).to_le_bytes()
                    };
                }
            }
            // A bit of the header or of the bytes behind it: positions in the log, flags, line pointers; or of a
            // trailer.
            3 => {
                let at = if random.once_in(4) { len - 1 - random.below(40) } else { random.below(240) };
                page[at] ^= 1 << random.below(8);
            }
            // A value that became rubbish.
            4 => {
                let bytes = 1 + random.below(16);
                let at = random.below(len - bytes);
                page[at..at + bytes].copy_from_slice(&random.bytes(bytes));
            }
            // A value that became zero.
            _ => {
                let bytes = 1 + random.below(64);
                let at = random.below(len - bytes);
                page[at..at + bytes].fill(0);
            }
        }
    }
}

/// Draws pages until enough have come back.
fn work(
    relations: &[Relation],
    counts: &Counts,
    mut random: Random,
    enough: impl Fn() -> bool,
    keep: &Path,
) -> Result<()> {
    let mut scratch = Scratch::new();
    let (mut page, mut record, mut again) = (vec![], vec![], vec![]);
    while !enough() {
        for _ in 0..BATCH {
            let relation = &relations[random.below(relations.len())];
            let as_found = random.once_in(3);
            page.clear();
            page.extend_from_slice(relation.page(&mut random));
            if !as_found {
                let other = relation.page(&mut random);
                change(&mut page, other, &mut random);
            }
            let stranger = &relations[random.below(relations.len())];
            let by = if random.once_in(STRANGERS) && stranger.page_bytes == page.len() {
                stranger
            } else {
                relation
            };
            counts.drawn.fetch_add(1, Relaxed);
            record.clear();
            if !by.model.encode_unverified(&mut scratch, &page, &mut record) {
                continue;
            }
            counts.record_bytes.fetch_add(record.len() as u64, Relaxed);
            again.clear();
            again.resize(page.len(), 0xAA);
            if by.model.decode(&mut scratch, &record, &mut again).is_err() || again != page {
                let number = counts.mismatches.fetch_add(1, Relaxed);
                eprintln!(
                    "a page of {}, {} bytes, did not come back by the model of {}",
                    relation.name,
                    page.len(),
                    by.name
                );
                if number < KEPT_MAX {
                    std::fs::create_dir_all(keep)?;
                    std::fs::write(keep.join(format!("{number}.page")), &page)?;
                    std::fs::write(keep.join(format!("{number}.model")), by.model.to_bytes())?;
                }
            }
            if as_found { &counts.as_found } else { &counts.changed }.fetch_add(1, Relaxed);
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let args = Args::parse();
    let mut files = vec![];
    all_files(&args.files, &mut files)?;
    let mut relations = vec![];
    for path in &files {
        match relation(path)? {
            Some(relation) => relations.push(relation),
            None => println!("{}: no model", path.display()),
        }
    }
    if relations.is_empty() {
        bail!("no file has pages that a model would code");
    }
    let pages: usize = relations.iter().map(|relation| relation.bytes.len() / relation.page_bytes).sum();
    println!("{} relations with {pages} pages", relations.len());
    let counts = Counts::default();
    let began = Instant::now();
    let deadline = args.seconds.map(|seconds| began + Duration::from_secs(seconds));
    let enough = || counts.done() >= args.pages || deadline.is_some_and(|at| Instant::now() >= at);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.threads.max(1))
            .map(|number| {
                let random = Random::new(args.seed.wrapping_mul(1000) + number);
                let (relations, counts, keep) = (&relations, &counts, &args.keep);
                scope.spawn(move || work(relations, counts, random, enough, keep))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => bail!("a thread panicked"),
        })
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let (as_found, changed) = (counts.as_found.load(Relaxed), counts.changed.load(Relaxed));
    let (done, mismatches) = (as_found + changed, counts.mismatches.load(Relaxed));
    println!(
        "{done} round trips in {seconds:.0} s ({:.0}/s): {as_found} of pages as they are, {changed} of changed ones; {} drawn; {} bytes a record; \
         {mismatches} mismatches",
        done as f64 / seconds,
        counts.drawn.load(Relaxed),
        counts.record_bytes.load(Relaxed) / done.max(1)
    );
    if mismatches > 0 {
        bail!("{mismatches} pages did not come back; some are kept in {}", args.keep.display());
    }
    Ok(())
}
