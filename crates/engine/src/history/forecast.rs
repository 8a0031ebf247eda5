//! When a pool will be full, from what it has held so far.
//!
//! The trend is the median of the slopes between all pairs of points (Theil 1950, Sen 1968). A quarter of the points may
//! be anything before it turns: a bulk load, a snapshot that was destroyed, a night of dumps. Points are spaced evenly,
//! and each has the value that held then. So gaps between samples and hours at rest count as what they were.

use super::{HOUR_SECONDS, SpaceHistory, SpaceSample};

/// Seconds of a day.
pub const DAY_SECONDS: u64 = 24 * HOUR_SECONDS;
/// Days that are looked at: whole weeks, so that each day of a week counts alike.
const DAYS: u64 = 28;
/// Days of history from which on a point is a day; with less it is an hour.
const DAYS_MIN: u64 = 7;
/// Hours that are looked at while there are no such days.
const HOURS: u64 = 48;
/// Hours of history below which nothing is forecast: the tides of a day would look like a trend.
const HOURS_MIN: u64 = 24;
/// Longest forecast in days; a pool that takes longer to be full is as good as still.
const FORECAST_DAYS_MAX: u64 = 3650;

/// Growth of a pool, and when it is full if that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Stored bytes that come to it in a day; negative if it shrinks.
    pub growth_bytes: i64,
    /// The same before compression.
    pub logical_growth_bytes: i64,
    /// Time that this follows from, in seconds.
    pub over_seconds: u64,
    /// The end of it.
    pub outlook: Outlook,
}

/// Ends of a pool's growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// It does not grow, or would take more than ten years to be full.
    Still,
    /// It will be full in so many whole days.
    Full {
        /// Number of days.
        days: u64,
    },
}

impl SpaceHistory {
    /// Returns the forecast for a pool that holds `now`, and is full with `limit_bytes`; `None` as long as there is
    /// less than a day of history.
    pub fn forecast(&self, now: SpaceSample, limit_bytes: u64) -> Option<Forecast> {
        let first = self.samples().first().filter(|first| first.time < now.time)?;
        let age = now.time - first.time;
        let (step, most) = match age {
            _ if age >= DAYS_MIN * DAY_SECONDS => (DAY_SECONDS, DAYS),
            _ if age >= HOURS_MIN * HOUR_SECONDS => (HOUR_SECONDS, HOURS),
            _ => return None,
        };
        let steps = (age / step).min(most);
        // The newest comes first.
        let points: Vec<SpaceSample> = (0..=steps).map(|back| self.at(now, now.time - back * step)).collect();
        let growth_bytes = growth(&points, step, |point| point.used_bytes);
        let left_bytes = limit_bytes.saturating_sub(now.used_bytes);
        let days = u64::try_from(growth_bytes).ok().and_then(|growth| left_bytes.checked_div(growth));
        let outlook = match days {
            Some(days) if days <= FORECAST_DAYS_MAX => Outlook::Full { days },
            _ => Outlook::Still,
        };
        let logical_growth_bytes = growth(&points, step, |point| point.logical_bytes);
        Some(Forecast { growth_bytes, logical_growth_bytes, over_seconds: steps * step, outlook })
    }

    /// Returns what the pool held at `time`.
    fn at(&self, now: SpaceSample, time: u64) -> SpaceSample {
        let before = self.samples().iter().rev().find(|sample| sample.time <= time);
        let held = if time == now.time { Some(&now) } else { before };
        SpaceSample { time, ..held.copied().unwrap_or(now) }
    }
}

/// Returns the median of the slopes between all pairs of points, in bytes per day. Points are `step` seconds apart, the
/// newest first.
fn growth(points: &[SpaceSample], step: u64, value: impl Fn(&SpaceSample) -> u64) -> i64 {
    let values: Vec<i128> = points.iter().map(|point| i128::from(value(point))).collect();
    let mut slopes = Vec::new();
    for (newer, new) in values.iter().enumerate() {
        for (steps, old) in (1_i128..).zip(values.iter().skip(newer + 1)) {
            slopes.push((new - old) * i128::from(DAY_SECONDS) / (steps * i128::from(step)));
        }
    }
    slopes.sort_unstable();
    let at = |index: usize| slopes.get(index).copied().unwrap_or_default();
    let middle = slopes.len() / 2;
    let median = match slopes.len().is_multiple_of(2) {
        true => (at(middle.saturating_sub(1)) + at(middle)) / 2,
        false => at(middle),
    };
    i64::try_from(median).unwrap_or(if median > 0 { i64::MAX } else { i64::MIN })
}
