//! Answers requests about how files are stored, and codes files again.

use pagefold_engine::pool::{CALL_PAGES, CodecUse, PageRange, Pool, Survey};

use super::export::VersionFile;
use super::mounted::Mounted;
use crate::control::{CodecFigures, CodecShare, FileSurvey, KindShare, RecompressFigures, Reply};
use crate::failure::{Failure, Result};
use crate::names;

/// Number of pages of a file that a survey reads.
const SURVEY_PAGES: u64 = 32;
/// Number of pages whose records one call reads.
const CODECS_PAGES: usize = 4096;

/// Returns how one file is stored; `None` if it is no regular file, or cannot be read.
pub(super) fn survey(pool: &Pool, of: &Mounted, ino: u64) -> Option<FileSurvey> {
    let VersionFile { version, fs, ino } = of.file(ino)?;
    let object = fs.object(ino).ok()?;
    if object == 0 {
        return Some(FileSurvey::default());
    }
    pool.survey(version, object, SURVEY_PAGES).ok().map(|survey| figures(&survey))
}

/// Sums records of files by codec, as far as one call goes. Anything but a regular file has none.
pub(super) fn codecs(pool: &Pool, of: &Mounted, inodes: &[u64], from: (usize, u64)) -> Reply {
    let run = Run::of(of, inodes, from.0);
    match pool.codecs(run.version, &run.ranges, from, CODECS_PAGES) {
        Ok(report) => {
            let figures = |(codec, of): (&u8, &CodecUse)| CodecFigures {
                codec: Survey::codec_name(*codec),
                pages: of.pages,
                records: of.records,
                logical_bytes: of.logical_bytes,
                stored_bytes: of.stored_bytes,
            };
            Reply::Codecs {
                codecs: report.codecs.iter().map(figures).collect(),
                next: report.next.or(run.next),
            }
        }
        Err(error) => Reply::Error { what: format!("cannot read how files are stored: {error}"), hint: None },
    }
}

/// Codes pages of files again, as far as one call goes. Anything but a regular file has none.
pub(super) fn recompress(pool: &Pool, of: &Mounted, inodes: &[u64], from: (usize, u64)) -> Result<Reply> {
    let Run { version, ranges, next } = Run::of(of, inodes, from.0);
    let path = pool.path_of(version).unwrap_or_default();
    if let Some((dataset, _)) = path.split_once('@') {
        return Err(of_a_snapshot(pool, &path, dataset));
    }
    Ok(match pool.recompress_in(version, &ranges, from, CALL_PAGES) {
        Ok(report) => Reply::Recompressed {
            figures: RecompressFigures {
                pages: report.pages,
                logical_bytes: report.logical_bytes,
                recoded: report.recompressed,
                before_bytes: report.before_bytes,
                after_bytes: report.after_bytes,
                written_bytes: report.written_bytes,
            },
            next: report.next.or(next),
        },
        Err(error) => Reply::Error { what: format!("cannot fold: {error}"), hint: None },
    })
}

fn of_a_snapshot(pool: &Pool, path: &str, dataset: &str) -> Failure {
    let name = |path: &str| names::full(pool.name(), path);
    Failure::new(format!("cannot fold files of {}: snapshots never change", name(path))).hint(format!(
        "what it shares with its dataset is coded again with that: pagefold fold {}",
        name(dataset)
    ))
}

/// Consecutive files of a request that lie in one dataset or snapshot: the directory of the snapshots has files of many.
struct Run {
    /// Number of the dataset or snapshot.
    version: u64,
    /// The pages of each file up to the last one of the run; those before the run have none.
    ranges: Vec<PageRange>,
    /// Place behind the run, if there are more files.
    next: Option<(usize, u64)>,
}

impl Run {
    /// Returns the run that begins at the file `from`.
    fn of(of: &Mounted, inodes: &[u64], from: usize) -> Self {
        let none = PageRange { object: 0, from: 0, to: 0 };
        let mut run = Self { version: of.id, ranges: vec![none; from.min(inodes.len())], next: None };
        for (at, ino) in inodes.iter().enumerate().skip(from) {
            let file = of.file(*ino);
            let version = file.as_ref().map_or(of.id, |file| file.version);
            if at == from {
                run.version = version;
            }
            if version != run.version {
                run.next = Some((at, 0));
                break;
            }
            let object = file.and_then(|file| file.fs.object(file.ino).ok()).unwrap_or(0);
            run.ranges.push(PageRange { object, from: 0, to: if object == 0 { 0 } else { u64::MAX } });
        }
        run
    }
}

fn figures(survey: &Survey) -> FileSurvey {
    let mut codecs: Vec<CodecShare> = survey
        .codecs
        .iter()
        .map(|((codec, model), pages)| CodecShare {
            codec: Survey::codec_name(*codec),
            model: *model,
            pages: *pages,
        })
        .collect();
    let mut formats: Vec<_> = survey.formats.iter().collect();
    formats.sort_by_key(|(format, pages)| (std::cmp::Reverse(**pages), format.is_none(), **format));
    let kinds = formats
        .into_iter()
        .map(|(format, pages)| KindShare { kind: Survey::kind_name(*format).into(), pages: *pages })
        .collect();
    codecs.sort_by_key(|share| std::cmp::Reverse(share.pages));
    FileSurvey { sampled_pages: survey.pages, codecs, kinds, model: survey.current }
}
