//! The one table of properties, with name, values, default and meaning of each. Parsing, `get`, `set`, `--help` and the
//! man pages all come from it.

use pagefold_engine::dataset::LogicalCapacity;

use crate::cache_size::{CACHE_BYTES_MAX, CACHE_BYTES_MIN, CacheSize};
use crate::failure::{Failure, Result};
use crate::names::Name;
use crate::{backups, raw, retention, suggest, units};

/// Largest value of a property that is a number.
const COUNT_MAX: u32 = 1_000_000;

/// Kinds of values that a property takes.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A number from 1 to a million, or `none`.
    Count,
    /// A codec: `off`, `lz4`, `zstd[-1..19]`, `zlib[-1..12]`, `page[-1..19]`, `auto`.
    Codec,
    /// `auto` or a power of two from 4K to 1M.
    RecordSize,
    /// An absolute path, or `none`.
    Path,
    /// Number of snapshots that are kept, by period; or `none`.
    Policy,
    /// Place of backups, their interval, and how many are kept; or `none`.
    Backup,
    /// Bytes, or `none`; stored exactly.
    Size,
    /// `off`, `auto`, a factor from `1x` to `100x`, or bytes; stored exactly.
    LogicalCapacity,
    /// `auto`, or bytes of memory; stored exactly.
    Memory,
    /// A value that Pagefold computes, with the form in which it is printed.
    ReadOnly(Shape),
}

/// Forms in which computed values are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Bytes.
    Bytes,
    /// A ratio such as `4.21x`.
    Ratio,
    /// Seconds since the epoch.
    Time,
    /// Text, printed as it is.
    Text,
}

/// Kinds of objects that a property can be set on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole pool.
    Pool,
    /// A dataset; those below inherit it.
    Dataset,
    /// A dataset; those below do not inherit it.
    Own,
}

/// One property.
#[derive(Clone, Copy, Debug)]
pub struct Property {
    /// Its name.
    pub name: &'static str,
    /// Values that it can be set to.
    pub values: Values,
    /// Objects that it can be set on.
    pub scope: Scope,
    /// Value that holds where the property was never set; empty for computed properties.
    pub default: &'static str,
    /// Its meaning, in a sentence or two.
    pub doc: &'static str,
}

