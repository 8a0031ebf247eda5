//! How the pages of an object are stored, from some of them.

use std::cell::RefCell;
use std::collections::BTreeMap;

use pagefold_codec::{Kind, Scratch, recognise};

use super::Pool;
use crate::dataset::Dataset;
use crate::record::{Codec, ModelId, decode, looks_like_postgres, model_of};
use crate::{Error, Result};

/// What a page is, by its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PageKind {
    /// A heap page of PostgreSQL.
    PostgresHeap,
    /// A B-tree page of PostgreSQL.
    PostgresBtree,
    /// Another page of PostgreSQL, by its header.
    PostgresOther,
    /// A page of an index of InnoDB.
    Innodb,
    /// A page of a table or an index of SQLite.
    Sqlite,
    /// Anything else.
    Other,
}

/// How pages of an object are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Pages looked at.
    pub pages: u64,
    /// How many of them each codec codes, by which model.
    pub codecs: BTreeMap<(u8, Option<ModelId>), u64>,
    /// How many of them are of each kind.
    pub kinds: BTreeMap<PageKind, u64>,
    /// The model of the object's new pages.
    pub current: Option<ModelId>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::new());
}

impl Pool {
    /// Looks at up to `samples` stored pages of `object` of the dataset or snapshot with number `id`, spread over it. What is not
    /// committed yet is not seen.
    ///
    /// # Errors
    /// [`Error::NotFound`]; of reading.
    pub fn survey(&self, id: u64, object: u64, samples: u64) -> Result<Survey> {
        let dataset = self.version_by_id(id)?;
        let mut survey = Survey { current: self.shared.models.current(id, object), ..Survey::default() };
        let record_size = dataset.record_size(object)?;
        let end = dataset.end_page(object)?;
        let mut next = 0;
        for at in 0..samples.min(end) {
            let from = next.max((u128::from(at) * u128::from(end) / u128::from(samples.min(end))) as u64);
            let Some(page) = dataset.next_data(object, from)? else { break };
            next = page + 1;
            let mut ptrs = [None];
            dataset.tree.pages(object, page, &mut ptrs)?;
            let Some(ptr) = ptrs[0] else { continue };
            match self.shared.read_record(ptr.addr) {
                Ok(record) => self.note(&record, record_size, &mut survey)?,
                // Overwritten meanwhile; or damaged, which is for `check` to tell.
                Err(Error::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(survey)
    }

    fn note(&self, record: &[u8], record_size: u32, survey: &mut Survey) -> Result<()> {
        let mut page = vec![0; record_size as usize];
        decode(record, &*self.shared, &mut page)?;
        let found = SCRATCH.with_borrow_mut(|scratch| recognise(scratch, &page));
        let kind = match found {
            Some(Kind::PostgresHeap) => PageKind::PostgresHeap,
            Some(Kind::PostgresBtree) => PageKind::PostgresBtree,
            Some(Kind::Innodb) => PageKind::Innodb,
            Some(Kind::Sqlite) => PageKind::Sqlite,
            None if looks_like_postgres(&page) => PageKind::PostgresOther,
            None => PageKind::Other,
        };
        let codec = record.first().copied().unwrap_or_default();
        survey.pages += 1;
        *survey.codecs.entry((codec, model_of(record))).or_default() += 1;
        *survey.kinds.entry(kind).or_default() += 1;
        Ok(())
    }
}

impl Survey {
    /// Name of a codec in [`Survey::codecs`], in lower case.
    pub fn codec_name(id: u8) -> String {
        Codec::from_id(id)
            .map_or_else(|| format!("codec {id}"), |codec| format!("{codec:?}").to_ascii_lowercase())
    }
}
