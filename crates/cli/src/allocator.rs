//! The program's allocator.

/// jemalloc, because the C library's allocator gives memory of server threads back late and is slow with large buffers.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Settings that jemalloc reads when the program begins ([decision 0030](../../../docs/decisions/0030-true-budget.md)):
/// four arenas for all threads, and caches of threads for small allocations only, so that freed memory lies together;
/// it goes back to the system after 100 ms. Huge pages are off: they would make the memory around each small allocation
/// resident.
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static CONF: &[u8; 72] = b"narenas:4,tcache_max:4096,dirty_decay_ms:100,muzzy_decay_ms:0,thp:never\0";
