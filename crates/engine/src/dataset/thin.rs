//! Thin capacity: the space that mounts tell where `logicalcapacity` is set, in bytes before compression.
//!
//! It is told, never enforced: what is accepted is decided by stored bytes alone. Two rules keep what is told honest:
//!
//! - T1: where nothing is accepted, nothing is told to be available.
//! - T2: of data that compress as what is stored, all that is told to be available is accepted, in calls of up to 1 MiB;
//!   of any other data, at least the part of it that is left when it is divided by the expansion.

use std::fmt;
use std::str::FromStr;

use super::Space;
use crate::{Error, Result};

/// Value of the property that stands for no thin capacity, like one that is not set.
const OFF: &str = "off";
/// Value by which the size follows from how the data compress at present.
const AUTO: &str = "auto";
/// Millionths of a whole.
const WHOLE: u64 = 1_000_000;
/// Largest factor that can be promised.
const FACTOR_MAX: u64 = 100 * WHOLE;
/// Part of the capacity, one in this number, that counts as full of data which compress as promised as long as less is
/// stored: so the first files of a pool do not decide what it tells.
const PRIOR_PART: u64 = 32;

/// Bytes before compression for each stored byte, in millionths; at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Expansion(u64);

impl Expansion {
    /// No byte more than is stored.
    pub const NONE: Self = Self(WHOLE);

    /// Returns that of `logical_bytes` that are stored in `stored_bytes`.
    fn between(logical_bytes: u128, stored_bytes: u64) -> Self {
        let millionths = logical_bytes * u128::from(WHOLE) / u128::from(stored_bytes.max(1));
        Self(u64::try_from(millionths).unwrap_or(u64::MAX).max(WHOLE))
    }

    /// Returns the one that is to be expected of `capacity_bytes` when `logical_bytes` are stored in `stored_bytes`.
    pub(crate) fn expected(
        promised: Option<Self>,
        (logical_bytes, stored_bytes): (u64, u64),
        capacity_bytes: u64,
    ) -> Self {
        let prior_bytes = (capacity_bytes / PRIOR_PART).saturating_sub(stored_bytes);
        let promised = promised.unwrap_or(Self::NONE).of(prior_bytes);
        let logical_bytes = u128::from(logical_bytes) + u128::from(promised);
        Self::between(logical_bytes, stored_bytes.saturating_add(prior_bytes))
    }

    /// Returns the bytes before compression of `stored_bytes`.
    pub fn of(self, stored_bytes: u64) -> u64 {
        let bytes = u128::from(stored_bytes) * u128::from(self.0) / u128::from(WHOLE);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Returns it as a ratio.
    pub fn ratio(self) -> f64 {
        self.0 as f64 / WHOLE as f64
    }
}

/// A value of the property `logicalcapacity`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogicalCapacity {
    /// Mounts tell stored bytes.
    #[default]
    Off,
    /// The size is what the pool holds if everything compresses as what is stored.
    Auto,
    /// The size is so many times what the pool can store.
    Factor(Expansion),
    /// The size in bytes.
    Bytes(u64),
}

impl LogicalCapacity {
    /// Name of the property.
    pub const NAME: &'static str = "logicalcapacity";

    /// Returns what is promised of each byte of a pool that can store `capacity_bytes`; `None` if nothing is.
    fn promised(self, capacity_bytes: u64) -> Option<Expansion> {
        match self {
            Self::Off | Self::Auto => None,
            Self::Factor(factor) => Some(factor),
            Self::Bytes(bytes) => Some(Expansion::between(bytes.into(), capacity_bytes)),
        }
    }
}

impl FromStr for LogicalCapacity {
    type Err = Error;

