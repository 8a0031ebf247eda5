//! Lists the formats that are known. A further format is a folder, and a line here.

use crate::dictionary::AnyPage;
use crate::doubles::{self, Doubles};
use crate::format::files::{FileBytes, FileFormat};
use crate::format::{Entry, Format};
use crate::innodb::{self, Innodb};
use crate::key_value;
use crate::log::redo::{self, InnodbRedo};
use crate::log::wal::{self, PostgresWal};
use crate::model::is_page_size;
use crate::postgres;
use crate::postgres::btree::PostgresBtree;
use crate::postgres::heap::PostgresHeap;
use crate::postgres::uncoded::{
    PostgresBrin, PostgresFreeSpace, PostgresGin, PostgresGist, PostgresHash, PostgresOther, PostgresSpgist,
    PostgresVisibility,
};
use crate::scratch::Scratch;
use crate::sqlite::{self, Sqlite};

/// All formats that are known.
pub(crate) static REGISTRY: Registry = Registry {
    entries: &Entry::number([
        Entry::of::<PostgresHeap>(),
        // Pages of hash and GiST indexes may parse as those of B-trees, but have a mark of their own.
        Entry::of::<PostgresHash>(),
        Entry::of::<PostgresGist>(),
        Entry::of::<PostgresSpgist>(),
        Entry::of::<PostgresBrin>(),
        Entry::of::<PostgresGin>(),
        Entry::of::<PostgresFreeSpace>(),
        Entry::of::<PostgresVisibility>(),
        Entry::of::<PostgresBtree>(),
        Entry::of::<Innodb>(),
        Entry::of::<Sqlite>(),
        Entry::of::<PostgresWal>(),
        Entry::of::<InnodbRedo>(),
        Entry::of::<PostgresOther>(),
        Entry::of::<Doubles>(),
        Entry::of::<AnyPage>(),
    ]),
    files: &[
        &postgres::FILES,
        &wal::FILES,
        &innodb::FILES,
        &redo::FILES,
        &sqlite::FILES,
        &doubles::FILES,
        &key_value::LMDB,
        &key_value::BBOLT,
        &key_value::BERKELEY_DB,
    ],
};

/// A list of formats.
#[derive(Debug)]
pub struct Registry {
    /// Formats of pages. The first one that recognises a page is the page's format; of those that describe equally many
    /// pages, a model is made for the first one.
    pub(crate) entries: &'static [Entry],
    /// Formats of files, as reports list them. Those behind have the stronger signs: the last one that recognises a
    /// file is the file's format.
    pub(crate) files: &'static [&'static FileFormat],
}

/// Returns all formats that are known.
#[must_use]
pub fn registry() -> &'static Registry {
    &REGISTRY
}

/// Returns the format of `page`, found from its content alone; `None` unless it parses exactly as a page of a format
/// that is known.
#[must_use]
pub fn recognise(scratch: &mut Scratch, page: &[u8]) -> Option<Format> {
    REGISTRY.recognise(scratch, page)
}

impl Registry {
    /// Returns the formats of pages.
    pub fn formats(&'static self) -> impl Iterator<Item = Format> + Clone {
        self.entries.iter().map(Format)
    }

