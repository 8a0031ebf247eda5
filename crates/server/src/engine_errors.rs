//! Errors of the engine as users read them: what was attempted, with which object, and what to do.

use pagefold_engine::Error;

use crate::failure::Failure;

/// Converts an error of the engine to a failure that says what was attempted, and gives advice.
pub fn failed(doing: impl Into<String>, error: &Error) -> Failure {
    let failure = Failure::new(format!("{}: {error}", doing.into()));
    match error {
        Error::Corrupt { .. } => failure.hint(
            "see how far the damage goes: pagefold check; to read what is left: pagefold mount -o rescue",
        ),
        Error::NotCurrent { .. } => failure.hint("see which copies there are: pagefold import -d DIR"),
        Error::NotAPool(_) => failure.hint("see what is on this machine: pagefold import [-d DIR]"),
        Error::Unsupported(_) => failure.hint("use the version of pagefold that made it, or a newer one"),
        Error::ReadOnly(_) => failure.hint(
            "a pool whose first mount has `-o ro` is not written at all: end its mounts by `pagefold unmount POOL`, then do \
             this again, or mount without `-o ro` first; a pool on a read-only device cannot be changed",
        ),
        Error::NoSpace(_) => {
            failure.hint("delete something, or raise the quota that is in the way; what snapshots hold: pagefold list -t snapshot")
        }
        _ => failure,
    }
}

/// Does the same as [`failed`] for work that needs the devices exclusively.
pub fn failed_on_devices(doing: impl Into<String>, error: &Error) -> Failure {
    let failure = failed(doing, error);
    match error {
        Error::Busy(_) => {
            failure.hint("another process has it open; see which pools are mounted: pagefold list")
        }
        _ => failure,
    }
}

/// Converts an error of the engine about a dataset or snapshot to a failure with its whole name.
pub fn no_such_dataset(name: &str, error: &Error) -> Failure {
    match error {
        Error::NotFound(_) => {
            let kind = if name.contains('@') { "snapshot" } else { "dataset" };
            let pool = name.split(['/', '@']).next().unwrap_or_default();
            Failure::new(format!("there is no {kind} {name}"))
                .hint(format!("see which there are: pagefold list -t all {pool}"))
        }
        error => failed(format!("cannot open {name}"), error),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_is_open_for_reading_tells_how_it_can_be_changed() {
        let failure =
            failed("cannot receive into tank/db", &Error::ReadOnly("the pool was opened read-only".into()));
        assert!(failure.to_string().contains("opened read-only"), "{failure}");
        assert!(failure.advice().unwrap().contains("pagefold unmount POOL"));
    }
}
