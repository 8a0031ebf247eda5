//! Answers about how files are stored, and coding them again.

use pagefold_engine::pool::{CALL_PAGES, PageKind, PageRange, Survey};
use pagefold_fs::Ino;

use super::mounted::Mounted;
use super::server::Server;
use crate::control::{CodecShare, FileSurvey, Folded, KindShare, Reply};

/// Pages of a file that are looked at.
const SURVEY_PAGES: u64 = 32;

impl Server {
    /// How one file is stored; `None` for what is no regular file.
    pub(super) fn survey(&self, of: &Mounted, ino: Ino) -> Option<FileSurvey> {
        let object = of.fs.object(ino).ok()?;
        if object == 0 {
            return Some(FileSurvey::default());
        }
        self.pool.survey(of.id, object, SURVEY_PAGES).ok().map(|survey| told(&survey))
    }

    /// Codes pages of files again, as far as one call goes. What is no regular file has no pages.
    pub(super) fn fold(&self, of: &Mounted, inodes: &[u64], from: (usize, u64)) -> Reply {
        let range = |ino: &u64| {
            let object = of.fs.object(Ino(*ino)).unwrap_or(0);
            PageRange { object, from: 0, to: if object == 0 { 0 } else { u64::MAX } }
        };
        let ranges: Vec<PageRange> = inodes.iter().map(range).collect();
        match self.pool.recode_in(of.id, &ranges, from, CALL_PAGES) {
            Ok(report) => Reply::Folded {
                folded: Folded {
                    pages: report.pages,
                    logical_bytes: report.logical_bytes,
                    recoded: report.recoded,
                    before_bytes: report.before_bytes,
                    after_bytes: report.after_bytes,
                    written_bytes: report.written_bytes,
                },
                next: report.next,
            },
            Err(error) => Reply::Error { what: format!("cannot fold: {error}"), hint: None },
        }
    }
}

fn told(survey: &Survey) -> FileSurvey {
    let mut codecs: Vec<CodecShare> = survey
        .codecs
        .iter()
        .map(|((codec, model), pages)| CodecShare {
            codec: Survey::codec_name(*codec),
            model: *model,
            pages: *pages,
        })
        .collect();
    let mut kinds: Vec<KindShare> = survey
        .kinds
        .iter()
        .map(|(kind, pages)| KindShare { kind: kind_name(*kind).into(), pages: *pages })
        .collect();
    codecs.sort_by_key(|share| std::cmp::Reverse(share.pages));
    kinds.sort_by_key(|share| std::cmp::Reverse(share.pages));
    FileSurvey { sampled_pages: survey.pages, codecs, kinds, model: survey.current }
}

fn kind_name(kind: PageKind) -> &'static str {
    match kind {
        PageKind::PostgresHeap => "postgres-heap",
        PageKind::PostgresBtree => "postgres-btree",
        PageKind::PostgresOther => "postgres-other",
        PageKind::Innodb => "innodb",
        PageKind::Sqlite => "sqlite",
        PageKind::Other => "other",
    }
}
