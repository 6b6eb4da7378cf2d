//! The process's heap: what glibc's allocator keeps for speed that nobody here needs is given back.
#![allow(unsafe_code)]

/// Arenas for all threads together. By default there are eight for each processor, and what one thread frees in its
/// arena no other gets: programs of a few threads that mostly wait keep several times what they use.
const ARENAS: libc::c_int = 2;
/// How much may lie unused at the end of the heap, and from which size an allocation is a mapping of its own, given back
/// when it is freed. Setting them keeps the allocator from raising both after the first large object.
const LARGE: libc::c_int = 128 << 10;

/// Setting of a program that takes apart and frees many small objects, trees of JSON: how many of each size a thread keeps
/// for itself. By default it is 7, and what exceeds them costs locks and searches: a third of the time of a write to the
/// API server. glibc reads it when a program begins, so it is for the parent to set.
pub const MANY_SMALL: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=400");

/// Bounds what the heap keeps; to be called before threads are started.
pub fn bound() {
    // SAFETY: changes the allocator's own settings, takes no pointer, and has no failure that matters.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}
