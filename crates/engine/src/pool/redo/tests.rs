use pagefold_codec::testing::Random;

use super::*;

fn run(dataset: u64, object: u64, first: u64, pages: usize) -> PageRun {
    PageRun {
        dataset,
        object,
        record_size: 8192,
        first,
        shared: false,
        ptrs: vec![None; pages],
        bases: Bases::None,
    }
}

fn has_common(a: &PageRun, b: &PageRun) -> bool {
    (a.dataset, a.object) == (b.dataset, b.object) && a.first < run_end(b) && b.first < run_end(a)
}

#[test]
fn runs_with_a_page_in_common_keep_their_order_and_others_are_sorted() {
    let mut random = Random::new(3);
    let mut overlapping = 0;
    for _ in 0..300 {
        let mut window = Window::default();
        for number in 0..60 {
            let pages = 1 + random.below(4) * random.below(4);
            let (dataset, object, first) = (1 + random.below(2), random.below(2), random.below(200));
            let mut made = run(dataset as u64, object as u64, first as u64, pages);
            // The recordsize tells this run from others.
            made.record_size = number;
            window.runs.push(made);
        }
        window.sort_runs();
        let sorted = &window.runs;
        assert_eq!(sorted.len(), 60);
        for (at, before) in sorted.iter().enumerate() {
            for after in sorted.iter().skip(at + 1) {
                if has_common(before, after) {
                    assert!(before.record_size < after.record_size, "{before:?} before {after:?}");
                    overlapping += 1;
                }
            }
        }
        let place_of = |run: &PageRun| (run.dataset, run.object, run.first / 50);
        let far: Vec<&PageRun> = sorted.iter().filter(|run| run.first % 50 < 30).collect();
        assert!(far.is_sorted_by_key(|run| place_of(run)), "{far:?}");
    }
    assert!(overlapping > 1000);
}

#[test]
fn what_may_depend_on_something_before_it_ends_a_window() {
    let mut window = Window::default();
    assert!(window.push(Redo::Put(1, Key::new(5, 0x11, 0), b"a")).is_none());
    assert!(window.push(Redo::Delete(1, Key::new(5, 0x11, 0))).is_none());
    assert!(window.push(Redo::Pages(run(1, 5, 0, 3))).is_none());
    assert!(window.push(Redo::Pages(PageRun { record_size: 4096, ..run(1, 6, 0, 3) })).is_none());
    for barrier in [
        Redo::Pages(PageRun { record_size: 4096, ..run(1, 5, 9, 3) }),
        Redo::Pages(PageRun { shared: true, ..run(1, 5, 9, 3) }),
        Redo::Punch { dataset: 1, object: 5, from: 0, to: 1 },
        Redo::Put(OWN, Key::model(7), b"entry"),
        Redo::Catalogue(crate::dataset::redo::CatalogueOp::Rollback { dataset: 1 }),
    ] {
        assert!(window.push(barrier).is_some());
    }
    assert_eq!((window.values.len(), window.runs.len()), (2, 2));
}
