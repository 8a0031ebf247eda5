//! Mount options: ours, the kernel's, and those that only mount(8) and systemd care about.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cache_size::{CACHE_BYTES_MIN, CacheSize};
use crate::failure::{Context, Failure, Result};
use crate::{props, raw, suggest, units};

/// When to use io_uring for the kernel's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum IoUring {
    /// Where the kernel offers it.
    #[default]
    Auto,
    /// Always, and fail where that is not possible.
    On,
    /// Never: `/dev/fuse` is used.
    Off,
}

/// When another server takes the place of one that dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Takeover {
    /// Where it costs nothing, which is where requests do not travel over io_uring.
    Auto,
    /// Always, and fail where that is not possible; io_uring is not used.
    On,
    /// Never.
    Off,
}

/// How far a server gives up rights that it does not need, and has the kernel enforce that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Confine {
    /// As far as the kernel can.
    #[default]
    Auto,
    /// In full, or fail.
    On,
    /// Never: for debugging.
    Off,
}

impl std::fmt::Display for Confine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

/// Options of a mount. Those that are skipped need other forms to be kept for the next server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountOptions {
    /// Refuse changes.
    pub read_only: bool,
    /// Read all that can be read of a damaged pool. Implies `read_only`.
    pub rescue: bool,
    /// Let other users than the one who mounts use it. `None`: root's mounts do, those of other users do not.
    pub allow_other: Option<bool>,
    /// Mount over a directory that has entries.
    pub nonempty: bool,
    /// Memory for all caches of the engine. `None`: as the pool's property says.
    pub cache: Option<CacheSize>,
    /// Threads that serve requests; `None`: one per core, at least four.
    pub threads: Option<usize>,
    /// When to use io_uring.
    pub io_uring: IoUring,
    /// When another server takes over. `None`: as for the pool's first mount, or never for the first one itself.
    pub takeover: Option<Takeover>,
    /// How far the server confines itself. `None`: as for the pool's first mount.
    pub confine: Option<Confine>,
    /// Honour set-user-ID and set-group-ID bits (root's mounts only).
    pub suid: bool,
    /// Honour device files (root's mounts only).
    pub dev: bool,
    /// Allow programs to be run from the mount.
    pub exec: bool,
    /// New file to which every write and flush of the devices is recorded.
    #[serde(with = "crate::raw::maybe_path")]
    pub record: Option<PathBuf>,
    /// Properties for this mount only.
    #[serde(skip)]
    pub properties: Vec<(&'static str, String)>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            rescue: false,
            allow_other: None,
            nonempty: false,
            cache: None,
            threads: None,
            io_uring: IoUring::Auto,
            takeover: None,
            confine: None,
            suid: false,
            dev: false,
            exec: true,
            record: None,
            properties: Vec::new(),
        }
    }
}

/// Largest number of threads; more would only compete for the processors.
const THREADS_MAX: usize = 256;

/// Our options with their meaning, for help.
pub const OWN: &[(&str, &str)] = &[
    ("ro, rw", "no changes; or as usual"),
    (
        "rescue",
        "read-only, although the pool is damaged: what cannot be read is an I/O error, all else is there",
    ),
    ("allow_other", "other users may use it (default for root; users need user_allow_other in fuse.conf)"),
    ("noallow_other", "only who mounts may use it"),
    ("nonempty", "mount over a directory that is not empty"),
    ("cache=SIZE", "memory for all caches, e.g. cache=2G, or auto: what the machine can spare"),
    ("threads=N", "threads that serve requests (default: one per core, at least 4)"),
    ("io_uring=auto|on|off", "talk to the kernel over io_uring (default auto: where it is enabled)"),
    (
        "takeover=auto|on|off",
        "another server goes on as one dies, unnoticed; excludes io_uring; auto: on where that is not used (default off)",
    ),
    (
        "confine=auto|on|off",
        "the server gives up all privileges that it does not need: as far as the kernel can, in full or fail, never (default auto)",
    ),
    ("record=FILE", "write every write and flush of the devices into a new FILE (for crash tests)"),
    ("PROPERTY=VALUE", "for this mount only: compression, recordsize, primarycache, sync, atime"),
    ("suid, dev, noexec", "as in mount(8); nosuid and nodev are the default"),
    (
        "setuid=on, devices=on",
        "as suid and dev, which mount(8) drops as its defaults unless they stand in /etc/fstab",
    ),
    (
        "remount",
        "other options for what is mounted: ro, rw, suid, dev, exec, their opposites, cache, and properties; the rest holds until it is unmounted",
    ),
    ("noatime, sync", "short for atime=off, sync=always"),
];

