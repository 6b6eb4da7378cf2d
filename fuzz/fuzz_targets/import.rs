//! Arbitrary bytes as an image that is imported, by ranges and as a stream: a disk within bounds, or a sentence. Both ways
//! make the same disk.
#![no_main]

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::LazyLock;

use disk::source::Memory;
use disk::{Imported, Options, Progress, Source, Target};
use libfuzzer_sys::fuzz_target;

/// As much as a disk may hold here: small, so that reading it back is cheap.
const ROOM: u64 = 8 << 20;

static PATH: LazyLock<PathBuf> = LazyLock::new(|| format!("/dev/shm/ferrovirt-fuzz-{}", std::process::id()).into());
static TARGET: LazyLock<Target> = LazyLock::new(|| Target::file(&PATH, ROOM).expect("/dev/shm can be written"));

struct Stream(Memory);

impl Source for Stream {
    fn size(&self) -> Option<u64> {
        None
    }

    fn ranged(&self) -> bool {
        false
    }

    fn open(&self, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        self.0.open(offset)
    }
}

fn import(source: &dyn Source) -> Option<(Imported, Vec<u8>)> {
    let progress = Progress::default();
    let done = disk::import(source, &TARGET, &Options::default(), &progress).ok()?;
    assert!(done.size <= ROOM && done.virtual_size <= done.size);
    let mut disk = Vec::new();
    File::open(&*PATH).and_then(|mut file| file.read_to_end(&mut disk)).expect("the disk can be read");
    assert_eq!(disk.len() as u64, done.size);
    Some((done, disk))
}

fuzz_target!(|bytes: &[u8]| {
    let source = Memory::new(bytes);
    let by_ranges = import(&source);
    let forward = import(&Stream(source));
    if let (Some((_, one)), Some((_, other))) = (by_ranges, forward) {
        assert!(one == other, "the ways through an image differ");
    }
});
