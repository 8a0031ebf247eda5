//! Programs that a branch needs: the machine's own, never a pool's.
//!
//! A program is run only if nobody but root (and the user that runs us) can change it, or replace it or a directory on
//! the way to it, and if the kernel itself serves its file system. So no file in a pool can be run, whoever owns it
//! there.
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pagefold_engine::walk::{self, WalkError};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::spawn::{self, Purpose};
use rustix::io::Errno;

use crate::table::printable;

/// The bits set-user-ID and set-group-ID of a mode.
const SET_ID: u32 = 0o6000;

/// Returns the folders to look in, after those that packages of a product use.
pub fn folders() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| spawn::PATH.into());
    let absolute = std::env::split_paths(&path).filter(|folder| folder.is_absolute());
    absolute.chain(std::env::split_paths(spawn::PATH)).collect()
}

/// The result of a search for a program.
pub struct Search {
    name: String,
    /// Programs of this name that may be run.
    pub found: Vec<PathBuf>,
    /// Programs of this name that may not be run, since others could change them.
    refused: Vec<PathBuf>,
}

impl Search {
    /// Looks for programs of these names in folders, in this order.
    pub fn of(names: &[&str], folders: &[PathBuf]) -> Self {
        let mut search = Self { name: names.join(" or "), found: Vec::new(), refused: Vec::new() };
        for (name, folder) in names.iter().flat_map(|name| folders.iter().map(move |folder| (name, folder))) {
            search.look(&folder.join(name));
        }
        search
    }

    fn look(&mut self, path: &Path) {
        match walk::kept_file(path) {
            Ok(kept) if kept.mode & 0o111 == 0 || kept.mode & SET_ID != 0 => {}
            Ok(_) if self.found.iter().any(|found| found == path) => {}
            // The program keeps the name under which it was found: programs look for their files beside it.
            Ok(_) => self.found.push(path.to_owned()),
            Err(WalkError::Os { errno: Errno::NOENT | Errno::NOTDIR | Errno::ISDIR, .. }) => {}
            Err(_) => self.refused.push(path.to_owned()),
        }
    }

    /// Returns the failure that none will do: `what` is missing, `hint` says what helps.
    pub fn failure(&self, what: String, hint: &str) -> Failure {
        let Some(refused) = self.refused.first() else { return Failure::new(what).hint(hint) };
        let path = printable(&pagefold_server::raw::text(refused));
        Failure::new(what).hint(format!(
            "{path} is not run: others than root can change it or the way to it, or it lies on a pool; {hint}"
        ))
    }

    /// Returns the only, or first, program.
    pub fn first(&self) -> Result<&Path> {
        let missing = || format!("there is no {} on this machine", self.name);
        self.found.first().map(PathBuf::as_path).ok_or_else(|| self.failure(missing(), "install it"))
    }
}

/// Returns the output of one of the machine's own programs; `None` if it fails.
pub fn machine_said(program: &str, words: &[&str]) -> Result<Option<String>> {
    let search = Search::of(&[program], &std::env::split_paths(spawn::PATH).collect::<Vec<_>>());
    let mut command = Command::new(search.first()?);
    spawn::set_environment(&mut command, Purpose::Database);
    command.args(words).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output();
    let output = output.map_err(|error| Failure::new(format!("cannot run {program}: {error}")))?;
    Ok(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn programs_that_others_could_change_are_refused_and_told() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().canonicalize().unwrap();
        let file = folder.join("server");
        let search = || Search::of(&["server"], std::slice::from_ref(&folder));
        assert!(search().failure("none".into(), "help").to_string().ends_with("none\n  help"));
        fs::write(&file, "").unwrap();
        for (mode, fine) in [(0o644, false), (0o755, true), (0o4755, false), (0o775, false), (0o757, false)] {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let _ = std::os::unix::fs::chown(&file, None, Some(12_345));
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            if mode == 0o775 && !pagefold_server::files::is_root() {
                continue;
            }
            assert_eq!(search().found.len(), usize::from(fine), "{mode:o}");
        }
        assert!(search().failure("none".into(), "help").to_string().contains("is not run"));
        assert!(search().first().is_err());
        assert!(Search::of(&["sh"], &[PathBuf::from("/bin")]).first().is_ok());
    }

    #[test]
    fn the_machine_is_asked_by_its_own_programs() {
        assert_eq!(machine_said("id", &["-un", "0"]).unwrap().unwrap().trim(), "root");
        assert_eq!(machine_said("id", &["-un", "3999999999"]).unwrap(), None);
        assert!(folders().iter().all(|folder| folder.is_absolute()));
    }
}
