use super::*;

const US: u64 = 1000;
const MS: u64 = 1000 * US;

/// Reads that come one after the other, each of which takes a time by chance.
struct Reads {
    patience: Patience,
    state: u64,
    now_ns: u64,
}

impl Reads {
    fn new() -> Self {
        Self { patience: Patience::default(), state: 7, now_ns: 1 }
    }

    /// Returns a number from 0 to 1.
    fn chance(&mut self) -> f64 {
        self.state = self.state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (self.state >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Makes so many reads. Returns how many of them were overdue.
    fn make(&mut self, count: u64, took_ns: impl Fn(f64) -> f64) -> u64 {
        let mut overdue = 0;
        for _ in 0..count {
            let chance = self.chance();
            let took_ns = took_ns(chance) as u64;
            overdue += u64::from(took_ns > self.patience.bound_ns());
            self.now_ns += took_ns;
            self.patience.note(took_ns, self.now_ns);
        }
        overdue
    }
}

/// Times with a median, the long ones of which are so many times as rare as they are long.
fn heavy_tail(median_ns: u64, chance: f64) -> f64 {
    median_ns as f64 * 0.5 / (1.0 - chance).max(1e-9)
}

#[test]
fn few_reads_of_a_healthy_device_are_overdue_whatever_it_takes() {
    for median_ns in [100 * US, 8 * MS, 30 * MS] {
        let mut reads = Reads::new();
        // A device that waits in queues: times spread evenly up to three times the median, and one in fifty is longer.
        let queued = |chance: f64| {
            let times = if chance > 0.98 { 8.0 } else { 3.0 * chance };
            times * median_ns as f64
        };
        reads.make(5_000, queued);
        assert!(reads.make(100_000, queued) < 1_000, "reads that take {median_ns} ns");
        let mut reads = Reads::new();
        reads.make(5_000, |chance| heavy_tail(median_ns, chance));
        let overdue = reads.make(100_000, |chance| heavy_tail(median_ns, chance));
        assert!(overdue < 1_000, "{overdue} of reads that take {median_ns} ns");
    }
}

#[test]
fn a_device_that_becomes_slower_for_good_is_soon_as_it_is() {
    let mut reads = Reads::new();
    assert_eq!(reads.make(10_000, |chance| 200_000.0 * (0.5 + chance)), 0);
    assert_eq!(reads.patience.bound_ns(), SHORTEST_NS);
    let overdue = reads.make(10_000, |chance| 100e6 * (0.5 + chance));
    assert!((1..100).contains(&overdue), "{overdue}");
    // And soon as it was: a second of reads at 5,000 per second.
    reads.make(5_000, |chance| 200_000.0 * (0.5 + chance));
    assert_eq!(reads.patience.bound_ns(), SHORTEST_NS);
}

#[test]
fn a_device_that_has_hung_once_is_waited_for_twice_as_long_at_most() {
    let mut reads = Reads::new();
    reads.make(1_000, |chance| 20e6 * (0.5 + chance));
    let before = reads.patience.bound_ns();
    reads.now_ns += 30_000 * MS;
    for _ in 0..64 {
        reads.patience.note(30_000 * MS, reads.now_ns);
    }
    assert_eq!(reads.patience.bound_ns(), 2 * before);
}

#[test]
fn the_bound_has_bounds() {
    let mut reads = Reads::new();
    assert_eq!(reads.patience.bound_ns(), SHORTEST_NS);
    reads.make(1_000, |_| 60e9);
    assert_eq!(reads.patience.bound_ns(), LONGEST_NS);
    reads.make(20_000, |_| 1e3);
    assert_eq!(reads.patience.bound_ns(), SHORTEST_NS);
}
