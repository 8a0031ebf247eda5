//! Reads and writes sizes, ratios, rates and times as people do.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::failure::{Failure, Result};

const SUFFIXES: [&str; 7] = ["B", "K", "M", "G", "T", "P", "E"];

/// Parses a rate in bytes per second, which is a size other than 0.
pub fn parse_rate(text: &str) -> Result<u64> {
    match parse_size(text)? {
        0 => Err(Failure::usage(format!("at a rate of \"{text}\" nothing would ever be done"))
            .hint("rates are written as 512K, 50M or 1G (bytes per second); without one there is no bound")),
        rate => Ok(rate),
    }
}

/// Parses a size in bytes such as `10G`, `512M`, `1.5T`, `4096`, `16KiB`: units are powers of 1024.
pub fn parse_size(text: &str) -> Result<u64> {
    let wrong = || {
        Failure::usage(format!("\"{text}\" is not a size"))
            .hint("sizes are written as 4096, 64K, 512M, 10G or 1.5T (powers of 1024)")
    };
    let text_trimmed = text.trim();
    let split = text_trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text_trimmed.len());
    let (digits, suffix) = text_trimmed.split_at(split);
    let suffix = suffix.trim().to_ascii_uppercase();
    let power = match suffix.as_str() {
        "" | "B" => 0,
        other => {
            let letter = other.strip_suffix("IB").or_else(|| other.strip_suffix('B')).unwrap_or(other);
            SUFFIXES[1..].iter().position(|s| *s == letter).ok_or_else(wrong)? + 1
        }
    };
    let unit = 1u64 << (10 * power);
    if let Ok(whole) = digits.parse::<u64>() {
        return whole.checked_mul(unit).ok_or_else(wrong);
    }
    let value: f64 = digits.parse().map_err(|_| wrong())?;
    let bytes = value * unit as f64;
    // A part of a byte is no size: for quotas, 0 means that there is none.
    let is_less_than_a_byte = value > 0.0 && bytes < 1.0;
    if !bytes.is_finite() || bytes < 0.0 || bytes >= u64::MAX as f64 || is_less_than_a_byte {
        return Err(wrong());
    }
    Ok(bytes as u64)
}

/// Formats bytes with three significant digits: `512B`, `1.25G`, `37.1M`, `120K`.
pub fn size(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, bytes < 1024)
}

/// Formats a count or rate with three significant digits, in powers of 1000: `950`, `12.3K`.
pub fn count(value: f64) -> String {
    if value < 1000.0 {
        return if value < 10.0 && value.fract() >= 0.05 {
            format!("{value:.1}")
        } else {
            format!("{value:.0}")
        };
    }
    scaled(value, 1000.0, false)
}

/// Returns a count with its noun, which takes an s unless the count is 1: `1 pack`, `2 packs`.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn scaled(mut value: f64, base: f64, whole: bool) -> String {
    let mut power = 0;
    while value >= base - 0.5 && power + 1 < SUFFIXES.len() {
        value /= base;
        power += 1;
    }
    let suffix = SUFFIXES[power];
    if whole {
        format!("{value:.0}{suffix}")
    } else if value < 9.995 {
        format!("{value:.2}{suffix}")
    } else if value < 99.95 {
        format!("{value:.1}{suffix}")
    } else {
        format!("{value:.0}{suffix}")
    }
}

/// Formats a time with three significant digits: `512ns`, `85.3us`, `1.25ms`, `12.0s`.
pub fn nanoseconds(ns: u64) -> String {
    let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
    let fits = |(_, unit): &&(&str, f64)| (ns as f64 / unit) < 999.5;
    let (suffix, unit) = units.iter().find(fits).copied().unwrap_or(("s", 1e9));
    let value = ns as f64 / unit;
    match value {
        _ if unit == 1.0 || value >= 99.95 => format!("{value:.0}{suffix}"),
        _ if value >= 9.995 => format!("{value:.1}{suffix}"),
        _ => format!("{value:.2}{suffix}"),
    }
}

/// Returns `logical / stored`, or `None` if either is zero.
pub fn ratio(logical: u64, stored: u64) -> Option<f64> {
    (stored > 0 && logical > 0).then(|| logical as f64 / stored as f64)
}

/// Formats a ratio as `4.21x`; `-` if there is none.
pub fn ratio_text(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".into(), |r| format!("{r:.2}x"))
}

/// Formats a share of a whole as `12%`; `-` if the whole is zero.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".into();
    }
    format!("{:.0}%", part as f64 * 100.0 / whole as f64)
}

/// Share of the capacity of a pool or quota, in per cent, from which on it counts as nearly full.
pub const FULL_PERCENT: u64 = 80;

