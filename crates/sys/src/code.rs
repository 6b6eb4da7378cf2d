//! The pages of a program's own files that it has mapped: its code and constants.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Lets go of all pages of code and constants. They stay in the kernel's page cache and come back when they are used, a few
/// at a time; what only the start of a program used, does not. A program that waits keeps a fraction of what it began with.
pub fn let_go() {
    // SAFETY: `one` has the signature that is asked for, reads nothing of the pointer, and does not unwind.
    unsafe { libc::dl_iterate_phdr(Some(one), std::ptr::null_mut()) };
}

/// Of one loaded object.
unsafe extern "C" fn one(object: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr passes an object that is valid for the call, with so many headers.
    let (base, headers) =
        unsafe { ((*object).dlpi_addr, std::slice::from_raw_parts((*object).dlpi_phdr, (*object).dlpi_phnum.into())) };
    for header in headers {
        let start = base.wrapping_add(header.p_vaddr);
        let end = start.wrapping_add(header.p_memsz);
        match header.p_type {
            libc::PT_LOAD if header.p_flags & libc::PF_W == 0 => {
                // SAFETY: the pages of a segment that may not be written to are the file's.
                unsafe { drop_pages(start & !(page() - 1)..end) };
            }
            // Addresses that the linker wrote before the program began; since then nobody may. Most pages needed nothing.
            libc::PT_GNU_RELRO => {
                for pages in unwritten(start..end) {
                    // SAFETY: the kernel says that these pages are the file's, and nobody may write to them.
                    unsafe { drop_pages(pages) };
                }
            }
            _ => {}
        }
    }
    0
}

/// The pages must be a file's, and never written to: what was written to them is lost.
unsafe fn drop_pages(addresses: Range<u64>) {
    let Ok(length) = usize::try_from(addresses.end.saturating_sub(addresses.start)) else { return };
    // SAFETY: by this function's contract, a page that is touched again is read from its file with the same content. The
    // kernel's own object is refused, which is as good.
    unsafe { libc::madvise(addresses.start as *mut c_void, length, libc::MADV_DONTNEED) };
}

/// The whole pages between these addresses that are still those of a file, as `/proc/self/pagemap` has it: eight bytes a page,
/// of which bit 61 says so. None where that cannot be read.
fn unwritten(addresses: Range<u64>) -> Vec<Range<u64>> {
    let page = page();
    let (first, end) = (addresses.start.div_ceil(page), addresses.end / page);
    let mut entries = vec![0; usize::try_from(end.saturating_sub(first)).unwrap_or_default() * 8];
    let read = File::open("/proc/self/pagemap").and_then(|map| map.read_exact_at(&mut entries, first * 8));
    if read.is_err() {
        return Vec::new();
    }
    let of_file = |entry: &[u8]| entry.try_into().is_ok_and(|entry| u64::from_ne_bytes(entry) >> 61 & 1 == 1);
    let pages = entries.chunks_exact(8).zip(first..).filter(|(entry, _)| of_file(entry));
    pages.map(|(_, number)| number * page..(number + 1) * page).collect()
}

fn page() -> u64 {
    // SAFETY: asks for a constant.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_files() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    #[test]
    fn code_that_is_not_used_again_is_not_kept() {
        let before = of_files();
        let_go();
        let after = of_files();
        assert!(after < before * 3 / 4, "{before} bytes became {after}");
        // What is used again works as before.
        assert_eq!(format!("{:?}", vec![Some(1), None]), "[Some(1), None]");
    }
}