    /// Reads the stored form: `off`, `auto`, a factor from `1x` to `100x` such as `2.5x`, or bytes.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::Invalid(format!("'{text}' is no value of {}", Self::NAME));
        let Some(factor) = text.strip_suffix('x') else {
            return match text {
                OFF => Ok(Self::Off),
                AUTO => Ok(Self::Auto),
                bytes => match bytes.parse() {
                    Ok(0) | Err(_) => Err(wrong()),
                    Ok(bytes) => Ok(Self::Bytes(bytes)),
                },
            };
        };
        let (whole, part) = factor.split_once('.').unwrap_or((factor, "0"));
        let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole) || !is_number(part) || part.len() > 6 {
            return Err(wrong());
        }
        let millionths = whole.parse::<u64>().ok().and_then(|whole| whole.checked_mul(WHOLE));
        let part = format!("{part:0<6}").parse::<u64>().ok();
        let factor = millionths.zip(part).and_then(|(whole, part)| whole.checked_add(part));
        let factor = factor.filter(|factor| (WHOLE..=FACTOR_MAX).contains(factor));
        factor.map(|factor| Self::Factor(Expansion(factor))).ok_or_else(wrong)
    }
}

impl fmt::Display for LogicalCapacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str(OFF),
            Self::Auto => f.write_str(AUTO),
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Factor(Expansion(factor)) => {
                let text = format!("{}.{:06}", factor / WHOLE, factor % WHOLE);
                write!(f, "{}x", text.trim_end_matches('0').trim_end_matches('.'))
            }
        }
    }
}

/// How a pool compresses, and what was promised of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThinTerms {
    /// The promise.
    pub capacity: LogicalCapacity,
    /// Bytes of all pages before compression, and in how many they are stored, metadata counted; as of a moment ago.
    pub totals: (u64, u64),
}

impl ThinTerms {
    /// Returns the space of the pool in these terms, if a thin capacity is set.
    pub(crate) fn thin(&self, pool: &Space) -> Option<Thin> {
        if self.capacity == LogicalCapacity::Off {
            return None;
        }
        let promised = self.capacity.promised(pool.capacity_bytes);
        let expansion = Expansion::expected(promised, self.totals, pool.capacity_bytes);
        let size_bytes = match self.capacity {
            LogicalCapacity::Bytes(bytes) => bytes,
            _ => promised.unwrap_or(expansion).of(pool.capacity_bytes),
        };
        let used_bytes = expansion.of(pool.used_bytes).min(size_bytes);
        let (left_bytes, room_bytes) = (size_bytes - used_bytes, pool.available_bytes);
        Some(Thin { promised, expansion, size_bytes, used_bytes, left_bytes, room_bytes })
    }
}

/// Space of a pool or dataset in bytes before compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thin {
    /// The promise for each stored byte, if there is one.
    pub(crate) promised: Option<Expansion>,
    /// The expectation for each stored byte.
    pub expansion: Expansion,
    /// Size, as it is told.
    pub size_bytes: u64,
    /// Bytes in use: stored bytes, each counted once, expanded. At most the size.
    pub used_bytes: u64,
    /// Bytes that the size and all bounds on bytes before compression leave.
    pub left_bytes: u64,
    /// Stored bytes that can be claimed.
    pub room_bytes: u64,
}

impl Thin {
    /// Bounds the space by `limit_bytes`, of which `held_bytes` are taken.
    pub(crate) fn narrow(&mut self, limit_bytes: u64, held_bytes: u64) {
        let held_bytes = held_bytes.min(limit_bytes);
        if limit_bytes < self.size_bytes {
            (self.size_bytes, self.used_bytes) = (limit_bytes, held_bytes);
        }
        self.left_bytes = self.left_bytes.min(limit_bytes - held_bytes);
    }

