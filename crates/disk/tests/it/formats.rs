//! What qemu-img writes decodes to the same bytes: by ranges, forward, and from sources that are read once.

use std::path::Path;

use disk::source::{FileSource, Memory};
use disk::{Kind, Options, Source};
use proptest::prelude::*;

use crate::guest::{Noise, converted, disk, qemu_img};
use crate::images::{Bytes, VHDX_BLOCKS, vhdx_logged};
use crate::imported;
use crate::origins::{Once, Stream};

#[track_caller]
fn same(name: &str, source: &dyn Source, kind: Kind, expect: &[u8]) {
    let (done, bytes) = imported(source, &Options::default()).unwrap_or_else(|error| panic!("{name}: {error:?}"));
    assert_eq!(done.format, kind, "{name}");
    // Formats that count in larger units than sectors make a disk a little larger.
    assert!(done.virtual_size >= expect.len() as u64 && done.size == bytes.len() as u64, "{name}: {done:?}");
    assert!(bytes[..expect.len()] == *expect, "{name}: another disk");
    assert!(bytes[expect.len()..].iter().all(|byte| *byte == 0), "{name}: bytes behind the disk's end");
}

#[track_caller]
fn in_every_way(image: &Path, kind: Kind, expect: &[u8]) {
    same("by ranges", &FileSource::new(std::fs::File::open(image).unwrap()).unwrap(), kind, expect);
    let bytes = std::fs::read(image).unwrap();
    same("forward", &Stream(Memory::new(bytes.clone())), kind, expect);
    same("read once", &Once::new(bytes), kind, expect);
}

#[track_caller]
fn check(arguments: &[&str], kind: Kind) {
    let dir = tempfile::tempdir().unwrap();
    let disk = disk(20_000_256);
    let image = converted(dir.path(), &disk, arguments);
    in_every_way(&image, kind, &disk);
}

#[test]
fn raw() {
    check(&["-O", "raw"], Kind::Raw);
}

#[test]
fn qcow2() {
    check(&["-O", "qcow2"], Kind::Qcow2);
    check(&["-O", "qcow2", "-o", "compat=0.10"], Kind::Qcow2);
    check(&["-O", "qcow2", "-o", "cluster_size=4k"], Kind::Qcow2);
    check(&["-O", "qcow2", "-o", "cluster_size=2M"], Kind::Qcow2);
    check(&["-O", "qcow2", "-o", "preallocation=metadata"], Kind::Qcow2);
    check(&["-O", "qcow2", "-o", "preallocation=full"], Kind::Qcow2);
}

#[test]
fn qcow2_with_compressed_clusters() {
    check(&["-c", "-O", "qcow2"], Kind::Qcow2);
    check(&["-c", "-O", "qcow2", "-o", "compat=0.10"], Kind::Qcow2);
    check(&["-c", "-O", "qcow2", "-o", "compression_type=zstd"], Kind::Qcow2);
    check(&["-c", "-O", "qcow2", "-o", "compression_type=zstd,cluster_size=1M"], Kind::Qcow2);
    check(&["-c", "-O", "qcow2", "-o", "cluster_size=512"], Kind::Qcow2);
}

#[test]
fn qcow2_with_parts_of_clusters() {
    check(&["-O", "qcow2", "-o", "extended_l2=on,cluster_size=128k"], Kind::Qcow2);
    check(&["-c", "-O", "qcow2", "-o", "extended_l2=on"], Kind::Qcow2);
}

#[test]
fn vmdk() {
    check(&["-O", "vmdk"], Kind::Vmdk);
    check(&["-O", "vmdk", "-o", "subformat=streamOptimized"], Kind::Vmdk);
}

#[test]
fn vdi() {
    check(&["-O", "vdi"], Kind::Vdi);
    check(&["-O", "vdi", "-o", "static=on"], Kind::Vdi);
}

#[test]
fn vhd() {
    check(&["-O", "vpc"], Kind::Vhd);
    check(&["-O", "vpc", "-o", "force_size=on"], Kind::Vhd);
}