/// Share of a pool's capacity, in per cent, from which on it is a problem: databases stop when nothing is left.
pub const PROBLEM_PERCENT: u64 = 95;

/// Days until a pool is full, as forecast, below which that is a warning.
pub const FULL_DAYS: u64 = 30;

/// Returns used bytes in per cent of a capacity, rounded down.
pub fn hundredths(used_bytes: u64, capacity_bytes: u64) -> u64 {
    let percent = u128::from(used_bytes) * 100 / u128::from(capacity_bytes.max(1));
    u64::try_from(percent).unwrap_or(u64::MAX)
}

/// Returns the present time in seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Formats a length of time in its largest unit: `42s`, `17m`, `5h`, `12d`.
pub fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Formats seconds since the epoch as `2026-11-20 18:30:05 UTC`.
pub fn utc(seconds: u64) -> String {
    let (date, time) = date_and_time(seconds);
    format!("{date} {time}:{:02} UTC", seconds % 60)
}

/// Returns date and time of day in UTC, to the minute: `2026-11-21`, `13:07`.
pub fn date_and_time(seconds: u64) -> (String, String) {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    (format!("{year:04}-{month:02}-{day:02}"), format!("{:02}:{:02}", rest / 3600, rest / 60 % 60))
}

/// Returns year, month and day for a number of days since 1970-01-01 (proleptic Gregorian calendar, counted in eras of
/// 400 years that begin in March, so that the leap day comes last).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        let told =
            [0, 999, 1000, 1024, 85_310, 999_499, 999_500, 1_250_000, 17_179_869_184, 2_000_000_000_000];
        let texts =
            ["0ns", "999ns", "1.00us", "1.02us", "85.3us", "999us", "1.00ms", "1.25ms", "17.2s", "2000s"];
        assert_eq!(told.map(nanoseconds), texts);
    }

    #[test]
    fn sizes_are_read_in_powers_of_1024() {
        assert_eq!(parse_size("4096").unwrap(), 4096);
        assert_eq!(parse_size("10G").unwrap(), 10 << 30);
        assert_eq!(parse_size("512m").unwrap(), 512 << 20);
        assert_eq!(parse_size("16KiB").unwrap(), 16 << 10);
        assert_eq!(parse_size("1.5T").unwrap(), 3 << 39);
        assert_eq!(parse_size("15E").unwrap(), 15 << 60);
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in
            ["", "G", "ten", "-5G", "10X", "1.2.3M", "99999999999E", "16E", "1e5", "NaN", "inf", "5 5"]
        {
            let failure = parse_size(text).unwrap_err();
            assert_eq!(failure.exit_status(), 2, "{text}");
        }
    }

    #[test]
    fn a_rate_of_nothing_is_refused() {
        assert_eq!(parse_rate("50M").unwrap(), 50 << 20);
        for text in ["0", "0M", "0.1B", "fast"] {
            assert_eq!(parse_rate(text).unwrap_err().exit_status(), 2, "{text}");
        }
    }

    #[test]
    fn sizes_are_written_in_three_digits() {
        let cases = [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1.00K"),
            (1_342_177_280, "1.25G"),
            (10 << 30, "10.0G"),
            (120 << 10, "120K"),
            ((1 << 20) - 1, "1.00M"),
            (u64::MAX, "16.0E"),
        ];
        for (bytes, text) in cases {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn every_written_size_can_be_read_again() {
        for bytes in [0u64, 1, 999, 4096, 123_456_789, 1 << 40] {
            let read = parse_size(&size(bytes)).unwrap();
            assert!(read.abs_diff(bytes) * 100 <= bytes, "{bytes} became {read}");
        }
    }

    #[test]
    fn ratios_and_rates() {
        assert_eq!(ratio_text(ratio(421, 100)), "4.21x");
        assert_eq!(ratio_text(ratio(1, 0)), "-");
        assert_eq!(ratio_text(ratio(0, 184)), "-");
        assert_eq!(count(0.0), "0");
        assert_eq!(count(2.5), "2.5");
        assert_eq!(count(12_345.0), "12.3K");
        assert_eq!(percent(1, 3), "33%");
        assert_eq!(percent(1, 0), "-");
    }

    #[test]
    fn ages() {
        let cases = [(0, "0s"), (59, "59s"), (60, "1m"), (7199, "1h"), (86_399, "23h"), (1_000_000, "11d")];
        for (seconds, text) in cases {
            assert_eq!(age(seconds), text);
        }
    }

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(1_795_199_405), "2026-11-20 18:30:05 UTC");
    }
}