/// All properties, settable ones first.
pub const PROPERTIES: &[Property] = &[
    Property {
        name: "compression",
        values: Values::Codec,
        scope: Scope::Dataset,
        default: "auto",
        doc: "Codec of newly written pages. auto takes pages of PostgreSQL, InnoDB and SQLite apart by models, one per file, that are learned in the background from the first pages on; other pages get zstd at a fast level. page is the same with a level of zstd for text within pages (auto: 3). Pages that do not shrink are always stored raw. Existing pages keep theirs, but for those that were stored before their file had a model: these are coded again in the background; `pagefold fold` brings others over. The attribute user.pagefold.compression of a file, which new files take from their directory, goes before it.",
    },
    Property {
        name: "recordsize",
        values: Values::RecordSize,
        scope: Scope::Dataset,
        default: "auto",
        doc: "Page size of new files. auto finds it from the first writes of each file: 8K for PostgreSQL, 16K for InnoDB, the page size in SQLite's header, 16K otherwise.",
    },
    Property {
        name: "primarycache",
        values: Values::Choice(&["all", "metadata", "none"]),
        scope: Scope::Pool,
        default: "all",
        doc: "What the compressed record cache keeps. Databases with a large cache of their own may prefer metadata.",
    },
    Property {
        name: "cache",
        values: Values::Memory,
        scope: Scope::Pool,
        default: "auto",
        doc: "Memory for all caches of the pool's server. auto: up to half of the memory of the machine or of the tightest control group that the server is in; a 32nd of it is left free, or 64 MiB if that is more, but never more than an eighth, so the caches give way as other programs take memory. Takes effect at once, but for the bounds of tree nodes, segment directories and models, which follow when the pool is next mounted. The mount option cache goes before it as long as the pool is mounted.",
    },
    Property {
        name: "io_uring",
        values: Values::Choice(&["auto", "on", "off"]),
        scope: Scope::Pool,
        default: "auto",
        doc: "Whether requests of the kernel travel over io_uring: where the kernel offers it, or fail, or never. Takes effect for mounts that are made from now on. The mount option io_uring goes before it.",
    },
    Property {
        name: "takeover",
        values: Values::Choice(&["auto", "on", "off"]),
        scope: Scope::Pool,
        default: "off",
        doc: "Whether another server goes on as one dies, unnoticed: on excludes io_uring; auto is on where that is not used. Takes effect when the pool is next mounted after all of it was unmounted. The mount option takeover goes before it.",
    },
    Property {
        name: "autotrim",
        values: Values::Choice(&["on", "off"]),
        scope: Scope::Pool,
        default: "off",
        doc: "Whether devices are told by the way of what becomes free (discards; holes in sparse files). Some drives do nothing else meanwhile; `pagefold trim` now and then does as well, and tells of what was free before.",
    },
    Property {
        name: "autoexpand",
        values: Values::Choice(&["on", "off"]),
        scope: Scope::Pool,
        default: "off",
        doc: "Whether the pool uses what its devices have grown by, within seconds: a volume that was enlarged, a file that was made longer. `pagefold online -e` does that once. A mirror grows when all of its devices have.",
    },
    Property {
        name: "devicewait",
        values: Values::Choice(&["none", "2s", "5s", "10s", "20s", "60s"]),
        scope: Scope::Pool,
        default: "20s",
        doc: "How long a device of a mirror is waited for that does not answer, while another one of the mirror does: then it is left out, as one that fails, and writes go on. It also holds for a log device. none: until it answers.",
    },
    Property {
        name: "autospare",
        values: Values::Choice(&["on", "off"]),
        scope: Scope::Pool,
        default: "on",
        doc: "Whether a spare steps in by itself for a device of a mirror that fails, and for a device without a mirror that begins to. One that has stepped in goes back either way when the device is mended.",
    },
    Property {
        name: "sparewait",
        values: Values::Choice(&["none", "30s", "1m", "5m", "15m", "1h", "1d"]),
        scope: Scope::Pool,
        default: "5m",
        doc: "How long a device is missing, since the pool was mounted, before a spare steps in for it; none: for ever.",
    },
    Property {
        name: "spareerrors",
        values: Values::Count,
        scope: Scope::Pool,
        default: "10",
        doc: "Number of failed reads, or of wrong checksums, of a device within ten minutes at which a spare steps in for it, though it is in use. `pagefold clear` says that the device is mended.",
    },
    Property {
        name: "spareslow",
        values: Values::Choice(&["none", "100ms", "300ms", "1000ms", "3000ms"]),
        scope: Scope::Pool,
        default: "1000ms",
        doc: "Mean time of a read from which on a device is slow, if it is also four times that of another device of its mirror. A spare steps in for a device that was slow at ten moments of ten minutes; it is looked at every five seconds.",
    },
    Property {
        name: LogicalCapacity::NAME,
        values: Values::LogicalCapacity,
        scope: Scope::Pool,
        default: "off",
        doc: "Thin capacity: the size that df(1) and statfs(2) tell, in bytes before compression. 2x: twice what the pool can store; a size: that one, whatever is added; auto: what it holds if everything compresses as what is stored, which promises too much where files are smaller than their recordsize: whole pages are counted. Used and available are told in the same terms, and available is 0 where nothing more is stored. It is told and never enforced (logicalquota is), and refuses nothing. off: df tells stored bytes. `pagefold status` warns when the pool cannot hold what is promised.",
    },
    Property {
        name: "sync",
        values: Values::Choice(&["standard", "always", "disabled"]),
        scope: Scope::Dataset,
        default: "standard",
        doc: "standard: fsync waits until everything accepted before it is durable. always: every write does. disabled: fsync returns at once; a crash loses up to a second, but always leaves a prefix of the writes.",
    },
    Property {
        name: "atime",
        values: Values::Choice(&["on", "off", "relatime"]),
        scope: Scope::Dataset,
        default: "relatime",
        doc: "Whether reading a file updates its access time; relatime does so once a day or after a change. Takes effect with the next mount.",
    },
    Property {
        name: "readonly",
        values: Values::Choice(&["on", "off"]),
        scope: Scope::Dataset,
        default: "off",
        doc: "Whether mounts are read-only. Takes effect at once if no file is open for writing, otherwise with the next mount.",
    },
    Property {
        name: "mountpoint",
        values: Values::Path,
        scope: Scope::Dataset,
        default: "none",
        doc: "Where `pagefold mount` and `mount -a` mount when no directory is given. Datasets below inherit it, each at the directory of its name below.",
    },
    Property {
        name: retention::POLICY,
        values: Values::Policy,
        scope: Scope::Dataset,
        default: "none",
        doc: "How many snapshots of each period are kept, e.g. hourly=24,daily=7. The pool's server makes them at the begin of each minute, hour, day, week (Monday) or month, in UTC, named auto-hourly-2026-11-21T13:00 and the like, of all datasets at one instant, and removes the oldest that it made itself. What is held or has clones stays. Of a period that is not named none is made, and none removed; N=0 removes all. A pool that is 90 % full gets none.",
    },
    Property {
        name: backups::BACKUP,
        values: Values::Backup,
        scope: Scope::Dataset,
        default: backups::NONE,
        doc: "Where the dataset is backed up to, and behind it, with commas between: every=1h (default 1d; less than 5m is a replica, which `pagefold replicate` keeps), what a daily prune keeps (last=3, hourly=24, daily=7, weekly=5, monthly=12, yearly=10; nothing is pruned without), key-file=PATH (default /etc/pagefold/backup.key if that is there; none: the repository is not encrypted), rate=50M, and for what the repository is endpoint=URL, region=NAME, remote-command=COMMAND. `pagefold backup run` makes what is due; pagefold-backup.timer calls it. The repository has to be there.",
    },
    bound(
        "quota",
        "Most stored bytes of the dataset with its snapshots and all datasets below it, as used counts them. What would exceed it fails with ENOSPC. Deleting and truncating work whatever it is.",
    ),
    bound(
        "refquota",
        "Most stored bytes that the dataset itself refers to, as referenced counts them: without its snapshots and those below.",
    ),
    bound(
        "logicalquota",
        "Most bytes of the dataset's own pages before compression, as logicalused counts them. Overwriting what is there takes nothing of it.",
    ),
    bound(
        "reservation",
        "Stored bytes that the dataset with its snapshots and those below can take whatever others do. They count as used in the quotas above, and are refused if the pool does not have them.",
    ),
    computed(
        "used",
        Shape::Bytes,
        "Stored bytes, everything counted. Of the pool: all in use. Of a dataset: what it and its snapshots hold and no other dataset does. Of a snapshot: what becomes free if it alone is destroyed.",
    ),
    computed("available", Shape::Bytes, "Stored bytes that can still be accepted."),
    computed(
        "referenced",
        Shape::Bytes,
        "Stored bytes that the dataset or snapshot refers to, shared or not.",
    ),
    computed("usedbysnapshots", Shape::Bytes, "Stored bytes that only snapshots of the dataset hold."),
    computed(
        "written",
        Shape::Bytes,
        "Stored bytes that were written since the snapshot before, and are still there.",
    ),
    computed(
        "logicalused",
        Shape::Bytes,
        "Bytes of its stored pages before compression, shared or not; of the pool: of all its datasets, without snapshots. The last page of a file counts as a whole one.",
    ),
    computed(
        "physicalused",
        Shape::Bytes,
        "Bytes of the devices taken by chunks in use, with the space of dead records that the cleaner has not reclaimed yet.",
    ),
    computed(
        "compressratio",
        Shape::Ratio,
        "Bytes of stored pages before compression / what these take, metadata counted. Pages count as whole ones, so files that are smaller than their recordsize make it larger; pagefold du tells what files take beside their length. What clones, snapshots and copies share counts on both sides or on none: it is no compression.",
    ),
    computed(
        "atomicwrite",
        Shape::Bytes,
        "Longest write call that is applied as a whole or not at all over a crash.",
    ),
    computed(
        "waf",
        Shape::Ratio,
        "Write amplification since the pool was opened: bytes written to the devices / bytes written by applications.",
    ),
    computed("guid", Shape::Text, "The pool's unique number."),
    computed("version", Shape::Text, "Version of the pool's format."),
    computed("creation", Shape::Time, "When it was created."),
    computed("type", Shape::Text, "filesystem or snapshot."),
    computed("origin", Shape::Text, "The snapshot that a clone began as."),
    computed("clones", Shape::Text, "Clones of a snapshot."),
    computed("userrefs", Shape::Text, "Number of holds on a snapshot."),
    computed(
        RESUME_TOKEN,
        Shape::Text,
        "With what `pagefold send --resume` goes on where part of a stream was received into the dataset.",
    ),
];

