//! The value of `cache`: memory for the caches of a pool's server.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::units;

/// Smallest size, in bytes: a server cannot work with less.
pub(crate) const CACHE_BYTES_MIN: u64 = 8 << 20;
/// Largest size, in bytes, more memory than any machine has today: a larger value has the wrong unit.
pub(crate) const CACHE_BYTES_MAX: u64 = 64 << 40;

/// Memory for the caches of a pool's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CacheSize {
    /// As much as the machine can spare at the time.
    Auto,
    /// A number of bytes.
    Bytes(u64),
}

impl FromStr for CacheSize {
    type Err = ();

    /// Parses `auto`, or a size from 8 MiB to 64 TiB.
    fn from_str(text: &str) -> Result<Self, ()> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        match units::parse_size(text) {
            Ok(bytes) if (CACHE_BYTES_MIN..=CACHE_BYTES_MAX).contains(&bytes) => Ok(Self::Bytes(bytes)),
            _ => Err(()),
        }
    }
}

/// Writes the form in which the value is stored.
impl fmt::Display for CacheSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}