    /// Returns the formats of files, in the order of reports.
    #[must_use]
    pub fn files(&self) -> &'static [&'static FileFormat] {
        self.files
    }

    /// Returns the format with this name.
    #[must_use]
    pub fn by_name(&'static self, name: &str) -> Option<Format> {
        self.formats().find(|format| format.name() == name)
    }

    /// Returns the format whose records have this codec.
    #[must_use]
    pub fn by_codec(&'static self, codec: u8) -> Option<Format> {
        self.formats().find(|format| format.codec() == Some(codec))
    }

    /// Returns the format whose stored models have this tag.
    pub(crate) fn by_tag(&'static self, tag: u8) -> Option<Format> {
        self.formats().find(|format| format.has_model() && format.tag() == tag)
    }

    /// Returns the format of `page`, as [`recognise`] does.
    #[must_use]
    pub fn recognise(&'static self, scratch: &mut Scratch, page: &[u8]) -> Option<Format> {
        self.formats().find(|format| is_page_size(page.len()) && format.erased().recognise(scratch, page))
    }

    /// Returns the format of pages that no other one describes.
    pub(crate) fn of_any(&'static self) -> Option<Format> {
        self.formats().find(|format| format.is_dictionary())
    }

    /// Returns the format, of those with models, that most of `pages` are of. A weak format has to describe more than
    /// half of them, and is not asked if another one describes half, or if pages of another log prevail.
    pub(crate) fn prevailing(&'static self, pages: &[&[u8]]) -> Option<Format> {
        let (weak, strong): (Vec<_>, Vec<_>) =
            self.formats().filter(|format| format.has_model()).partition(|format| format.facts().is_weak);
        let mut best: Option<(Format, usize)> = None;
        for format in strong {
            let count = format.erased().count(pages);
            if best.is_none_or(|(_, most)| count > most) {
                best = Some((format, count));
            }
        }
        let is_sure =
            |(format, most): (Format, usize)| 2 * most >= pages.len() || format.facts().file.log.is_some();
        let is_most = |format: &Format| 2 * format.erased().count(pages) > pages.len();
        let weak = if best.is_some_and(is_sure) { None } else { weak.into_iter().find(is_most) };
        weak.or(best.map(|(format, _)| format))
    }

    /// Returns the format of a file, of which `data` are bytes from `offset` on, and the page size that goes with it,
    /// in bytes. `name` is the last component of the path. `None` if no format is recognised.
    #[must_use]
    pub fn recognise_file(
        &self,
        offset: u64,
        data: &[u8],
        name: Option<&str>,
    ) -> Option<(&'static FileFormat, u32)> {
        let bytes = FileBytes { offset, data };
        let first = |page_bytes: &dyn Fn(&FileFormat) -> Option<u32>| {
            self.files.iter().rev().find_map(|&file| Some((file, page_bytes(file)?)))
        };
        first(&|file| (file.by_name)(name?))
            .or_else(|| first(&|file| (file.by_bytes)(bytes)))
            .or_else(|| first(&|file| (file.by_name_alone)(name?)))
    }

    /// Returns true if `page` begins, and is as long, as pages of files other than logs that a model may describe.
    #[must_use]
    pub fn looks_like_database(&self, page: &[u8]) -> bool {
        self.files.iter().any(|file| file.log.is_none() && (file.begins)(page))
    }

    /// Returns true if `page` begins as a page of the same length of a log does. Pages of some logs have no form.
    #[must_use]
    pub fn looks_like_log(&self, page: &[u8]) -> bool {
        self.files.iter().any(|file| file.log.is_some() && (file.begins)(page))
    }

    /// Returns true if `page`, number `number` of its file, says that the file is a log most of whose pages have no
    /// form.
    #[must_use]
    pub fn marks_log(&self, number: u64, page: &[u8]) -> bool {
        self.files.iter().any(|file| file.log.is_some() && (file.marks)(number, page))
    }

    /// Returns those of `pages`, drawn from one file, from which to learn a model: they look like pages of a database.
    /// Pages that continue others, as overflow pages do, look like nothing. So if pages of files that have such pages
    /// prevail, all other pages that are not zeros are taken too, and come last.
    #[must_use]
    pub fn worth_learning(&self, pages: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let may_continue =
            |page: &[u8]| self.files.iter().any(|file| file.has_formless && (file.begins)(page));
        let continued = pages.iter().filter(|page| may_continue(page)).count();
        let (mut known, others): (Vec<_>, Vec<_>) =
            pages.into_iter().partition(|page| self.looks_like_database(page));
        if 2 * continued > known.len() {
            known.extend(others.into_iter().filter(|page| page.iter().any(|&byte| byte != 0)));
        }
        known
    }
}
