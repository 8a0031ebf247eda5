//! Answers requests about how files are stored, and codes files again.

use pagefold_engine::pool::{CALL_PAGES, CodecUse, PageRange, Pool, Survey};
use pagefold_fs::Ino;

use super::mounted::Mounted;
use crate::control::{CodecFigures, CodecShare, FileSurvey, KindShare, RecompressFigures, Reply};

/// Number of pages of a file that a survey reads.
const SURVEY_PAGES: u64 = 32;
/// Number of pages whose records one call reads.
const CODECS_PAGES: usize = 4096;

/// Returns how one file is stored; `None` if it is no regular file, or cannot be read.
pub(super) fn survey(pool: &Pool, of: &Mounted, ino: Ino) -> Option<FileSurvey> {
    let object = of.files().ok()?.object(ino).ok()?;
    if object == 0 {
        return Some(FileSurvey::default());
    }
    pool.survey(of.id, object, SURVEY_PAGES).ok().map(|survey| figures(&survey))
}

/// Sums records of files by codec, as far as one call goes. Anything but a regular file has none.
pub(super) fn codecs(pool: &Pool, of: &Mounted, inodes: &[u64], from: (usize, u64)) -> Reply {
    match pool.codecs(of.id, &ranges(of, inodes), from, CODECS_PAGES) {
        Ok(report) => {
            let figures = |(codec, of): (&u8, &CodecUse)| CodecFigures {
                codec: Survey::codec_name(*codec),
                pages: of.pages,
                records: of.records,
                logical_bytes: of.logical_bytes,
                stored_bytes: of.stored_bytes,
            };
            Reply::Codecs { codecs: report.codecs.iter().map(figures).collect(), next: report.next }
        }
        Err(error) => Reply::Error { what: format!("cannot read how files are stored: {error}"), hint: None },
    }
}

/// Codes pages of files again, as far as one call goes. Anything but a regular file has none.
pub(super) fn recompress(pool: &Pool, of: &Mounted, inodes: &[u64], from: (usize, u64)) -> Reply {
    match pool.recompress_in(of.id, &ranges(of, inodes), from, CALL_PAGES) {
        Ok(report) => Reply::Recompressed {
            figures: RecompressFigures {
                pages: report.pages,
                logical_bytes: report.logical_bytes,
                recoded: report.recompressed,
                before_bytes: report.before_bytes,
                after_bytes: report.after_bytes,
                written_bytes: report.written_bytes,
            },
            next: report.next,
        },
        Err(error) => Reply::Error { what: format!("cannot fold: {error}"), hint: None },
    }
}

/// Returns the ranges of all pages of these files.
fn ranges(of: &Mounted, inodes: &[u64]) -> Vec<PageRange> {
    let range = |ino: &u64| {
        let object = of.files().ok().and_then(|fs| fs.object(Ino(*ino)).ok()).unwrap_or(0);
        PageRange { object, from: 0, to: if object == 0 { 0 } else { u64::MAX } }
    };
    inodes.iter().map(range).collect()
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
