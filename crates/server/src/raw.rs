//! Represents names of any bytes as texts: within this program, on a terminal, for scripts and in JSON.
//!
//! File names are bytes; texts of Rust and of JSON are UTF-8. Within the program, in its files and in messages between
//! its processes, a name is a text in which each byte that is not UTF-8 becomes a character of its own at the end of
//! the last private plane ([`text`], [`path_of`]). So nothing is lost, and names are texts like others. Output makes
//! these characters visible, as `\xff`; for scripts, `printf %b` decodes all. In JSON the usual field has U+FFFD in their
//! place, and a field of the same name with `_bytes` has the bytes in hexadecimal ([`printed`]).

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

/// Character that stands for the byte 0.
const FIRST: u32 = 0x0010_ff00;
/// Suffix of the name of a field that has the bytes of another one.
const BYTES: &str = "_bytes";

/// Returns the byte that a character stands for, if it is such a character.
fn byte_of(c: char) -> Option<u8> {
    u32::from(c).checked_sub(FIRST).and_then(|byte| u8::try_from(byte).ok())
}

/// Returns true if a text contains characters that stand for bytes.
pub fn is_ours(text: &str) -> bool {
    text.chars().any(|c| byte_of(c).is_some())
}

/// Converts bytes to a text, from which `bytes_of` makes the same bytes.
pub fn text_of(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let stands_for = |byte: &u8| char::from_u32(FIRST + u32::from(*byte)).unwrap_or_default();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match byte_of(c) {
                // Such a character in a name is stored as bytes, too: otherwise it would be taken for one of ours.
                Some(_) => text.extend(c.encode_utf8(&mut [0; 4]).as_bytes().iter().map(stands_for)),
                None => text.push(c),
            }
        }
        text.extend(chunk.invalid().iter().map(stands_for));
    }
    text
}

/// Returns the bytes that a text stands for.
pub(crate) fn bytes_of(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for c in text.chars() {
        match byte_of(c) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

/// Converts a path to a text.
pub fn text(path: &Path) -> String {
    text_of(path.as_os_str().as_bytes())
}

/// Returns the path that a text stands for.
pub fn path_of(text: &str) -> PathBuf {
    OsString::from_vec(bytes_of(text)).into()
}

/// Makes control characters, bytes that are not UTF-8 and characters that change the direction of text visible, so that
/// names of files and devices cannot move the cursor or pass for other names.
pub fn printable(text: &str) -> String {
    let turns =
        |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if turns(c) => line.extend(c.escape_unicode()),
            c => push_visible(&mut line, c),
        }
    }
    line
}

/// Converts a text for scripts, to one line without tabs, from which `printf %b` makes the name again.
pub fn escaped(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => line.push_str("\\\\"),
            c => push_visible(&mut line, c),
        }
    }
    line
}

/// Adds a character to a line; a control character, or one that stands for a byte, in the form that `printf %b` decodes.
fn push_visible(line: &mut String, c: char) {
    match c {
        '\n' => line.push_str("\\n"),
        '\t' => line.push_str("\\t"),
        c if c.is_control() => {
            for byte in c.encode_utf8(&mut [0; 4]).as_bytes() {
                line.push_str(&format!("\\x{byte:02x}"));
            }
        }
        c => match byte_of(c) {
            Some(byte) => line.push_str(&format!("\\x{byte:02x}")),
            None => line.push(c),
        },
    }
}

/// Converts JSON to the form that is printed: in a text with bytes that are not UTF-8, U+FFFD stands for them, and
/// another field has the bytes. For an array with such texts, `NAME_bytes` has as many elements, null for those that
/// are exact.
pub fn printed(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut all = Map::new();
            for (name, value) in fields {
                let bytes = hexadecimal(&value);
                if bytes != Value::Null {
                    all.insert(format!("{name}{BYTES}"), bytes);
                }
                all.insert(name, printed(value));
            }
            Value::Object(all)
        }
        Value::Array(values) => Value::Array(values.into_iter().map(printed).collect()),
        Value::String(text) if is_ours(&text) => {
            Value::String(String::from_utf8_lossy(&bytes_of(&text)).into_owned())
        }
        other => other,
    }
}

