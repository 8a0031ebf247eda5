//! The command line of `systemd`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// See [`super::Verb::Systemd`].
#[derive(Subcommand, Debug)]
pub enum Systemd {
    /// Print the drop-ins that `install` would write.
    #[command(after_long_help = "Examples:
  pagefold systemd show
  pagefold systemd show tank")]
    Show(SystemdShow),
    /// Write drop-ins for pools and for the databases on them.
    #[command(after_long_help = "Examples:
  pagefold systemd install && systemctl daemon-reload
  pagefold systemd install tank
  pagefold systemd install --dir /mnt/image/etc/systemd/system")]
    Install(SystemdInstall),
    /// Remove the drop-ins that `install` has written.
    #[command(after_long_help = "Examples:
  pagefold systemd remove && systemctl daemon-reload")]
    Remove(SystemdRemove),
}

/// See [`Systemd::Show`].
#[derive(Args, Debug)]
pub struct SystemdShow {
    /// Pools; all that have a mountpoint property if left out.
    pub pools: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// See [`Systemd::Install`].
#[derive(Args, Debug)]
pub struct SystemdInstall {
    /// Pools; all that have a mountpoint property if left out.
    pub pools: Vec<String>,
    /// Where units are, instead of /etc/systemd/system.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// See [`Systemd::Remove`].
#[derive(Args, Debug)]
pub struct SystemdRemove {
    /// Where units are, instead of /etc/systemd/system.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}
