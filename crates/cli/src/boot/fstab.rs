//! Reads the lines of `/etc/fstab` (fstab(5)) that mount pools.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use pagefold_server::mounts;

/// A line of type `pagefold`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name of a dataset or snapshot, or path of one of a pool's devices.
    pub source: OsString,
    /// Directory where it is mounted.
    pub dir: PathBuf,
}

impl Entry {
    /// Returns the pool that the source names; `None` if the source is a path.
    pub fn pool(&self) -> Option<&str> {
        let source = self.source.to_str().filter(|source| !source.starts_with(['/', '.']))?;
        source.split(['/', '@']).next()
    }
}

/// Returns the lines of type `pagefold` in the text of a file.
pub fn parse(text: &[u8]) -> Vec<Entry> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Entry> {
    let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    let source = fields.next().filter(|field| !field.starts_with(b"#"))?;
    let (dir, kind) = (fields.next()?, fields.next()?);
    if kind != b"pagefold" && kind != mounts::FS_TYPE.as_bytes() {
        return None;
    }
    let dir = OsString::from_vec(mounts::unescape(dir));
    let dir = PathBuf::from(dir);
    dir.as_os_str()
        .as_bytes()
        .starts_with(b"/")
        .then(|| Entry { source: OsString::from_vec(mounts::unescape(source)), dir })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_ours_are_found() {
        let text = b"# tank /srv/no pagefold defaults 0 0
UUID=1 / ext4 defaults 0 1
 tank\t/srv/my\\040tank  pagefold  defaults,nofail 0 0
tank/db@monday /srv/db fuse.pagefold ro
/dev/sdb /srv/by-device pagefold
tank none pagefold
tank /srv/short
";
        let found = parse(text);
        let seen: Vec<_> = found.iter().map(|entry| (entry.pool(), entry.dir.to_str().unwrap())).collect();
        assert_eq!(
            seen,
            [(Some("tank"), "/srv/my tank"), (Some("tank"), "/srv/db"), (None, "/srv/by-device")]
        );
    }
}
