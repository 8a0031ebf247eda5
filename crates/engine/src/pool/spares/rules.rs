//! Says when a spare steps in for a device: decides by what is known of the device, and touches nothing.

use std::collections::VecDeque;

use crate::device::MemberState;

/// Time within which errors and slow moments of a device are added up, in seconds.
const WINDOW_S: u64 = 600;
/// Number of moments of that time at which a device is slow, by which it is taken for one that fails.
const SLOW_MOMENTS: u64 = 10;
/// A device is slow only if it takes more than this many times as long as the fastest one of its mirror.
const SLOW_TIMES: u64 = 4;
/// Largest number of moments that are kept: what comes sooner than a second after another one is added to that.
const MOMENTS_MAX: usize = WINDOW_S as usize + 1;

/// The property of a pool that says how long a device of a mirror is waited for that does not answer, while others do.
pub(super) const DEVICE_WAIT: &str = "devicewait";

/// Names of the properties of a pool that say when a device is left out, and when a spare steps in for one.
pub const DEVICE_RULES: [&str; 5] = [DEVICE_WAIT, "autospare", "sparewait", "spareerrors", "spareslow"];

/// Returns the nanoseconds of a value of [`DEVICE_WAIT`], 0 for `none`.
pub(super) fn device_wait_ns(value: &str) -> Option<u64> {
    match value {
        "none" => Some(0),
        _ => seconds(value).filter(|seconds| *seconds > 0)?.checked_mul(1_000_000_000),
    }
}

/// The rules by which spares step in, as properties of the pool set them. `None`: never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpareRules {
    /// False if no spare steps in by itself.
    pub(super) on: bool,
    /// Seconds for which a device has to be missing.
    missing_s: Option<u64>,
    /// Number of failed reads, or of wrong checksums, within [`WINDOW_S`].
    errors: Option<u64>,
    /// Mean time of a read, in nanoseconds, from which on the device is slow.
    slow_ns: Option<u64>,
}

impl Default for SpareRules {
    fn default() -> Self {
        Self { on: true, missing_s: Some(300), errors: Some(10), slow_ns: Some(1_000_000_000) }
    }
}

impl SpareRules {
    /// Takes the value of a property. Returns false if it cannot have that, or is none of those about spares.
    pub(super) fn set(&mut self, name: &str, value: &str) -> bool {
        match (name, value) {
            ("autospare", "on" | "off") => self.on = value == "on",
            ("sparewait", "none") => self.missing_s = None,
            ("sparewait", _) => match seconds(value) {
                Some(seconds) => self.missing_s = Some(seconds),
                None => return false,
            },
            ("spareerrors", "none") => self.errors = None,
            ("spareerrors", _) => match value.parse::<u64>() {
                Ok(errors) if errors > 0 => self.errors = Some(errors),
                _ => return false,
            },
            ("spareslow", "none") => self.slow_ns = None,
            ("spareslow", _) => match value.strip_suffix("ms").and_then(|ms| ms.parse::<u64>().ok()) {
                Some(ms) if ms > 0 => self.slow_ns = ms.checked_mul(1_000_000),
                _ => return false,
            },
            _ => return false,
        }
        true
    }
}

/// Returns the seconds of a text such as `30s`, `5m`, `1h`, `1d`.
fn seconds(text: &str) -> Option<u64> {
    let unit = text.chars().last()?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return None,
    };
    text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(seconds)
}

/// Why a spare steps in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The device was left out, since it failed a write or a flush.
    Faulted,
    /// It is not here, for so many seconds.
    Missing(u64),
    /// It failed so many reads lately.
    ReadErrors(u64),
    /// The number of its reads that did not have their checksum lately.
    ChecksumErrors(u64),
    /// It took very long for its reads, at so many moments.
    Slow(u64),
}

impl Cause {
    /// Returns true if the device is in use still: then only the user can say that it is mended.
    pub(super) const fn is_suspicion(self) -> bool {
        matches!(self, Self::ReadErrors(_) | Self::ChecksumErrors(_) | Self::Slow(_))
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let minutes = WINDOW_S / 60;
        match self {
            Self::Faulted => write!(f, "it failed a write"),
            Self::Missing(seconds) => write!(f, "it is missing for {seconds} seconds"),
            Self::ReadErrors(errors) => write!(f, "it failed {errors} reads within {minutes} minutes"),
            Self::ChecksumErrors(errors) => {
                write!(f, "it read wrong {errors} times within {minutes} minutes")
            }
            Self::Slow(_) => write!(f, "its reads took too long, for some of the last {minutes} minutes"),
        }
    }
}

