//! The part of a device that requests which wait may take: reads that somebody waits for hardly feel it.
//! Arithmetic alone, which is told the time.
//!
//! The allowance is one of [`STEPS`]. Each window of time in which there were reads is judged by their mean time: if it is more
//! than twice what they take alone, the allowance is halved; otherwise it grows by a step. What they take alone is seen
//! while there is nothing else, and otherwise found out by listening: now and then nobody else goes for a moment (X6).

use super::turns::Limit;

/// Steps of the allowance, from the least to the most: requests in flight; and the time for which none begins after one has
/// ended, in times that this one took.
const STEPS: [(u32, u64); 9] = [(1, 15), (1, 7), (1, 3), (1, 1), (1, 0), (2, 0), (4, 0), (8, 0), (16, 0)];
/// The step to begin with when reads come.
const BEGIN: usize = 2;
/// Largest step while there are commits, and no reads: one request at a time.
const BESIDE_COMMITS: usize = 4;
/// Largest step while there are both: one request at a time, for half of the time. Reads alone do not tell what a load
/// loses.
const BESIDE_BOTH: usize = 3;
/// Length of a window.
const WINDOW_NS: u64 = 100_000_000;
/// Windows of more than this say nothing about how things are now.
const OLD_NS: u64 = 1_000_000_000;
/// Number of reads from which on their mean says something at once.
const FEW: u64 = 4;
/// Reads suffer if they take more than so many times as long as alone.
const SUFFERS: u64 = 2;
/// After this time it is found out again how long reads take alone.
const LISTEN_NS: u64 = 5_000_000_000;
/// Number of windows for which others may take to come to their end when the queue listens.
const SETTLING_WINDOWS: u32 = 3;
/// A time without others from which on it belongs to no window.
const GAP_NS: u64 = 10_000_000;
/// A time without others from which on it says what reads take alone.
const ALONE_NS: u64 = 50_000_000;
/// A step at which reads suffered is tried again after this time.
const PATIENCE_NS: u64 = 4_000_000_000;
/// Longest time for which nobody begins after a request.
const REST_MAX_NS: u64 = 250_000_000;

/// Sums, since the device was opened, of what the allowance depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Foreground {
    /// Reads that somebody waited for, and the nanoseconds that they took.
    pub(super) reads: u64,
    pub(super) reads_ns: u64,
    /// Bytes that commits have written.
    pub(super) committed_bytes: u64,
}

/// The part that a window has in finding out what is allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Listening {
    /// Nobody reads.
    #[default]
    Quiet,
    /// Reads, and others beside them.
    Beside,
    /// Nobody else begins, and those who have begun come to their end.
    Settling,
    /// Reads alone.
    Alone,
}

/// The part of a device that requests which wait may take.
#[derive(Debug)]
pub(super) struct Allowance {
    step: usize,
    /// The step at which reads suffered lately, and the instant from which on it may be tried again.
    ceiling: (usize, u64),
    /// The time that a read takes alone, in nanoseconds; `None` if it is not known.
    alone_ns: Option<u64>,
    /// The instant at which that was found out, or could not be.
    listened_ns: Option<u64>,
    listening: Listening,
    /// Number of windows for which others have been coming to their end.
    settling: u32,
    /// Begin of the window, with the sums then.
    began_ns: u64,
    began: Foreground,
    /// True if others were in flight in this window.
    others: bool,
    /// The instant since which there are no others, with the sums then.
    idle: Option<(u64, Foreground)>,
    /// The instant from which on the next request may begin.
    from_ns: u64,
}

impl Default for Allowance {
    fn default() -> Self {
        let (began_ns, began) = Default::default();
        let (step, ceiling) = (STEPS.len() - 1, (STEPS.len(), 0));
        Self {
            step,
            ceiling,
            alone_ns: None,
            listened_ns: None,
            listening: Listening::Quiet,
            settling: 0,
            began_ns,
            began,
            others: false,
            idle: None,
            from_ns: 0,
        }
    }
}

impl Allowance {
    /// Looks at what has happened; to be called whenever a request comes, waits or ends. `others` is true if requests
    /// that have waited are in flight, `reads` if reads are.
    pub(super) fn look(&mut self, now_ns: u64, others: bool, reads: bool, sums: impl FnOnce() -> Foreground) {
        self.others |= others;
        if self.listening == Listening::Quiet && reads && self.step > BEGIN {
            // Nobody has read for a while: others have had all of the device until now.
            self.step = BEGIN;
            self.listening = Listening::Beside;
            return self.begin_window(now_ns, sums(), others);
        }
        let length_ns = now_ns.saturating_sub(self.began_ns);
        if length_ns < WINDOW_NS {
            return;
        }
        let sums = sums();
        let read = sums.reads.saturating_sub(self.began.reads);
        let few_ns = match self.listening {
            Listening::Settling => WINDOW_NS,
            Listening::Alone => 3 * WINDOW_NS,
            Listening::Quiet | Listening::Beside => OLD_NS,
        };
        if read < FEW && (read > 0 || reads) && length_ns < few_ns {
            return;
        }
        let commits = sums.committed_bytes > self.began.committed_bytes;
        match sums.reads_ns.saturating_sub(self.began.reads_ns).checked_div(read) {
            Some(mean_ns) => self.judge(mean_ns, (now_ns, length_ns), others),
            // A read takes longer than the window.
            None if reads => self.judge(length_ns, (now_ns, length_ns), others),
            None => self.quiet(length_ns, commits),
        }
        if commits && self.listening != Listening::Quiet {
            self.step = self.step.min(BESIDE_BOTH);
        }
        self.begin_window(now_ns, sums, others);
    }

