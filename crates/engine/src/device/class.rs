//! Classes of requests: the reason for which a device is asked, and who waits for the answer.
//!
//! Each request is of one class, that of the handle by which it is made ([`super::Devices::of_class`],
//! [`super::OneDevice::of_class`]). Requests are counted by it, and it is all that a scheduler would have to know of them.

/// The class of a request to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum IoClass {
    /// Reads that somebody waits for: of applications, of the opening of a pool, and of whatever the engine needs before
    /// it can go on.
    SyncRead = 0,
    /// Commits, and the flushes that make them durable.
    Log = 1,
    /// Reads in the background: of learning, of streams.
    AsyncRead = 2,
    /// Writes and flushes of checkpoints; labels; and the writes by which a reader mends a copy that it found damaged.
    AsyncWrite = 3,
    /// Cleaning.
    Cleaning = 4,
    /// Coding again what is stored.
    Recompression = 5,
    /// Filling a device of a mirror.
    Filling = 6,
    /// Scrubs, and what they repair.
    Scrub = 7,
    /// Discards, whoever makes them.
    Discard = 8,
}

impl IoClass {
    /// Number of classes.
    pub(super) const COUNT: usize = 9;

    /// All classes, in the order in which reports list them.
    pub const ALL: [Self; Self::COUNT] = [
        Self::SyncRead,
        Self::Log,
        Self::AsyncRead,
        Self::AsyncWrite,
        Self::Cleaning,
        Self::Recompression,
        Self::Filling,
        Self::Scrub,
        Self::Discard,
    ];

    /// Returns the name of the class in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SyncRead => "sync_read",
            Self::Log => "log",
            Self::AsyncRead => "async_read",
            Self::AsyncWrite => "async_write",
            Self::Cleaning => "cleaning",
            Self::Recompression => "recompression",
            Self::Filling => "filling",
            Self::Scrub => "scrub",
            Self::Discard => "discard",
        }
    }

    /// Returns the class of a write or flush by a handle of this class. No write is a read: what readers write is what
    /// they found to be damaged, and nobody waits for it longer than for any other write in the background.
    pub(super) const fn for_writes(self) -> Self {
        match self {
            Self::SyncRead | Self::AsyncRead => Self::AsyncWrite,
            class => class,
        }
    }
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum IoKind {
    /// A read.
    Read = 0,
    /// A write, durable or not.
    Write = 1,
    /// A flush.
    Flush = 2,
    /// A discard.
    Discard = 3,
}

impl IoKind {
    /// Number of kinds.
    pub(super) const COUNT: usize = 4;

    /// All kinds.
    pub const ALL: [Self; Self::COUNT] = [Self::Read, Self::Write, Self::Flush, Self::Discard];

    /// Returns the name of the kind in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
        }
    }
}
