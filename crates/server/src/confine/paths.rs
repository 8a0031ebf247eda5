//! Rules for paths and sockets (Landlock), which limit what a process can still open.

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, RestrictionStatus,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};

use pagefold_backup::Location;

use crate::files;

/// Version of Landlock that is asked for; the kernel has all of it since Linux 6.12.
const KNOWN: ABI = ABI::V6;

/// Paths that may be read: threads and mounts of this process, the machine's processors and limits on them, settings of
/// FUSE.
const READ: &[&str] = &["/proc", "/sys/devices/system", "/sys/fs/cgroup", "/sys/module/fuse"];
/// Variable with the address for systemd's notifications; one that begins with `@` has no path.
const NOTIFY_VARIABLE: &str = "NOTIFY_SOCKET";

/// Restricts a server to the paths that it needs. Files that are open already stay open.
pub(super) fn only_needed() -> Result<(), String> {
    outcome(restrict())
}

/// Restricts a process that reads a backup: it may read what it needs for that, and write only what it remembers of
/// repositories.
pub(super) fn only_to_read(location: &Location) -> Result<(), String> {
    outcome(restrict_reader(location))
}

fn outcome(status: Result<RestrictionStatus, RulesetError>) -> Result<(), String> {
    let status = status.map_err(|error| error.to_string())?;
    match (status.ruleset, status.landlock) {
        (RulesetStatus::FullyEnforced, _) => Ok(()),
        (_, LandlockStatus::NotImplemented) => Err("this kernel has no Landlock".into()),
        (_, LandlockStatus::NotEnabled) => Err("Landlock is switched off in this kernel".into()),
        (RulesetStatus::NotEnforced, _) => Err("this kernel's Landlock takes none of the rules".into()),
        (RulesetStatus::PartiallyEnforced, LandlockStatus::Available { effective_abi, .. }) => Err(format!(
            "this kernel's Landlock has a part of the rules only (ABI {}, all with {})",
            effective_abi as i32, KNOWN as i32
        )),
    }
}

/// Builds the rules for [`only_to_read`]. Looking up names and checking certificates reads files in many places, so
/// that a process that reads a bucket may read all that its user may. One that reads a directory may read that
/// directory.
fn restrict_reader(location: &Location) -> Result<RestrictionStatus, RulesetError> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let fuse = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let null = AccessFs::ReadFile | AccessFs::WriteFile;
    let runtime = AccessFs::RemoveFile | AccessFs::MakeSock;
    let remembered = AccessFs::from_all(KNOWN);
    let readable: Vec<&Path> = match location {
        Location::Directory(path) => READ.iter().map(Path::new).chain([path.as_path()]).collect(),
        _ => vec![Path::new("/")],
    };
    let program = std::env::current_exe().ok();
    let state = files::state_dir().ok().map(|dir| dir.join("backup"));
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .scope(BitFlags::from(Scope::Signal))?
        .create()?
        .add_rules(path_beneath_rules(readable, read))?
        .add_rules(path_beneath_rules(program, AccessFs::ReadFile))?
        .add_rules(path_beneath_rules([Path::new("/dev/fuse")], fuse))?
        .add_rules(path_beneath_rules([Path::new("/dev/null")], null))?
        .add_rules(path_beneath_rules([files::runtime_dir()], runtime))?
        .add_rules(path_beneath_rules(state, remembered))?
        .restrict_self()
}

fn restrict() -> Result<RestrictionStatus, RulesetError> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    // /dev/fuse is opened for further connections, /dev/null to close standard output.
    let fuse = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let null: BitFlags<AccessFs> = AccessFs::WriteFile.into();
    // The server removes the control socket when it ends.
    let runtime: BitFlags<AccessFs> = AccessFs::RemoveFile.into();
    // Backtraces read names from the program's file.
    let program = std::env::current_exe().ok();
    let mut scope = BitFlags::from(Scope::Signal);
    let notified = std::env::var_os(NOTIFY_VARIABLE);
    if !notified.is_some_and(|address| address.as_encoded_bytes().starts_with(b"@")) {
        scope |= Scope::AbstractUnixSocket;
    }
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(scope)?
        .create()?
        .add_rules(path_beneath_rules(READ, read))?
        .add_rules(path_beneath_rules(program, AccessFs::ReadFile))?
        .add_rules(path_beneath_rules([Path::new("/dev/fuse")], fuse))?
        .add_rules(path_beneath_rules([Path::new("/dev/null")], null))?
        .add_rules(path_beneath_rules([files::runtime_dir()], runtime))?
        .restrict_self()
}
