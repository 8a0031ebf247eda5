//! Pagefold's FUSE front end: kernel requests become typed calls of [`pagefold_fs::Fs`], and back.
//!
//! ```text
//! session     mount, INIT, run, unmount: what a server uses
//! dispatch    operations -> calls of the file system; its snapshots below .pagefold/snapshot
//! coherence   what the kernel has cached, beside direct writes
//! errno       its errors -> errno, one exhaustive match
//! null, pass  two tiny servers on the same transport: the bounds that benchmarks compare with
//! mount       mount(2), fusermount3, mount points examined
//! init        what the kernel and we agree on
//! transport   /dev/fuse with threads; FUSE over io_uring
//! blocking    threads for requests that wait
//! own_files   threads with one file of the connection, for messages that nothing can interrupt
//! killed      processes that were killed and cannot end, and connections that only they hold
//! request     one request as an owned object, answered once
//! operation   bytes of the kernel -> typed operation, once; nothing trusted
//! protocol    numbers and structures
//! ```

mod blocking;
mod buffer;
mod coherence;
mod direct_uses;
mod dispatch;
mod errno;
mod init;
mod kernel;
mod killed;
pub mod limits;
mod mount;
pub mod null;
pub mod operation;
mod own_files;
pub mod protocol;
mod request;
mod ring_switch;
mod session;
mod stats;
mod transport;

pub use blocking::{Blocking, Source, Wait};
pub use buffer::request_bytes;
pub use coherence::DROP_THREADS;
pub use dispatch::{
    Dispatch, HIDDEN_DIR, KnownSnapshot, SNAPSHOT_DIR, SnapshotTree, Snapshots, WithSnapshots,
};
pub use errno::errno;
pub use init::{Agreement, InitError};
pub use kernel::Kernel;
pub use killed::{abandoned, ended_but_for_drops};
pub use mount::{
    Here, MountError, MountOptions, Mounted, Mounter, OneMount, Unmount, abort_abandoned, check_mount_point,
    is_mount_point, unmount,
};
pub use request::{Fetching, Handler, Request};
pub use ring_switch::{Transport, enable_ring, ring_enabled};
pub use rustix::io::Errno;
pub use session::{Held, Session};
pub use stats::{LATENCY_BUCKETS, OpcodeStats, Stats};
pub use transport::kernel_resends;
