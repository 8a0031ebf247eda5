//! Words that name the devices of a pool: those that hold data, mirrors of them, spares and the log device.

use std::path::PathBuf;

use pagefold_server::failure::{Failure, Result};
use pagefold_server::pools::Layout;
use pagefold_server::raw::shown;

/// Word before the devices of a mirror.
const MIRROR: &str = "mirror";
/// Word before spares.
const SPARE: &str = "spare";
/// Word before the log device.
const LOG: &str = "log";

/// Returns the devices that the words name. Without the word `mirror` each device is a group of its own. Spares follow the
/// word `spare`, and the log device the word `log`, up to the next of these words.
pub(super) fn parse(words: &[PathBuf]) -> Result<Layout> {
    let mut layout = Layout::default();
    let (mut devices, mut has_log) = (Vec::new(), false);
    let is_word = |word: &PathBuf| [MIRROR, SPARE, LOG].iter().any(|known| word.as_os_str() == *known);
    let mut rest = words;
    while let Some((word, behind)) = rest.split_first() {
        rest = behind;
        if word.as_os_str() == LOG {
            if std::mem::replace(&mut has_log, true) {
                return Err(one_log_device("the word log was given twice"));
            }
            (layout.log, rest) = log_device(rest, is_word)?;
        } else if word.as_os_str() == SPARE {
            let (spares, behind) = up_to_word(rest, is_word);
            if spares.is_empty() {
                return Err(Failure::usage("no device follows the word spare")
                    .hint("for instance: mirror /dev/sdb /dev/sdc spare /dev/sdd"));
            }
            layout.spares.extend_from_slice(spares);
            rest = behind;
        } else {
            devices.push(word.clone());
        }
    }
    layout.groups = groups(&devices)?;
    Ok(layout)
}

/// Divides words before the first one that is no device.
fn up_to_word(words: &[PathBuf], is_word: impl Fn(&PathBuf) -> bool) -> (&[PathBuf], &[PathBuf]) {
    words.split_at(words.iter().position(is_word).unwrap_or(words.len()))
}

/// Returns the devices that follow the word `log`, and the words behind them.
fn log_device(words: &[PathBuf], is_word: impl Fn(&PathBuf) -> bool) -> Result<(Vec<PathBuf>, &[PathBuf])> {
    let mirror = words.first().is_some_and(|word| word.as_os_str() == MIRROR);
    let (devices, rest) = up_to_word(words.get(usize::from(mirror)..).unwrap_or_default(), is_word);
    match devices {
        [] if !mirror => {
            return Err(Failure::usage("no device follows the word log")
                .hint("for instance: log /dev/sdf; or a mirror: log mirror /dev/sdf /dev/sdg"));
        }
        [] | [_] if mirror => return Err(too_few(devices)),
        [first, second, ..] if !mirror => {
            let (first, second) = (shown(first), shown(second));
            return Err(one_log_device(&format!("{first} and {second} follow the word log")));
        }
        _ => {}
    }
    if rest.first().is_some_and(|word| word.as_os_str() == MIRROR) {
        return Err(one_log_device("another mirror follows the log device")
            .hint("name mirrors that hold data before the word log"));
    }
    Ok((devices.to_vec(), rest))
}

fn one_log_device(what: &str) -> Failure {
    Failure::usage(format!("{what}, and a pool has one log device"))
        .hint("it can be a mirror of several devices: log mirror /dev/sdf /dev/sdg")
}

/// Returns the groups of devices that the words name: each word `mirror` begins one, and without it each device is one
/// of its own.
fn groups(words: &[PathBuf]) -> Result<Vec<Vec<PathBuf>>> {
    let mut groups: Vec<Vec<PathBuf>> = Vec::new();
    let mut mirrors = false;
    for word in words {
        if word.as_os_str() == MIRROR {
            if !groups.is_empty() && !mirrors {
                return Err(Failure::usage("a pool of mirrors has no other devices").hint(
                    "what lies on a device without a mirror is lost with it: name each device's mirror",
                ));
            }
            mirrors = true;
            groups.push(Vec::new());
        } else if let (true, Some(group)) = (mirrors, groups.last_mut()) {
            group.push(word.clone());
        } else {
            groups.push(vec![word.clone()]);
        }
    }
    match groups.iter().find(|group| mirrors && group.len() < 2) {
        None => Ok(groups),
        Some(group) => Err(too_few(group)),
    }
}

