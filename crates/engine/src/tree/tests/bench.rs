//! Measures rates, for profiling:
//! `cargo test --release -p pagefold-engine tree::tests::bench -- --ignored --nocapture`.

use std::hint::black_box;

use rustix::time::{ClockId, clock_gettime};

use super::*;

/// Pseudo-random numbers, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Returns the time that this thread was on a processor, in nanoseconds. It depends less on what else the machine does
/// than wall time.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn rate(what: &str, count: u64, work: impl FnOnce()) {
    let start = cpu_ns();
    work();
    let ns = cpu_ns() - start;
    println!("{what:<44} {:>9.0} /s {:>8} ns each", count as f64 * 1e9 / ns as f64, ns / count);
}

#[test]
#[ignore = "measures, checks nothing"]
fn rates() {
    const PAGES: u64 = 2_000_000;
    let store = Arc::new(MemStore::default());
    let tree = tree_with(&store, None, 256 << 20, Shape::STORED);
    let random = Addr::new;
    rate("insert pages in order, 1000 per apply", PAGES, || {
        for chunk in 0..PAGES / 1000 {
            apply(
                &tree,
                (chunk * 1000..(chunk + 1) * 1000).map(|n| Edit::Put(Key::page(1, n), page(n))).collect(),
            );
        }
    });
    println!("dirty {} MB", tree.dirty_bytes() >> 20);
    let mut root = None;
    rate("checkpoint, per page", PAGES, || root = checkpoint(&tree, &store));
    let stored: usize = store.records.lock().values().map(Vec::len).sum();
    println!("stored {} MB, cache {:?}", stored >> 20, tree.cache.stats());
    let mut numbers = Numbers(88_172_645_463_325_252);
    let mut out = [None];
    rate("try_pages, one random page, warm", 2_000_000, || {
        for _ in 0..2_000_000 {
            assert!(black_box(tree.try_pages(1, numbers.below(PAGES), &mut out)));
        }
    });
    let mut run = [None; 128];
    rate("try_pages, 128 pages at random, warm", 200_000, || {
        for _ in 0..200_000 {
            assert!(black_box(tree.try_pages(1, numbers.below(PAGES - 128), &mut run)));
        }
    });
    let mut update = |sorted: bool, per: u64| {
        let mut keys: Vec<u64> = (0..per).map(|_| numbers.below(PAGES)).collect();
        if sorted {
            keys.sort_unstable();
        }
        let place = |n: u64| {
            Value::Page(Ptr { addr: random(1 + n * 7919 % 25_000, n as u32 % 1000), len_bytes: 3000 })
        };
        apply(&tree, keys.into_iter().map(|n| Edit::Put(Key::page(1, n), place(n))).collect());
    };
    rate("update random pages, 1000 sorted per apply", 300_000, || (0..300).for_each(|_| update(true, 1000)));
    rate("update random pages, 64 unsorted per apply", 192_000, || (0..3000).for_each(|_| update(false, 64)));
    println!("dirty {} MB", tree.dirty_bytes() >> 20);
    rate("checkpoint, per page", PAGES, || root = checkpoint(&tree, &store));
    let cold = tree_with(&store, root, 1 << 20, Shape::STORED);
    rate("pages, one random page, leaf cold", 20_000, || {
        for _ in 0..20_000 {
            cold.pages(1, numbers.below(PAGES), &mut out).unwrap();
        }
    });
    rate("delete all, cold, per page", PAGES, || {
        apply(&cold, vec![Edit::DeleteRange(Key::page(1, 0), Key::page(2, 0))]);
    });
}
