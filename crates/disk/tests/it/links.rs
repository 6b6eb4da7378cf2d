//! Links that drop, sources that change, checksums, and imports that are called off.

use std::sync::atomic::Ordering;

use disk::source::Memory;
use disk::{Checksum, Kind, Options, Place, Progress, Resume, Target};

use crate::guest::{converted, disk};
use crate::origins::{Drops, Ends, Once, Stream};
use crate::streams::packed;
use crate::{ROOM, import_into, imported};

#[test]
fn a_dropped_link_is_taken_up_where_it_broke() {
    let disk = disk(3 << 20);
    let dir = tempfile::tempdir().unwrap();
    let qcow2 = std::fs::read(converted(dir.path(), &disk, &["-c", "-O", "qcow2"])).unwrap();
    for image in [disk.clone(), qcow2, packed(Kind::Gzip, &disk)] {
        for silently in [false, true] {
            let source = Drops { silently, ..Drops::new(image.clone(), 50_000) };
            let progress = Progress::default();
            let target = Target::file(&dir.path().join("target"), ROOM).unwrap();
            disk::import(&source, &target, &Options::default(), &progress).unwrap();
            assert!(std::fs::read(dir.path().join("target")).unwrap() == disk);
            assert!(source.opened.load(Ordering::Relaxed) > 5);
            // Nothing but the head and what a reader looked for at the end came twice.
            assert!(progress.fetched() < image.len() as u64 + (200 << 10), "{}", progress.fetched());
            assert_eq!(progress.fraction(), Some(1.0));
        }
    }
}

#[test]
fn a_dropped_link_without_ranges_is_an_error_that_passes() {
    let source = Drops { ranged: false, ..Drops::new(disk(1 << 20), 50_000) };
    let error = imported(&source, &Options::default()).unwrap_err();
    assert_eq!(error.to_string(), "cannot read the source at byte 50000");
    assert!(!error.is_final());
}

fn sum(text: &str) -> Options {
    Options { checksum: Some(text.parse::<Checksum>().unwrap()), ..Options::default() }
}

#[test]
fn checksums_are_of_what_is_fetched() {
    let dir = tempfile::tempdir().unwrap();
    let disk = disk(2 << 20);
    let sha256 = |bytes: &[u8]| {
        use sha2::Digest as _;
        let digits: String = sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("sha256:{digits}")
    };
    let qcow2 = std::fs::read(converted(dir.path(), &disk, &["-O", "qcow2"])).unwrap();
    for image in [disk.clone(), qcow2, packed(Kind::Xz, &disk)] {
        let right = sha256(&image);
        let (_, bytes) = imported(&Memory::new(image.clone()), &sum(&right)).unwrap();
        assert!(bytes == disk);
        imported(&Once::new(image.clone()), &sum(&right)).unwrap();
        let wrong = sha256(b"something else");
        let path = dir.path().join("target");
        let error = import_into(&path, ROOM, &Memory::new(image), &sum(&wrong)).unwrap_err();
        let expect = format!("the source's checksum is {right}, not {wrong}: what was fetched is deleted");
        assert_eq!(error.to_string(), expect);
        assert!(error.is_final());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    }
}

#[test]
fn an_import_is_called_off() {
    struct Endless<'a>(&'a Progress);
    impl disk::Source for Endless<'_> {
        fn size(&self) -> Option<u64> {
            None
        }
        fn ranged(&self) -> bool {
            false
        }
        fn open(&self, _: u64) -> std::io::Result<Box<dyn std::io::Read + Send>> {
            self.0.cancel();
            Ok(Box::new(std::io::repeat(0xee)))
        }
    }
    let progress = Progress::default();
    let dir = tempfile::tempdir().unwrap();
    let target = Target::file(&dir.path().join("target"), ROOM).unwrap();
    let error = disk::import(&Endless(&progress), &target, &Options::default(), &progress).unwrap_err();
    assert_eq!(error.to_string(), "the import was cancelled");
}

#[test]
fn progress_ends_at_all_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let image = std::fs::read(converted(dir.path(), &disk(9 << 20), &["-O", "qcow2"])).unwrap();
    for source in [&Memory::new(image.clone()) as &dyn disk::Source, &Stream(Memory::new(image))] {
        let progress = Progress::default();
        let target = Target::file(&dir.path().join("target"), ROOM).unwrap();
        let done = disk::import(source, &target, &Options::default(), &progress).unwrap();
        assert_eq!(progress.written(), done.written);
        assert_eq!(progress.fraction(), source.size().map(|_| 1.0));
        assert!(progress.fetched() >= done.written);
    }
}

/// Fetches `image` until its server is gone, then again from a server that is not, and says how much that one sent.
fn interrupted(image: &[u8], first: Option<&'static str>, second: Option<&'static str>, expect: &[u8]) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let (path, journal) = (dir.path().join("disk.img"), dir.path().join("journal"));
    let options = Options { resume: Some(Resume::at(Place::File(journal.clone()))), ..Options::default() };
    let half = image.len() as i64 / 2;
    let error = import_into(&path, ROOM, &Ends::after(image, first, half), &options).unwrap_err();
    assert!(matches!(error, disk::ImportError::Source { .. }), "{error:?}");
    assert_eq!(journal.exists(), first.is_some());
    let progress = Progress::default();
    let target = Target::file(&path, ROOM).unwrap();
    disk::import(&Ends::after(image, second, i64::MAX), &target, &options, &progress).unwrap();
    assert!(std::fs::read(&path).unwrap() == expect);
    assert_eq!(progress.fraction(), Some(1.0));
    assert!(!journal.exists());
    progress.fetched()
}

#[test]
fn an_interrupted_import_goes_on() {
    let disk = disk(96 << 20);
    let dir = tempfile::tempdir().unwrap();
    let qcow2 = std::fs::read(converted(dir.path(), &disk, &["-O", "qcow2"])).unwrap();
    for image in [&disk, &qcow2] {
        let whole = image.len() as u64;
        // Four readers of steps of 4 MiB: each may have been within one.
        let rest = interrupted(image, Some("tag 1"), Some("tag 1"), &disk);
        assert!(rest < whole / 4 * 3, "{rest} of {whole}");
        // Another image under the same address, and one of which nothing is known.
        assert!(interrupted(image, Some("tag 1"), Some("tag 2"), &disk) > whole / 10 * 9);
        assert!(interrupted(image, None, None, &disk) > whole / 10 * 9);
    }
}