fn too_few(group: &[PathBuf]) -> Failure {
    let named = group.first().map_or_else(|| "none".into(), |path| shown(path));
    Failure::usage(format!("a mirror needs at least two devices, and {named} is named"))
        .hint("for instance: mirror /dev/sdb /dev/sdc")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<PathBuf> {
        words.iter().map(PathBuf::from).collect()
    }

    fn parsed(given: &[&str]) -> (Vec<Vec<PathBuf>>, Vec<PathBuf>, Vec<PathBuf>) {
        let Layout { groups, spares, log } = parse(&words(given)).unwrap();
        (groups, spares, log)
    }

    #[test]
    fn spares_and_the_log_device_follow_their_words() {
        let (one, two) = (vec![words(&["a"])], vec![words(&["a", "b"])]);
        for (given, groups, spares, log) in [
            (&["a"][..], &one, &[][..], &[][..]),
            (&["spare", "e"], &Vec::new(), &["e"], &[]),
            (&["mirror", "a", "b", "spare", "e", "f"], &two, &["e", "f"], &[]),
            (&["spare", "e", "mirror", "a", "b", "spare", "f"], &two, &["e", "f"], &[]),
            (&["./spare"], &vec![words(&["./spare"])], &[], &[]),
            (&["a", "log", "f"], &one, &[], &["f"]),
            (&["mirror", "a", "b", "log", "f"], &two, &[], &["f"]),
            (&["mirror", "a", "b", "log", "mirror", "f", "g"], &two, &[], &["f", "g"]),
            (&["mirror", "a", "b", "spare", "e", "log", "f"], &two, &["e"], &["f"]),
            (&["mirror", "a", "b", "log", "f", "spare", "e"], &two, &["e"], &["f"]),
            (&["log", "mirror", "f", "g", "spare", "e", "mirror", "a", "b"], &two, &["e"], &["f", "g"]),
            (&["log", "f"], &Vec::new(), &[], &["f"]),
            (&["./log"], &vec![words(&["./log"])], &[], &[]),
        ] {
            assert_eq!(parsed(given), (groups.clone(), words(spares), words(log)), "{given:?}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (given, text) in [
            (&["spare"][..], "no device follows the word spare"),
            (&["a", "spare"], "no device follows the word spare"),
            (&["spare", "mirror", "a", "b"], "no device follows the word spare"),
            (&["spare", "spare", "a"], "no device follows the word spare"),
            (&["a", "spare", "log", "f"], "no device follows the word spare"),
            (&["a", "log"], "no device follows the word log"),
            (&["a", "log", "spare", "e"], "no device follows the word log"),
            (&["a", "log", "f", "g"], "a pool has one log device"),
            (&["a", "log", "f", "log", "g"], "a pool has one log device"),
            (&["a", "log", "log", "g"], "no device follows the word log"),
            (&["a", "log", "mirror", "f"], "a mirror needs at least two devices, and f"),
            (&["a", "log", "mirror"], "a mirror needs at least two devices, and none"),
            (&["log", "f", "mirror", "a", "b"], "a pool has one log device"),
            (&["log", "mirror", "f", "g", "mirror", "a", "b"], "a pool has one log device"),
            (&["mirror", "a", "log", "f"], "a mirror needs at least two devices, and a"),
        ] {
            let refused = parse(&words(given)).unwrap_err();
            assert_eq!(refused.exit_status(), 2, "{given:?}");
            assert!(refused.what().contains(text), "{given:?}: {}", refused.what());
        }
    }
}
