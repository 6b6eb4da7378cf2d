//! Arbitrary bytes as an archive that fills a volume, compressed or not: whatever it says, nothing is written elsewhere.
#![no_main]

use std::io::Cursor;

use disk::source::{Links, unpack};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let dir = tempfile::tempdir_in("/dev/shm").expect("/dev/shm can be written");
    let volume = dir.path().join("volume");
    std::fs::create_dir(&volume).expect("a directory can be made");
    let _ = unpack(Box::new(Cursor::new(bytes.to_vec())), &volume, Links::Inside, None);
    assert_eq!(std::fs::read_dir(dir.path()).expect("the directory is there").count(), 1);
});
