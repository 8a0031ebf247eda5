//! How long this program waits for others, and when it says so. Every such bound of the command line and of the servers' ends is here.

use std::time::Duration;

/// A wait that lasts longer is told, with what is waited for.
pub const TELL_AFTER: Duration = Duration::from_secs(1);

/// A mount that is in use, and that no process is seen to hold, is tried again for this long: the kernel lets go of the files of a
/// process that used io_uring only after its end.
pub const KERNEL: Duration = Duration::from_secs(5);
/// Between two attempts of that.
pub const KERNEL_STEP: Duration = Duration::from_millis(50);

/// How long a mount that was taken away may take to end: the kernel keeps it while another mount namespace has a copy, or a file of it
/// is open.
pub const END_OF_MOUNT: Duration = Duration::from_secs(10);
/// How long a mount may take to be made durable after the kernel has let it go, and a pool to be closed after its last mount: what is
/// only in memory is written, to devices that may be slow.
pub const CLOSING: Duration = Duration::from_secs(300);
/// How long a server's process may take to end once the pool is closed.
pub const END_OF_SERVER: Duration = Duration::from_secs(60);

/// How long a server may take over what needs no waiting for devices.
pub const ANSWER: Duration = Duration::from_secs(60);
/// What a server that answers after a wait of its own may take beyond that.
pub const ANSWER_MARGIN: Duration = Duration::from_secs(30);

/// How long a mount waits for the one before it to end, whose dataset is to be mounted again.
pub const BEFORE_MOUNTING: Duration = Duration::from_secs(30);
/// How long a mount waits for others of the same pool that are under way: each may have to replay a log.
pub const TURN: Duration = Duration::from_secs(600);
/// Between two looks whether it is our turn.
pub const TURN_STEP: Duration = Duration::from_millis(20);

/// How long the connection of a mount may take to end by itself after it was detached by force, before it is aborted.
pub const CUT_OFF_GRACE: Duration = Duration::from_millis(200);
/// How long it may take after it was aborted, where other mounts go on.
pub const CUT_OFF: Duration = Duration::from_secs(10);

/// How long users of the mounts have to leave when a server is told to end (SIGTERM), before the mounts are detached.
pub const TOLD_TO_END: Duration = Duration::from_secs(5);
/// How long they have after that before they are cut off, so that the pool can be closed. `TimeoutStopSec` of the unit is more than both.
pub const TOLD_TO_END_AT_LAST: Duration = Duration::from_secs(30);
/// Between two attempts to unmount meanwhile.
pub const TOLD_TO_END_STEP: Duration = Duration::from_millis(200);

/// How long another server may take to go on for one that was to be followed.
pub const RESTART: Duration = Duration::from_secs(60);
/// Between two looks whether it has.
pub const RESTART_STEP: Duration = Duration::from_millis(20);

/// How long the last replies of a server may take to leave. The one to an unmount waits for umount(2), which drops the page
/// cache of every file after our connection has ended: seconds where that is gigabytes.
pub const LAST_REPLIES: Duration = Duration::from_secs(60);

const _: () = assert!(TELL_AFTER.as_millis() < END_OF_MOUNT.as_millis());
const _: () = assert!(KERNEL_STEP.as_millis() < KERNEL.as_millis());

/// Within this time a second signal is the first one again: who switches the machine off tells all processes, and the holder passes on
/// what it was told.
pub const ONE_WISH: Duration = Duration::from_secs(2);
