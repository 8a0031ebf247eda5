//! Errors of repositories as users read them: what was attempted, and what to do.

use pagefold_backup::Error;
use pagefold_server::backups::PASSPHRASE;
use pagefold_server::failure::Failure;
use pagefold_server::raw;

/// Returns an error of the backup crate as a failure, with a hint what to do about it.
pub fn failed(doing: impl std::fmt::Display, error: &Error) -> Failure {
    let failure = match error {
        Error::Invalid(_) => Failure::usage(format!("{doing}: {error}")),
        _ => Failure::new(format!("{doing}: {error}")),
    };
    match error {
        Error::Key(_) => {
            failure.hint(format!("give it with --key-file FILE, --key-command COMMAND or {PASSPHRASE}"))
        }
        Error::Damaged { object, .. } | Error::Missing { object } if object.starts_with("log/") => failure.hint(
            "bring it back from a copy of the repository; without one, pagefold backup check --repair goes on from the newest intact commit",
        ),
        Error::Damaged { object, .. } | Error::Missing { object } if object == "repository" => failure.hint(
            "its copy is not intact either: bring it back from a copy of the repository, since it never changes; without it an encrypted repository cannot be read",
        ),
        Error::Damaged { .. } | Error::Missing { .. } => {
            failure.hint("see what else is damaged: pagefold backup check, pagefold backup verify")
        }
        Error::Older { seen, .. } => {
            let seen = raw::shown(seen);
            failure.hint(format!(
                "if this is a copy that is meant to take its place, this machine can forget what it has seen: rm {seen}"
            ))
        }
        Error::Connection { hint: Some(hint), .. } => failure.hint(hint),
        Error::UnsafeStore(_) => failure.hint("--single-writer vouches that there is only one writer"),
        _ => failure,
    }
}
