//! Reads and writes moments as people and PostgreSQL write them: `2026-11-25 18:00:00.5+00`.

use pagefold_server::failure::{Failure, Result};
use pagefold_server::units;

const SECOND_US: i64 = 1_000_000;

/// Parses a date and a time of day with a zone, and returns microseconds since 1970. Forms: `2026-11-25 18:00:00+00`,
/// `2026-11-25T19:00:00.25+01:00`, `2026-11-25 18:00 UTC`.
///
/// Errors: the text is no moment, or has no zone.
pub fn parse(text: &str) -> Result<i64> {
    let wrong = || {
        Failure::usage(format!("\"{text}\" is no time"))
            .hint("times are written as '2026-11-25 18:00:00+00', with a zone")
    };
    let (date, rest) = text.trim().split_once(['T', ' ']).ok_or_else(wrong)?;
    let zone_at = rest.find(['+', '-', 'Z', 'U', 'z', 'u']);
    let (clock, zone) = rest.split_at(zone_at.ok_or_else(|| {
        Failure::usage(format!("\"{text}\" does not say in which zone it is"))
            .hint("write it with one: '2026-11-25 18:00:00+00'")
    })?);
    let days = days(date).ok_or_else(wrong)?;
    let micros = clock_us(clock.trim()).ok_or_else(wrong)?;
    let offset = zone_s(zone.trim()).ok_or_else(wrong)?;
    Ok(days * 86_400 * SECOND_US + micros - offset * SECOND_US)
}

fn digits<const N: usize>(text: &str) -> Option<i64> {
    let is_number = text.len() == N && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}

/// Returns days since 1970 (proleptic Gregorian calendar, counted in eras of 400 years that begin in March).
fn days(date: &str) -> Option<i64> {
    let mut parts = date.split('-');
    let (year, month, day) =
        (digits::<4>(parts.next()?)?, digits::<2>(parts.next()?)?, digits::<2>(parts.next()?)?);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if parts.next().is_some() || !(1970..=9000).contains(&year) || !(1..=length).contains(&day) {
        return None;
    }
    let shifted = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (shifted / 400, shifted % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

fn clock_us(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut parts = whole.split(':');
    let (hours, minutes) = (digits::<2>(parts.next()?)?, digits::<2>(parts.next()?)?);
    let seconds = parts.next().map_or(Some(0), digits::<2>)?;
    let is_fraction = fraction.len() <= 6 && fraction.bytes().all(|byte| byte.is_ascii_digit());
    if parts.next().is_some() || hours > 23 || minutes > 59 || seconds > 59 || !is_fraction {
        return None;
    }
    let micros: i64 = format!("{fraction:0<6}").parse().ok()?;
    Some(((hours * 60 + minutes) * 60 + seconds) * SECOND_US + micros)
}

fn zone_s(text: &str) -> Option<i64> {
    if matches!(text.to_ascii_uppercase().as_str(), "Z" | "UTC") {
        return Some(0);
    }
    let (sign, rest) = match text.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = match rest.split_once(':') {
        Some((hours, minutes)) => (hours, digits::<2>(minutes)?),
        None if rest.len() == 4 => (rest.get(..2)?, digits::<2>(rest.get(2..)?)?),
        None => (rest, 0),
    };
    let hours = digits::<2>(hours)?;
    (hours <= 15 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

/// Formats microseconds since 1970 as PostgreSQL reads them: `2026-11-25 18:00:00.500000+00`.
pub fn format(micros: i64) -> String {
    let seconds = u64::try_from(micros.div_euclid(SECOND_US)).unwrap_or_default();
    let (date, time) = units::date_and_time(seconds);
    format!("{date} {time}:{:02}.{:06}+00", seconds % 60, micros.rem_euclid(SECOND_US))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_and_written() {
        for (text, micros) in [
            ("1970-01-01 00:00:00+00", 0),
            ("2000-02-29 23:59:59.25Z", 951_868_799_250_000),
            ("2026-11-25 18:00 UTC", 1_795_629_600_000_000),
            ("2026-11-25T19:30:00.000001+01:30", 1_795_629_600_000_001),
            ("2026-11-25 10:00:00-0800", 1_795_629_600_000_000),
            ("2027-03-01 00:00:00+00", 1_803_859_200_000_000),
        ] {
            assert_eq!(parse(text).unwrap(), micros, "{text}");
            assert_eq!(parse(&format(micros)).unwrap(), micros, "{text}");
        }
        assert_eq!(format(1_795_629_600_500_000), "2026-11-25 18:00:00.500000+00");
        assert!(parse("2026-11-25 18:00:00").unwrap_err().to_string().contains("zone"));
        for bad in [
            "",
            "now+00",
            "2026-02-29 00:00+00",
            "2026-13-01 00:00+00",
            "2026-11-25 24:00+00",
            "2026-11-25 18:00:00.1234567+00",
            "2026-11-25 18+00",
            "2026-11-25 18:00:00+1",
            "2026-11-25+00",
            "26-11-25 18:00+00",
            "2026-11-25 18:00:00+é",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
