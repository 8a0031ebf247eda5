//! Writes paths as systemd does, in names of units and in settings (systemd.unit(5), "String Escaping for Inclusion in
//! Unit Names").

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the name of the unit of a path: for `/srv/my tank` and `mount`, `srv-my\x20tank.mount`.
pub fn unit_name(path: &Path, kind: &str) -> String {
    let parts: Vec<&[u8]> =
        path.as_os_str().as_bytes().split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
    if parts.is_empty() {
        return format!("-.{kind}");
    }
    let mut name = String::new();
    for (at, byte) in parts.join(&b'/').into_iter().enumerate() {
        match byte {
            b'/' => name.push('-'),
            b'.' if at == 0 => name.push_str("\\x2e"),
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b':' | b'_' | b'.' => name.push(char::from(byte)),
            other => name.push_str(&format!("\\x{other:02x}")),
        }
    }
    format!("{name}.{kind}")
}

/// Returns a path as a word of a setting that takes several; `None` if it has bytes that are not UTF-8 or control
/// characters, which systemd accepts in no unit file.
pub fn word(path: &Path) -> Option<String> {
    let text = path.to_str().filter(|text| !text.chars().any(char::is_control))?;
    // A percent sign begins a specifier.
    let text = text.replace('%', "%%");
    let plain = |c: char| c.is_alphanumeric() || "/-_.:@+,=%~".contains(c);
    if text.chars().all(plain) {
        return Some(text);
    }
    Some(format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_systemd_escape() {
        // These are the names that `systemd-escape --path` prints.
        for (path, name) in [
            ("/", "-"),
            ("/srv/tank", "srv-tank"),
            ("//srv//tank/", "srv-tank"),
            ("/var/lib/post-gres", "var-lib-post\\x2dgres"),
            ("/srv/my tank", "srv-my\\x20tank"),
            ("/.hidden/.x", "\\x2ehidden-.x"),
            ("/srv/t\u{e4}st", "srv-t\\xc3\\xa4st"),
        ] {
            assert_eq!(unit_name(Path::new(path), "mount"), format!("{name}.mount"));
        }
        assert_eq!(unit_name(Path::new("/dev/mapper/vg-lv"), "device"), "dev-mapper-vg\\x2dlv.device");
    }

    #[test]
    fn words_of_settings() {
        let word = |text: &str| word(Path::new(text));
        assert_eq!(word("/srv/tank"), Some("/srv/tank".into()));
        assert_eq!(word("/srv/my tank"), Some("\"/srv/my tank\"".into()));
        assert_eq!(word("/srv/100%\\\""), Some("\"/srv/100%%\\\\\\\"\"".into()));
        assert_eq!(word("/srv/a\nb"), None);
    }
}
