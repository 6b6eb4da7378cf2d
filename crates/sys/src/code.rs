//! The pages of a program's own files that it has mapped: its code and constants.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

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
        // What a linker or the program may have written to is not the file's any more: those pages would be lost.
        if header.p_type != libc::PT_LOAD || header.p_flags & libc::PF_W != 0 {
            continue;
        }
        let page = page();
        let start = base.wrapping_add(header.p_vaddr);
        let end = start.wrapping_add(header.p_memsz);
        let first = start & !(page - 1);
        let Ok(length) = usize::try_from(end.wrapping_sub(first)) else { continue };
        // SAFETY: the pages are mapped from a file and were never written to, so that a page that is touched again is read
        // from that file with the same content. The kernel's own object is refused, which is as good.
        unsafe { libc::madvise(first as *mut c_void, length, libc::MADV_DONTNEED) };
    }
    0
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