/// Name of the property that says how much of an interrupted stream was received, as in ZFS.
pub(crate) const RESUME_TOKEN: &str = "receive_resume_token";

/// Prefixes of user properties that belong to Pagefold and are not shown: the engine's own, and those about streams and
/// about snapshots that were made by policy.
const OURS: [&str; 3] = ["pagefold:", "receive:", "policy:"];
/// Prefix of properties that also belong to Pagefold, but are shown: those of branches. Only `pagefold branch` sets
/// them.
const OF_BRANCHES: &str = "branch:";

const fn bound(name: &'static str, doc: &'static str) -> Property {
    Property { name, values: Values::Size, scope: Scope::Own, default: "none", doc }
}

const fn computed(name: &'static str, shape: Shape, doc: &'static str) -> Property {
    Property { name, values: Values::ReadOnly(shape), scope: Scope::Dataset, default: "", doc }
}

impl Property {
    /// Returns true if `set` accepts it.
    pub fn settable(&self) -> bool {
        !matches!(self.values, Values::ReadOnly(_))
    }

    /// Returns its values as the manual writes them.
    pub fn values_text(&self) -> String {
        match self.values {
            Values::Choice(words) => words.join(" | "),
            Values::Count => format!("none | a number from 1 to {COUNT_MAX}"),
            Values::Codec => "off | lz4 | zstd[-1..19] | zlib[-1..12] | page[-1..19] | auto".into(),
            Values::RecordSize => "auto | 4K | 8K | 16K ... 1M".into(),
            Values::Path => "an absolute path | none".into(),
            Values::Policy => "none | minutely=N, hourly=N, daily=N, weekly=N, monthly=N, or several".into(),
            Values::Backup => {
                "none | REPOSITORY[,every=1h][,hourly=24,daily=7,...][,key-file=PATH][,rate=50M]".into()
            }
            Values::Size => "none | a size such as 512M, 10G".into(),
            Values::LogicalCapacity => "off | auto | 1x to 100x such as 2.5x | a size such as 8T".into(),
            Values::Memory => format!(
                "auto | a size from {} to {}, such as 512M, 10G",
                units::size(CACHE_BYTES_MIN),
                units::size(CACHE_BYTES_MAX)
            ),
            Values::ReadOnly(_) => "computed".into(),
        }
    }

