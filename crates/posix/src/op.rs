//! Defines the steps of a history.

use std::fmt;

/// A user who makes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Person {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Ids of further groups.
    pub groups: &'static [u32],
}

/// Everybody: root, two users who share a group, and one who is a stranger to both.
pub const PEOPLE: [Person; 4] = [
    Person { uid: 0, gid: 0, groups: &[] },
    Person { uid: 1001, gid: 1001, groups: &[2000] },
    Person { uid: 1002, gid: 1002, groups: &[2000, 1001] },
    Person { uid: 1003, gid: 1003, groups: &[] },
];

/// Number of files that a history can hold open.
pub const SLOTS: usize = 5;
/// Number of mappings that a history can hold.
pub const MAPS: usize = 3;

/// A path below the history's directory, or below a directory that is open.
#[derive(Clone, PartialEq, Eq)]
pub struct Path {
    /// Slot of the directory that it starts at; `None` is the history's own.
    pub base: Option<usize>,
    /// The path, without NUL.
    pub text: Vec<u8>,
}

impl Path {
    /// Makes a path below the history's directory.
    pub fn new(text: &[u8]) -> Self {
        Self { base: None, text: text.to_vec() }
    }

    /// Returns the directory that holds the last name, as far as the text tells it.
    pub fn parent(&self) -> Self {
        let trimmed = self.text.strip_suffix(b"/").unwrap_or(&self.text);
        let end = trimmed.iter().rposition(|&b| b == b'/').unwrap_or(0);
        let text = if end == 0 { b".".to_vec() } else { trimmed[..end].to_vec() };
        Self { base: self.base, text }
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(base) = self.base {
            write!(f, "[{base}]/")?;
        }
        let text = self.text.escape_ascii().to_string();
        if text.len() > 60 {
            write!(f, "{}…({} bytes)", &text[..40], self.text.len())
        } else {
            f.write_str(&text)
        }
    }
}

/// Bytes that people read when a test fails.
#[derive(Clone, PartialEq, Eq)]
pub struct Text(pub Vec<u8>);

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            0..100 => write!(f, "\"{}\"", self.0.escape_ascii()),
            len => write!(f, "\"{}…\"({len} bytes)", self.0[..40].escape_ascii()),
        }
    }
}

/// A file that a call is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A name; symbolic links at its end are followed if `true`.
    Path(Path, bool),
    /// An open file.
    Slot(usize),
}

/// Bytes to write, made from a seed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Data {
    /// 0 is zeros, 1 to 127 one byte repeated, others noise.
    pub kind: u8,
    /// Number of bytes.
    pub len: usize,
}

impl Data {
    /// Returns the bytes.
    pub fn bytes(self) -> Vec<u8> {
        if self.kind < 128 {
            return vec![self.kind; self.len];
        }
        let mut random = pagefold_sim::random::Random::new(u64::from(self.kind));
        (0..self.len).map(|_| random.bits() as u8).collect()
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.len, self.kind)
    }
}

/// A time for utimensat(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// UTIME_NOW.
    Now,
    /// UTIME_OMIT.
    Omit,
    /// Seconds and nanoseconds.
    At(i64, i64),
}

