//! Arbitrary bytes as the layer that tracks what changes of a disk: it is taken or not, and the disk is left alone.
#![no_main]

use std::os::unix::fs::FileExt;

use disk::tracking::{fits, reopen};
use libfuzzer_sys::fuzz_target;

const SIZE: u64 = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let file = || tempfile::tempfile_in("/dev/shm").expect("/dev/shm can be written");
    let (layer, data) = (file(), file());
    layer.write_all_at(bytes, 0).expect("the layer can be written");
    // Long enough for the tables of a whole one, which are mostly zeros.
    layer.set_len(8 << 16).expect("the layer can be extended");
    data.set_len(SIZE).expect("the disk can be extended");
    let _ = fits(&layer, &data, SIZE);
    let _ = reopen(&layer, SIZE);
    assert_eq!(layer.metadata().expect("the layer is there").len(), 8 << 16);
    let mut disk = vec![1; SIZE as usize];
    data.read_exact_at(&mut disk, 0).expect("the disk can be read");
    assert!(disk.iter().all(|byte| *byte == 0));
});
