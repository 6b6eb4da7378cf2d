//! Volumes that are full, at every stage: a sentence that says so, and an import that goes on once there is room.

use std::path::Path;
use std::time::Duration;

use disk::source::{Links, Memory, unpack};
use disk::{ImportError, Kind, Options, Place, Progress, Resume, Source, Target};

use crate::guest::{converted, disk};
use crate::loops::Room;
use crate::origins::{Ends, Stream};
use crate::streams::packed;
use crate::{ROOM, import_into};

const SIZE: usize = 48 << 20;
const SMALL: u64 = 6 << 20;
const LARGE: u64 = 96 << 20;

#[track_caller]
fn is_full(error: &ImportError) {
    let said = error.to_string();
    assert!(said.starts_with("the volume is full after "), "{error:?}");
    assert!(said.ends_with(" bytes: free space on its storage or use a larger one"), "{said}");
    assert!(!error.is_final(), "there may be room later");
}

#[test]
fn writing_any_format_to_a_full_volume_fails_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let room = Room::of(SMALL, dir.path());
    let path = room.path.join("disk.img");
    let disk = disk(SIZE);
    let qcow2 = std::fs::read(converted(dir.path(), &disk, &["-c", "-O", "qcow2"])).unwrap();
    let sources: [Box<dyn Source>; 5] = [
        Box::new(Memory::new(disk.clone())),
        Box::new(Stream(Memory::new(disk.clone()))),
        Box::new(Memory::new(qcow2.clone())),
        Box::new(Stream(Memory::new(qcow2))),
        Box::new(Memory::new(packed(Kind::Gzip, &disk))),
    ];
    for source in sources {
        let options = Options { resume: Some(journal(&path)), ..Options::default() };
        is_full(&import_into(&path, ROOM, source.as_ref(), &options).unwrap_err());
        let options = Options { preallocate: true, size: Some(SIZE as u64), ..Options::default() };
        is_full(&import_into(&path, ROOM, source.as_ref(), &options).unwrap_err());
    }
    let target = Target::file(&path, ROOM).unwrap();
    is_full(&disk::blank(&target, SIZE as u64, true).unwrap_err());
    is_full(&disk::copy(&mut disk.as_slice(), &target, 0, false, &Progress::default()).unwrap_err());
}

fn journal(path: &Path) -> Resume {
    Resume { place: Place::File(path.with_extension("journal")), every: Duration::ZERO }
}

/// What was written before is not fetched again. Where not even a journal fits, the import begins anew.
#[test]
fn an_import_goes_on_when_there_is_room() {
    for small in [SMALL, 0] {
        let dir = tempfile::tempdir().unwrap();
        let room = Room::of(small.max(4096), dir.path());
        let path = room.path.join("disk.img");
        let disk = disk(SIZE);
        let options = Options { resume: Some(journal(&path)), ..Options::default() };
        let source = Ends::after(&disk, Some("tag 1"), i64::MAX);
        is_full(&import_into(&path, ROOM, &source, &options).unwrap_err());
        room.grow(LARGE);
        let progress = Progress::default();
        let target = Target::file(&path, ROOM).unwrap();
        disk::import(&source, &target, &options, &progress).unwrap();
        assert!(std::fs::read(&path).unwrap() == disk);
        if small > 0 {
            assert!(progress.fetched() < SIZE as u64 / 10 * 9, "{} bytes", progress.fetched());
        }
        assert_eq!(std::fs::read_dir(&room.path).unwrap().count(), 1, "nothing is left beside the disk");
    }
}

#[test]
fn an_archive_that_does_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let room = Room::of(SMALL, dir.path());
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(SIZE as u64);
    header.set_mode(0o644);
    archive.append_data(&mut header, "file", vec![7; SIZE].as_slice()).unwrap();
    let archive = archive.into_inner().unwrap();
    let unpacked =
        |archive: &[u8]| unpack(Box::new(std::io::Cursor::new(archive.to_vec())), &room.path, Links::Inside, None);
    let said = unpacked(&archive).unwrap_err().to_string();
    assert!(said.starts_with("the volume is full after ") && said.contains("free space"), "{said}");
    room.grow(LARGE);
    assert_eq!(unpacked(&archive).unwrap(), SIZE as u64);
}

/// What is zero takes no space, but time: a stranger may send zeros without end in very few bytes.
#[test]
fn an_archive_of_holes_beyond_measure() {
    let dir = tempfile::tempdir().unwrap();
    let room = Room::of(1 << 20, dir.path());
    let mut archive = tar::Builder::new(zstd::stream::Encoder::new(Vec::new(), 1).unwrap());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    for (name, size) in [("one", 15 << 20), ("other", 2 << 20)] {
        header.set_size(size);
        archive.append_data(&mut header, name, std::io::Read::take(std::io::repeat(0), size)).unwrap();
    }
    let archive = archive.into_inner().unwrap().finish().unwrap();
    let unpacked = unpack(Box::new(std::io::Cursor::new(archive)), &room.path, Links::Inside, None);
    assert_eq!(
        unpacked.unwrap_err().to_string(),
        "the archive's entry \"other\" is refused: the archive's files are far larger than the volume"
    );
}