/// One system call, or a few that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are the system calls' own names")]
pub enum Op {
    Open {
        slot: usize,
        path: Path,
        flags: i32,
        mode: u32,
    },
    Close {
        slot: usize,
    },
    Read {
        slot: usize,
        at: Option<u64>,
        len: usize,
    },
    Write {
        slot: usize,
        at: Option<u64>,
        data: Data,
        pieces: usize,
    },
    Seek {
        slot: usize,
        whence: i32,
        offset: i64,
    },
    Truncate {
        target: Target,
        len: i64,
    },
    Allocate {
        slot: usize,
        mode: i32,
        offset: i64,
        len: i64,
    },
    Sync {
        slot: usize,
        data_only: bool,
    },
    Copy {
        from: usize,
        to: usize,
        offset_in: u64,
        offset_out: u64,
        len: usize,
    },
    MakeDir {
        path: Path,
        mode: u32,
    },
    RemoveDir {
        path: Path,
    },
    Unlink {
        path: Path,
    },
    Symlink {
        text: Text,
        path: Path,
    },
    ReadLink {
        path: Path,
    },
    Link {
        from: Path,
        to: Path,
        follow: bool,
    },
    LinkSlot {
        slot: usize,
        to: Path,
    },
    Rename {
        from: Path,
        to: Path,
        flags: u32,
    },
    MakeNode {
        path: Path,
        mode: u32,
        device: u64,
    },
    Mode {
        target: Target,
        mode: u32,
    },
    Owner {
        target: Target,
        uid: u32,
        gid: u32,
    },
    Times {
        target: Target,
        atime: Time,
        mtime: Time,
    },
    SetXattr {
        target: Target,
        name: Text,
        value: Text,
        flags: i32,
    },
    GetXattr {
        target: Target,
        name: Text,
        size: usize,
    },
    ListXattr {
        target: Target,
        size: usize,
    },
    RemoveXattr {
        target: Target,
        name: Text,
    },
    Access {
        path: Path,
        mode: i32,
        flags: i32,
    },
    Stat {
        target: Target,
    },
    List {
        path: Path,
    },
    Umask {
        mask: u32,
    },
    Map {
        map: usize,
        slot: usize,
        page: u64,
        pages: usize,
        write: bool,
        shared: bool,
    },
    MapRead {
        map: usize,
        offset: usize,
        len: usize,
    },
    MapWrite {
        map: usize,
        offset: usize,
        data: Data,
    },
    MapSync {
        map: usize,
    },
    Unmap {
        map: usize,
    },
    Lock {
        slot: usize,
        how: i32,
    },
    /// A listing of `names` files with changes in the middle: `read` entries are read before some files are removed,
    /// renamed and made.
    ListWhile {
        names: usize,
        read: usize,
        seed: u64,
    },
    /// A running program cannot be opened for writing, and one that is open for writing cannot run.
    Busy,
    /// A look at a few attributes alone, which the kernel may answer from its cache.
    StatSome {
        target: Target,
        mask: u32,
        flags: i32,
    },
}

impl Op {
    /// Returns the files that this step can change or read. Their attributes are compared before and after it.
    pub fn watched(&self) -> Vec<Target> {
        let mut targets = Vec::new();
        let mut path = |path: &Path, follow: bool| {
            targets.push(Target::Path(path.clone(), false));
            if follow {
                targets.push(Target::Path(path.clone(), true));
            }
            targets.push(Target::Path(path.parent(), true));
        };
        match self {
            Self::Open { path: at, .. } | Self::Access { path: at, .. } | Self::List { path: at } => {
                path(at, true);
            }
            Self::MakeDir { path: at, .. }
            | Self::RemoveDir { path: at }
            | Self::Unlink { path: at }
            | Self::Symlink { path: at, .. }
            | Self::ReadLink { path: at }
            | Self::MakeNode { path: at, .. } => path(at, false),
            Self::Link { from, to, .. } | Self::Rename { from, to, .. } => {
                path(from, true);
                path(to, false);
            }
            Self::LinkSlot { to, .. } => path(to, false),
            Self::Truncate { target, .. }
            | Self::Mode { target, .. }
            | Self::Owner { target, .. }
            | Self::Times { target, .. }
            | Self::SetXattr { target, .. }
            | Self::GetXattr { target, .. }
            | Self::ListXattr { target, .. }
            | Self::RemoveXattr { target, .. }
            | Self::StatSome { target, .. }
            | Self::Stat { target } => match target {
                Target::Path(at, follow) => path(at, *follow),
                Target::Slot(_) => {}
            },
            _ => {}
        }
        targets.extend(self.slots().into_iter().map(Target::Slot));
        targets
    }

    /// Returns the slots of the open files that this step uses.
    fn slots(&self) -> Vec<usize> {
        match *self {
            Self::Open { slot, .. }
            | Self::Read { slot, .. }
            | Self::Write { slot, .. }
            | Self::Seek { slot, .. }
            | Self::Allocate { slot, .. }
            | Self::Sync { slot, .. }
            | Self::LinkSlot { slot, .. }
            | Self::Map { slot, .. }
            | Self::Lock { slot, .. }
            | Self::Truncate { target: Target::Slot(slot), .. }
            | Self::Mode { target: Target::Slot(slot), .. }
            | Self::Owner { target: Target::Slot(slot), .. }
            | Self::Times { target: Target::Slot(slot), .. }
            | Self::SetXattr { target: Target::Slot(slot), .. }
            | Self::GetXattr { target: Target::Slot(slot), .. }
            | Self::ListXattr { target: Target::Slot(slot), .. }
            | Self::RemoveXattr { target: Target::Slot(slot), .. }
            | Self::StatSome { target: Target::Slot(slot), .. }
            | Self::Stat { target: Target::Slot(slot) } => vec![slot],
            Self::Copy { from, to, .. } => vec![from, to],
            _ => Vec::new(),
        }
    }
}

/// A step: a user and an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The user, as an index into [`PEOPLE`].
    pub who: usize,
    /// The operation.
    pub op: Op,
}
