use pagefold_codec::testing::{Random, Schema, heap_page};

use super::*;
use crate::dataset::{Change, ModelEntry};
use crate::pool::LearnOptions;
use crate::pool::testing::{PAGE, fresh};
use crate::record::Models;

const PAGES: u64 = 300;

/// While pages are coded again by a model, another one takes its place before any segment lists the first: a checkpoint
/// between two passes must not drop that one.
#[test]
fn a_model_that_is_coded_by_stays() {
    let (_device, pool) = fresh();
    pool.set_compression("page-1".parse().unwrap());
    let (mut random, schema) = (Random::new(2), Schema::simple(false));
    let pages: Vec<Vec<u8>> =
        (0..PAGES).map(|block| heap_page(&mut random, &schema, block as usize)).collect();
    for (at, data) in (0..).zip(&pages) {
        let offset = at * u64::from(PAGE);
        pool.dataset().apply(&[Change::Write { object: 5, record_size: PAGE, offset, data }]).unwrap();
    }
    pool.sync().unwrap();
    let options = LearnOptions { pages_min: 60, sample_pages: 100 };
    let adopted = pool.learn(&options).unwrap().unwrap().adopted.unwrap();

    let (range, mut report) = (PageRange { object: 5, from: 0, to: u64::MAX }, RecompressReport::default());
    let dataset = pool.version_by_id(pool.dataset.id).unwrap();
    let targets = targets(&dataset, &[range], (0, 0), 1000, &mut report).unwrap();
    let mut plan = pool.plan(&dataset, &[range], &targets).unwrap();
    assert!(plan.models.contains_key(&5) && !plan.targets.is_empty());

    let model = pool.shared.model(adopted).unwrap();
    let entry = pool.shared.models.get(adopted).unwrap();
    let (again, bytes) = (pagefold_codec::Model::from_bytes(&model.to_bytes()).unwrap(), model.to_bytes());
    let newer = pool.adopt(again, bytes, false, |ptr, codec| ModelEntry { ptr, codec, ..entry }).unwrap();
    assert!(newer > Some(adopted));

    let mut state = pool.maintenance.lock();
    while !plan.targets.is_empty() {
        pool.recompress_pass(&dataset, &mut state, &mut plan, (1000, &mut report)).unwrap();
        pool.checkpoint_locked(&mut state, false).unwrap();
    }
    drop(state);
    assert_eq!(report.recompressed, PAGES);
    drop(plan);
    pool.checkpoint(false).unwrap();
    for (at, page) in (0..).zip(&pages) {
        let mut found = vec![0; PAGE as usize];
        let read = pool.dataset().read(5, PAGE, at * u64::from(PAGE), &mut found);
        read.unwrap_or_else(|error| panic!("page {at}: {error}"));
        assert!(found == *page, "page {at}");
    }
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
}
