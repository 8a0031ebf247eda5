//! The program's allocator.

use std::alloc::{GlobalAlloc, Layout};

use tikv_jemallocator::Jemalloc;

/// Largest allocation that is zeroed by writing to it. jemalloc zeroes what takes more than a few of the system's pages by
/// giving these back (`madvise`), which interrupts the processors of all threads, and each page faults when it is used
/// next: that takes several times as long as writing zeros.
const WRITTEN_MAX: usize = 1 << 20;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// jemalloc, because the C library's allocator gives memory of server threads back late and is slow with large buffers.
struct Allocator;

// SAFETY: all calls are handed on to jemalloc, and `alloc_zeroed` returns zeroed memory.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller promises what jemalloc asks for.
        unsafe { Jemalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() > WRITTEN_MAX {
            // SAFETY: as above.
            return unsafe { Jemalloc.alloc_zeroed(layout) };
        }
        // SAFETY: as above.
        let memory = unsafe { Jemalloc.alloc(layout) };
        if !memory.is_null() {
            // SAFETY: jemalloc returned so many bytes, which are the caller's alone.
            unsafe { memory.write_bytes(0, layout.size()) };
        }
        memory
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises what jemalloc asks for.
        unsafe { Jemalloc.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { Jemalloc.dealloc(memory, layout) }
    }
}

/// Settings that jemalloc reads when the program begins ([decision 0030](../../../docs/decisions/0030-true-budget.md)):
/// four arenas for all threads, and caches of threads for small allocations only, so that freed memory lies together;
/// it goes back to the system after 100 ms. Huge pages are off: they would make the memory around each small allocation
/// resident.
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static CONF: &[u8; 72] = b"narenas:4,tcache_max:4096,dirty_decay_ms:100,muzzy_decay_ms:0,thp:never\0";