/// A CD is a disk as it is.
#[test]
fn iso() {
    let dir = tempfile::tempdir().unwrap();
    let mut image = Vec::new();
    let files = disk::iso::Files::from([("meta-data".to_owned(), b"instance-id: a".to_vec())]);
    disk::iso::write(&mut image, "cidata", &files).unwrap();
    let path = dir.path().join("cd.iso");
    std::fs::write(&path, &image).unwrap();
    in_every_way(&path, Kind::Iso, &image);
}

/// Whether a raw image ends in a footer is known at its end.
#[test]
fn vhd_of_fixed_size() {
    check(&["-O", "vpc", "-o", "subformat=fixed,force_size=on"], Kind::Raw);
    let dir = tempfile::tempdir().unwrap();
    let disk = disk(3 << 20);
    let image = converted(dir.path(), &disk, &["-O", "vpc", "-o", "subformat=fixed,force_size=on"]);
    let source = FileSource::new(std::fs::File::open(image).unwrap()).unwrap();
    assert_eq!(imported(&source, &Options::default()).unwrap().1.len(), disk.len());
}

#[test]
fn vhdx() {
    check(&["-O", "vhdx"], Kind::Vhdx);
    check(&["-O", "vhdx", "-o", "block_size=1M"], Kind::Vhdx);
    check(&["-O", "vhdx", "-o", "subformat=fixed"], Kind::Vhdx);
}

/// Changes that were in the log when the image's writer died are made over its tables, as QEMU makes them in place.
#[test]
fn vhdx_that_was_not_closed() {
    let dir = tempfile::tempdir().unwrap();
    let disk = disk(8 << 20);
    let path = converted(dir.path(), &disk, &["-O", "vhdx", "-o", "block_size=1M"]);
    let image = Bytes(std::fs::read(&path).unwrap());
    // QEMU has its table of blocks at 3 MiB. What it says is in the log only, and in place is something else.
    let sector = image.0[VHDX_BLOCKS..VHDX_BLOCKS + 4096].to_vec();
    let image = vhdx_logged(image, VHDX_BLOCKS as u64, &sector).put(VHDX_BLOCKS, &[0; 4096]);
    std::fs::write(&path, &image.0).unwrap();
    in_every_way(&path, Kind::Vhdx, &disk);
    let repaired = dir.path().join("repaired.raw");
    qemu_img(&["check", "-q", "-r", "all", path.to_str().unwrap()]);
    qemu_img(&["convert", "-O", "raw", path.to_str().unwrap(), repaired.to_str().unwrap()]);
    assert!(std::fs::read(repaired).unwrap() == disk, "QEMU reads another disk");
}

/// Refcounts that are behind are no harm to who only reads.
#[test]
fn qcow2_that_was_not_closed() {
    let dir = tempfile::tempdir().unwrap();
    let disk = disk(3 << 20);
    let path = converted(dir.path(), &disk, &["-O", "qcow2", "-o", "lazy_refcounts=on"]);
    let image = Bytes(std::fs::read(&path).unwrap());
    // Marked so, and without any refcount.
    std::fs::write(&path, &image.put(79, &[1]).put(2 << 16, &[0; 1 << 16]).0).unwrap();
    in_every_way(&path, Kind::Qcow2, &disk);
}

