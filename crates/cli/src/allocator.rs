//! The allocator of the command: jemalloc, with which a node returns memory to the system after serving many
//! clients. The C library's allocator keeps it, scattered over the heaps of its threads.

#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Freed memory returns to the system after a second, even if the process makes no further allocation.
/// `_RJEM_MALLOC_CONF` in the environment overrides these options.
#[cfg(not(target_env = "msvc"))]
#[unsafe(export_name = "_rjem_malloc_conf")]
static OPTIONS: Option<&'static std::ffi::c_char> = {
    let options = c"background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0";
    // SAFETY: a C string has at least its terminating byte.
    Some(unsafe { &*options.as_ptr() })
};
