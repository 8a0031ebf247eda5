//! Bounds of waiting: every time that the command line or an ending server waits for others, and the delay before it
//! says so.

use std::time::Duration;

/// Delay after which the program says what it waits for.
pub const TELL_AFTER: Duration = Duration::from_secs(1);

/// Longest time to retry a mount that is in use although no process is seen to hold it: the kernel lets go of the files
/// of a process that used io_uring only after the end of that process.
pub const KERNEL: Duration = Duration::from_secs(5);
/// Pause between two such attempts.
pub const KERNEL_STEP: Duration = Duration::from_millis(50);

/// Longest wait for the end of a mount that was taken away: the kernel keeps it while another mount namespace has a
/// copy, or a file of it is open.
pub const END_OF_MOUNT: Duration = Duration::from_secs(10);
/// Longest wait until a mount is durable after the kernel has let it go, and until a pool is closed after its last
/// mount: data in memory are written, to devices that may be slow.
pub const CLOSING: Duration = Duration::from_secs(300);
/// Longest wait for a server that has the pool's name, and does not listen yet or any more.
pub(crate) const NEXT_SERVER: Duration = Duration::from_secs(5);
/// Longest wait for the end of a server's process once the pool is closed.
pub(crate) const END_OF_SERVER: Duration = Duration::from_secs(60);

/// Longest wait for a server's answer that does not depend on devices.
pub const ANSWER: Duration = Duration::from_secs(60);
/// Longest wait for each server where several pools are listed: one that hangs must not hide the others for long.
pub const ANSWER_IN_LIST: Duration = Duration::from_secs(10);
/// Time between two looks whether a user still waits for an answer.
pub(crate) const ANSWER_STEP: Duration = Duration::from_millis(50);
/// Longest additional wait for a server that answers after a wait of its own.
pub(crate) const ANSWER_MARGIN: Duration = Duration::from_secs(30);

/// Longest wait of a mount for the end of the previous mount of the same dataset.
pub const BEFORE_MOUNTING: Duration = Duration::from_secs(30);
/// Longest wait of a mount for other mounts of the same pool that are under way: each may have to replay a log.
pub const TURN: Duration = Duration::from_secs(600);
/// Pause between two checks whether it is this mount's turn.
pub const TURN_STEP: Duration = Duration::from_millis(20);

/// Longest wait for a connection to end by itself after its mount was detached by force; then it is aborted.
pub(crate) const CUT_OFF_GRACE: Duration = Duration::from_millis(200);
/// Longest wait for it to end after it was aborted, if other mounts go on.
pub(crate) const CUT_OFF: Duration = Duration::from_secs(10);

/// Time that users of the mounts have to leave when a server is told to end (SIGTERM), before the mounts are detached.
pub(crate) const TOLD_TO_END: Duration = Duration::from_secs(5);
/// Time that they have after that before they are cut off, so that the pool can be closed. `TimeoutStopSec` of the unit
/// is more than both together.
pub(crate) const TOLD_TO_END_AT_LAST: Duration = Duration::from_secs(30);
/// Pause between two attempts to unmount in that time.
pub(crate) const TOLD_TO_END_STEP: Duration = Duration::from_millis(200);

/// Longest wait for the next server to take over from one that was told to restart.
pub const RESTART: Duration = Duration::from_secs(60);
/// Pause between two checks whether it has.
pub const RESTART_STEP: Duration = Duration::from_millis(20);

/// Longest wait until the last replies of a server have left. The reply to an unmount waits for umount(2), which drops
/// the page cache of every file after our connection has ended: seconds where that is gigabytes.
pub(crate) const LAST_REPLIES: Duration = Duration::from_secs(60);

const _: () = assert!(TELL_AFTER.as_millis() < END_OF_MOUNT.as_millis());
const _: () = assert!(KERNEL_STEP.as_millis() < KERNEL.as_millis());

/// Time within which a second signal counts as the first one: a shutdown of the machine signals all processes, and the
/// supervisor passes on the signal that it gets.
pub(crate) const ONE_WISH: Duration = Duration::from_secs(2);