    /// Checks a value and returns it in stored form.
    pub fn parse(&self, value: &str) -> Result<String> {
        let wrong = |near: Option<&str>| {
            let near = near.map(|n| format!("; did you mean {n}?")).unwrap_or_default();
            Failure::usage(format!("\"{value}\" is not a value of {}", self.name)).hint(format!(
                "{} is one of: {}{near}",
                self.name,
                self.values_text()
            ))
        };
        match self.values {
            Values::Choice(words) => match words.iter().find(|word| **word == value) {
                Some(word) => Ok((*word).to_owned()),
                None => Err(wrong(suggest::nearest(value, words.iter().copied()))),
            },
            Values::Count | Values::Size | Values::Path if value == "none" => Ok(value.to_owned()),
            Values::Count => match value.parse::<u32>() {
                Ok(count) if (1..=COUNT_MAX).contains(&count) => Ok(count.to_string()),
                _ => Err(wrong(None)),
            },
            Values::Codec => parse_codec(value).ok_or_else(|| {
                wrong(suggest::nearest(value, ["off", "lz4", "zstd", "zlib", "page", "auto"]))
            }),
            Values::RecordSize => parse_record_size(value).ok_or_else(|| wrong(None)),
            Values::Path if value.starts_with('/') => match not_a_place(value) {
                None => Ok(value.to_owned()),
                Some(why) => Err(Failure::usage(format!(
                    "\"{}\" is not a value of {}: {why}",
                    raw::printable(value),
                    self.name
                ))
                .hint("give the directory by a plain path, such as /srv/db, or none")),
            },
            Values::Path => Err(wrong(None)),
            Values::Policy => {
                let policy = value.parse::<retention::SnapshotPolicy>();
                policy.map(|policy| policy.to_string()).map_err(|()| wrong(None))
            }
            Values::Backup => match backups::BackupPolicy::parse(value) {
                Ok(policy) => Ok(policy.map_or_else(|| backups::NONE.into(), |policy| policy.to_string())),
                Err(what) => {
                    Err(Failure::usage(format!("\"{value}\" is not a value of {}: {what}", self.name))
                        .hint(format!("{} is one of: {}", self.name, self.values_text())))
                }
            },
            Values::Size => match units::parse_size(value) {
                // As with ZFS, a bound of 0 means that there is none.
                Ok(0) => Ok("none".into()),
                Ok(bytes) => Ok(bytes.to_string()),
                Err(_) => Err(wrong(None)),
            },
            Values::LogicalCapacity => {
                // A value that is neither a word nor a factor is a size.
                let bytes = units::parse_size(value).map(|bytes| bytes.to_string());
                let parsed = bytes.as_deref().unwrap_or(value).parse::<LogicalCapacity>();
                parsed.map(|capacity| capacity.to_string()).map_err(|_| wrong(None))
            }
            Values::Memory => {
                let size = value.parse::<CacheSize>();
                size.map(|size| size.to_string()).map_err(|()| wrong(None))
            }
            Values::ReadOnly(_) => {
                Err(Failure::usage(format!("{} is computed and cannot be set", self.name))
                    .hint(format!("properties that can be set: {}", names(true).join(", "))))
            }
        }
    }

