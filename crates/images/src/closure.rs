//! The shared libraries that a set of programs needs, found inside a sysroot: an image holds these and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use object::elf;
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader};

use crate::Error;

/// Library directories of Debian's amd64 packages, in the loader's order. Some packages bring private ones.
const LIBRARY_DIRS: [&str; 8] = [
    "lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "lib64",
    "usr/lib/x86_64-linux-gnu/pulseaudio",
    "usr/lib/x86_64-linux-gnu/libvirt",
    "usr/lib/x86_64-linux-gnu/systemd",
    "usr/lib/x86_64-linux-gnu/swtpm",
    "usr/lib/systemd",
];

/// Paths, relative to `root`, of every library that `programs` (relative too) need, directly or not.
pub(crate) fn libraries(root: &Path, programs: &[PathBuf]) -> Result<BTreeSet<PathBuf>, Error> {
    let index = index(root);
    let mut found = BTreeSet::new();
    let mut queue: Vec<PathBuf> = programs.to_vec();
    while let Some(file) = queue.pop() {
        let path = root.join(&file);
        let bytes = fs::read(&path).map_err(Error::io("read", &path))?;
        for name in needed(&bytes) {
            let library = index
                .get(&name)
                .ok_or_else(|| Error::Missing { wanted: name.clone(), image: file.display().to_string() })?;
            if found.insert(library.clone()) {
                queue.push(library.clone());
            }
        }
    }
    Ok(found)
}

fn index(root: &Path) -> BTreeMap<String, PathBuf> {
    let mut index = BTreeMap::new();
    for dir in LIBRARY_DIRS {
        let Ok(entries) = fs::read_dir(root.join(dir)) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.contains(".so") && root.join(dir).join(&name).is_file() {
                index.entry(name.clone()).or_insert_with(|| Path::new(dir).join(name));
            }
        }
    }
    index
}

/// `DT_NEEDED` names and the interpreter's file name of an ELF file; empty for anything else, such as a script.
fn needed(bytes: &[u8]) -> Vec<String> {
    let Ok(file) = ElfFile64::<object::LittleEndian>::parse(bytes) else { return Vec::new() };
    let endian = file.endian();
    let mut names = Vec::new();
    let headers = file.elf_program_headers();
    for header in headers {
        if let Ok(Some(interpreter)) = header.interpreter(endian, bytes) {
            let path = String::from_utf8_lossy(interpreter).into_owned();
            names.extend(Path::new(&path).file_name().map(|n| n.to_string_lossy().into_owned()));
        }
        let Ok(Some(entries)) = header.dynamic(endian, bytes) else { continue };
        let strings = entries
            .iter()
            .find(|e| e.d_tag(endian) == u64::from(elf::DT_STRTAB))
            .and_then(|e| offset_of(headers, endian, e.d_val(endian)));
        let Some(start) = strings else { continue };
        for entry in entries.iter().filter(|e| e.d_tag(endian) == u64::from(elf::DT_NEEDED)) {
            let Some(tail) = usize::try_from(start + entry.d_val(endian)).ok().and_then(|at| bytes.get(at..)) else {
                continue;
            };
            let end = tail.iter().position(|b| *b == 0).unwrap_or(0);
            names.push(String::from_utf8_lossy(&tail[..end]).into_owned());
        }
    }
    names
}

/// File offset of a virtual address.
fn offset_of(
    headers: &[elf::ProgramHeader64<object::LittleEndian>],
    endian: object::LittleEndian,
    address: u64,
) -> Option<u64> {
    headers
        .iter()
        .filter(|h| h.p_type(endian) == elf::PT_LOAD)
        .find(|h| (h.p_vaddr(endian)..h.p_vaddr(endian) + h.p_filesz(endian)).contains(&address))
        .map(|h| address - h.p_vaddr(endian) + h.p_offset(endian))
}

/// Whether a file is a 64-bit ELF file at all.
pub(crate) fn is_elf(bytes: &[u8]) -> bool {
    elf::FileHeader64::<object::LittleEndian>::parse(bytes).is_ok_and(|h| h.is_supported())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_needs_the_c_library_and_the_loader() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        let names = needed(&own);
        assert!(names.iter().any(|n| n.starts_with("libc.so")), "{names:?}");
        assert!(names.iter().any(|n| n.starts_with("ld-linux")), "{names:?}");
        assert!(is_elf(&own));
    }

    #[test]
    fn scripts_and_rubbish_need_nothing() {
        for bytes in [&b"#!/bin/sh\n"[..], b"", b"\x7fELF", &[0xff; 4096]] {
            assert!(needed(bytes).is_empty());
            assert!(!is_elf(bytes));
        }
    }
}
