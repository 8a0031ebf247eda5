//! Estimates totals of populations of which a sample is known.
//!
//! Pages are drawn by strata: a file's pages are cut into as many runs of equal length as pages are wanted, and one
//! page is drawn from each. The total is estimated by the sample's mean; its variance by that of simple random sampling
//! without replacement, N^2 (1 - n/N) s^2 / n (Cochran, "Sampling Techniques", 1977, section 2.6), which for strata
//! along the file errs on the safe side. Totals of several files are independent, so their variances add up.

use serde::Serialize;

/// Number of standard deviations within which 95 % of a normal distribution lie.
const CONFIDENCE_95: f64 = 1.96;

/// An estimated total, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    total: f64,
    variance: f64,
}

impl Estimate {
    /// Returns a total that is known exactly.
    #[must_use]
    pub fn exact(total: u64) -> Self {
        Self { total: total as f64, variance: 0.0 }
    }

    /// Estimates the total of `population` values of which `sample` was drawn; zero for an empty sample.
    #[must_use]
    pub fn of(sample: &[f64], population: u64) -> Self {
        let drawn = sample.len() as f64;
        let population = (population as f64).max(drawn);
        if sample.is_empty() {
            return Self::default();
        }
        let mean = sample.iter().sum::<f64>() / drawn;
        let squares: f64 = sample.iter().map(|value| (value - mean).powi(2)).sum();
        let spread = if sample.len() > 1 { squares / (drawn - 1.0) } else { 0.0 };
        let variance = population * population * (1.0 - drawn / population) * spread / drawn;
        Self { total: population * mean, variance }
    }

    /// Returns the sum of two independent totals.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { total: self.total + other.total, variance: self.variance + other.variance }
    }

    /// Returns the same estimate of a total that is known to be `bytes` at most.
    #[must_use]
    pub fn at_most(self, bytes: u64) -> Self {
        Self { total: self.total.min(bytes as f64), ..self }
    }

    /// Returns the estimated total, in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.total.round() as u64
    }

    /// Returns half the width of the interval that holds the true total with 95 % confidence, in bytes.
    #[must_use]
    pub fn margin_bytes(self) -> u64 {
        (CONFIDENCE_95 * self.variance.sqrt()).round() as u64
    }
}

impl Serialize for Estimate {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Stored {
            bytes: u64,
            margin_bytes: u64,
        }
        Stored { bytes: self.bytes(), margin_bytes: self.margin_bytes() }.serialize(serializer)
    }
}
