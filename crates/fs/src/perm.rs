//! Permission bits that change who a program runs as.

/// Set-user-id, set-group-id, execution by the group.
const SUID: u16 = 0o4000;
const SGID: u16 = 0o2000;
const GROUP_EXEC: u16 = 0o010;

/// Returns `perm` without set-user-id, and without set-group-id if the group may execute (otherwise that bit means
/// mandatory locking).
pub(crate) fn without_set_id(perm: u16) -> u16 {
    let sgid = if perm & GROUP_EXEC != 0 { SGID } else { 0 };
    perm & !(SUID | sgid)
}

/// Returns `perm` without set-group-id.
pub(crate) fn without_sgid(perm: u16) -> u16 {
    perm & !SGID
}

/// Returns true if set-group-id is on.
pub(crate) fn has_sgid(perm: u16) -> bool {
    perm & SGID != 0
}

/// Returns `perm` with set-group-id.
pub(crate) fn with_sgid(perm: u16) -> u16 {
    perm | SGID
}
