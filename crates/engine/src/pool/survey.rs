//! Tells how the pages of an object are stored, from a sample of them.

use std::cell::RefCell;
use std::collections::BTreeMap;

use pagefold_codec::{Format, Scratch, recognise};

use super::recompress::targets;
use super::{PageRange, Pool, RecompressReport};
use crate::Result;
use crate::dataset::Dataset;
use crate::record::{Codec, ModelId, decode, model_of};
use crate::segment::RECORD_OVERHEAD_BYTES;

/// Storage of a sample of an object's pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Number of pages examined.
    pub pages: u64,
    /// Number of these pages by codec and model.
    pub codecs: BTreeMap<(u8, Option<ModelId>), u64>,
    /// Number of these pages by format, as their content tells; `None` is anything else.
    pub formats: BTreeMap<Option<Format>, u64>,
    /// The model of the object's new pages.
    pub current: Option<ModelId>,
}

/// Space of the records of one codec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodecUse {
    /// Number of pages whose record is of this codec.
    pub pages: u64,
    /// Number of records: one per page, and those that a delta is based on.
    pub records: u64,
    /// Bytes of these records, with what the segment keeps of each.
    pub stored_bytes: u64,
    /// Length of the pages before compression, in bytes.
    pub logical_bytes: u64,
}

/// Records by codec, from pages of one or several objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodecReport {
    /// Use by the codec's byte in a record's header; see [`Survey::codec_name`].
    pub codecs: BTreeMap<u8, CodecUse>,
    /// Place at which to go on: position among the ranges, and page; `None` if all pages were examined.
    pub next: Option<(usize, u64)>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::new());
}

impl Pool {
    /// Examines up to `samples` stored pages of `object` in the dataset or snapshot with number `id`, spread over the
    /// object. Changes that are not committed yet are not seen.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`]; errors of reading.
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
            let _reading = self.shared.models.reading();
            match self.shared.read_record(ptr.addr) {
                Ok(record) => self.note(&record, record_size, &mut survey)?,
                // The page was overwritten meanwhile; or it is damaged, which `check` reports.
                Err(error) if error.is_damage() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(survey)
    }

    /// Reads the records of up to `pages_max` stored pages of the dataset or snapshot with number `id`, from `from` on
    /// (position among `ranges`, and page), and sums them by codec. Leaves out changes that are not committed yet,
    /// pages that are overwritten meanwhile, and damaged pages, which `check` reports.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`]; errors of reading.
    pub fn codecs(
        &self,
        id: u64,
        ranges: &[PageRange],
        from: (usize, u64),
        pages_max: usize,
    ) -> Result<CodecReport> {
        let dataset = self.version_by_id(id)?;
        let mut found = RecompressReport::default();
        let targets = targets(&dataset, ranges, from, pages_max, &mut found)?;
        let mut report = CodecReport { next: found.next, ..CodecReport::default() };
        for of_object in targets.chunk_by(|a, b| a.object == b.object && a.page < b.page) {
            let (Some(first), Some(last)) = (of_object.first(), of_object.last()) else { continue };
            let bases = dataset.bases_between(first.object, first.page, last.page.saturating_add(1))?;
            for target in of_object {
                let record = match self.shared.read_record(target.ptr.addr) {
                    Ok(record) => record,
                    Err(error) if error.is_damage() => continue,
                    Err(error) => return Err(error),
                };
                let of = report.codecs.entry(record.first().copied().unwrap_or_default()).or_default();
                let lens =
                    bases.get(&target.page).into_iter().flatten().map(|base| self.shared.stored_len(*base));
                of.pages += 1;
                of.logical_bytes += u64::from(target.record_size);
                for len_bytes in lens.chain([record.len() as u32]) {
                    of.records += 1;
                    of.stored_bytes += u64::from(len_bytes) + RECORD_OVERHEAD_BYTES;
                }
            }
        }
        Ok(report)
    }

    fn note(&self, record: &[u8], record_size: u32, survey: &mut Survey) -> Result<()> {
        let mut page = vec![0; record_size as usize];
        decode(record, &*self.shared, &mut page)?;
        let format = SCRATCH.with_borrow_mut(|scratch| recognise(scratch, &page));
        let codec = record.first().copied().unwrap_or_default();
        survey.pages += 1;
        *survey.codecs.entry((codec, model_of(record))).or_default() += 1;
        *survey.formats.entry(format).or_default() += 1;
        Ok(())
    }
}

impl Survey {
    /// Returns the name of a format in [`Survey::formats`].
    pub fn kind_name(format: Option<Format>) -> &'static str {
        format.map_or("other", Format::name)
    }

    /// Returns the name of a codec in [`Survey::codecs`], in lower case.
    pub fn codec_name(id: u8) -> String {
        Codec::from_id(id)
            .map_or_else(|| format!("codec {id}"), |codec| format!("{codec:?}").to_ascii_lowercase())
    }
}
