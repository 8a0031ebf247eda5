//! Binary logs and relay logs of a copy.
//!
//! A list of logs (`BASE.index`, and `BASE.~rec~` while one is made or removed) has absolute paths if the server was
//! given one. A server on the copy would open the logs of the server whose copy it is, and could remove them.

use std::ffi::OsString;

use pagefold_server::failure::{Failure, Result};

use super::DataDir;

/// Ends of the names of lists of logs.
const LISTS: [&str; 2] = [".index", ".~rec~"];
/// Largest length of a list: some hundred thousand names.
const LIST_BYTES_MAX: u64 = 16 << 20;

/// Has all lists of logs in the data directory name logs that lie beside them.
pub fn settle(data: &DataDir) -> Result<()> {
    for name in data.names(".")? {
        if !LISTS.iter().any(|end| name.ends_with(end)) || data.has_dir(&name) {
            continue;
        }
        let listed = data.read(&name, LIST_BYTES_MAX + 1)?.unwrap_or_default();
        if listed.len() as u64 > LIST_BYTES_MAX {
            return Err(Failure::new(format!(
                "{} is too long for a list of logs: more than {LIST_BYTES_MAX} bytes",
                data.shown(&name)
            ))
            .hint("remove it if it is no list of logs, or remove old logs with PURGE BINARY LOGS"));
        }
        let lines: Vec<Vec<u8>> = listed.split(|byte| *byte == b'\n').map(beside).collect();
        let lines = lines.join(&b'\n');
        if lines != listed {
            data.write_file(&name, &lines)?;
        }
    }
    Ok(())
}

/// Returns a line with the path of a log as `./NAME`; another line as it is.
fn beside(line: &[u8]) -> Vec<u8> {
    let name = line.rsplit(|byte| *byte == b'/').next().unwrap_or(line);
    let is_log = name.iter().rposition(|byte| *byte == b'.').is_some_and(|at| {
        let (base, suffix) = name.split_at(at);
        !base.is_empty() && std::str::from_utf8(suffix).is_ok_and(is_number)
    });
    match is_log {
        true => [b"./", name].concat(),
        false => line.to_vec(),
    }
}

/// Returns the options for the binary log. It goes on if its files are in the data directory: it decides transactions
/// that were prepared when the snapshot was made. Its name is relative, so that the list of logs stays so.
pub fn options(data: &DataDir) -> Result<Vec<OsString>> {
    let names = data.names(".")?;
    let has_log = |base: &&str| names.iter().any(|name| name.strip_prefix(base).is_some_and(is_number));
    // A relay log looks the same, and has another server's changes.
    let base = names.iter().filter_map(|name| name.strip_suffix(".index")).filter(has_log);
    let mut base = base.filter(|base| !base.contains("relay"));
    match (base.next(), base.next()) {
        (Some(base), None) => {
            Ok(vec![format!("--log-bin={base}").into(), format!("--log-bin-index={base}.index").into()])
        }
        (None, _) => Ok(vec!["--skip-log-bin".into()]),
        (Some(first), Some(second)) => {
            Err(Failure::new(format!("{} has two binary logs, {first} and {second}", data.path.display()))
                .hint("say which: --set log-bin=NAME"))
        }
    }
}

/// Returns true for `.000001` and the like.
fn is_number(suffix: &str) -> bool {
    suffix
        .strip_prefix('.')
        .is_some_and(|digits| digits.len() >= 6 && digits.chars().all(|c| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn words(dir: &Path, names: &[&str]) -> Result<Vec<OsString>> {
        names.iter().for_each(|name| std::fs::write(dir.join(name), "").unwrap());
        options(&DataDir::open(dir, ".").unwrap())
    }

    #[test]
    fn a_binary_log_goes_on_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            words(dir.path(), &["a.index", "relay-bin.index", "relay-bin.000001"]).unwrap(),
            ["--skip-log-bin"]
        );
        let word = words(dir.path(), &["bin.index", "bin.000001", "bin.000002"]).unwrap();
        assert_eq!(word, ["--log-bin=bin", "--log-bin-index=bin.index"]);
        assert!(words(dir.path(), &["other.index", "other.000001"]).is_err());
    }

    #[test]
    fn lists_name_the_logs_beside_them() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path(), ".").unwrap();
        let lists = ["bin.index", "bin.~rec~", "relay-bin.index"];
        for name in lists {
            std::fs::write(dir.path().join(name), "/elsewhere/bin.000001\n./bin.000002\n../bin.1000000\n")
                .unwrap();
        }
        std::fs::write(dir.path().join("other.index"), "/elsewhere/notes\n\u{ff}").unwrap();
        super::super::settle(&data).unwrap();
        for name in lists {
            let listed = std::fs::read_to_string(dir.path().join(name)).unwrap();
            assert_eq!(listed, "./bin.000001\n./bin.000002\n./bin.1000000\n", "{name}");
        }
        assert_eq!(
            std::fs::read(dir.path().join("other.index")).unwrap(),
            "/elsewhere/notes\n\u{ff}".as_bytes()
        );
    }
}
