//! Negotiates INIT: the agreement between the kernel and this front end for the life of a mount.

use crate::limits::{
    BACKGROUND_REQUESTS_MAX, CONGESTION_THRESHOLD, PAGE_BYTES, READ_AHEAD_KIB, REQUEST_BYTES_MAX,
    REQUEST_PAGES_MAX,
};
use crate::protocol::{InitIn, InitOut, VERSION_MAJOR, VERSION_MINOR, VERSION_MINOR_MIN, init};

/// Capabilities without which the contract cannot be kept.
const REQUIRED: u64 = init::BIG_WRITES | init::MAX_PAGES | init::SETXATTR_EXT | init::DONT_MASK;

/// Capabilities that are used if the kernel offers them. Some are left out on purpose:
///
/// - `WRITEBACK_CACHE`: writes would reach us late and in another order than the calls (contract W1, W2).
/// - `AUTO_INVAL_DATA`: asks for attributes before every read; nobody but this kernel changes the files.
/// - `ATOMIC_O_TRUNC`: a truncating open would be two changes in one request; the kernel's SETATTR is one.
/// - `POSIX_LOCKS`, `FLOCK_LOCKS`: the kernel's own locks serve one machine.
/// - `NO_OPEN_SUPPORT`: O_DIRECT files are opened with flags of their own.
/// - `HANDLE_KILLPRIV_V2`, however, is used: without it every write call asks for `security.capability` first.
const WANTED: u64 = REQUIRED
    | init::ASYNC_READ
    | init::ASYNC_DIO
    | init::EXPORT_SUPPORT
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::PARALLEL_DIROPS
    | init::POSIX_ACL
    | init::ABORT_ERROR
    | init::CACHE_SYMLINKS
    | init::NO_OPENDIR_SUPPORT
    | init::EXPLICIT_INVAL_DATA
    | init::HANDLE_KILLPRIV_V2
    | init::INIT_EXT
    | init::DIRECT_IO_ALLOW_MMAP;

/// The agreement between the kernel and this front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Minor version of the protocol that both speak.
    pub minor: u32,
    /// Capabilities in use ([`crate::protocol::init`]).
    pub flags: u64,
    /// Longest write call in bytes that arrives as one request wherever it starts; one page more if it starts on a page.
    pub atomic_write_bytes: usize,
}

impl Agreement {
    /// Returns true if requests travel over rings.
    pub fn over_ring(&self) -> bool {
        self.flags & init::OVER_IO_URING != 0
    }
}

/// Reasons why no agreement is possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InitError {
    /// The kernel is too old or too new.
    #[error(
        "the kernel speaks FUSE {0}.{1}, but {VERSION_MAJOR}.{VERSION_MINOR_MIN} or newer is needed (Linux 5.12); update the kernel"
    )]
    Version(u32, u32),
    /// A capability is missing.
    #[error("the kernel's FUSE lacks capabilities that are needed (bits {0:#x}); update the kernel")]
    Missing(u64),
    /// A server that dies could not be followed by another.
    #[error(
        "the kernel does not ask again what a server left unanswered; mount with takeover=off, or use Linux 6.9 or newer"
    )]
    NoResend,
    /// The ring was asked for, but cannot be had.
    #[error(
        "FUSE over io_uring is not available; enable it with `echo Y > /sys/module/fuse/parameters/enable_uring` (Linux 6.14 or newer), or use the transport dev"
    )]
    NoRing,
}

/// Ways to ask for the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingWish {
    Never,
    IfOffered,
    Always,
}

/// Answers the kernel's offer. `pages_max` is the kernel's bound on the pages of a request; with `takeover` another
/// process may go on with the mount.
pub(crate) fn negotiate(
    offer: &InitIn,
    ring: RingWish,
    pages_max: usize,
    takeover: bool,
) -> Result<(InitOut, Agreement), InitError> {
    if offer.major != VERSION_MAJOR || offer.minor < VERSION_MINOR_MIN {
        return Err(InitError::Version(offer.major, offer.minor));
    }
    let offered = u64::from(offer.flags) | u64::from(offer.flags2) << 32;
    let missing = REQUIRED & !offered;
    if missing != 0 {
        return Err(InitError::Missing(missing));
    }
    if takeover && offered & init::HAS_RESEND == 0 {
        return Err(InitError::NoResend);
    }
    let mut flags = WANTED & offered;
    match (ring, offered & init::OVER_IO_URING != 0) {
        (RingWish::Always, false) => return Err(InitError::NoRing),
        (RingWish::Always | RingWish::IfOffered, true) => flags |= init::OVER_IO_URING,
        _ => {}
    }
    let minor = offer.minor.min(VERSION_MINOR);
    let pages = REQUEST_PAGES_MAX.min(pages_max);
    let reply = InitOut {
        major: VERSION_MAJOR,
        minor,
        max_readahead: READ_AHEAD_KIB << 10,
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: BACKGROUND_REQUESTS_MAX,
        congestion_threshold: CONGESTION_THRESHOLD,
        max_write: REQUEST_BYTES_MAX as u32,
        time_gran: 1,
        max_pages: u16::try_from(pages).unwrap_or(u16::MAX),
        ..InitOut::default()
    };
    let atomic_write_bytes = (pages.saturating_sub(1) * PAGE_BYTES).min(REQUEST_BYTES_MAX);
    Ok((reply, Agreement { minor, flags, atomic_write_bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(minor: u32, flags: u64) -> InitIn {
        InitIn { major: 7, minor, max_readahead: 0, flags: flags as u32, flags2: (flags >> 32) as u32 }
    }

    #[test]
    fn takes_nothing_that_was_not_offered() {
        let (reply, agreement) = negotiate(&offer(45, REQUIRED), RingWish::IfOffered, 256, false).unwrap();
        assert_eq!(agreement.flags, REQUIRED);
        assert_eq!(u64::from(reply.flags), REQUIRED);
        assert_eq!(agreement.atomic_write_bytes, REQUEST_BYTES_MAX - PAGE_BYTES);
        let (_, all) = negotiate(&offer(45, u64::MAX), RingWish::Never, 1024, true).unwrap();
        assert!(!all.over_ring());
        assert_eq!(all.flags, WANTED);
        assert_eq!(all.atomic_write_bytes, REQUEST_BYTES_MAX);
    }

    #[test]
    fn says_what_is_missing() {
        assert_eq!(
            negotiate(&offer(31, u64::MAX), RingWish::Never, 256, false),
            Err(InitError::Version(7, 31))
        );
        assert_eq!(negotiate(&offer(36, 0), RingWish::Never, 256, false), Err(InitError::Missing(REQUIRED)));
        assert_eq!(negotiate(&offer(36, REQUIRED), RingWish::Always, 256, false), Err(InitError::NoRing));
        assert_eq!(negotiate(&offer(36, REQUIRED), RingWish::Never, 256, true), Err(InitError::NoResend));
    }

    #[test]
    fn speaks_the_older_of_both_versions() {
        assert_eq!(negotiate(&offer(36, REQUIRED), RingWish::Never, 256, false).unwrap().1.minor, 36);
        assert_eq!(
            negotiate(&offer(99, REQUIRED), RingWish::Never, 256, false).unwrap().1.minor,
            VERSION_MINOR
        );
    }
}
