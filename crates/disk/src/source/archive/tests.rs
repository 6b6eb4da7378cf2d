//! Archives of friends and of strangers.

use super::*;
use std::os::unix::fs::MetadataExt;

type Build = fn(&mut tar::Builder<Vec<u8>>);

fn entry(kind: EntryType, path: &str, link: &str, data: &[u8], builder: &mut tar::Builder<Vec<u8>>) {
    let mut header = tar::Header::new_gnu();
    // Written as bytes: the library refuses to make what we have to refuse to read.
    let gnu = header.as_gnu_mut().unwrap();
    gnu.name[..path.len()].copy_from_slice(path.as_bytes());
    gnu.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o640);
    header.set_mtime(1_000_000);
    header.set_size(data.len() as u64);
    header.set_cksum();
    builder.append(&header, data).unwrap();
}

fn tarball(build: Build) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    build(&mut builder);
    builder.into_inner().unwrap()
}

#[track_caller]
fn refused(build: Build, expect: &str) {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path().join("volume");
    std::fs::create_dir(&volume).unwrap();
    std::fs::write(dir.path().join("outside"), "untouched").unwrap();
    let error = unpack(Box::new(io::Cursor::new(tarball(build))), &volume, Links::Inside, None).unwrap_err();
    assert!(error.to_string().contains(expect), "{error}");
    assert_eq!(std::fs::read(dir.path().join("outside")).unwrap(), b"untouched");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn nothing_leaves_the_volume() {
    use EntryType::{Fifo, Link, Regular, Symlink};
    refused(|b| entry(Regular, "../outside", "", b"x", b), "\"../outside\" is refused: its path leads out");
    refused(|b| entry(Regular, "a/../../outside", "", b"x", b), "leads out of the volume");
    refused(|b| entry(Symlink, "up", "../outside", b"", b), "leads out of the volume");
    refused(|b| entry(Symlink, "a/up", "b/../../../outside", b"", b), "leads out of the volume");
    refused(|b| entry(Symlink, "root", "/etc/passwd", b"", b), "leads out of the volume");
    refused(|b| entry(Link, "hard", "../outside", b"", b), "leads out of the volume");
    refused(|b| entry(Link, "hard", "missing", b"", b), "a file that is not there");
    refused(|b| entry(Fifo, "pipe", "", b"", b), "neither a file, a directory nor a link");
    refused(
        |b| {
            entry(Symlink, "dir", "sub", b"", b);
            entry(Regular, "dir/file", "", b"x", b);
        },
        "make a directory",
    );
}

#[test]
fn a_tree_comes_out_as_it_went_in() {
    let archive = tarball(|b| {
        use EntryType::{Directory, Link, Regular, Symlink};
        entry(Directory, "./", "", b"", b);
        entry(Directory, "etc/", "", b"", b);
        entry(Regular, "etc/file", "", b"first", b);
        entry(Regular, "etc/file", "", b"second", b);
        entry(Symlink, "link", "etc/file", b"", b);
        entry(Link, "hard", "etc/file", b"", b);
        entry(Link, "etc/harder", "hard", b"", b);
        entry(Regular, "/absolute/file", "", b"x", b);
        entry(Regular, "holes", "", &[0; 1 << 20], b);
    });
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("left/over")).unwrap();
    std::fs::create_dir(dir.path().join("lost+found")).unwrap();
    let mut packed = flate2::read::GzEncoder::new(&archive[..], flate2::Compression::fast());
    let mut stream = Vec::new();
    packed.read_to_end(&mut stream).unwrap();
    let bytes = unpack(Box::new(io::Cursor::new(stream)), dir.path(), Links::Inside, None).unwrap();
    assert_eq!(bytes, 5 + 6 + 1 + (1 << 20));
    let at = |name: &str| dir.path().join(name);
    assert_eq!(std::fs::read(at("etc/file")).unwrap(), b"second");
    assert_eq!(std::fs::read(at("link")).unwrap(), b"second");
    assert_eq!(std::fs::metadata(at("hard")).unwrap().ino(), std::fs::metadata(at("etc/file")).unwrap().ino());
    assert_eq!(std::fs::read(at("absolute/file")).unwrap(), b"x");
    let holes = std::fs::metadata(at("holes")).unwrap();
    assert_eq!((holes.len(), holes.blocks(), holes.mode() & 0o777), (1 << 20, 0, 0o640));
    assert_eq!(std::fs::metadata(at("etc")).unwrap().mtime(), 1_000_000);
    assert!(!at("left").exists() && at("lost+found").exists());
}

#[test]
fn a_stream_adds_up_or_nothing_is_kept() {
    let archive = tarball(|b| entry(EntryType::Regular, "file", "", b"content", b));
    let mut hasher = Hasher::new(crate::Algorithm::Sha256);
    hasher.update(&archive);
    let right = hasher.finish();
    let wrong: Checksum = format!("md5:{}", "0".repeat(32)).parse().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let stream = || Box::new(io::Cursor::new(archive.clone()));
    assert_eq!(unpack(stream(), dir.path(), Links::Inside, Some(&right)).unwrap(), 7);
    let error = unpack(stream(), dir.path(), Links::Inside, Some(&wrong)).unwrap_err();
    assert!(matches!(error, Error::Checksum { .. }), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn half_an_archive_is_an_error() {
    let archive = tarball(|b| entry(EntryType::Regular, "file", "", &[7; 5000], b));
    for length in [100, 512, 2000] {
        let dir = tempfile::tempdir().unwrap();
        let stream = Box::new(io::Cursor::new(archive[..length].to_vec()));
        assert!(unpack(stream, dir.path(), Links::Inside, None).is_err(), "{length}");
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(unpack(Box::new(io::Cursor::new(vec![7; 4096])), dir.path(), Links::Inside, None).is_err());
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        /// An archive that was changed anywhere, packed in frames or not, writes nothing outside of its volume.
        #[test]
        fn any_archive_writes_only_into_its_volume(changes in proptest::collection::vec((0_usize..2048, prop::sample::select(b"./\0\x01257ax\xff".to_vec())), 0..40), cut in 0_usize..8000) {
            let mut bytes = tarball(|b| {
                entry(EntryType::Directory, "a/", "", b"", b);
                entry(EntryType::Symlink, "a/link", "file", b"", b);
                entry(EntryType::Regular, "a/file", "", b"content", b);
                entry(EntryType::Link, "hard", "a/file", b"", b);
            });
            for (at, byte) in changes {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            bytes.truncate(cut);
            let dir = tempfile::tempdir().unwrap();
            let volume = dir.path().join("volume");
            for links in [Links::Inside, Links::Anywhere] {
                std::fs::create_dir(&volume).unwrap();
                let _ = unpack(Box::new(io::Cursor::new(bytes.clone())), &volume, links, None);
                prop_assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
                std::fs::remove_dir_all(&volume).unwrap();
            }
        }
    }
}
