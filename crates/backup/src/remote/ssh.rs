//! Names another host, and reaches it by the program `ssh`, whose own configuration says the rest.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

use super::link::Wire;
use crate::error::{Error, Result};

/// Environment variable with a command in place of `ssh`, as a shell takes it.
const COMMAND: &str = "PAGEFOLD_BACKUP_SSH";
/// Name of the program on the other host, unless another one is given.
const PROGRAM: &str = "pagefold";
/// Form of a host's URL.
const FORM: &str = "ssh://[USER@]HOST[:PORT]/ABSOLUTE/DIRECTORY";

/// A directory on another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// User on the host, if it is not the one of ssh's configuration.
    user: Option<String>,
    /// Name or address of the host, or an alias in ssh's configuration.
    host: String,
    /// Port on the host, if it is not the one of ssh's configuration.
    port: Option<u16>,
    /// Directory of the repository on the host.
    directory: PathBuf,
    /// Name of the program on the host: words of a shell.
    program: String,
}

impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ssh://")?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        match self.host.contains(':') {
            true => write!(f, "[{}]", self.host)?,
            false => f.write_str(&self.host)?,
        }
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        self.directory.display().fmt(f)
    }
}

/// Returns true for a word that is no option, and has nothing that a shell or `ssh` would take for more than a name.
fn is_plain(word: &str, also: &str) -> bool {
    !word.is_empty()
        && !word.starts_with('-')
        && word.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c) || also.contains(c))
}

impl Host {
    /// Parses `[USER@]HOST[:PORT]/ABSOLUTE/DIRECTORY`, which is taken as it is: nothing is quoted. `program` is the
    /// name of Pagefold on that host.
    ///
    /// # Errors
    /// [`Error::Invalid`] tells what is wrong.
    pub fn parse(text: &str, program: Option<&str>) -> Result<Self> {
        let wrong = |why: &str| Error::Invalid(format!("'ssh://{text}' {why}: {FORM} is wanted"));
        let (place, directory) = text.split_once('/').ok_or_else(|| wrong("names no directory"))?;
        let directory = PathBuf::from(format!("/{directory}"));
        if directory.parent().is_none() {
            return Err(wrong("names no directory"));
        }
        if directory.components().any(|part| part == std::path::Component::ParentDir) {
            return Err(wrong("has '..' in it"));
        }
        if directory.as_os_str().len() > crate::limits::DIRECTORY_BYTES_MAX {
            return Err(wrong("is too long"));
        }
        let (user, place) = match place.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, place),
        };
        let (host, port) = match place.strip_prefix('[').map(|rest| rest.split_once(']')) {
            Some(Some((host, ""))) => (host, None),
            Some(Some((host, port))) => {
                (host, Some(port.strip_prefix(':').ok_or_else(|| wrong("has no port behind the address"))?))
            }
            Some(None) => return Err(wrong("has no end of the address")),
            None => match place.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (place, None),
            },
        };
        let is_address = place.starts_with('[');
        if !is_plain(host, if is_address { ":%" } else { "" }) {
            return Err(wrong("names no host"));
        }
        if user.is_some_and(|user| !is_plain(user, "+@\\")) {
            return Err(wrong("has a user's name that cannot be one"));
        }
        let port = port.map(|port| port.parse::<u16>().ok().filter(|port| *port > 0));
        let port = port.map(|port| port.ok_or_else(|| wrong("has a port that is none"))).transpose()?;
        Ok(Self {
            user: user.map(Into::into),
            host: host.into(),
            port,
            directory,
            program: program.unwrap_or(PROGRAM).into(),
        })
    }

    /// Returns the directory on the host.
    pub(crate) fn directory(&self) -> &std::path::Path {
        &self.directory
    }

    /// Returns the host's name, as ssh gets it.
    pub(crate) fn name(&self) -> &str {
        &self.host
    }

    /// Returns the program's name on the host.
    pub(crate) fn program(&self) -> &str {
        &self.program
    }

    /// Returns the arguments of ssh. The directory is not among them: it goes over the connection, where no shell reads
    /// it.
    fn words(&self) -> Vec<String> {
        let mut words = vec!["-T".to_owned()];
        if let Some(user) = &self.user {
            words.extend(["-l".into(), user.clone()]);
        }
        if let Some(port) = self.port {
            words.extend(["-p".into(), port.to_string()]);
        }
        words.extend([self.host.clone(), format!("{} backup serve", self.program)]);
        words
    }

    /// Starts ssh; its messages go where ours go.
    pub(crate) fn dial(&self) -> io::Result<Wire> {
        let mut command = match std::env::var_os(COMMAND).filter(|command| !command.is_empty()) {
            Some(own) => {
                let mut shell = Command::new("/bin/sh");
                let mut line = own;
                line.push(" \"$@\"");
                shell.arg("-c").arg(line).arg(COMMAND);
                shell
            }
            None => Command::new("ssh"),
        };
        // A socket, unlike a pipe, can be told not to end the program at a write that nobody reads any more.
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let mut child =
            command.args(self.words()).stdin(Stdio::from(theirs)).stdout(Stdio::piped()).spawn()?;
        let input = child.stdout.take().ok_or_else(|| io::Error::other("it has no output"))?;
        let input = File::from(OwnedFd::from(input));
        Ok(Wire { input: Box::new(input), output: Box::new(Quiet(ours)), child: Some(child) })
    }
}

/// A socket that does not raise SIGPIPE.
struct Quiet(OwnedFd);

impl Write for Quiet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL)?)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Host> {
        Host::parse(text, None)
    }

    #[test]
    fn urls_are_read_and_written_in_one_form() {
        for text in [
            "host/srv/backups",
            "joe@host.example.com:2222/srv/a b's $(x)",
            "[::1]:22/srv",
            "joe@[fe80::1%eth0]/srv",
            "alias_1/d",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), format!("ssh://{text}"), "{text}");
        }
        let host = parse("joe@host:2222/srv/it's").unwrap();
        // The directory is nowhere in what a shell reads.
        assert_eq!(host.words(), ["-T", "-l", "joe", "-p", "2222", "host", "pagefold backup serve"]);
        let own = Host::parse("host/srv", Some("sudo /opt/pagefold")).unwrap();
        assert_eq!(own.words(), ["-T", "host", "sudo /opt/pagefold backup serve"]);
    }

    #[test]
    fn urls_that_are_none_are_told() {
        for text in [
            "",
            "host",
            "host/",
            "/srv",
            "-oProxyCommand=x/srv",
            "-v/srv",
            "-l@host/srv",
            "joe@-host/srv",
            "host;ls/srv",
            "a b/srv",
            "host:/srv",
            "host:0/srv",
            "host:65536/srv",
            "host:-p/srv",
            "[::1/srv",
            "[::1]22/srv",
            "[]/srv",
            "[-x]/srv",
            "::1/srv",
            "@host/srv",
            "$(x)@host/srv",
            "host/srv/../etc",
            "host/..",
        ] {
            let error = parse(text).unwrap_err();
            assert!(matches!(&error, Error::Invalid(told) if told.contains(FORM)), "{text}: {error}");
        }
    }
}
