//! Names what a file is: by its format, or by that of most of its pages.

use pagefold_codec::{FileFormat, Format, registry};
use serde::{Serialize, Serializer};

/// Kind of most pages of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Pages of a format that has a title of its own.
    Pages(Format),
    /// Files of one kind, or the pages of such files that have no title of their own.
    File(&'static FileFormat),
    /// Anything else.
    Other,
}

impl Kind {
    /// Returns all kinds, in the order of reports.
    pub fn all() -> impl Iterator<Item = Self> {
        let titled = registry().formats().filter(|format| format.facts().title.is_some()).map(Self::Pages);
        titled.chain(registry().files().iter().copied().map(Self::File)).chain([Self::Other])
    }

    /// Returns the kind of a file of the format `file`, in which `tried` pages were looked at, of which some were of
    /// `formats`.
    pub(crate) fn of(file: Option<&'static FileFormat>, formats: &[Format], tried: usize) -> Self {
        if let Some(file) = file.filter(|file| !file.has_several) {
            return Self::File(file);
        }
        let several = formats.iter().filter(|format| format.facts().file.has_several);
        let kinds: Vec<Self> = several.map(|format| Self::of_pages(*format)).collect();
        let mut most = (Self::Other, 0);
        for kind in Self::all() {
            let count = kinds.iter().filter(|other| **other == kind).count();
            if count > most.1 {
                most = (kind, count);
            }
        }
        if 2 * most.1 <= tried { Self::Other } else { most.0 }
    }

    fn of_pages(format: Format) -> Self {
        if format.facts().title.is_some() { Self::Pages(format) } else { Self::File(format.facts().file) }
    }

    /// Returns the kind in words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pages(format) => format.facts().title.unwrap_or(format.name()),
            Self::File(file) => file.title,
            Self::Other => "other",
        }
    }

    /// Returns the kind in one word, for programs.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Pages(format) => format.name(),
            Self::File(file) => file.name,
            Self::Other => "other",
        }
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.key())
    }
}
