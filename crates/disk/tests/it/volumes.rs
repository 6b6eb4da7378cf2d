//! Sizes, space and devices: what an import makes of the volume that it is given.

use std::os::unix::fs::MetadataExt as _;

use disk::Options;
use disk::source::Memory;

use crate::guest::{converted, disk};
use crate::import_into;
use crate::loops::Loop;
use crate::origins::Stream;

#[test]
fn a_disk_grows_to_what_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    let disk = disk(1 << 20);
    let check = |options: &Options, room: u64, expect: u64| {
        for source in [&Memory::new(disk.clone()) as &dyn disk::Source, &Stream(Memory::new(disk.clone()))] {
            let done = import_into(&path, room, source, options).unwrap();
            let length = std::fs::metadata(&path).unwrap().len();
            assert_eq!((done.virtual_size, done.size, length), (1 << 20, expect, expect));
        }
    };
    check(&Options::default(), 8 << 20, 1 << 20);
    check(&Options { size: Some(4 << 20), ..Options::default() }, 8 << 20, 4 << 20);
    // No larger than the volume, no smaller than the image.
    check(&Options { size: Some(9 << 20), ..Options::default() }, 8 << 20, 8 << 20);
    check(&Options { size: Some(1 << 10), ..Options::default() }, 8 << 20, 1 << 20);
}

#[test]
fn an_image_larger_than_the_volume_is_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target");
    let image = std::fs::read(converted(dir.path(), &disk(9 << 20), &["-O", "qcow2"])).unwrap();
    let raw = disk(9 << 20);
    for source in [&Memory::new(image.clone()) as &dyn disk::Source, &Stream(Memory::new(image)), &Memory::new(raw)] {
        let error = import_into(&path, 8 << 20, source, &Options::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the image's virtual size of 9437184 bytes is larger than the 8388608 bytes that the volume offers: \
             ask for a larger volume"
        );
        assert!(error.is_final());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    }
}

#[test]
fn zeros_take_no_space_unless_it_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target");
    let mut disk = vec![0; 32 << 20];
    disk[5 << 20..6 << 20].fill(7);
    for source in [&Memory::new(disk.clone()) as &dyn disk::Source, &Stream(Memory::new(disk.clone()))] {
        let done = import_into(&path, 64 << 20, source, &Options::default()).unwrap();
        assert_eq!(done.written, 1 << 20);
        assert!(std::fs::metadata(&path).unwrap().blocks() * 512 <= 2 << 20);
        let options = Options { preallocate: true, size: Some(40 << 20), ..Options::default() };
        let done = import_into(&path, 64 << 20, source, &options).unwrap();
        assert!(done.preallocated);
        assert!(std::fs::metadata(&path).unwrap().blocks() * 512 >= 40 << 20);
        assert!(std::fs::read(&path).unwrap()[..disk.len()] == disk);
    }
}

/// What was in the file before is not seen through the holes of what comes.
#[test]
fn a_second_import_leaves_nothing_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target");
    import_into(&path, 64 << 20, &Memory::new(vec![9; 8 << 20]), &Options::default()).unwrap();
    let disk = disk(4 << 20);
    import_into(&path, 64 << 20, &Memory::new(disk.clone()), &Options::default()).unwrap();
    assert!(std::fs::read(&path).unwrap() == disk);
}

/// What was on a device before is not seen through what is zero in the image.
#[test]
fn a_device_has_the_disk_and_nothing_of_what_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let device = Loop::of(&vec![0xee; 8 << 20], dir.path());
    let disk = disk(6 << 20);
    let qcow2 = std::fs::read(converted(dir.path(), &disk, &["-O", "qcow2"])).unwrap();
    let import = |source: &dyn disk::Source, options: &Options| {
        let target = disk::Target::device(&device.path).unwrap();
        assert_eq!(target.capacity(), 8 << 20);
        disk::import(source, &target, options, &disk::Progress::default())
    };
    for preallocate in [false, true] {
        for source in [
            &Memory::new(qcow2.clone()) as &dyn disk::Source,
            &Memory::new(disk.clone()),
            &Stream(Memory::new(disk.clone())),
        ] {
            std::fs::write(&device.path, vec![0xee; 8 << 20]).unwrap();
            import(source, &Options { preallocate, ..Options::default() }).unwrap();
            assert!(std::fs::read(&device.path).unwrap()[..disk.len()] == disk);
        }
    }
    let error = import(&Memory::new(vec![1; 9 << 20]), &Options::default()).unwrap_err();
    assert!(matches!(error, disk::ImportError::TooLarge { virtual_size: 9_437_184, available: 8_388_608, .. }));
}
