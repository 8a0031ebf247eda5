//! The point in time, and the settings by which a server recovers to it.

use std::path::Path;

use pagefold_backup::{Line, Reach, Repository, Service};
use pagefold_basebackup::control;
use pagefold_server::backups::PASSPHRASE;
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::{raw, registry};

use super::Candidate;
use crate::args::{Access, BackupRestore, RecoveryAction};
use crate::timestamp;

/// Settings that end a recovery.
const TARGETS: [&str; 5] = [
    "recovery_target",
    "recovery_target_name",
    "recovery_target_xid",
    "recovery_target_lsn",
    "recovery_target_time",
];

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryTarget {
    /// A time in microseconds since 1970: everything that was committed by then.
    Time(i64),
    /// A place in the log: everything before it.
    Place(u64),
    /// The end of the archive.
    Latest,
}

impl RecoveryTarget {
    /// Returns the target that the command line names, if any.
    pub fn of(args: &BackupRestore) -> Result<Option<Self>> {
        if let Some(time) = &args.to_time {
            return timestamp::parse(time).map(|time| Some(Self::Time(time)));
        }
        if let Some(text) = &args.to_lsn {
            let place = control::parse_lsn(text).ok_or_else(|| {
                Failure::usage(format!("\"{text}\" is no place in a log")).hint("it is written as 0/3000000")
            })?;
            return Ok(Some(Self::Place(place)));
        }
        Ok(args.to_latest.then_some(Self::Latest))
    }

    /// Returns whether the point lies on this line of the log, or before or behind it.
    pub fn reach(self, line: &Line) -> Reach {
        match self {
            Self::Time(time) => line.reaches_time(time),
            Self::Place(place) => line.reaches_place(place),
            // The backup's own log has the part that is not archived yet.
            Self::Latest => Reach::Within,
        }
    }

    /// Returns the point in words.
    pub fn text(self) -> String {
        match self {
            Self::Time(time) => timestamp::format(time),
            Self::Place(place) => control::lsn(place),
            Self::Latest => "the end of the archive".into(),
        }
    }

    /// Returns a warning if recovery may end before the point, since a file of the log is missing. Other points are
    /// refused if the log has a gap before them.
    pub fn gap(self, line: &Line) -> Option<String> {
        let missing = line.missing.filter(|_| self == Self::Latest)?;
        let end = control::lsn(line.until.unwrap_or_default().max(line.from));
        Some(format!(
            "{missing} is missing in the archive: the log is whole up to {end}, and later changes are lost if recovery ends there"
        ))
    }

    /// Returns the settings that end recovery there. All others are set empty before them: a server takes the last
    /// value that it reads.
    fn settings(self) -> Vec<(&'static str, String)> {
        let mut all: Vec<_> = TARGETS.iter().map(|name| (*name, String::new())).collect();
        match self {
            Self::Time(time) => {
                all.push(("recovery_target_inclusive", "on".into()));
                all.push(("recovery_target_time", timestamp::format(time)));
            }
            // A record that begins at this place is not part of the target, so it is left out.
            Self::Place(place) => {
                all.push(("recovery_target_inclusive", "off".into()));
                all.push(("recovery_target_lsn", control::lsn(place)));
            }
            Self::Latest => {}
        }
        all
    }
}

/// Returns endpoint and region of a repository: those of the command line, or for a bucket those of the environment,
/// which the server does not get.
fn endpoint_and_region(repository: &str, access: &Access) -> (Option<String>, Option<String>) {
    let service = Service::of(repository);
    let endpoint = || service.and_then(|service| service.setting(service.endpoint_variable()));
    let region = || service.and_then(|service| service.setting(service.region_variable()?));
    (access.endpoint.clone().or_else(endpoint), access.region.clone().or_else(region))
}