    /// As [`Thin::narrow`], for a bound on stored bytes.
    pub(crate) fn narrow_stored(&mut self, limit_bytes: u64, held_bytes: u64) {
        let size = self.promised.unwrap_or(self.expansion).of(limit_bytes);
        self.narrow(size, self.expansion.of(held_bytes));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::shared::ROOMY_BYTES;
    use super::*;

    const GIB: u64 = 1 << 30;

    fn terms(capacity: &str, totals: (u64, u64)) -> ThinTerms {
        ThinTerms { capacity: capacity.parse().unwrap(), totals }
    }

    fn pool(used_bytes: u64) -> Space {
        let (capacity_bytes, available_bytes) = (100 * GIB, 100 * GIB - used_bytes);
        Space { capacity_bytes, used_bytes, available_bytes, ..Space::default() }
    }

    #[test]
    fn values_are_read_as_they_are_written() {
        for text in ["off", "auto", "1x", "4x", "2.5x", "1.000001x", "100x", "8796093022208"] {
            assert_eq!(text.parse::<LogicalCapacity>().unwrap().to_string(), text);
        }
        assert_eq!("2.50x".parse::<LogicalCapacity>().unwrap().to_string(), "2.5x");
        for text in [
            "",
            "x",
            "0x",
            "0.9x",
            "101x",
            "-1x",
            "2.x",
            ".5x",
            "1.0000001x",
            "+2x",
            "0",
            "many",
            "8T",
            "1e3",
        ] {
            assert!(text.parse::<LogicalCapacity>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_empty_pool_tells_what_was_promised() {
        let thin = terms("2x", (0, 0)).thin(&pool(0)).unwrap();
        assert_eq!((thin.size_bytes, thin.used_bytes), (200 * GIB, 0));
        assert_eq!(thin.available_bytes(8192), 200 * GIB - 2 * ROOMY_BYTES);
        let thin = terms(&(300 * GIB).to_string(), (0, 0)).thin(&pool(0)).unwrap();
        assert_eq!((thin.size_bytes, thin.expansion.ratio()), (300 * GIB, 3.0));
        // Nothing is promised, and so nothing is assumed.
        let thin = terms("auto", (0, 0)).thin(&pool(0)).unwrap();
        assert_eq!((thin.size_bytes, thin.used_bytes), (100 * GIB, 0));
        assert_eq!(terms("off", (0, 0)).thin(&pool(0)), None);
    }

    #[test]
    fn what_compresses_worse_than_promised_is_told_by_what_is_stored() {
        // 60 GiB are stored in 40 GiB, and twice as much was promised.
        let thin = terms("2x", (60 * GIB, 40 * GIB)).thin(&pool(40 * GIB)).unwrap();
        assert_eq!((thin.size_bytes, thin.used_bytes), (200 * GIB, 60 * GIB));
        assert_eq!(thin.expansion.of(100 * GIB), 150 * GIB);
        assert_eq!(thin.available_bytes(8192), thin.expansion.of(60 * GIB - ROOMY_BYTES));
    }

    #[test]
    fn what_compresses_better_than_promised_is_bounded_by_the_promise() {
        let thin = terms("2x", (120 * GIB, 30 * GIB)).thin(&pool(30 * GIB)).unwrap();
        assert_eq!((thin.used_bytes, thin.available_bytes(8192)), (120 * GIB, 80 * GIB));
        let thin = terms("2x", (240 * GIB, 60 * GIB)).thin(&pool(60 * GIB)).unwrap();
        assert_eq!((thin.used_bytes, thin.available_bytes(8192)), (200 * GIB, 0));
        // The size follows.
        let thin = terms("auto", (240 * GIB, 60 * GIB)).thin(&pool(60 * GIB)).unwrap();
        assert_eq!((thin.size_bytes, thin.used_bytes), (400 * GIB, 240 * GIB));
    }

    proptest! {
        /// df(1) shows at most the size, and nothing where nothing is accepted (T1).
        #[test]
        fn figures_are_consistent(
            capacity_bytes in 1..u64::MAX, used: u64, reserved: u64, totals: (u64, u64), limit: u64, held: u64, is_stored: bool,
            capacity in prop_oneof![Just("auto".to_owned()), (1..100u8).prop_map(|x| format!("{x}x")), (1..u64::MAX).prop_map(|b| b.to_string())],
        ) {
            let used_bytes = used % (capacity_bytes + 1);
            let available_bytes = (capacity_bytes - used_bytes).saturating_sub(reserved);
            let space = Space { capacity_bytes, used_bytes, available_bytes, ..Space::default() };
            let mut thin = terms(&capacity, totals).thin(&space).unwrap();
            if is_stored {
                thin.narrow_stored(limit, held);
            } else {
                thin.narrow(limit, held);
            }
            let available = thin.available_bytes(8192);
            prop_assert!(thin.used_bytes <= thin.size_bytes);
            prop_assert!(available <= thin.size_bytes - thin.used_bytes);
            prop_assert!(available == 0 || available_bytes > ROOMY_BYTES);
            prop_assert!(thin.expansion >= Expansion::NONE);
        }
    }
}
