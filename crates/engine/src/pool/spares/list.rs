//! The list of a pool's spares, as it is stored: a property of the pool for each of them, and one for the devices for
//! which no spare is to step in any more.
//!
//! | property | value |
//! |---|---|
//! | `pagefold:spare:ID` | number of times that it stepped in; `1` if it has failed, or `0`; `-`, or the device for which it stands in; its path |
//! | `pagefold:spares-sent-back` | devices whose spares the user has sent back |
//!
//! Fields are separated by a space. ID has 16 hexadecimal digits. A device is its number, a colon, its birth in
//! hexadecimal; `:suspect` follows if it was in use when the spare stepped in. In a path all but printable ASCII is
//! written as `%` and two digits.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::pool::membership::{MemberEntry, mixed};

/// Beginning of the names of the properties of spares.
pub(super) const PREFIX: &str = "pagefold:spare:";
/// Name of the property of devices whose spares were sent back.
pub(super) const SENT_BACK: &str = "pagefold:spares-sent-back";
/// Longest stored form of a path, in bytes; a spare with a longer one is known by its number alone.
const PATH_BYTES_MAX: usize = 4096;

/// A member of a group, by which it is told from others that had its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::pool) struct DeviceId {
    pub(in crate::pool) number: u16,
    pub(in crate::pool) birth: u64,
}

impl DeviceId {
    pub(in crate::pool) const fn of(entry: &MemberEntry) -> Self {
        Self { number: entry.number, birth: entry.birth }
    }

    fn decode(text: &str) -> Option<Self> {
        let (number, birth) = text.split_once(':')?;
        Some(Self { number: number.parse().ok()?, birth: u64::from_str_radix(birth, 16).ok()? })
    }
}

impl std::fmt::Display for DeviceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{:x}", self.number, self.birth)
    }
}

/// The device for which a spare stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StandsFor {
    pub(super) device: DeviceId,
    /// True if that device was in use when the spare stepped in: then it is mended when the user says so.
    pub(super) suspect: bool,
}

/// A spare, as the pool knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SpareRecord {
    /// Number that its label has, too.
    pub(super) id: u64,
    /// Number of times that it stepped in.
    pub(super) times: u64,
    /// True if it failed when it was a member.
    pub(super) failed: bool,
    pub(super) stands: Option<StandsFor>,
    /// The path that it had last; empty if it is too long.
    pub(super) path: PathBuf,
}

impl SpareRecord {
    pub(super) fn new(id: u64, path: &Path) -> Self {
        Self { id, times: 0, failed: false, stands: None, path: path.to_path_buf() }
    }

    /// Returns the birth that it has, or had, as the member of a group: another one each time, by which the group's table
    /// and its own label tell that it is this spare.
    pub(super) const fn birth(&self) -> u64 {
        mixed(self.id ^ mixed(self.times))
    }

    /// Returns the name of its property.
    pub(super) fn name(&self) -> String {
        format!("{PREFIX}{:016x}", self.id)
    }

    pub(super) fn encode(&self) -> String {
        let stands = self.stands.map_or_else(
            || "-".to_owned(),
            |stands| format!("{}{}", stands.device, if stands.suspect { ":suspect" } else { "" }),
        );
        let path = escaped(&self.path);
        let path = if path.len() > PATH_BYTES_MAX { "" } else { &path };
        format!("{} {} {stands} {path}", self.times, u8::from(self.failed))
    }

    /// Reads a property; `None` if it is not well formed.
    pub(super) fn decode(name: &str, text: &str) -> Option<Self> {
        let id = u64::from_str_radix(name.strip_prefix(PREFIX)?, 16).ok()?;
        let mut fields = text.splitn(4, ' ');
        let times = fields.next()?.parse().ok()?;
        let failed = match fields.next()? {
            "0" => false,
            "1" => true,
            _ => return None,
        };
        let stands = match fields.next()? {
            "-" => None,
            device => {
                let (device, suspect) =
                    device.strip_suffix(":suspect").map_or((device, false), |of| (of, true));
                Some(StandsFor { device: DeviceId::decode(device)?, suspect })
            }
        };
        Some(Self { id, times, failed, stands, path: unescaped(fields.next()?)? })
    }
}

/// Returns the stored form of devices.
pub(in crate::pool) fn encode_devices<'a>(devices: impl IntoIterator<Item = &'a DeviceId>) -> String {
    devices.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Reads devices; those that are not well formed are left out.
pub(in crate::pool) fn decode_devices(text: &str) -> impl Iterator<Item = DeviceId> + '_ {
    text.split(' ').filter_map(DeviceId::decode)
}

fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'!'..=b'~' if *byte != b'%' => text.push(char::from(*byte)),
            // Writing to a String cannot fail.
            _ => drop(write!(text, "%{byte:02x}")),
        }
    }
    text
}

fn unescaped(text: &str) -> Option<PathBuf> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(part.get(2..)?.as_bytes());
    }
    Some(OsString::from_vec(bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back() {
        let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
        let device = DeviceId { number: 3, birth: u64::MAX };
        for stands in [None, Some(false), Some(true)] {
            for bytes in [&b"/dev/sdb"[..], b"", b"/a b\n%41/\xff\xc3\xa4", b"/x "] {
                let stands = stands.map(|suspect| StandsFor { device, suspect });
                let record =
                    SpareRecord { id: 0xabc, times: 7, failed: stands.is_some(), stands, path: path(bytes) };
                assert_eq!(SpareRecord::decode(&record.name(), &record.encode()), Some(record));
            }
        }
        let long = SpareRecord::new(1, &path(&[b'a'; PATH_BYTES_MAX + 1]));
        let read = SpareRecord::decode(&long.name(), &long.encode()).unwrap();
        assert_eq!((read.path, read.id), (PathBuf::new(), 1));
    }

    #[test]
    fn what_is_not_well_formed_is_refused() {
        let name = SpareRecord::new(1, Path::new("/a")).name();
        for text in
            ["", "1", "1 0 -", "x 0 - /a", "1 2 - /a", "1 0 3 /a", "1 0 3:x /a", "1 0 - /%4", "1 0 - /%zz"]
        {
            assert_eq!(SpareRecord::decode(&name, text), None, "{text}");
        }
        assert_eq!(SpareRecord::decode("pagefold:spare:xyz", "0 0 - /a"), None);
    }

    #[test]
    fn a_spare_has_another_birth_each_time() {
        let births: std::collections::BTreeSet<u64> = (0..100)
            .flat_map(|id| (0..100).map(move |times| (id, times)))
            .map(|(id, times)| SpareRecord { times, ..SpareRecord::new(id, Path::new("")) }.birth())
            .collect();
        assert_eq!(births.len(), 10_000);
    }

    #[test]
    fn lists_of_devices_read_back() {
        let all = [DeviceId { number: 0, birth: 1 }, DeviceId { number: 9, birth: 0xff }];
        let text = encode_devices(&all);
        assert_eq!(decode_devices(&text).collect::<Vec<_>>(), all);
        assert_eq!(decode_devices("").count() + decode_devices("7 x:1 1:").count(), 0);
    }
}
