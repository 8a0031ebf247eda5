//! Finds options of a line in `/etc/fstab` that mount(8) does not pass to its helpers: `suid` and `dev`, which it drops
//! because they are its own defaults. Ours are `nosuid` and `nodev`, so that the words in the line would have no
//! effect.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use pagefold_server::mounts::unescape;

/// File that mount(8) reads, unless the variable `LIBMOUNT_FSTAB` names another.
const FILE: &str = "/etc/fstab";
const FILE_VARIABLE: &str = "LIBMOUNT_FSTAB";

/// Returns options of the line for `dir` that mount(8) has dropped, as words with the same meaning.
pub fn dropped(source: &OsStr, dir: &OsStr) -> Vec<&'static str> {
    let file = std::env::var_os(FILE_VARIABLE).map_or_else(|| PathBuf::from(FILE), PathBuf::from);
    // If the file cannot be read, the mount does not come from it.
    std::fs::read(file).map(|text| dropped_in(&text, source, dir)).unwrap_or_default()
}

fn dropped_in(text: &[u8], source: &OsStr, dir: &OsStr) -> Vec<&'static str> {
    for line in text.split(|byte| *byte == b'\n') {
        let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()).map(unescape);
        let (Some(first), Some(second), Some(kind), Some(options)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if first.starts_with(b"#") || !matches!(kind.as_slice(), b"pagefold" | b"fuse.pagefold") {
            continue;
        }
        let place: OsString = OsString::from_vec(second);
        if first != source.as_bytes() || Path::new(&place) != Path::new(dir) {
            continue;
        }
        // The last word of each kind counts.
        let says = |yes: &str, no: &str| {
            let all = options.split(|byte| *byte == b',');
            all.rev()
                .find(|word| *word == yes.as_bytes() || *word == no.as_bytes())
                .is_some_and(|word| word == yes.as_bytes())
        };
        let mut words = Vec::new();
        words.extend(says("suid", "nosuid").then_some("setuid=on"));
        words.extend(says("dev", "nodev").then_some("devices=on"));
        return words;
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mount_8_drops_is_found_in_the_line_of_the_mount() {
        let text = b"# tank /a pagefold suid 0 0\n\
            /dev/sda1 / ext4 suid,dev 0 1\n\
            tank /a\\040b pagefold rw,suid,dev,nofail 0 0\n\
            tank/db\t/db  fuse.pagefold  suid,nosuid,dev\t0 0\n\
            tank/x /x pagefold defaults 0 0\n\
            broken line\n";
        let of = |source: &str, dir: &str| dropped_in(text, source.as_ref(), dir.as_ref());
        assert_eq!(of("tank", "/a b"), ["setuid=on", "devices=on"]);
        assert_eq!(of("tank/db", "/db/"), ["devices=on"]);
        assert!(
            of("tank/x", "/x").is_empty() && of("tank", "/a").is_empty() && of("other", "/a b").is_empty()
        );
    }
}
