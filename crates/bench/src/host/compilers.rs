//! Keeps processors busy as compilers do, beside what is measured.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::cleanup::{Noted, note_server};
use super::exec::{Server, command};

/// Functions of the source: enough for some seconds of compiling.
const FUNCTIONS: usize = 1500;
/// Compiles a file again and again. The signal that ends the shell ends its compiler, too.
const LOOP: &str = r#"trap 'trap - TERM; kill 0' TERM
while :; do cc -O2 -c -x c -o /dev/null "$0" & wait $! || exit 1; done"#;
const STOPS_WITHIN: Duration = Duration::from_secs(10);

/// Compilers that run until this is dropped.
#[derive(Debug)]
pub(crate) struct Compilers {
    running: Vec<(Server, Noted)>,
    _source: tempfile::NamedTempFile,
}

impl Compilers {
    /// Starts so many of them. Notes them below `dir`, for `clean`.
    ///
    /// # Errors
    /// When there is no C compiler.
    pub(crate) fn start(dir: &Path, number: usize) -> Result<Self> {
        super::exec::run(&mut command("cc", ["--version"])).context("find a C compiler (apt install gcc)")?;
        let mut source = tempfile::NamedTempFile::new_in(dir)?;
        std::io::Write::write_all(&mut source, generated(FUNCTIONS).as_bytes())?;
        let mut running = Vec::new();
        for _ in 0..number {
            let mut shell = command("sh", ["-c", LOOP]);
            let server = Server::start(shell.arg(source.path()), Signal::TERM, STOPS_WITHIN)?;
            let noted = note_server(dir, server.pid())?;
            running.push((server, noted));
        }
        Ok(Self { running, _source: source })
    }

    /// Fails if one of them has ended, since then the processors were not as busy as was said.
    ///
    /// # Errors
    /// With what the compiler printed.
    pub(crate) fn ensure_running(&mut self) -> Result<()> {
        ensure!(!self.running.is_empty(), "no compiler was started");
        self.running.iter_mut().try_for_each(|(server, _)| server.ensure_running())
    }
}

/// Returns C with so many functions, no two alike.
fn generated(functions: usize) -> String {
    let mut text = String::from("struct row { unsigned id, k, seen[16]; char c[120]; };\n");
    for n in 0..functions {
        let _infallible = writeln!(
            text,
            "unsigned step_{n}(struct row *rows, unsigned count, unsigned key) {{\n  unsigned found = {n};\n  \
             for (unsigned i = 0; i < count; i++) {{\n    switch ((rows[i].k ^ key) % {}) {{\n    case 0: found += rows[i].id * {}u; break;\n    \
             case 1: rows[i].seen[i & 15] ^= found >> {}; break;\n    case 2: found = found * 31 + (unsigned char)rows[i].c[i % 120]; break;\n    \
             default: if (rows[i].id > found) found -= rows[i].seen[{}];\n    }}\n  }}\n  return found;\n}}",
            5 + n % 7,
            2 * n + 3,
            1 + n % 13,
            n % 16,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::exec::run;

    #[test]
    fn what_is_generated_can_be_compiled() {
        let mut source = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut source, generated(20).as_bytes()).unwrap();
        let mut cc = command("cc", ["-Wall", "-Werror", "-O2", "-c", "-x", "c", "-o", "/dev/null"]);
        run(cc.arg(source.path())).unwrap();
    }

    #[test]
    fn compilers_run_until_they_are_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let mut compilers = Compilers::start(dir.path(), 2).unwrap();
        compilers.ensure_running().unwrap();
        let pids: Vec<u32> = compilers.running.iter().map(|(server, _)| server.pid()).collect();
        drop(compilers);
        // The shells have ended. Their compilers got the same signal, and the kernel may need a moment.
        let running = |pid: u32| run(&mut command("pgrep", ["-g", &pid.to_string()])).is_ok();
        for _ in 0..500 {
            if !pids.iter().any(|&pid| running(pid)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!pids.iter().any(|&pid| running(pid)), "compilers are left");
    }
}
