//! Holds the outcome of a call in a form that must be the same on both sides.

use rustix::io::Errno;

use crate::observe::View;

/// Outcomes of a call.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was done: there is no such open file, or the call is not made on files like it.
    Skipped,
    /// Success.
    Done,
    /// A count or an offset.
    Number(u64),
    /// Data.
    Bytes(Vec<u8>),
    /// Names and the kinds that the listing tells, sorted.
    Names(Vec<(Vec<u8>, String)>),
    /// Attributes.
    View(Box<View>),
    /// Several results, or the verdict of a scene, as text.
    Told(String),
    /// errno.
    Failed(Errno),
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Skipped => f.write_str("skipped"),
            Self::Done => f.write_str("done"),
            Self::Number(n) => write!(f, "{n}"),
            Self::Bytes(bytes) if bytes.len() > 48 => {
                write!(f, "{} bytes {}…", bytes.len(), bytes[..32].escape_ascii())
            }
            Self::Bytes(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Self::Names(names) => {
                let mut list = f.debug_list();
                for (name, kind) in names {
                    list.entry(&format!("{} {kind}", name.escape_ascii()));
                }
                list.finish()
            }
            Self::View(view) => view.fmt(f),
            Self::Told(text) => f.write_str(text),
            Self::Failed(errno) => write!(f, "{errno:?}"),
        }
    }
}
