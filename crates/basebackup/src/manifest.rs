//! `backup_manifest`: the list of a backup's files, for `pg_verifybackup`.
//!
//! It is JSON of version 1, as PostgreSQL's documentation describes it ("Backup Manifest Format"). All versions of
//! PostgreSQL that know manifests read it.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

use ring::digest;

use crate::control::lsn;
use crate::error::Error;
use crate::wal::Range;

/// Name of the file.
pub const FILE: &str = "backup_manifest";

/// How damaged files are detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Checksums {
    /// By their length.
    None,
    /// By CRC-32C.
    #[default]
    Crc32c,
    /// By SHA-256.
    Sha256,
}

impl FromStr for Checksums {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.to_ascii_uppercase().as_str() {
            "NONE" => Ok(Self::None),
            "CRC32C" => Ok(Self::Crc32c),
            "SHA256" => Ok(Self::Sha256),
            _ => Err(Error::Invalid(format!(
                "\"{text}\" is no kind of checksums: there are NONE, CRC32C and SHA256"
            ))),
        }
    }
}

/// The checksum of a file that is being computed.
pub(crate) enum Sum {
    None,
    Crc32c(u32),
    Sha256(Box<digest::Context>),
}

impl Sum {
    pub(crate) fn new(checksums: Checksums) -> Self {
        match checksums {
            Checksums::None => Self::None,
            Checksums::Crc32c => Self::Crc32c(0),
            Checksums::Sha256 => Self::Sha256(Box::new(digest::Context::new(&digest::SHA256))),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::None => {}
            Self::Crc32c(sum) => *sum = crc32c::crc32c_append(*sum, bytes),
            Self::Sha256(context) => context.update(bytes),
        }
    }

    /// Returns the algorithm's name, and the checksum as it is written: a CRC as it lies in memory, low byte first.
    fn finish(self) -> Option<(&'static str, String)> {
        match self {
            Self::None => None,
            Self::Crc32c(sum) => Some(("CRC32C", hex(&sum.to_le_bytes()))),
            Self::Sha256(context) => Some(("SHA256", hex(context.finish().as_ref()))),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}

/// A manifest that is being made.
pub(crate) struct Manifest {
    text: String,
    files: usize,
}

impl Manifest {
    pub(crate) fn new() -> Self {
        Self { text: "{ \"PostgreSQL-Backup-Manifest-Version\": 1,\n\"Files\": [".into(), files: 0 }
    }

    /// Lists a file; `modified` is in seconds since 1970.
    pub(crate) fn add(&mut self, path: &Path, size: u64, modified: u64, sum: Sum) {
        self.text.push_str(if self.files == 0 { "\n" } else { ",\n" });
        self.files += 1;
        let name = match path.to_str() {
            Some(path) => format!("\"Path\": {}", serde_json::Value::from(path)),
            None => format!("\"Encoded-Path\": \"{}\"", hex(path.as_os_str().as_bytes())),
        };
        let _infallible =
            write!(self.text, "{{ {name}, \"Size\": {size}, \"Last-Modified\": \"{}\"", gmt(modified));
        if let Some((algorithm, sum)) = sum.finish() {
            let _infallible =
                write!(self.text, ", \"Checksum-Algorithm\": \"{algorithm}\", \"Checksum\": \"{sum}\"");
        }
        self.text.push_str(" }");
    }

    /// Returns the whole text, with the log that recovery needs, and the checksum of everything before it.
    pub(crate) fn finish(mut self, wal: &Range) -> Vec<u8> {
        let _infallible = write!(
            self.text,
            "\n],\n\"WAL-Ranges\": [\n{{ \"Timeline\": {}, \"Start-LSN\": \"{}\", \"End-LSN\": \"{}\" }}\n],\n",
            wal.timeline,
            lsn(wal.start),
            lsn(wal.end)
        );
        let sum = digest::digest(&digest::SHA256, self.text.as_bytes());
        let _infallible = writeln!(self.text, "\"Manifest-Checksum\": \"{}\"}}", hex(sum.as_ref()));
        self.text.into_bytes()
    }
}

/// Formats seconds since 1970 as `2026-11-25 15:28:00 GMT`.
fn gmt(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that the leap day is the last one; 146,097 days are 400 years.
    let since_march = days + 719_468;
    let (era, day) = (since_march / 146_097, since_march % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day + 2) / 153;
    let (day, month) =
        (day - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} GMT", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 GMT"),
            (951_782_399, "2000-02-28 23:59:59 GMT"),
            (951_782_400, "2000-02-29 00:00:00 GMT"),
            (1_704_067_199, "2023-12-31 23:59:59 GMT"),
            (4_107_542_400, "2100-03-01 00:00:00 GMT"),
        ] {
            assert_eq!(gmt(seconds), text);
        }
    }

    #[test]
    fn a_manifest_is_json_and_has_its_own_checksum() {
        use std::os::unix::ffi::OsStrExt as _;
        let mut manifest = Manifest::new();
        let mut sum = Sum::new(Checksums::Crc32c);
        sum.update(b"1234");
        sum.update(b"56789");
        manifest.add(Path::new("base/1/a\"b"), 9, 0, sum);
        manifest.add(Path::new(std::ffi::OsStr::from_bytes(b"\xff")), 0, 0, Sum::new(Checksums::None));
        let range = Range { timeline: 3, start: 0x1_0000_0028, end: 0x1_0000_0100 };
        let text = String::from_utf8(manifest.finish(&range)).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["Files"][0]["Path"], "base/1/a\"b");
        // The check value of CRC-32C is E3069283.
        assert_eq!(json["Files"][0]["Checksum"], "839206e3");
        assert_eq!(
            (&json["Files"][1]["Encoded-Path"], &json["Files"][1]["Checksum"]),
            (&"ff".into(), &serde_json::Value::Null)
        );
        assert_eq!(json["WAL-Ranges"][0]["End-LSN"], "1/100");
        let last = text.trim_end().rfind('\n').unwrap() + 1;
        let sum = hex(digest::digest(&digest::SHA256, &text.as_bytes()[..last]).as_ref());
        assert_eq!(json["Manifest-Checksum"], sum);
    }

    #[test]
    fn kinds_of_checksums() {
        assert_eq!("sha256".parse::<Checksums>().unwrap(), Checksums::Sha256);
        assert!("md5".parse::<Checksums>().is_err());
    }
}
