//! Gives memory back that the allocator keeps. The program chooses jemalloc as its allocator, with its settings.

use std::ptr::null_mut;

/// Gives freed memory back to the system now. By itself the allocator does so only after a while, when a thread
/// allocates or frees: a server that comes to rest would keep that memory.
pub(crate) fn give_back() {
    // 4096 stands for all arenas (MALLCTL_ARENAS_ALL).
    let purge = c"arena.4096.purge".as_ptr();
    // SAFETY: the name ends with a zero; the call reads and writes no memory of ours; and any thread may make it at any
    // time.
    let failed = unsafe { tikv_jemalloc_sys::mallctl(purge, null_mut(), null_mut(), null_mut(), 0) };
    debug_assert_eq!(failed, 0, "jemalloc has no arenas to purge");
}