/// Options that are meant for mount(8), systemd and people; they change nothing here.
const IGNORED: &[&str] = &[
    "defaults",
    "default_permissions",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "atime",
    "async",
    "diratime",
    "nodiratime",
    "loud",
    "silent",
    "norelatime",
];

/// Properties that can be overridden at mount.
const OVERRIDES: &[&str] = &["compression", "recordsize", "primarycache", "sync", "atime"];

/// Parses the options of `-o`, already split at commas.
pub fn parse<S: AsRef<str>>(words: &[S]) -> Result<MountOptions> {
    let mut options = MountOptions::default();
    for word in words.iter().map(AsRef::as_ref).filter(|word| !word.is_empty()) {
        match word.split_once('=') {
            Some((name, value)) => valued(&mut options, name, value)?,
            None => flag(&mut options, word)?,
        }
    }
    Ok(options)
}

fn flag(options: &mut MountOptions, word: &str) -> Result<()> {
    match word {
        "ro" => options.read_only = true,
        "rw" => options.read_only = options.rescue,
        "rescue" => (options.read_only, options.rescue) = (true, true),
        "allow_other" => options.allow_other = Some(true),
        "noallow_other" => options.allow_other = Some(false),
        "nonempty" => options.nonempty = true,
        "noatime" => options.properties.push(("atime", "off".into())),
        "strictatime" => options.properties.push(("atime", "on".into())),
        "remount" => {
            return Err(Failure::usage("remount is for what is mounted: it starts no server"));
        }
        "relatime" => options.properties.push(("atime", "relatime".into())),
        "sync" | "dirsync" => options.properties.push(("sync", "always".into())),
        "suid" | "nosuid" => options.suid = word == "suid",
        "dev" | "nodev" => options.dev = word == "dev",
        "exec" | "noexec" => options.exec = word == "exec",
        ignored if IGNORED.contains(&ignored) || ignored.starts_with("x-") => {}
        unknown => return Err(unknown_option(unknown)),
    }
    Ok(())
}

fn valued(options: &mut MountOptions, name: &str, value: &str) -> Result<()> {
    match name {
        "cache" => {
            if units::parse_size(value).is_ok_and(|bytes| bytes < CACHE_BYTES_MIN) {
                return Err(Failure::usage(format!("cache={value} is too little to work with"))
                    .hint(format!("give at least {}", units::size(CACHE_BYTES_MIN))));
            }
            options.cache = props::find(name)?.parse(value)?.parse().ok();
        }
        "threads" => {
            let threads = value.parse().ok().filter(|n| (1..=THREADS_MAX).contains(n));
            options.threads = Some(threads.ok_or_else(|| {
                Failure::usage(format!("threads={value} is not a number from 1 to {THREADS_MAX}"))
            })?);
        }
        "io_uring" => {
            options.io_uring = auto_on_off(name, value, [IoUring::Auto, IoUring::On, IoUring::Off])?;
        }
        "takeover" => {
            options.takeover = Some(auto_on_off(name, value, [Takeover::Auto, Takeover::On, Takeover::Off])?);
        }
        "confine" => {
            options.confine = Some(auto_on_off(name, value, [Confine::Auto, Confine::On, Confine::Off])?);
        }
        "record" => {
            let path = std::path::absolute(raw::path_of(value))
                .context(|| format!("record={} names no file", raw::printable(value)))?;
            options.record = Some(path);
        }
        "setuid" => options.suid = on_off(name, value)?,
        "devices" => options.dev = on_off(name, value)?,
        "comment" | "user" => {}
        ignored if ignored.starts_with("x-") => {}
        property if OVERRIDES.contains(&property) => {
            let property = props::find(property)?;
            options.properties.push((property.name, property.parse(value)?));
        }
        unknown => return Err(unknown_option(unknown)),
    }
    Ok(())
}

