//! The program's allocator.

use std::ptr::null_mut;

/// The C library's allocator gives memory of server threads back late and serves large buffers slowly.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What jemalloc reads when the program begins ([decision 0030](../../../docs/decisions/0030-true-budget.md)): four arenas for all threads, and of what a
/// thread keeps for itself only small things, so that memory that was freed lies together; it goes back to the system after 100 ms. No huge pages: they make
/// resident what lies around each small allocation.
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static CONF: &[u8; 72] = b"narenas:4,tcache_max:4096,dirty_decay_ms:100,muzzy_decay_ms:0,thp:never\0";

/// Gives memory that was freed back to the system now. By itself the allocator does so after a while, and then when somebody allocates or frees: a server that
/// comes to rest would keep it.
pub fn give_back() {
    // 4096 stands for all arenas (MALLCTL_ARENAS_ALL).
    let purge = c"arena.4096.purge".as_ptr();
    // SAFETY: the name ends with a zero; nothing is read from or written to memory of ours; and any thread may call this at any time.
    let failed = unsafe { tikv_jemalloc_sys::mallctl(purge, null_mut(), null_mut(), null_mut(), 0) };
    debug_assert_eq!(failed, 0, "jemalloc has no arenas to purge");
}
