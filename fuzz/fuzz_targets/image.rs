//! Arbitrary bytes as a disk image: judged, never trusted.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = disk::inspect_reader(bytes, bytes.len() as u64);
});