/// Changes that `-o remount` asks for, of a mount that is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Refuse changes, or allow them; `None`: not mentioned.
    pub read_only: Option<bool>,
    /// Honour set-id bits.
    pub suid: Option<bool>,
    /// Honour device files.
    pub dev: Option<bool>,
    /// Allow programs to be run.
    pub exec: Option<bool>,
    /// Properties for this mount only.
    pub properties: Vec<(&'static str, String)>,
    /// Words of options that cannot be changed while the mount exists.
    fixed: Vec<String>,
    said: MountOptions,
}

/// Options that the kernel lists for every FUSE mount. mount(8) passes them to helpers if no line of fstab has the
/// options.
const OF_THE_KERNEL: &[&str] =
    &["user_id", "group_id", "rootmode", "fd", "max_read", "blksize", "default_permissions"];

/// Parses the options of `-o remount`.
///
/// mount(8) adds the options of the line in fstab, or those of the mount as it is. In the latter case, which `user_id`
/// tells, it leaves out its own defaults: no `nosuid` means that set-id bits are wanted. `relatime`, which the kernel
/// lists for every mount, is ignored.
pub fn changes<S: AsRef<str>>(words: &[S]) -> Result<Changes> {
    let mut changes = Changes::default();
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).filter(|word| !word.is_empty()).collect();
    let mut of_mount = false;
    for word in words {
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        if OF_THE_KERNEL.contains(&name) {
            of_mount |= name == "user_id";
            continue;
        }
        match (name, value) {
            ("remount" | "relatime", None) => {}
            ("ro" | "rw", None) => changes.read_only = Some(name == "ro"),
            ("suid" | "nosuid", None) => changes.suid = Some(name == "suid"),
            ("dev" | "nodev", None) => changes.dev = Some(name == "dev"),
            ("exec" | "noexec", None) => changes.exec = Some(name == "exec"),
            ("setuid", Some(value)) => changes.suid = Some(on_off(name, value)?),
            ("devices", Some(value)) => changes.dev = Some(on_off(name, value)?),
            _ => {
                let before = changes.said.clone();
                match value {
                    Some(value) => valued(&mut changes.said, name, value)?,
                    None => flag(&mut changes.said, word)?,
                }
                let mut properties = std::mem::take(&mut changes.said.properties);
                // The pool's server grows and shrinks its caches at any time.
                properties.extend(changes.said.cache.take().map(|size| ("cache", size.to_string())));
                if properties.is_empty() && changes.said != before {
                    changes.fixed.push(word.to_owned());
                }
                changes.properties.extend(properties);
            }
        }
    }
    if of_mount {
        changes.suid = changes.suid.or(Some(true));
        changes.dev = changes.dev.or(Some(true));
        changes.exec = changes.exec.or(Some(true));
    }
    Ok(changes)
}

impl Changes {
    /// Returns true if no change is asked for.
    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the first option that differs from the mount's and cannot be changed while the mount exists.
    pub(crate) fn impossible(&self, now: &MountOptions) -> Option<&str> {
        let MountOptions { rescue, threads, io_uring, takeover, confine, record, .. } = &self.said;
        let default = MountOptions::default();
        let allow_other = |options: &MountOptions| options.allow_other.unwrap_or_else(crate::files::is_root);
        let differs = [
            ("rescue", *rescue && !now.rescue),
            ("allow_other", self.said.allow_other.is_some() && allow_other(&self.said) != allow_other(now)),
            ("noallow_other", self.said.allow_other.is_some() && allow_other(&self.said) != allow_other(now)),
            ("threads", threads.is_some() && *threads != now.threads),
            ("io_uring", *io_uring != default.io_uring && *io_uring != now.io_uring),
            ("takeover", takeover.is_some() && *takeover != now.takeover),
            ("confine", confine.is_some() && *confine != now.confine),
            ("record", record.is_some() && *record != now.record),
        ];
        let name = |word: &str| word.split('=').next().unwrap_or_default().to_owned();
        self.fixed
            .iter()
            .find(|word| differs.iter().any(|(differing, differs)| *differs && *differing == name(word)))
            .map(String::as_str)
    }
}

fn on_off(name: &str, value: &str) -> Result<bool> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(Failure::usage(format!("{name}={} is not one of: on, off", raw::printable(value)))),
    }
}

/// Returns the one of three choices that `value` names.
fn auto_on_off<T>(name: &str, value: &str, [auto, on, off]: [T; 3]) -> Result<T> {
    match value {
        "auto" => Ok(auto),
        "on" => Ok(on),
        "off" => Ok(off),
        _ => Err(Failure::usage(format!("{name}={value} is not one of: auto, on, off"))),
    }
}

