//! Finds mounts in the kernel's own list, so that a dead or slow server does not matter.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns true if something is mounted at `dir`, whether its server answers or not.
pub fn is_mount_point(dir: &Path) -> bool {
    let wanted = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.into());
    mounts_at(&wanted).next().is_some()
}

/// Returns true if the mount of the device `0:minor` is at `dir` (without symbolic links), and no other above it.
pub(crate) fn is_mount_of(dir: &Path, device_minor: u32) -> bool {
    mounts_at(dir).last().is_some_and(|device| device == format!("0:{device_minor}"))
}

/// Returns the devices mounted at `dir`, the topmost last.
fn mounts_at(dir: &Path) -> impl Iterator<Item = String> {
    let list = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let of = |line: &[u8]| {
        let mut fields = line.split(|&b| b == b' ').skip(2);
        let (device, path) = (fields.next()?, fields.nth(1)?);
        (unescape(path) == dir.as_os_str().as_bytes()).then(|| String::from_utf8_lossy(device).into_owned())
    };
    list.split(|&b| b == b'\n').filter_map(of).collect::<Vec<_>>().into_iter()
}

/// Decodes a path of mountinfo: blanks and the like are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if first == b'\\' => {
                path.push(byte);
                rest = &after[3..];
            }
            _ => {
                path.push(first);
                rest = after;
            }
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_mountinfo() {
        assert_eq!(unescape(br"/a\040b\134c\0"), br"/a b\c\0");
        assert!(is_mount_point(Path::new("/proc")));
        assert!(!is_mount_point(Path::new("/proc/self")));
        assert!(!is_mount_of(Path::new("/proc"), u32::MAX));
    }
}