/// Returns the words of `restore_command`, apart from the file.
pub(super) fn fetch_command(args: &BackupRestore, repository: &Repository) -> Result<String> {
    let access = &args.access;
    if repository.is_encrypted() && access.key_file.is_none() && access.key_command.is_none() {
        return Err(Failure::usage(format!(
            "the server needs the key to fetch its log, and {PASSPHRASE} is not passed on to it"
        ))
        .hint(
            "give the key with --key-file FILE, which the server's user can read, or --key-command COMMAND",
        ));
    }
    let program = std::env::current_exe().context(|| "cannot find out where this program is".into())?;
    let mut words = vec![raw::text(&program), "archive".into(), "fetch".into()];
    let mut option = |name: &str, value: Option<String>| {
        words.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
    };
    if args.repository.contains("://") {
        let (endpoint, region) = endpoint_and_region(&args.repository, access);
        option("--endpoint", endpoint);
        option("--region", region);
        option("--remote-command", access.remote_command.clone());
    }
    let key_file = access.key_file.as_deref().map(registry::absolute).transpose()?;
    option("--key-file", key_file.map(|path| raw::text(&path)));
    option("--key-command", access.key_command.clone());
    words.push(match args.repository.contains("://") {
        true => args.repository.clone(),
        false => raw::text(&registry::absolute(Path::new(&args.repository))?),
    });
    let quoted: Vec<String> = words.iter().map(|word| shell_word(word)).collect();
    Ok(quoted.join(" "))
}

/// Returns the options by which a repository is opened, as they are typed, each with a space before it.
pub(super) fn access_words(access: &Access) -> String {
    let key_file = access.key_file.as_deref().map(raw::text);
    let options = [
        ("--endpoint", &access.endpoint),
        ("--region", &access.region),
        ("--remote-command", &access.remote_command),
        ("--key-file", &key_file),
        ("--key-command", &access.key_command),
    ];
    let given = options.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    given.map(|(name, value)| format!(" {name} {}", typed(value))).collect()
}

/// Returns a shell word as a user types it.
fn typed(word: &str) -> String {
    shell_word(word).replace("%%", "%")
}

/// Returns a shell word for a command of PostgreSQL's, in which a per cent sign is doubled.
fn shell_word(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-:@=+,".contains(&byte);
    let word = word.replace('%', "%%");
    if !word.is_empty() && word.bytes().all(is_plain) {
        word
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Returns a quoted value for PostgreSQL's configuration file.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\\', r"\\").replace('\'', "''"))
}

/// Returns the lines that are appended to the settings.
pub(super) fn settings(
    candidate: &Candidate,
    fetch: &str,
    target: RecoveryTarget,
    action: RecoveryAction,
) -> String {
    let fetch = fetch.replacen(
        " archive fetch ",
        &format!(" archive fetch --system {} ", candidate.cluster.system),
        1,
    );
    let timeline = match candidate.line.timeline == candidate.cluster.timeline {
        true => "current".to_owned(),
        false => candidate.line.timeline.to_string(),
    };
    let action = match action {
        RecoveryAction::Promote => "promote",
        RecoveryAction::Pause => "pause",
        RecoveryAction::Shutdown => "shutdown",
    };
    let mut all = vec![("restore_command", fetch)];
    all.extend(target.settings());
    all.push(("recovery_target_timeline", timeline));
    all.push(("recovery_target_action", action.into()));
    // The restored server writes nothing into its archive, cleans nothing, and follows no other server.
    all.push(("archive_mode", "off".into()));
    for name in ["archive_cleanup_command", "recovery_end_command", "primary_conninfo", "primary_slot_name"] {
        all.push((name, String::new()));
    }
    let lines = all.iter().map(|(name, value)| format!("{name} = {}\n", quoted(value)));
    let number = candidate.backup.number;
    let head = format!("\n# By pagefold backup restore, of backup {number}, to {}:\n", target.text());
    std::iter::once(head).chain(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_quoted_for_the_shell_and_for_postgresql() {
        assert_eq!(shell_word("/mnt/backup"), "/mnt/backup");
        assert_eq!(shell_word("it's 100%"), r"'it'\''s 100%%'");
        assert_eq!(shell_word(""), "''");
        assert_eq!(quoted(r"a\b 'c'"), r"'a\\b ''c'''");
    }

    #[test]
    fn the_target_comes_behind_those_that_are_empty() {
        for (target, name, value) in [
            (
                RecoveryTarget::Time(1_795_629_600_500_000),
                "recovery_target_time",
                "2026-11-25 18:00:00.500000+00",
            ),
            (RecoveryTarget::Place(0x1_0300_0028), "recovery_target_lsn", "1/3000028"),
        ] {
            let settings = target.settings();
            assert_eq!(settings.last(), Some(&(name, value.to_owned())));
            assert_eq!(
                settings
                    .iter()
                    .filter(|(name, value)| !value.is_empty() && *name != "recovery_target_inclusive")
                    .count(),
                1
            );
        }
        assert!(RecoveryTarget::Latest.settings().iter().all(|(_, value)| value.is_empty()));
    }
}