/// A device, as it is known at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceSeen {
    pub(super) state: MemberState,
    /// Reads that failed, and that did not have their checksum, since the counts were cleared.
    pub(super) counts: [u64; 2],
    /// Mean time of its reads, and of the reads of the fastest device beside it, in nanoseconds; 0: not known.
    pub(super) latency_ns: (u64, u64),
}

/// A device, as it was seen lately.
#[derive(Clone, Debug, Default)]
pub(super) struct DeviceWatch {
    /// Time at which it was missing first, in seconds.
    missing_since: Option<u64>,
    counts: Option<[u64; 2]>,
    /// Times, with the failed reads, wrong checksums and slow moments since the one before.
    moments: VecDeque<(u64, [u64; 3])>,
    /// True if it was missing for too long at the last look.
    missing_long: bool,
}

impl DeviceWatch {
    /// Notes what is known of the device at `now`, and returns why a spare is to step in, if one is.
    pub(super) fn look(&mut self, rules: &SpareRules, now: u64, seen: &DeviceSeen) -> Option<Cause> {
        let before = self.counts.replace(seen.counts).unwrap_or(seen.counts);
        if seen.state == MemberState::Away {
            let since = *self.missing_since.get_or_insert(now);
            let missing_s = now.saturating_sub(since);
            self.missing_long = rules.missing_s.is_some_and(|wait| missing_s >= wait);
            return self.missing_long.then_some(Cause::Missing(missing_s));
        }
        (self.missing_since, self.missing_long) = (None, false);
        match seen.state {
            MemberState::Faulted => return Some(Cause::Faulted),
            MemberState::Whole => {}
            _ => {
                self.moments.clear();
                return None;
            }
        }
        let ([reads, checksums], [reads_before, checksums_before]) = (seen.counts, before);
        let errors = [reads.saturating_sub(reads_before), checksums.saturating_sub(checksums_before)];
        let (own, fastest) = seen.latency_ns;
        let is_slow =
            rules.slow_ns.is_some_and(|slow| own >= slow) && (fastest == 0 || own / SLOW_TIMES >= fastest);
        let [reads, checksums] = errors;
        self.note(now, [reads, checksums, u64::from(is_slow)]);
        let [reads, checksums, slow] = self
            .moments
            .iter()
            .fold([0; 3], |[r, c, s], (_, [reads, checksums, slow])| [r + reads, c + checksums, s + slow]);
        let many = |errors: u64| rules.errors.is_some_and(|most| errors >= most);
        match () {
            () if many(reads) => Some(Cause::ReadErrors(reads)),
            () if many(checksums) => Some(Cause::ChecksumErrors(checksums)),
            () if rules.slow_ns.is_some() && slow >= SLOW_MOMENTS => Some(Cause::Slow(slow)),
            () => None,
        }
    }

    fn note(&mut self, now: u64, found: [u64; 3]) {
        self.moments.retain(|(at, _)| now.saturating_sub(*at) <= WINDOW_S);
        if found == [0; 3] {
            return;
        }
        let is_room = self.moments.len() < MOMENTS_MAX;
        match self.moments.back_mut() {
            Some((at, known)) if *at >= now => {
                known.iter_mut().zip(found).take(2).for_each(|(known, found)| *known += found);
            }
            _ if is_room => self.moments.push_back((now, found)),
            _ => {}
        }
    }

    /// Returns true if the device was missing for too long at the last look.
    pub(super) const fn is_missing_long(&self) -> bool {
        self.missing_long
    }

    /// Forgets what was seen: the device is said to be mended.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: DeviceSeen = DeviceSeen { state: MemberState::Whole, counts: [0; 2], latency_ns: (0, 0) };

    fn looks(rules: &SpareRules, all: impl IntoIterator<Item = (u64, DeviceSeen)>) -> Vec<Option<Cause>> {
        let mut watch = DeviceWatch::default();
        all.into_iter().map(|(now, seen)| watch.look(rules, now, &seen)).collect()
    }