/// A table that grew lies behind the data that it leads to: a stream is read twice, if it is long and can be.
#[test]
fn tables_behind_data() {
    let dir = tempfile::tempdir().unwrap();
    let mut noise = Noise(1);
    let mut disk: Vec<u8> = (0..20 << 20).map(|_| noise.next()).collect();
    disk[1 << 20..2 << 20].fill(0);
    let image = converted(dir.path(), &disk, &["-O", "qcow2", "-o", "cluster_size=4k"]);
    let grown: u64 = 4 << 30;
    qemu_img(&["resize", "-q", image.to_str().unwrap(), &grown.to_string()]);
    let written = std::process::Command::new("qemu-io")
        .args(["-c", "write -P 7 900M 64k", image.to_str().unwrap()])
        .output()
        .expect("qemu-io: run scripts/deps.sh");
    assert!(written.status.success());
    disk.resize((900 << 20) + (64 << 10), 0);
    disk[900 << 20..].fill(7);
    let bytes = std::fs::read(&image).unwrap();
    let path = dir.path().join("target");
    let sources: [&dyn Source; 2] = [&Memory::new(bytes.clone()), &Stream(Memory::new(bytes.clone()))];
    for source in sources {
        crate::import_into(&path, 2 * grown, source, &Options::default()).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let mut start = vec![0; disk.len()];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut start, 0).unwrap();
        assert!(start == disk);
        assert_eq!(file.metadata().unwrap().len(), grown);
    }
    // What came too early is kept where there is room for it, and leaves nothing there.
    let room = tempfile::tempdir().unwrap();
    let options = Options { spool: Some(room.path().to_owned()), ..Options::default() };
    crate::import_into(&path, 2 * grown, &Once::new(bytes.clone()), &options).unwrap();
    let mut start = vec![0; disk.len()];
    let file = std::fs::File::open(&path).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut start, 0).unwrap();
    assert!(start == disk && std::fs::read_dir(room.path()).unwrap().count() == 0);
    let error = crate::import_into(&path, 2 * grown, &Once::new(bytes), &Options::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the qcow2 image has its tables behind its data, and this source can be read only once: \
         rewrite it with `qemu-img convert -O qcow2`"
    );
}

/// Internal snapshots and discards leave images in an order of their own.
#[test]
fn images_with_a_past() {
    let dir = tempfile::tempdir().unwrap();
    let disk = disk(8 << 20);
    let image = converted(dir.path(), &disk, &["-O", "qcow2"]);
    let name = image.to_str().unwrap();
    let io = |command: &str| {
        let output = std::process::Command::new("qemu-io").args(["-d", "unmap", "-c", command, name]).output().unwrap();
        assert!(output.status.success(), "{command}");
    };
    qemu_img(&["snapshot", "-c", "before", name]);
    io("write -P 1 1M 256k");
    io("discard 2M 1M");
    io("write -z 4M 128k");
    qemu_img(&["snapshot", "-d", "before", name]);
    io("write -P 2 5M 1M");
    io("write -P 3 2M 64k");
    let truth = dir.path().join("truth");
    qemu_img(&["convert", "-O", "raw", name, truth.to_str().unwrap()]);
    let truth = std::fs::read(truth).unwrap();
    same("by ranges", &FileSource::new(std::fs::File::open(&image).unwrap()).unwrap(), Kind::Qcow2, &truth);
    same("forward", &Stream(Memory::new(std::fs::read(&image).unwrap())), Kind::Qcow2, &truth);
}

fn any_format() -> impl Strategy<Value = (Kind, Vec<&'static str>)> {
    prop_oneof![
        Just((Kind::Qcow2, vec!["-O", "qcow2"])),
        Just((Kind::Qcow2, vec!["-c", "-O", "qcow2", "-o", "cluster_size=16k"])),
        Just((Kind::Qcow2, vec!["-c", "-O", "qcow2", "-o", "compression_type=zstd"])),
        Just((Kind::Vmdk, vec!["-O", "vmdk"])),
        Just((Kind::Vmdk, vec!["-O", "vmdk", "-o", "subformat=streamOptimized"])),
        Just((Kind::Vdi, vec!["-O", "vdi"])),
        Just((Kind::Vhd, vec!["-O", "vpc"])),
        Just((Kind::Vhdx, vec!["-O", "vhdx"])),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn any_disk_survives(
        (kind, arguments) in any_format(),
        sectors in 1_usize..6000,
        runs in proptest::collection::vec((0_usize..6000, 1_usize..400, any::<u8>()), 0..12),
    ) {
        let mut disk = vec![0; sectors * 512];
        for (start, length, fill) in runs {
            let end = (start + length).min(sectors);
            if start < end {
                disk[start * 512..end * 512].fill(fill);
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let image = converted(dir.path(), &disk, &arguments);
        in_every_way(&image, kind, &disk);
    }
}