    /// Converts a value from its exact form, as it is stored or computed, to the form that people read.
    pub fn human(&self, value: &str) -> String {
        let shape = match self.values {
            Values::ReadOnly(shape) => shape,
            Values::Size | Values::Memory | Values::LogicalCapacity => Shape::Bytes,
            _ => return value.to_owned(),
        };
        match shape {
            Shape::Bytes => value.parse().map_or_else(|_| value.to_owned(), units::size),
            Shape::Ratio => value.parse().map_or_else(|_| value.to_owned(), |r| units::ratio_text(Some(r))),
            Shape::Time => value.parse().map_or_else(|_| value.to_owned(), units::utc),
            Shape::Text => value.to_owned(),
        }
    }
}

/// Returns a codec that the engine knows, in lower case and otherwise as it was typed: `zstd-3` stays `zstd-3`.
fn parse_codec(value: &str) -> Option<String> {
    let word = value.trim().to_ascii_lowercase();
    word.parse::<pagefold_engine::record::Compression>().is_ok().then_some(word)
}

/// Returns `auto`, or a size that is a power of two in the engine's range, as `8K` or `1M`; `None` for anything else.
fn parse_record_size(value: &str) -> Option<String> {
    use pagefold_engine::limits::{RECORDSIZE_MAX, RECORDSIZE_MIN};
    if value == "auto" {
        return Some(value.to_owned());
    }
    let bytes = units::parse_size(value).ok()?;
    let in_range = (u64::from(RECORDSIZE_MIN)..=u64::from(RECORDSIZE_MAX)).contains(&bytes);
    (in_range && bytes.is_power_of_two()).then(|| match bytes >> 20 {
        0 => format!("{}K", bytes >> 10),
        megabytes => format!("{megabytes}M"),
    })
}

/// Returns the names of all properties, or of those that can be set.
pub fn names(settable_only: bool) -> Vec<&'static str> {
    PROPERTIES.iter().filter(|p| !settable_only || p.settable()).map(|p| p.name).collect()
}

