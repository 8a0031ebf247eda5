//! The speed at which the background copies and moves, and the time that it takes: the one way by which it is estimated.

use serde::{Deserialize, Serialize};

const SECOND_NS: u128 = 1_000_000_000;

/// Speed of something that copies or moves bytes, and the time until its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkPace {
    /// Bytes per second on average since it began, with rests; 0 if that is not known yet.
    pub bytes_per_s: u64,
    /// Bytes per second while it works: that fast it is if nobody else needs the devices. 0 if that is not known yet.
    pub work_bytes_per_s: u64,
    /// Seconds until its end at the average speed, if it is under way and that is known.
    pub left_s: Option<u64>,
}

impl WorkPace {
    /// Returns the pace of something that has done so many bytes in so many seconds, of which it has worked `work_ns`
    /// nanoseconds; `left` are the bytes that are left if it is under way.
    pub fn of(done_bytes: u64, took_s: u64, work_ns: u64, left: Option<u64>) -> Self {
        let bytes_per_s = done_bytes.checked_div(took_s).unwrap_or_default();
        let left_s = left.and_then(|left| seconds(left, bytes_per_s));
        Self { bytes_per_s, work_bytes_per_s: per_second(done_bytes, work_ns), left_s }
    }
}

/// Returns bytes per second; 0 if no time was measured.
pub fn per_second(bytes: u64, ns: u64) -> u64 {
    let per_s = (u128::from(bytes) * SECOND_NS).checked_div(ns.into()).unwrap_or_default();
    u64::try_from(per_s).unwrap_or(u64::MAX)
}

/// Returns the seconds that so many bytes take at a speed; `None` if the speed is not known.
pub fn seconds(bytes: u64, bytes_per_s: u64) -> Option<u64> {
    (bytes_per_s > 0).then(|| bytes.div_ceil(bytes_per_s))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_follow_from_bytes_and_speeds() {
        assert_eq!((seconds(100, 10), seconds(101, 10), seconds(0, 10)), (Some(10), Some(11), Some(0)));
        assert_eq!((seconds(100, 0), seconds(0, 0)), (None, None));
        assert_eq!((per_second(100, 500_000_000), per_second(100, 0)), (200, 0));
        assert_eq!(per_second(u64::MAX, 1), u64::MAX);
        let pace = WorkPace::of(1000, 10, 2_000_000_000, Some(250));
        assert_eq!(pace, WorkPace { bytes_per_s: 100, work_bytes_per_s: 500, left_s: Some(3) });
        // Work that has ended has no time left, and work that has just begun no average.
        assert_eq!(WorkPace::of(1000, 10, 0, None), WorkPace { bytes_per_s: 100, ..WorkPace::default() });
        assert_eq!(WorkPace::of(1000, 0, 1, Some(5)).left_s, None);
    }
}
