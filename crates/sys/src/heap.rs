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

/// How often what lies unused is given back, and from how much on.
const LOOK: std::time::Duration = std::time::Duration::from_secs(30);
const UNUSED: usize = 16 << 20;

/// Gives back what a storm has left: freed pieces between those in use stay with the process until somebody asks for their
/// pages, however much they are. For a program that is to need little again after it needed much.
///
/// # Errors
/// When no thread can be started.
pub fn keep_small() -> std::io::Result<()> {
    let keep = || {
        loop {
            #[expect(clippy::disallowed_methods, reason = "a thread of its own, which nobody waits for")]
            std::thread::sleep(LOOK);
            if unused() > UNUSED {
                trim();
            }
        }
    };
    std::thread::Builder::new().name("heap".to_owned()).spawn(keep).map(drop)
}

/// Bytes that the allocator holds and nobody uses.
fn unused() -> usize {
    // SAFETY: reads the allocator's own figures, takes no pointer.
    unsafe { libc::mallinfo2() }.fordblks
}

/// Gives whole pages that nobody uses back to the kernel.
pub fn trim() {
    // SAFETY: the allocator locks its arenas itself; what is in use stays where it is.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    #[test]
    fn trimming_returns_free_pages_between_used_ones() {
        bound();
        let pieces: Vec<Vec<u8>> = (0..100_000).map(|_| vec![1; 1000]).collect();
        let high = resident();
        // One piece of a hundred stays, so that the end of the heap never comes free.
        let kept: Vec<Vec<u8>> = pieces.into_iter().step_by(100).collect();
        assert!(unused() > UNUSED);
        trim();
        let low = resident();
        assert!(high - low > 60 << 20, "{high} bytes became {low}");
        assert_eq!(kept.len(), 1000);
    }
}