/// Returns the property of this name; the error lists the valid names and the nearest one.
pub fn find(name: &str) -> Result<&'static Property> {
    PROPERTIES.iter().find(|p| p.name == name).ok_or_else(|| {
        let near = suggest::nearest(name, names(false)).map(|n| format!("; did you mean {n}?"));
        Failure::usage(format!("there is no property \"{name}\"")).hint(format!(
            "properties: {}{}",
            names(false).join(", "),
            near.unwrap_or_default()
        ))
    })
}

/// Splits and checks `name=value`.
pub fn parse_assignment(text: &str) -> Result<(&'static Property, String)> {
    let (name, value) = text.split_once('=').ok_or_else(|| {
        Failure::usage(format!("\"{text}\" is not of the form property=value"))
            .hint(format!("properties that can be set: {}", names(true).join(", ")))
    })?;
    let property = find(name)?;
    Ok((property, property.parse(value)?))
}

/// Longest name of a user property, in bytes.
const USER_NAME_BYTES_MAX: usize = 255;

/// Returns true if `name` can be the name of a user property: it has a colon, only characters that ZFS allows, and none
/// of our prefixes.
pub fn is_user(name: &str) -> bool {
    let sane = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ":+-._".contains(c);
    name.contains(':')
        && !OURS.iter().any(|ours| name.starts_with(ours))
        && name.len() <= USER_NAME_BYTES_MAX
        && name.chars().all(sane)
}

/// Returns true for a property that only the engine sets.
pub(crate) fn is_engines(name: &str) -> bool {
    name.starts_with("pagefold:") || name.starts_with("receive:")
}

/// Returns the reason why nothing can be mounted at an absolute path, if there is one.
fn not_a_place(path: &str) -> Option<&'static str> {
    let parts = || path.split('/').filter(|part| !part.is_empty() && *part != ".");
    if parts().any(|part| part == "..") {
        Some("it has \"..\", which is another directory wherever there are links")
    } else if parts().next().is_none() {
        Some("it is the root directory, which is mounted already")
    } else {
        None
    }
}

/// Returns an error for a property that only Pagefold itself sets and clears.
pub fn check_not_ours(name: &str) -> Result<()> {
    let ours = OURS.iter().chain([&OF_BRANCHES]).find(|ours| name.starts_with(**ours));
    ours.map_or(Ok(()), |ours| {
        Err(Failure::usage(format!("\"{}\" cannot be the name of a user property", raw::printable(name)))
            .hint(format!(
                "names that begin with {ours} are pagefold's own, which it sets and clears itself"
            )))
    })
}

/// Splits and checks `name=value` for a dataset or snapshot; returns name and value in stored form.
pub fn parse_for_dataset(text: &str) -> Result<(String, String)> {
    if let Some((name, value)) = text.split_once('=').filter(|(name, _)| name.contains(':')) {
        check_not_ours(name)?;
        return if is_user(name) {
            Ok((name.to_owned(), value.to_owned()))
        } else {
            Err(Failure::usage(format!("\"{}\" cannot be the name of a user property", raw::printable(name)))
                .hint("it has a colon, and lower-case letters, digits and + - . _, e.g. backup:keep=yes"))
        };
    }
    let (property, value) = parse_assignment(text)?;
    Ok((property.name.to_owned(), value))
}

