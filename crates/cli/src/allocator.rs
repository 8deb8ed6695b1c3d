//! The allocator of the command. A node that many have asked gives their memory back: the C library's keeps it, scattered
//! over the heaps of its threads.

#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What is freed goes back to the system after a second, also where nobody allocates any more.
/// `_RJEM_MALLOC_CONF` in the environment has the last word.
#[cfg(not(target_env = "msvc"))]
#[unsafe(export_name = "_rjem_malloc_conf")]
static OPTIONS: Option<&'static std::ffi::c_char> = {
    let options = c"background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0";
    // SAFETY: a C string has at least the one byte that ends it.
    Some(unsafe { &*options.as_ptr() })
};
