use super::*;

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

/// A device that is read all the time, and what others make of their allowance.
struct Model {
    allowance: Allowance,
    now_ns: u64,
    sums: Foreground,
    /// Reads in each millisecond; 0 for none.
    reads_per_ms: u64,
    commits_per_ms: u64,
    /// The time that a read takes alone, and how much more for each other request in flight, in microseconds.
    alone_us: u64,
    each_us: u64,
    /// Number of milliseconds in which others were in flight; and all of them.
    busy_ms: u64,
    ms: u64,
    /// Sum of the times of reads in those since the last report.
    others_until_ns: u64,
    in_flight: u32,
}

impl Model {
    fn new(alone_us: u64, each_us: u64) -> Self {
        Self {
            allowance: Allowance::default(),
            now_ns: S,
            sums: Foreground::default(),
            reads_per_ms: 1,
            commits_per_ms: 0,
            alone_us,
            each_us,
            busy_ms: 0,
            ms: 0,
            others_until_ns: 0,
            in_flight: 0,
        }
    }

    /// Lets time pass, in which others always want more: their requests take 2 ms.
    fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now_ns += MS;
            let read_us = self.alone_us + self.each_us * u64::from(self.in_flight);
            self.sums.reads += self.reads_per_ms;
            self.sums.reads_ns += self.reads_per_ms * read_us * 1000;
            self.sums.committed_bytes += self.commits_per_ms;
            if self.in_flight > 0 && self.now_ns >= self.others_until_ns {
                self.in_flight = 0;
                self.look();
                self.allowance.ended(self.now_ns, 2 * MS);
            }
            self.look();
            let limit = self.allowance.limit(self.now_ns);
            if self.in_flight == 0 && self.now_ns >= limit.from_ns && limit.requests > 0 {
                self.in_flight = limit.requests;
                self.others_until_ns = self.now_ns + 2 * MS;
            }
            self.ms += 1;
            self.busy_ms += u64::from(self.in_flight > 0);
        }
    }

    fn look(&mut self) {
        let sums = self.sums;
        self.allowance.look(self.now_ns, self.in_flight > 0, self.reads_per_ms > 0, || sums);
    }

    /// Returns the mean time of reads while time passes, in microseconds.
    fn mean_us(&mut self, ms: u64) -> u64 {
        let before = self.sums;
        self.run(ms);
        (self.sums.reads_ns - before.reads_ns) / (self.sums.reads - before.reads) / 1000
    }

    fn requests(&self) -> u32 {
        self.allowance.requests_and_rest().0
    }
}

#[test]
fn a_device_that_nobody_reads_is_the_others() {
    let mut model = Model::new(100, 0);
    model.reads_per_ms = 0;
    model.run(1000);
    assert_eq!(model.requests(), 16);
    assert_eq!(model.busy_ms, model.ms);
}

#[test]
fn commits_alone_leave_one_request_at_a_time() {
    let mut model = Model::new(100, 0);
    (model.reads_per_ms, model.commits_per_ms) = (0, 1);
    model.run(3000);
    assert_eq!(model.requests(), 1);
    assert!(model.busy_ms > model.ms / 2);
    model.commits_per_ms = 0;
    model.run(3000);
    assert_eq!(model.requests(), 16);
}

/// Measured: beside reads and a load, a scrub and a filling that no read felt took three tenths of the load's speed.
#[test]
fn commits_beside_reads_leave_one_request_for_half_of_the_time() {
    let mut model = Model::new(100, 1);
    model.commits_per_ms = 1;
    model.run(20_000);
    assert_eq!(model.requests(), 1);
    (model.busy_ms, model.ms) = (0, 0);
    model.run(20_000);
    assert!(
        model.busy_ms > model.ms / 4 && model.busy_ms < model.ms * 6 / 10,
        "{} of {}",
        model.busy_ms,
        model.ms
    );
    model.commits_per_ms = 0;
    model.run(20_000);
    assert_eq!(model.requests(), 16);
}

#[test]
fn others_get_all_that_reads_do_not_feel() {
    let mut model = Model::new(100, 1);
    model.run(20_000);
    assert_eq!(model.requests(), 16);
}

#[test]
fn reads_take_about_what_they_take_alone() {
    // The least that others get is a sixteenth of the time, whatever reads feel.
    for (each_us, most_us) in [(100, 250), (1000, 300), (10_000, 1500)] {
        let mut model = Model::new(100, each_us);
        model.run(10_000);
        let mean_us = model.mean_us(60_000);
        assert!(mean_us < most_us, "{mean_us} us in the mean, each {each_us}");
        assert!(model.busy_ms > 0, "others do not starve");
    }
}

#[test]
fn reads_that_come_find_less_of_others_at_once() {
    let mut model = Model::new(100, 0);
    model.reads_per_ms = 0;
    model.run(5000);
    model.reads_per_ms = 1;
    model.run(3);
    assert!(model.allowance.step <= BEGIN);
}

#[test]
fn reads_that_take_longer_by_themselves_are_no_reason_for_long() {
    let mut model = Model::new(100, 1);
    model.run(20_000);
    model.alone_us = 5000;
    model.run(60_000);
    assert_eq!(model.requests(), 16, "{:?}", model.allowance);
}

#[test]
fn listening_takes_a_small_part_of_the_time() {
    let mut model = Model::new(100, 0);
    model.run(20_000);
    (model.busy_ms, model.ms) = (0, 0);
    model.run(60_000);
    assert!(
        model.busy_ms > model.ms * 9 / 10 && model.busy_ms < model.ms,
        "{} of {}",
        model.busy_ms,
        model.ms
    );
}

#[test]
fn few_reads_do_not_keep_others_waiting() {
    let mut model = Model::new(100, 0);
    model.reads_per_ms = 0;
    let mut busy = 0;
    for _ in 0..50 {
        model.run(99);
        model.reads_per_ms = 1;
        model.run(1);
        model.reads_per_ms = 0;
        busy = model.busy_ms;
    }
    assert!(busy > model.ms / 4, "{busy} of {}", model.ms);
}