/// Returns an error if a property cannot be set on the dataset or snapshot `name`.
pub fn check_settable_on(property: &str, name: &Name) -> Result<()> {
    if is_user(property) || name.path.is_empty() {
        return Ok(());
    }
    let found = find(property)?;
    if name.is_snapshot() {
        return Err(Failure::new(format!("{property} cannot be set on a snapshot: {name}"))
            .hint("user properties (with a colon in the name) can"));
    }
    match found.scope {
        Scope::Dataset | Scope::Own => Ok(()),
        Scope::Pool => {
            Err(Failure::new(format!("{property} holds for the whole pool, not for {name} alone"))
                .hint(format!("pagefold set {property}=VALUE {}", name.pool)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_valid_value_in_stored_form() {
        for property in PROPERTIES.iter().filter(|p| p.settable()) {
            assert_eq!(property.parse(property.default).unwrap(), property.default, "{}", property.name);
        }
    }

    #[test]
    fn names_of_ours_are_not_for_users() {
        for name in ["pagefold:scrub", "receive:progress", "policy:period", "branch:port", "branch:x"] {
            let failure = parse_for_dataset(&format!("{name}=1")).unwrap_err();
            assert_eq!(failure.exit_status(), 2);
            assert!(failure.to_string().contains("pagefold's own"), "{failure}");
        }
        parse_for_dataset("my:branch:x=1").unwrap();
        assert!(is_user("branch:port") && !is_user("pagefold:scrub"));
    }

    #[test]
    fn names_are_unique() {
        let mut all = names(false);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), PROPERTIES.len());
    }

    #[test]
    fn values_are_brought_into_one_form() {
        let set = |text: &str| parse_assignment(text).map(|(_, value)| value);
        assert_eq!(set("recordsize=8192").unwrap(), "8K");
        assert_eq!(set("recordsize=1048576").unwrap(), "1M");
        assert_eq!(set("compression=zstd-3").unwrap(), "zstd-3");
        assert_eq!(set("compression=page").unwrap(), "page");
        assert_eq!(set("compression=page-9").unwrap(), "page-9");
        assert_eq!(set("mountpoint=/var/lib/x").unwrap(), "/var/lib/x");
        assert_eq!(set("policy=daily=7,hourly=24").unwrap(), "hourly=24,daily=7");
        assert_eq!(set("quota=10G").unwrap(), "10737418240");
        assert_eq!(set("refquota=0").unwrap(), "none");
        assert_eq!(set("refquota=0.0K").unwrap(), "none");
        assert_eq!(find("quota").unwrap().human("10737418240"), "10.0G");
        assert_eq!(find("quota").unwrap().human("none"), "none");
        assert_eq!(set("logicalcapacity=8T").unwrap(), "8796093022208");
        assert_eq!(set("logicalcapacity=2.50x").unwrap(), "2.5x");
        assert_eq!(find("logicalcapacity").unwrap().human("8796093022208"), "8.00T");
        assert_eq!(find("logicalcapacity").unwrap().human("2.5x"), "2.5x");
        assert_eq!(set("cache=1G").unwrap(), "1073741824");
        assert_eq!(set("cache=auto").unwrap(), "auto");
        assert!(set("cache=7M").is_err() && set("cache=65T").is_err() && set("cache=none").is_err());
        assert_eq!(find("cache").unwrap().human("402653184"), "384M");
        assert_eq!(find("cache").unwrap().human("auto"), "auto");
    }

    #[test]
    fn wrong_values_name_the_valid_ones_and_the_nearest() {
        for text in [
            "compression=zst",
            "compression=zstd-99",
            "compression=page-0",
            "compression=lz4-1",
            "recordsize=5K",
            "recordsize=2M",
            "sync=on",
            "mountpoint=here",
            "mountpoint=/",
            "mountpoint=//.",
            "mountpoint=/a/../b",
            "policy=often",
            "quota=-1",
            "quota=0.0001K",
            "cache=none",
            "cache=1M",
            "spareerrors=0",
            "spareerrors=many",
            "sparewait=5",
            "cache=8E",
            "io_uring=maybe",
            "takeover=1",
            "reservation=much",
            "logicalcapacity=0.5x",
            "logicalcapacity=none",
            "logicalcapacity=0",
            "logicalcapacity=1000x",
            "used=1",
            "compression",
        ] {
            assert_eq!(parse_assignment(text).unwrap_err().exit_status(), 2, "{text}");
        }
        let failure = parse_assignment("sync=disbled").unwrap_err().to_string();
        assert!(
            failure.contains("standard | always | disabled") && failure.contains("did you mean disabled?"),
            "{failure}"
        );
        let failure = parse_assignment("compresion=lz4").unwrap_err().to_string();
        assert!(failure.contains("did you mean compression?"), "{failure}");
    }
}
