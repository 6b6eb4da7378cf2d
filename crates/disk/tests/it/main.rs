//! Imports from end to end: what qemu-img writes arrives as the same disk, what is hostile is refused, and servers may
//! behave as they like.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]

mod corpus;
mod formats;
mod full;
mod guest;
mod images;
mod killed;
mod links;
mod loops;
mod origins;
mod sources;
mod streams;
mod volumes;

use std::path::Path;

use disk::{ImportError, Imported, Options, Progress, Source, Target};

/// More than any disk of these tests.
const ROOM: u64 = 1 << 30;

/// An import into a file of a directory of its own, and the disk that it made.
fn imported(source: &dyn Source, options: &Options) -> Result<(Imported, Vec<u8>), ImportError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    let target = Target::file(&path, ROOM).unwrap();
    let done = disk::import(source, &target, options, &Progress::default())?;
    Ok((done, std::fs::read(&path).unwrap()))
}

fn import_into(path: &Path, room: u64, source: &dyn Source, options: &Options) -> Result<Imported, ImportError> {
    let target = Target::file(path, room).unwrap();
    disk::import(source, &target, options, &Progress::default())
}