fn unknown_option(word: &str) -> Failure {
    let own = [
        "ro",
        "rw",
        "rescue",
        "allow_other",
        "noallow_other",
        "nonempty",
        "cache",
        "threads",
        "io_uring",
        "takeover",
        "confine",
        "record",
    ];
    let usual = ["suid", "dev", "noexec", "noatime", "setuid", "devices", "remount"];
    let all: Vec<&str> = own.iter().chain(OVERRIDES).chain(&usual).copied().collect();
    let near = suggest::nearest(word, all.iter().copied()).map(|n| format!("; did you mean {n}?"));
    Failure::usage(format!("there is no mount option \"{}\"", raw::printable(word))).hint(format!(
        "options: {}{}",
        all.join(", "),
        near.unwrap_or_default()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Result<MountOptions> {
        parse(&text.split(',').collect::<Vec<_>>())
    }

    #[test]
    fn ours_are_understood() {
        let options =
            split("ro,cache=2G,allow_other,nonempty,io_uring=off,recordsize=8192,threads=3,noatime").unwrap();
        assert!(options.read_only && options.nonempty);
        assert_eq!(options.cache, Some(CacheSize::Bytes(2 << 30)));
        assert_eq!(split("cache=auto").unwrap().cache, Some(CacheSize::Auto));
        assert_eq!(options.allow_other, Some(true));
        assert_eq!(options.io_uring, IoUring::Off);
        assert_eq!(options.threads, Some(3));
        assert_eq!(options.properties, [("recordsize", "8K".to_owned()), ("atime", "off".to_owned())]);
    }

    #[test]
    fn what_fstab_adds_is_left_alone() {
        let fstab =
            "defaults,_netdev,nofail,noauto,user,rw,x-systemd.requires=network.target,x-gvfs-show,comment=x";
        assert_eq!(split(fstab).unwrap(), MountOptions::default());
        assert_eq!(split("nosuid,,nodev").unwrap(), MountOptions::default());
        let options = split("suid,dev,noexec").unwrap();
        assert!(options.suid && options.dev && !options.exec);
        let options = split("rescue,rw").unwrap();
        assert!(options.rescue && options.read_only, "nothing is written to a damaged pool by mistake");
    }

    #[test]
    fn a_remount_changes_what_is_said() {
        let of = |text: &str| changes(&text.split(',').collect::<Vec<_>>()).unwrap();
        let fstab = of("remount,ro,noatime,cache=64M,nofail");
        assert_eq!((fstab.read_only, fstab.suid, fstab.dev), (Some(true), None, None));
        let properties = [("atime", "off".to_owned()), ("cache", (64 << 20).to_string())];
        assert_eq!(fstab.properties, properties);
        assert_eq!(fstab.impossible(&MountOptions::default()), None);
        let two = of("threads=2");
        assert_eq!(two.impossible(&MountOptions::default()), Some("threads=2"));
        let same = MountOptions { threads: Some(2), ..MountOptions::default() };
        assert_eq!(two.impossible(&same), None);
        let of_mount =
            of("rw,nodev,relatime,remount,user_id=0,group_id=0,default_permissions,max_read=1048576");
        assert_eq!((of_mount.suid, of_mount.dev, of_mount.exec), (Some(true), Some(false), Some(true)));
        assert!(of_mount.properties.is_empty() && of_mount.impossible(&MountOptions::default()).is_none());
        assert_eq!(of("setuid=on,devices=off").suid, Some(true));
        assert!(of("remount").is_nothing() && changes::<&str>(&[]).unwrap().is_nothing());
        assert_eq!(of("takeover=on").impossible(&MountOptions::default()), Some("takeover=on"));
        assert!(changes(&["setuid=maybe"]).is_err() && changes(&["rmeount"]).is_err());
    }

    #[test]
    fn mistakes_are_usage_errors_with_the_nearest() {
        for text in [
            "cash=2G",
            "cache=lots",
            "cache=4K",
            "threads=0",
            "io_uring=maybe",
            "confine=maybe",
            "allow_otehr",
            "remount",
            "quota=1G",
            "sync=maybe",
        ] {
            assert_eq!(split(text).unwrap_err().exit_status(), 2, "{text}");
        }
        assert!(split("allow_otehr").unwrap_err().to_string().contains("did you mean allow_other?"));
    }
}