    #[test]
    fn a_device_that_failed_is_replaced_at_once_and_one_that_is_missing_after_a_while() {
        let rules = SpareRules::default();
        let seen = |state| DeviceSeen { state, ..WHOLE };
        assert_eq!(looks(&rules, [(5, seen(MemberState::Faulted))]), [Some(Cause::Faulted)]);
        for state in [MemberState::Offline, MemberState::Filling, MemberState::Whole] {
            assert_eq!(looks(&rules, [(5, seen(state)), (5000, seen(state))]), [None, None]);
        }
        let away = [0, 299, 300].map(|now| (now, seen(MemberState::Away)));
        assert_eq!(looks(&rules, away), [None, None, Some(Cause::Missing(300))]);
        // It was here in between.
        let away = [0, 200, 310, 500]
            .map(|now| (now, seen(if now == 200 { MemberState::Filling } else { MemberState::Away })));
        assert_eq!(looks(&rules, away), [None; 4]);
    }

    #[test]
    fn errors_count_that_came_within_the_window() {
        let rules = SpareRules::default();
        let seen = |counts| DeviceSeen { counts, ..WHOLE };
        // Those from before the first look do not.
        let told = looks(&rules, [(0, seen([50, 50])), (5, seen([59, 50])), (10, seen([60, 50]))]);
        assert_eq!(told, [None, None, Some(Cause::ReadErrors(10))]);
        let told =
            looks(&rules, [(0, seen([0, 0])), (5, seen([0, 9])), (606, seen([0, 18])), (610, seen([0, 19]))]);
        assert_eq!(told, [None, None, None, Some(Cause::ChecksumErrors(10))]);
        // They were cleared meanwhile.
        let told = looks(&rules, [(0, seen([8, 0])), (5, seen([0, 0])), (9, seen([9, 0]))]);
        assert_eq!(told, [None; 3]);
    }

    #[test]
    fn a_device_is_slow_if_it_was_so_at_many_moments() {
        let rules = SpareRules::default();
        let seen = |own, fastest| DeviceSeen { latency_ns: (own, fastest), ..WHOLE };
        let second = 1_000_000_000;
        let told = looks(&rules, (0..10).map(|at| (at * 5, seen(second, 1))));
        assert_eq!(told.last(), Some(&Some(Cause::Slow(10))));
        assert!(told.iter().take(9).all(Option::is_none));
        for (own, fastest) in [(second - 1, 1), (second, second / 2)] {
            let told = looks(&rules, (0..50).map(|at| (at * 5, seen(own, fastest))));
            assert!(told.iter().all(Option::is_none), "{own} beside {fastest}");
        }
        // Many looks at one moment are one.
        assert!(looks(&rules, (0..50).map(|_| (5, seen(second, 1)))).iter().all(Option::is_none));
    }

    #[test]
    fn properties_set_the_rules() {
        let mut rules = SpareRules::default();
        for (name, value) in [
            ("autospare", "maybe"),
            ("sparewait", "5"),
            ("sparewait", "m"),
            ("spareerrors", "0"),
            ("spareslow", "1s"),
            ("spare", "on"),
        ] {
            assert!(!rules.set(name, value), "{name}={value}");
        }
        assert_eq!(rules, SpareRules::default());
        for (name, value) in
            [("autospare", "on"), ("sparewait", "5m"), ("spareerrors", "10"), ("spareslow", "1000ms")]
        {
            assert!(rules.set(name, value), "{name}={value}");
        }
        assert_eq!(rules, SpareRules::default());
        for name in ["sparewait", "spareerrors", "spareslow"] {
            assert!(rules.set(name, "none"));
        }
        let never = SpareRules { on: true, missing_s: None, errors: None, slow_ns: None };
        assert_eq!(rules, never);
        let bad = DeviceSeen { counts: [100; 2], latency_ns: (u64::MAX, 1), ..WHOLE };
        let away = DeviceSeen { state: MemberState::Away, ..WHOLE };
        assert!(looks(&never, [(0, WHOLE), (1, bad)]).iter().all(Option::is_none));
        assert!(looks(&never, [(0, away), (1 << 40, away)]).iter().all(Option::is_none));
    }
}
