//! The helpers `mount.pagefold` and `umount.fuse.pagefold`, which mount(8) and umount(8) run for our mounts and
//! `/etc/fstab`, and `pagefold-generator`, which systemd runs early at boot.
//!
//! They are names of this program; the command lines of the first two become those of `mount` and `unmount`. umount(8)
//! runs its helper if it looks into the mount table (as systemd's mount units make it do). Otherwise it sees a FUSE
//! file system, asks for its space, and calls the kernel itself; the server's answer to that question makes the mount
//! durable ([decision 0038](../../../docs/decisions/0038-unmounting.md)).

use std::ffi::OsString;
use std::path::Path;

use pagefold_server::failure::{Failure, Result};

use crate::fstab;

/// Translates a helper's command line to one of this program; `None` if the program was not called as a helper.
pub fn translate(words: &[OsString]) -> Option<Result<Vec<OsString>>> {
    let name = Path::new(words.first()?).file_name()?.to_str()?;
    match name {
        "mount.pagefold" | "mount.fuse.pagefold" => Some(mount(&words[1..])),
        "umount.pagefold" | "umount.fuse.pagefold" => Some(unmount(&words[1..])),
        "pagefold-generator" => Some(Ok(generator(&words[1..]))),
        _ => None,
    }
}

/// Translates `mount.pagefold SOURCE DIR [-sfnv] [-N namespace] [-o options] [-t type]` (mount(8), "External helpers").
fn mount(words: &[OsString]) -> Result<Vec<OsString>> {
    let parsed = split(words, "o", "Nt")?;
    let [source, dir] = parsed.operands.as_slice() else {
        return Err(
            Failure::usage("mount.pagefold needs a pool and a directory").hint("mount -t pagefold POOL DIR")
        );
    };
    let has = |word: &str| parsed.options.iter().any(|list| says(list, word));
    let denied = [("setuid=on", has("nosuid")), ("devices=on", has("nodev"))];
    let dropped = fstab::dropped(source, dir).into_iter();
    let dropped = dropped.filter(|word| !denied.iter().any(|(option, denied)| option == word && *denied));
    let dropped: Vec<OsString> = dropped.map(OsString::from).collect();
    let mut command: Vec<OsString> = vec!["pagefold".into(), "mount".into()];
    if parsed.flags.contains('f') {
        command.push("--dry-run".into());
    }
    for options in parsed.options.iter().chain(&dropped) {
        command.extend(["-o".into(), options.clone()]);
    }
    command.extend(["--".into(), source.clone(), dir.clone()]);
    Ok(command)
}

/// Returns true if a list of options contains this word.
fn says(list: &OsString, word: &str) -> bool {
    list.as_encoded_bytes().split(|byte| *byte == b',').any(|option| option == word.as_bytes())
}

/// Translates `umount.fuse.pagefold DIR [-flnrv] [-N namespace] [-t type]` (umount(8), "External helpers").
fn unmount(words: &[OsString]) -> Result<Vec<OsString>> {
    let parsed = split(words, "", "Nt")?;
    let [dir] = parsed.operands.as_slice() else {
        return Err(Failure::usage("umount.fuse.pagefold needs a directory").hint("umount DIR"));
    };
    let mut command: Vec<OsString> = vec!["pagefold".into(), "unmount".into()];
    for (flag, word) in [('f', "--force"), ('l', "--lazy")] {
        command.extend(parsed.flags.contains(flag).then(|| word.into()));
    }
    // An absolute path cannot be taken for a pool's name.
    let dir = std::path::absolute(dir).map_or_else(|_| dir.clone(), Into::into);
    command.extend(["--".into(), dir]);
    Ok(command)
}

/// Translates `pagefold-generator NORMAL-DIR EARLY-DIR LATE-DIR` (systemd.generator(7)).
fn generator(dirs: &[OsString]) -> Vec<OsString> {
    let words = ["pagefold", "generator", "--"].into_iter().map(OsString::from);
    words.chain(dirs.iter().cloned()).collect()
}

struct Split {
    operands: Vec<OsString>,
    flags: String,
    options: Vec<OsString>,
}

/// Sorts words into operands, single-letter flags and values: letters in `kept` and `dropped` take a value, which is
/// kept or dropped.
fn split(words: &[OsString], kept: &str, dropped: &str) -> Result<Split> {
    let mut split = Split { operands: Vec::new(), flags: String::new(), options: Vec::new() };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(letters) =
            word.to_str().and_then(|text| text.strip_prefix('-')).filter(|text| !text.is_empty())
        else {
            split.operands.push(word.clone());
            continue;
        };
        let mut letters = letters.chars();
        while let Some(letter) = letters.next() {
            if !kept.contains(letter) && !dropped.contains(letter) {
                split.flags.push(letter);
                continue;
            }
            let attached: String = letters.by_ref().collect();
            let value =
                if attached.is_empty() { words.next().cloned() } else { Some(OsString::from(attached)) };
            let value = value.ok_or_else(|| Failure::usage(format!("option -{letter} needs a value")))?;
            if kept.contains(letter) {
                split.options.push(value);
            }
        }
    }
    if let Some(unknown) = split.flags.chars().find(|flag| !"sfnvlri".contains(*flag)) {
        return Err(Failure::usage(format!("there is no option -{unknown}")));
    }
    Ok(split)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn text(words: &[OsString]) -> String {
        words.join(OsStr::new(" ")).to_string_lossy().into_owned()
    }

    fn translated(line: &str) -> Result<String> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        translate(&words).unwrap().map(|words| text(&words))
    }

    #[test]
    fn helpers_become_verbs() {
        let cases = [
            ("/sbin/mount.pagefold tank /mnt -o rw,nofail", "pagefold mount -o rw,nofail -- tank /mnt"),
            ("mount.pagefold tank /mnt -sn -v -o ro", "pagefold mount -o ro -- tank /mnt"),
            ("/lib/systemd/system-generators/pagefold-generator /a /b /c", "pagefold generator -- /a /b /c"),
            ("mount.fuse.pagefold tank /mnt -oro -t fuse.pagefold", "pagefold mount -o ro -- tank /mnt"),
            ("/sbin/umount.fuse.pagefold /mnt", "pagefold unmount -- /mnt"),
            ("umount.pagefold /mnt -l -v -t fuse.pagefold", "pagefold unmount --lazy -- /mnt"),
            ("umount.pagefold /mnt -f -n -r", "pagefold unmount --force -- /mnt"),
        ];
        for (line, expected) in cases {
            assert_eq!(translated(line).unwrap(), expected);
        }
    }

    #[test]
    fn mistakes_are_usage_errors() {
        for line in [
            "mount.pagefold tank",
            "mount.pagefold a b c",
            "mount.pagefold a b -o",
            "mount.pagefold a b -z",
            "umount.pagefold",
        ] {
            assert_eq!(translated(line).unwrap_err().exit_status(), 2, "{line}");
        }
        assert!(translate(&["/usr/bin/pagefold".into(), "list".into()]).is_none());
    }
}