/// Returns the bytes of a text, or of the texts of an array, that JSON cannot represent; null for what it can.
fn hexadecimal(value: &Value) -> Value {
    match value {
        Value::String(text) if is_ours(text) => {
            let bytes = bytes_of(text);
            match std::str::from_utf8(&bytes) {
                Ok(_) => Value::Null,
                Err(_) => Value::String(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
            }
        }
        Value::Array(values) => {
            let all: Vec<Value> = values.iter().map(hexadecimal).collect();
            if all.iter().all(Value::is_null) { Value::Null } else { Value::Array(all) }
        }
        _ => Value::Null,
    }
}

/// Serialises a path in files and messages of the program: `#[serde(with = "crate::raw::path")]`.
pub mod path {
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes a path as a text.
    pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::text(path))
    }
    /// Reads a path from a text.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        Ok(super::path_of(&String::deserialize(deserializer)?))
    }
}

/// Serialises several paths, as `path` does for one.
pub mod paths {
    use std::path::PathBuf;

    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes paths as texts.
    pub fn serialize<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(paths.iter().map(|path| super::text(path)))
    }
    /// Reads paths from texts.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        Ok(texts.iter().map(|text| super::path_of(text)).collect())
    }
}

/// Serialises one path or none, as `path` does. The field needs `default`, too.
pub mod maybe_path {
    use std::path::PathBuf;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Writes a path, if there is one, as a text.
    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
        path.as_deref().map(super::text).serialize(serializer)
    }
    /// Reads a path, if there is one, from a text.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<String>::deserialize(deserializer)?.map(|text| super::path_of(&text)))
    }
}

/// Formats a path for a message.
pub fn shown(path: &Path) -> String {
    printable(&text(path))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_byte_string_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        for bytes in [
            &b""[..],
            b"plain",
            "t\u{e4}st".as_bytes(),
            b"\xff",
            b"a\xffb\xc3",
            b"\xed\xa0\x80",
            "\u{10ffff}\u{10ff41}A".as_bytes(),
            &all,
        ] {
            let text = text_of(bytes);
            assert_eq!(bytes_of(&text), bytes);
            assert_eq!(std::str::from_utf8(bytes).is_ok_and(|plain| plain == text), !is_ours(&text));
        }
    }

    #[test]
    fn people_and_scripts_see_what_is_there() {
        let text = text_of(b"a\tb\\c\x1b\n\xff\xc3\xa4");
        assert_eq!(printable(&text), "a\\tb\\c\\x1b\\n\\xff\u{e4}");
        assert_eq!(escaped(&text), "a\\tb\\\\c\\x1b\\n\\xff\u{e4}");
    }

    #[test]
    fn json_has_the_bytes_beside_the_text() {
        let odd = text_of(b"a\xff");
        let value = json!({ "path": odd, "size": 3, "devices": ["/b", odd], "rows": [{ "dir": odd }] });
        let expected = json!({
            "path": "a\u{fffd}", "path_bytes": "61ff", "size": 3,
            "devices": ["/b", "a\u{fffd}"], "devices_bytes": [null, "61ff"],
            "rows": [{ "dir": "a\u{fffd}", "dir_bytes": "61ff" }],
        });
        assert_eq!(printed(value), expected);
        let plain = json!({ "path": "/t\u{e4}st\n", "rows": [1, null, "x"] });
        assert_eq!(printed(plain.clone()), plain);
        // A private character that somebody used in a name is exact as it is.
        assert_eq!(printed(json!({ "a": text_of("\u{10ff41}".as_bytes()) })), json!({ "a": "\u{10ff41}" }));
    }
}
