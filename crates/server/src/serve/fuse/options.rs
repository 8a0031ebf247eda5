//! Options of mounts as the FUSE front end takes them, its errors, and whether a server with these options can be
//! followed by another one.

use pagefold_fuse::{MountError, Transport};

use crate::failure::{Failure, Result};
use crate::mountopts::{IoUring, MountOptions, Takeover};

/// Returns the front end's options for a mount. If it is read-only, the place is so by itself only if that was asked for:
/// a dataset whose property `readonly` is cleared becomes writable there.
pub fn fuse_options(name: &str, wanted: &MountOptions, read_only: bool) -> pagefold_fuse::MountOptions {
    let mut options = pagefold_fuse::MountOptions {
        source: name.to_owned(),
        read_only,
        read_only_here: wanted.read_only,
        suid: wanted.suid,
        dev: wanted.dev,
        exec: wanted.exec,
        nonempty: wanted.nonempty,
        replace_dead: true,
        transport: match wanted.io_uring {
            IoUring::Auto => Transport::Auto,
            IoUring::On => Transport::IoUring,
            IoUring::Off => Transport::Dev,
        },
        threads_max: wanted.threads,
        ..pagefold_fuse::MountOptions::default()
    };
    if let Some(allow_other) = wanted.allow_other {
        options.allow_other = allow_other;
    }
    options
}

/// Converts an error of the front end. Its text has advice after a semicolon, which becomes a line of its own.
pub fn mount_failed(error: &MountError) -> Failure {
    let text = error.to_string();
    match text.split_once("; ") {
        Some((what, hint)) => Failure::new(what).hint(hint),
        None => Failure::new(text),
    }
}

/// Returns true if a server with these options gets a supervisor. Fails if the options exclude each other, or the
/// kernel cannot do it.
pub fn is_takeover_wanted(options: &MountOptions) -> Result<bool> {
    let possible = pagefold_fuse::kernel_resends();
    match options.takeover.unwrap_or(Takeover::Off) {
        Takeover::Off => Ok(false),
        // A recording has one writer from beginning to end.
        Takeover::Auto if options.record.is_some() => Ok(false),
        Takeover::On if options.record.is_some() => {
            Err(Failure::usage("takeover=on and record=FILE exclude each other"))
        }
        Takeover::Auto => {
            let ring = match options.io_uring {
                IoUring::Auto => pagefold_fuse::ring_enabled(),
                IoUring::On => true,
                IoUring::Off => false,
            };
            Ok(possible && !ring)
        }
        Takeover::On if options.io_uring == IoUring::On => Err(Failure::usage(
            "takeover=on and io_uring=on exclude each other",
        )
        .hint("what is under way over io_uring when a server dies is lost with it; leave one of them out (the pool may have one as a property: pagefold get takeover,io_uring POOL)")),
        Takeover::On if !possible => {
            Err(Failure::new("the kernel does not ask again what a server left unanswered: no takeover")
                .hint("mount with takeover=off, or use Linux 6.9 or newer"))
        }
        Takeover::On => Ok(true),
    }
}