    /// Notes that there are no others from now on, neither in flight nor waiting.
    pub(super) fn rest(&mut self, now_ns: u64, sums: Foreground) {
        self.idle = Some((now_ns, sums));
    }

    /// Notes that there are others again, if there were none. The time between belongs to no window, and says what reads take
    /// alone.
    pub(super) fn resume(&mut self, now_ns: u64, sums: impl FnOnce() -> Foreground) {
        let Some((since_ns, before)) = self.idle.take() else { return };
        let gap_ns = now_ns.saturating_sub(since_ns);
        if gap_ns < GAP_NS || self.listening == Listening::Quiet {
            return;
        }
        let sums = sums();
        let (read, read_ns) =
            (sums.reads.saturating_sub(before.reads), sums.reads_ns.saturating_sub(before.reads_ns));
        if gap_ns >= ALONE_NS && read >= FEW && gap_ns < OLD_NS {
            self.hear(read_ns / read, now_ns);
        }
        if gap_ns < OLD_NS {
            self.began_ns += gap_ns;
            self.began.reads += read;
            self.began.reads_ns += read_ns;
        }
    }

    /// Notes what a read takes alone.
    fn hear(&mut self, alone_ns: u64, now_ns: u64) {
        // One moment may be an odd one.
        let before_ns = self.alone_ns.unwrap_or(alone_ns);
        self.alone_ns = Some((before_ns / 2).saturating_add(alone_ns / 2).max(1));
        self.listened_ns = Some(now_ns);
        if matches!(self.listening, Listening::Settling | Listening::Alone) {
            self.listening = Listening::Beside;
        }
    }

    fn begin_window(&mut self, now_ns: u64, sums: Foreground, others: bool) {
        (self.began_ns, self.began, self.others) = (now_ns, sums, others);
    }

    /// Ends a window without reads.
    fn quiet(&mut self, length_ns: u64, commits: bool) {
        self.listening = Listening::Quiet;
        let all = STEPS.len() - 1;
        self.step = match commits {
            _ if length_ns > OLD_NS => all,
            true => (self.step + 2).min(BESIDE_COMMITS),
            false => (self.step + 2).min(all),
        };
    }

    /// Ends a window with reads, which took `mean_ns`.
    fn judge(&mut self, mean_ns: u64, (now_ns, length_ns): (u64, u64), others: bool) {
        if self.listening == Listening::Quiet {
            self.step = self.step.min(BEGIN);
        }
        match self.listening {
            Listening::Settling if !others => {
                self.listening = Listening::Alone;
                return;
            }
            Listening::Settling if self.settling < SETTLING_WINDOWS => {
                self.settling += 1;
                return;
            }
            // They do not come to their end, or one has gone that could not wait: later, then.
            Listening::Settling => self.listened_ns = Some(now_ns),
            Listening::Alone if self.others => self.listened_ns = Some(now_ns),
            _ if !self.others && length_ns <= OLD_NS => self.hear(mean_ns, now_ns),
            _ if self.others => self.change_step(mean_ns, now_ns),
            _ => {}
        }
        let is_fresh = self.listened_ns.is_some_and(|at_ns| now_ns < at_ns + LISTEN_NS);
        self.listening = if is_fresh { Listening::Beside } else { Listening::Settling };
        self.settling = 0;
    }

    fn change_step(&mut self, mean_ns: u64, now_ns: u64) {
        let Some(alone_ns) = self.alone_ns else {
            self.step = self.step.min(BEGIN);
            return;
        };
        if mean_ns > alone_ns.saturating_mul(SUFFERS) {
            // At the lowest steps others are hardly the reason: processors are busy, or there is more to read.
            self.ceiling = (self.step.max(BEGIN + 1), now_ns + PATIENCE_NS);
            self.step /= 2;
            return;
        }
        let (ceiling, until_ns) = self.ceiling;
        if self.step + 1 < ceiling || now_ns >= until_ns {
            self.step = (self.step + 1).min(STEPS.len() - 1);
        }
    }

    fn requests_and_rest(&self) -> (u32, u64) {
        STEPS.get(self.step).copied().unwrap_or((1, 0))
    }

    /// Returns what may be taken now.
    pub(super) fn limit(&self, now_ns: u64) -> Limit {
        match self.listening {
            Listening::Settling | Listening::Alone => {
                // A window may last longer than it should: then it is looked at again soon.
                let from_ns = (self.began_ns + WINDOW_NS).max(now_ns + WINDOW_NS / 10);
                Limit { requests: 0, from_ns }
            }
            Listening::Quiet | Listening::Beside => {
                Limit { requests: self.requests_and_rest().0, from_ns: self.from_ns }
            }
        }
    }

    /// Notes that a request has ended which took so long at the device.
    pub(super) fn ended(&mut self, now_ns: u64, took_ns: u64) {
        let rest_ns = took_ns.saturating_mul(self.requests_and_rest().1).min(REST_MAX_NS);
        self.from_ns = now_ns.saturating_add(rest_ns);
    }
}

#[cfg(test)]
mod tests;
