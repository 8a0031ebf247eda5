//! Defines the property `compression`: as users type it, and as it is stored.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::{Error, Result};

use super::Codec;

/// Compression of new pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compression {
    /// No compression. Trailing zeros are left away all the same.
    Off,
    /// LZ4: the fastest.
    Lz4,
    /// Zstandard, level 1..=19.
    Zstd(u8),
    /// DEFLATE, level 1..=12: for comparison with file systems that have it.
    Zlib(u8),
    /// Pages of databases are taken apart by learned models, and text within them is compressed by zstd of this level,
    /// 1..=19. Pages that no model describes are compressed by zstd-1.
    Page(u8),
    /// The best trade of space for time by measurement: pages of databases as by `page`, all others by zstd-1.
    #[default]
    Auto,
}

const ZSTD_LEVELS: RangeInclusive<u8> = 1..=19;
const ZSTD_DEFAULT: u8 = 3;
const PAGE_DEFAULT: u8 = 3;
const ZLIB_LEVELS: RangeInclusive<u8> = 1..=12;
const ZLIB_DEFAULT: u8 = 6;
/// Level of zstd for pages that no model describes. Figures are in docs/decisions/0002-codecs.md.
const AUTO_ZSTD_LEVEL: u8 = 1;

/// Stored forms. For codecs with levels it is that of level 0, to which the level is added.
const STORED_OFF: u8 = 1;
const STORED_LZ4: u8 = 2;
const STORED_AUTO: u8 = 3;
const STORED_ZLIB: u8 = 3;
const STORED_ZSTD: u8 = 16;
const STORED_PAGE: u8 = 40;

/// Words with which a mistyped one is compared.
const WORDS: [&str; 6] = ["off", "lz4", "zstd", "zlib", "page", "auto"];

impl Compression {
    /// Returns the codec of pages that no model describes, and its level (0 if it has none). A level out of range,
    /// which parsing never gives, counts as the nearest one.
    pub(super) fn codec(self) -> (Codec, u8) {
        let within = |level: u8, levels: RangeInclusive<u8>| level.clamp(*levels.start(), *levels.end());
        match self {
            Self::Off => (Codec::Raw, 0),
            Self::Lz4 => (Codec::Lz4, 0),
            Self::Zstd(level) => (Codec::Zstd, within(level, ZSTD_LEVELS)),
            Self::Zlib(level) => (Codec::Deflate, within(level, ZLIB_LEVELS)),
            Self::Auto | Self::Page(_) => (Codec::Zstd, AUTO_ZSTD_LEVEL),
        }
    }

    /// Returns its stored form, for a file or directory that has it: one byte from 1 to 63.
    #[must_use]
    pub fn to_stored(self) -> u8 {
        let within = |level: u8, levels: RangeInclusive<u8>| level.clamp(*levels.start(), *levels.end());
        match self {
            Self::Off => STORED_OFF,
            Self::Lz4 => STORED_LZ4,
            Self::Auto => STORED_AUTO,
            Self::Zlib(level) => STORED_ZLIB + within(level, ZLIB_LEVELS),
            Self::Zstd(level) => STORED_ZSTD + within(level, ZSTD_LEVELS),
            Self::Page(level) => STORED_PAGE + within(level, ZSTD_LEVELS),
        }
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if `bytes` are nothing that [`Compression::to_stored`] gives.
    pub fn from_stored(bytes: &[u8]) -> Result<Self> {
        let level = |base: u8, byte: u8, levels: RangeInclusive<u8>| {
            byte.checked_sub(base).filter(|level| levels.contains(level))
        };
        let found = match bytes {
            [STORED_OFF] => Some(Self::Off),
            [STORED_LZ4] => Some(Self::Lz4),
            [STORED_AUTO] => Some(Self::Auto),
            [byte] => level(STORED_ZLIB, *byte, ZLIB_LEVELS)
                .map(Self::Zlib)
                .or_else(|| level(STORED_ZSTD, *byte, ZSTD_LEVELS).map(Self::Zstd))
                .or_else(|| level(STORED_PAGE, *byte, ZSTD_LEVELS).map(Self::Page)),
            _ => None,
        };
        found.ok_or_else(|| Error::corrupt("compression of an object", "it is no codec of this version"))
    }

    /// Returns the level of zstd for text within pages; `None` if models are not used.
    #[must_use]
    pub fn model_level(self) -> Option<u8> {
        match self {
            Self::Page(level) => Some(level.clamp(*ZSTD_LEVELS.start(), *ZSTD_LEVELS.end())),
            Self::Auto => Some(PAGE_DEFAULT),
            _ => None,
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Zstd(ZSTD_DEFAULT) => f.write_str("zstd"),
            Self::Zstd(level) => write!(f, "zstd-{level}"),
            Self::Zlib(ZLIB_DEFAULT) => f.write_str("zlib"),
            Self::Zlib(level) => write!(f, "zlib-{level}"),
            Self::Page(PAGE_DEFAULT) => f.write_str("page"),
            Self::Page(level) => write!(f, "page-{level}"),
            Self::Auto => f.write_str("auto"),
        }
    }
}

impl FromStr for Compression {
    type Err = Error;

    /// Parses `off`, `lz4`, `zstd`, `zstd-N`, `zlib`, `zlib-N`, `page`, `page-N` or `auto`, in any case.
    /// [`Error::Invalid`] lists these and names the one most like what was typed.
    fn from_str(typed: &str) -> Result<Self> {
        let word = typed.trim().to_ascii_lowercase();
        match word.as_str() {
            "off" => return Ok(Self::Off),
            "lz4" => return Ok(Self::Lz4),
            "zstd" => return Ok(Self::Zstd(ZSTD_DEFAULT)),
            "zlib" => return Ok(Self::Zlib(ZLIB_DEFAULT)),
            "page" => return Ok(Self::Page(PAGE_DEFAULT)),
            "auto" => return Ok(Self::Auto),
            _ => {}
        }
        let level = |text: &str, levels: RangeInclusive<u8>| text.parse().ok().filter(|n| levels.contains(n));
        let parsed = match word.split_once('-') {
            Some(("zstd", n)) => level(n, ZSTD_LEVELS).map(Self::Zstd),
            Some(("page", n)) => level(n, ZSTD_LEVELS).map(Self::Page),
            Some(("zlib", n)) => level(n, ZLIB_LEVELS).map(Self::Zlib),
            _ => None,
        };
        parsed.ok_or_else(|| unknown(typed, &word))
    }
}

fn unknown(typed: &str, word: &str) -> Error {
    let stem = word.split_once('-').map_or(word, |(stem, _)| stem);
    let nearest = WORDS.into_iter().map(|w| (distance(stem, w), w)).min();
    let hint = match nearest {
        Some((0, "zstd")) => "; zstd has the levels 1 to 19".to_owned(),
        Some((0, "page")) => "; page has the levels 1 to 19".to_owned(),
        Some((0, "zlib")) => "; zlib has the levels 1 to 12".to_owned(),
        Some((distance, word)) if distance <= 2 => format!("; did you mean {word}?"),
        _ => String::new(),
    };
    Error::Invalid(format!(
        "compression cannot be \"{typed}\": choose off, lz4, zstd, zstd-1 to zstd-19, zlib, zlib-1 to zlib-12, page, page-1 to page-19 or auto{hint}"
    ))
}

/// Returns the Levenshtein distance in characters.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &to) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
