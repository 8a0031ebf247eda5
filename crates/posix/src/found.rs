//! Keeps the differences that the comparison has found, as one history (seed 0), so that they are found again.

use crate::op::{Data, Op, Path, Step, Target, Text};

/// Set-id bits, permission of all.
const SET_ID: u32 = 0o6777;
/// An access ACL without entries, which takes one away.
const NO_ACL: [u8; 4] = [2, 0, 0, 0];

/// Returns the steps.
pub fn found() -> Vec<Step> {
    let mut steps = Vec::new();
    let mut add = |who: usize, op: Op| steps.push(Step { who, op });
    let path = |name: &[u8]| Target::Path(Path::new(name), true);
    let open = |slot: usize, name: &[u8]| Op::Open {
        slot,
        path: Path::new(name),
        flags: libc::O_RDWR | libc::O_CREAT,
        mode: 0o666,
    };
    let chmod = |name: &[u8]| Op::Mode { target: path(name), mode: SET_ID };
    let write =
        |slot: usize| Op::Write { slot, at: Some(0), data: Data { kind: 200, len: 20_000 }, pieces: 1 };
    add(0, Op::Umask { mask: 0 });
    add(1, open(0, b"file"));
    add(1, open(1, b"source"));
    add(0, write(0));
    add(0, write(1));
    // A stranger, the owner and root change contents. One who may not keep set-id bits takes them away by it.
    for who in [3, 1, 0] {
        add(0, chmod(b"file"));
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        add(who, Op::Allocate { slot: 0, mode, offset: 4096, len: 4096 });
        add(0, chmod(b"file"));
        add(who, Op::Copy { from: 1, to: 0, offset_in: 0, offset_out: 0, len: 20_000 });
        add(0, chmod(b"file"));
        add(who, write(0));
    }
    // chown(2) with neither user nor group changes the time of change, and takes set-id bits away.
    for name in [&b"file"[..], b"."] {
        add(0, chmod(name));
        add(0, Op::Owner { target: path(name), uid: u32::MAX, gid: u32::MAX });
        add(0, Op::Mode { target: path(name), mode: 0o777 });
        add(0, Op::Owner { target: path(name), uid: u32::MAX, gid: u32::MAX });
    }
    // An ACL that is not there can be removed; a namespace alone is no name; only root sees trusted names.
    let acl = || Text(b"system.posix_acl_access".to_vec());
    let set = |name: Text, value: &[u8]| Op::SetXattr {
        target: path(b"file"),
        name,
        value: Text(value.to_vec()),
        flags: 0,
    };
    add(0, set(acl(), &NO_ACL));
    add(0, Op::RemoveXattr { target: path(b"file"), name: acl() });
    add(0, Op::RemoveXattr { target: path(b"file"), name: Text(b"user.".to_vec()) });
    add(0, set(Text(b"user.".to_vec()), b"value"));
    add(0, set(Text(b"trusted.t".to_vec()), b"value"));
    add(1, set(Text(b"user.u".to_vec()), b"value"));
    for who in [0, 1, 3] {
        for size in [0, 7, 100] {
            add(who, Op::ListXattr { target: path(b"file"), size });
        }
    }
    steps
}
