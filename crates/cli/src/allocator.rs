//! The program's allocator.

/// The C library's allocator gives memory of server threads back late and serves large buffers slowly. Without huge pages:
/// they make resident what lies around each small allocation, twice what a cache of 64 MiB holds.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

unsafe extern "C" {
    /// Of mimalloc, which is linked as the allocator; its crate has no safe form of it.
    fn mi_collect(force: bool);
}

/// Gives memory that was freed back to the system now. By itself the allocator waits a second, and then until somebody frees something: a server that comes to
/// rest would keep it.
pub fn give_back() {
    // SAFETY: the function takes no memory of ours, may be called from any thread at any time, and frees only what nobody has.
    unsafe { mi_collect(true) };
}
