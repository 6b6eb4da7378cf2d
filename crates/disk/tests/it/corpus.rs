//! Hostile and broken images, each with its sentence. None of them leaves a disk that could be taken for a good one.

use disk::source::Memory;
use disk::{Kind, Options};
use proptest::prelude::*;

use crate::images::{
    Bytes, QCOW2_L1, QCOW2_L2, SIZE, VDI_MAP, VHD_TABLE, VHDX_BLOCKS, VHDX_HEADER, VHDX_LOG, VHDX_METADATA,
    VHDX_REGIONS, VMDK_DESCRIPTOR, VMDK_DIRECTORY, VMDK_FIRST_MARKER, VMDK_TABLE, disk, qcow2, vdi, vhd, vhd_fixed,
    vhd_summed, vhdx, vhdx_logged, vhdx_summed, vhdx_unclosed, vmdk, vmdk_described, vmdk_stream,
};
use crate::origins::Stream;
use crate::{import_into, imported};

const ANEW: &str = "convert it anew with `qemu-img convert -O qcow2`";
const ALONE: &str = "make it stand alone with `qemu-img convert -O qcow2`";
const OTHERS: &str = "the VMDK file describes a disk of other or several files: \
                      make it one file with `qemu-img convert -O qcow2` where all of them are";

/// Refused with this sentence when it can be read by ranges, and refused as a stream.
#[track_caller]
fn check(image: Bytes, sentence: &str) {
    let source = Memory::new(image.0);
    let error = imported(&source, &Options::default()).map(|(done, _)| done).unwrap_err();
    assert_eq!(error.to_string(), sentence);
    assert!(error.is_final(), "{sentence}");
    let error = imported(&Stream(source), &Options::default()).map(|(done, _)| done).unwrap_err();
    assert!(error.is_final(), "as a stream: {error:?}");
}

fn damaged(kind: &str, what: &str) -> String {
    format!("the {kind} image is damaged: {what}: {ANEW}")
}

fn short(kind: &str, end: u64, size: u64) -> String {
    format!("the {kind} image is cut short: it needs {end} bytes and has {size}: fetch or upload it again")
}

/// What is refused below is refused for the one thing that was changed.
#[test]
fn unchanged_images_are_accepted() {
    let good = [qcow2(), vmdk(), vmdk_stream(), vdi(), vhd(), vhd_fixed(), vhdx(), vhdx_unclosed(), Bytes(disk())]
        .map(|image| Memory::new(image.0));
    for (number, image) in good.into_iter().enumerate() {
        assert!(imported(&image, &Options::default()).unwrap().1 == disk(), "image {number}");
        assert!(imported(&Stream(image), &Options::default()).unwrap().1 == disk(), "image {number} as a stream");
    }
}

#[test]
fn files_that_are_no_disk_image_are_refused() {
    let no_disk = |what: &str| format!("the file is {what}, not a disk image: put a qcow2 or raw image in its place");
    let convert = |what: &str| format!("the file is {what}: convert it with `qemu-img convert -O qcow2`");
    check(Bytes::new(0), "the file is empty, not a disk image");
    check(Bytes::new(0).put(0, b"<!DOCTYPE html><title>404 Not Found"), &no_disk("an HTML page"));
    check(Bytes::new(0).put(0, b"{\"error\": \"no such image\"}\n"), &no_disk("a text file"));
    check(Bytes::new(4096).put(0, b"\x7fELF"), &no_disk("a program"));
    check(Bytes::new(4096).put(257, b"ustar"), &no_disk("a tar archive"));
    check(Bytes::new(4096).put(0, b"PK\x03\x04"), &no_disk("a zip archive"));
    check(Bytes::new(4096).put(0, &[b'7', b'z', 0xbc, 0xaf, 0x27, 0x1c]), &no_disk("a 7z archive"));
    check(Bytes::new(4096).put(0, b"QFI\xfb\0\0\0\x01"), &convert("a qcow image of version 1"));
    check(Bytes::new(4096).put(0, b"QED\0"), &convert("a QED image"));
    check(Bytes::new(4096).put(0, b"WithoutFreeSpace"), &convert("a Parallels image"));
}

#[test]
fn qcow2_that_reaches_elsewhere() {
    let backing = |name: &str| {
        let mut image = Vec::new();
        disk::qcow2::create(&mut image, SIZE, Some(disk::qcow2::BackingFile { path: name, format: "raw" })).unwrap();
        Bytes(image)
    };
    let refused = |name: &str| {
        format!("the qcow2 image has a backing file ({name:?}), which would make QEMU read another file: {ALONE}")
    };
    for name in ["/etc/passwd", "/dev/vda", "nbd://10.0.0.1/", "json:{\"driver\":\"ssh\"}", "../disk.img"] {
        check(backing(name), &refused(name));
    }
    // A name without a length, a length without a name, a name that lies beyond the file.
    check(qcow2().be64(8, 512), &refused(""));
    check(qcow2().be32(16, 4).be64(8, 1 << 40), &refused(""));
    let external =
        format!("the qcow2 image keeps its data in an external file, which would make QEMU read another file: {ALONE}");
    check(qcow2().put(79, &[4]), &external);
    check(qcow2().be32(104, 0x4441_5441).be32(108, 4).put(112, b"/etc"), &external);
}

#[test]
fn qcow2_with_a_header_that_cannot_be() {
    let header = |what: &str| format!("the qcow2 header is damaged: {what}");
    check(qcow2().be32(4, 4), &header("version 4 is not known"));
    check(qcow2().be32(20, 8), &header("clusters of 2^8 bytes are not possible"));
    check(qcow2().be32(20, 22), &header("clusters of 2^22 bytes are not possible"));
    check(qcow2().be32(20, u32::MAX), &header("clusters of 2^4294967295 bytes are not possible"));
    check(qcow2().be32(100, 72), &header("a header of 72 bytes is not possible"));
    check(qcow2().be32(100, u32::MAX), &header("a header of 4294967295 bytes is not possible"));
    check(qcow2().cut(90), &header("the file ends within its header"));
    check(qcow2().put(79, &[8]).put(104, &[7]), &header("compression 7 is not known"));
    check(qcow2().be32(32, 1), "the qcow2 image is encrypted: decrypt it with `qemu-img convert -O qcow2`");
    check(qcow2().be32(32, 2), "the qcow2 image is encrypted: decrypt it with `qemu-img convert -O qcow2`");
    check(qcow2().put(79, &[2]), "the qcow2 image is marked corrupt: repair it with `qemu-img check -r all`");
    check(qcow2().put(78, &[1]), "the qcow2 image uses features that are not known (bits 0x100)");
    check(qcow2().be64(24, 0), "the qcow2 image claims a virtual size of 0 bytes");
    check(
        qcow2().be64(24, u64::MAX),
        "the image claims a virtual size of 18446744073709551615 bytes, more than the 70368744177664 that are allowed",
    );
    check(
        qcow2().be32(36, 4).be64(24, 2 << 30),
        "the image's virtual size of 2147483648 bytes is larger than the 1073741824 bytes that the volume offers: \
         ask for a larger volume",
    );
}

#[test]
fn qcow2_with_tables_that_cannot_be() {
    let bits = |table: &str| damaged("qcow2", &format!("an entry of {table} has bits that none can have"));
    check(qcow2().be32(36, 0), &damaged("qcow2", "its L1 table is too short for its virtual size"));
    check(qcow2().be32(36, u32::MAX), "the qcow2 image's tables do not fit its size: the file is cut short or damaged");
    check(qcow2().be64(40, 0), &damaged("qcow2", "its L1 table lies where none can"));
    check(qcow2().be64(40, 12345), &damaged("qcow2", "its L1 table lies where none can"));
    check(qcow2().be64(40, 1 << 40), &short("qcow2", (1 << 40) + 8, 7 << 16));
    check(qcow2().be64(40, u64::MAX << 16), &short("qcow2", (u64::MAX << 16) + 8, 7 << 16));
    check(qcow2().be64(QCOW2_L1, 1 << 63 | 4 << 16 | 1), &bits("its L1 table"));
    check(qcow2().be64(QCOW2_L1, 1 << 63 | 4 << 16 | 512), &bits("its L1 table"));
    check(qcow2().be64(QCOW2_L1, 1 << 50), &short("qcow2", (1 << 50) + (1 << 16), 7 << 16));
    check(qcow2().be64(QCOW2_L2, 1 << 63 | 5 << 16 | 4), &bits("an L2 table"));
    check(qcow2().be64(QCOW2_L2, 1 << 63 | 5 << 16 | 1 << 61), &bits("an L2 table"));
    check(qcow2().be64(QCOW2_L2, 1 << 63 | 99 << 16), &short("qcow2", 100 << 16, 7 << 16));
    // Two clusters of the disk in one of the image; a table that is its own cluster is read as data, which is no harm.
    check(
        qcow2().be64(QCOW2_L2 + 8, 1 << 63 | 5 << 16),
        "the qcow2 image is damaged: two of its parts lie in the same place, at byte 327680",
    );
    check(
        qcow2().be64(QCOW2_L2, 1 << 62 | 5 << 16),
        &damaged("qcow2", "what is compressed at byte 327680 cannot be unpacked"),
    );
    check(qcow2().be64(QCOW2_L2, 1 << 62 | 1 << 45), &short("qcow2", (1 << 45) + 1, 7 << 16));
    check(qcow2().put(79, &[16]).be32(20, 12), &damaged("qcow2", "its clusters are too small to be divided"));
    let divided = qcow2().put(79, &[16]).be64(QCOW2_L2 + 24, 0);
    check(divided.be64(QCOW2_L2 + 8, u64::MAX), &damaged("qcow2", "a part of a cluster is both present and not"));
    // Two parts of the disk that share one table of clusters.
    let shared = qcow2().be32(20, 16).be64(24, 768 << 20).be32(36, 2).be64(QCOW2_L1 + 8, 1 << 63 | 4 << 16);
    check(shared, "the qcow2 image is damaged: two of its parts lie in the same place, at byte 262144");
}

#[test]
fn qcow2_that_is_cut_short() {
    let whole = qcow2().0.len();
    check(qcow2().cut(QCOW2_L1), &short("qcow2", QCOW2_L1 as u64 + 8, QCOW2_L1 as u64));
    check(qcow2().cut(QCOW2_L2 + 100), &short("qcow2", QCOW2_L2 as u64 + (1 << 16), QCOW2_L2 as u64 + 100));
    check(qcow2().cut(whole - 1), &short("qcow2", whole as u64, whole as u64 - 1));
}

#[test]
fn vmdk_of_several_files() {
    let parent = format!("the VMDK image has a parent, an image that it holds the changes of: {ALONE}");
    check(Bytes::new(0).put(0, b"# Disk DescriptorFile\nRW 2048 FLAT \"disk-flat.vmdk\" 0\n"), OTHERS);
    check(Bytes::new(0).put(0, b"# Disk DescriptorFile\nRW 9 FLAT \"/etc/passwd\" 0\n"), OTHERS);
    check(vmdk_described("createType=\"twoGbMaxExtentSparse\"\nRW 2048 SPARSE \"disk-s001.vmdk\"\n"), OTHERS);
    check(vmdk_described("RW 2048 SPARSE \"a.vmdk\"\nRW 2048 SPARSE \"b.vmdk\"\n"), OTHERS);
    check(vmdk_described("version=1\n"), OTHERS);
    check(vmdk().le64(28, 0), OTHERS);
    check(vmdk_described("parentCID=12345678\nRW 2048 SPARSE \"disk.vmdk\"\n"), &parent);
    check(vmdk_described("parentFileNameHint=\"/etc/passwd\"\nRW 2048 SPARSE \"disk.vmdk\"\n"), &parent);
}

#[test]
fn vmdk_that_cannot_be() {
    let bad = |what: &str| damaged("VMDK", what);
    check(vmdk().put(0, b"COWD"), &bad("it is a sparse extent of an ESX host, which only its datastore can read"));
    check(vmdk().le32(4, 9), &bad("version 9 is not known"));
    check(vmdk().put(75, b"\n\n"), &bad("its line ends were changed by a transfer as text"));
    check(vmdk().le64(20, 0), &bad("grains of 0 bytes are not possible"));
    check(vmdk().le64(20, u64::MAX), &bad("grains of 18446744073709551615 bytes are not possible"));
    check(vmdk().le64(12, 0), &bad("its virtual size is 0 bytes"));
    check(
        vmdk().le64(12, u64::MAX),
        "the image claims a virtual size of 18446744073709551615 bytes, more than the 70368744177664 that are allowed",
    );
    check(vmdk().le32(44, 0), &bad("tables of 0 grains are not possible"));
    check(vmdk().le32(8, 0x1_0001).put(77, &[9, 0]), &bad("compression 9 is not known"));
    check(vmdk().le64(56, u64::MAX), &bad("nothing says where its grains are"));
    check(vmdk().le64(56, 0), &bad("its directory lies where none can"));
    check(vmdk().le64(36, 1 << 40), &bad("a descriptor of 562949953421312 bytes is not possible"));
    check(vmdk().le32(VMDK_DIRECTORY, u32::MAX), &short("VMDK", u64::from(u32::MAX) * 512 + 2048, 192 << 10));
    check(vmdk().le32(VMDK_TABLE, 1 << 24), &short("VMDK", (1 << 33) + (64 << 10), 192 << 10));
    check(
        vmdk().le32(VMDK_TABLE + 4, 128),
        "the VMDK image is damaged: two of its parts lie in the same place, at byte 65536",
    );
    check(vmdk().cut(VMDK_DESCRIPTOR + 9), &short("VMDK", 21 * 512, VMDK_DESCRIPTOR as u64 + 9));
    check(vmdk().cut(100), &short("VMDK", 512, 100));
    check(vmdk_stream().le64(VMDK_FIRST_MARKER, 1 << 50), &bad("a grain lies where none can"));
    check(vmdk_stream().le64(VMDK_FIRST_MARKER, 3), &bad("a grain lies where none can"));
    check(vmdk_stream().le32(VMDK_FIRST_MARKER + 8, u32::MAX), &bad("a grain lies where none can"));
    check(
        vmdk_stream().le32(VMDK_FIRST_MARKER + 8, 0).le32(VMDK_FIRST_MARKER + 12, 9),
        &bad("markers of type 9 are not known"),
    );
    check(
        vmdk_stream().put(VMDK_FIRST_MARKER + 12, &[0xff; 8]),
        &bad(&format!("what is compressed at byte {} cannot be unpacked", VMDK_FIRST_MARKER + 12)),
    );
    // Without its last marker a stream may lack any number of grains.
    let whole = vmdk_stream().0.len();
    check(vmdk_stream().cut(whole - 512), &short("VMDK", whole as u64, whole as u64 - 512));
}

#[test]
fn vdi_that_cannot_be() {
    let bad = |what: &str| damaged("VDI", what);
    let parent = format!("the VDI image has a parent, an image that it holds the changes of: {ALONE}");
    check(vdi().le32(68, 0x2_0003), &bad("version 2.3 is not known"));
    check(vdi().le32(76, 4), &parent);
    check(vdi().put(440, &[1; 16]), &parent);
    check(vdi().le64(368, 0), &bad("its virtual size is 0 bytes"));
    check(vdi().le32(376, 0), &bad("blocks of 0 bytes are not possible"));
    check(vdi().le32(376, 3 << 20), &bad("blocks of 3145728 bytes are not possible"));
    check(vdi().le32(380, 8), &bad("its blocks have bytes of unknown use before them"));
    check(vdi().le32(384, u32::MAX), &bad("4294967295 blocks of 65536 bytes are not a disk of 1048576 bytes"));
    check(vdi().le32(340, 0), &bad("its map of blocks lies where none can"));
    check(vdi().le32(344, 512), &bad("its map of blocks lies where none can"));
    check(vdi().le32(VDI_MAP, 500), &bad("its map names block 500 of 16"));
    check(vdi().le32(VDI_MAP, 9), &short("VDI", 4096 + (10 << 16), 4096 + (2 << 16)));
    check(vdi().le32(VDI_MAP, 1), "the VDI image is damaged: two of its parts lie in the same place, at byte 69632");
    check(vdi().cut(4096 + 70_000), &short("VDI", 4096 + (2 << 16), 4096 + 70_000));
    check(vdi().cut(300), &short("VDI", 512, 300));
}

#[test]
fn vhd_that_cannot_be() {
    let bad = |what: &str| damaged("VHD", what);
    check(vhd().be64(48, 77), &bad("the checksum of its footer is wrong"));
    check(
        vhd_summed(vhd().be32(60, 4)),
        &format!("the VHD image has a parent, an image that it holds the changes of: {ALONE}"),
    );
    check(vhd_summed(vhd().be32(60, 9)), &bad("disks of type 9 are not known"));
    check(vhd_summed(vhd().be64(48, 0)), &bad("its virtual size is 0 bytes"));
    check(vhd_summed(vhd().be64(16, 0)), &bad("its header lies where none can"));
    check(vhd_summed(vhd().be64(16, u64::MAX)), &bad("an offset is beyond all bounds"));
    check(vhd().put(512, b"cxspoiled"), &bad("its header is not one"));
    check(vhd().be32(544, 1), &bad("its header is not one"));
    check(vhd_summed(vhd().be32(544, 0)), &bad("blocks of 0 bytes are not possible"));
    check(vhd_summed(vhd().be32(540, 0)), &bad("0 blocks are too few for a disk of 1048576 bytes"));
    check(vhd_summed(vhd().be64(528, 0)), &bad("its table of blocks lies where none can"));
    check(vhd().be32(VHD_TABLE, 1 << 20), &short("VHD", (1 << 29) + 512 + SIZE, 2560 + SIZE));
    check(vhd().cut(2000 + 512), &short("VHD", 2560 + SIZE, 2512));
}

#[test]
fn vhdx_that_cannot_be() {
    let bad = |what: &str| damaged("VHDX", what);
    let header = |image| vhdx_summed(image, VHDX_HEADER, 4096);
    let regions = |image| vhdx_summed(image, VHDX_REGIONS, 64 << 10);
    let item = VHDX_METADATA + (64 << 10);
    check(vhdx().le64(VHDX_HEADER + 8, 5), &bad("neither of its headers is good"));
    let logged = |length: u32, at: u64| {
        header(vhdx().put(VHDX_HEADER + 48, &[1; 16]).le32(VHDX_HEADER + 68, length).le64(VHDX_HEADER + 72, at))
    };
    check(logged(0, 0), &bad("a log of 0 bytes at 0 is not possible"));
    check(logged(u32::MAX, 1 << 20), &bad("a log of 4294967295 bytes at 1048576 is not possible"));
    check(logged(16 << 20, 1 << 20), &bad("a log of 16777216 bytes at 1048576 is not possible"));
    check(logged(1 << 20, 4096), &bad("a log of 1048576 bytes at 4096 is not possible"));
    check(logged(1 << 20, 9 << 20), &short("VHDX", 10 << 20, 5 << 20));
    check(logged(1 << 20, 1 << 20), &bad("its log holds no changes that are whole"));
    check(vhdx_logged(vhdx(), 4 << 20, &[9; 4096]), &bad("its log changes data, and it may change tables only"));
    check(vhdx().le32(VHDX_REGIONS + 8, 1), &bad("neither of its tables of regions is good"));
    check(regions(vhdx().le64(VHDX_REGIONS + 32, 4096)), &bad("a region lies where none can"));
    check(regions(vhdx().le32(VHDX_REGIONS + 8, 1)), &bad("it has no table of blocks or no metadata"));
    check(regions(vhdx().put(VHDX_REGIONS + 16, &[9; 16])), &bad("it needs a region that is not known"));
    check(vhdx().put(VHDX_METADATA, b"nothing!"), &bad("its metadata are not where they should be"));
    check(vhdx().put(VHDX_METADATA + 10, &[2, 0]), &bad("its metadata lack an item"));
    check(vhdx().le32(VHDX_METADATA + 48, u32::MAX), &bad("an item of its metadata lies where none can"));
    check(
        vhdx().le32(item + 4, 2),
        &format!("the VHDX image has a parent, an image that it holds the changes of: {ALONE}"),
    );
    check(vhdx().le32(item, 12345), &bad("blocks of 12345 bytes are not possible"));
    check(vhdx().le32(item + 16, 1), &bad("sectors of 1 bytes are not possible"));
    check(vhdx().le64(item + 8, 0), &bad("its virtual size is 0 bytes"));
    check(vhdx().le64(item + 8, 1 << 40), &bad("its table of blocks is too short for its virtual size"));
    check(vhdx().le64(VHDX_BLOCKS, 6), &bad("a block lies where none can"));
    check(
        vhdx().le64(VHDX_BLOCKS, 4 << 20 | 7),
        &format!("the VHDX image has a parent, an image that it holds the changes of: {ALONE}"),
    );
    check(vhdx().le64(VHDX_BLOCKS, 9 << 20 | 6), &short("VHDX", 10 << 20, 5 << 20));
    check(vhdx().cut(5_000_000), &short("VHDX", 5 << 20, 5_000_000));
    check(vhdx().cut(70_000), &short("VHDX", (128 << 10) + 4096, 70_000));
}

/// Every image, cut at every place that is no multiple of anything: never a disk, never a panic.
#[test]
fn cut_at_every_place() {
    let images = [qcow2(), vmdk(), vmdk_stream(), vdi(), vhd(), vhdx(), vhdx_unclosed()];
    for (number, image) in images.into_iter().enumerate() {
        let step = image.0.len() / 23;
        for length in (1..image.0.len() - 1).step_by(step) {
            let source = Memory::new(&image.0[..length]);
            if disk::detect(&image.0[..length.min(34 << 10)]) == Kind::Raw {
                continue;
            }
            assert!(imported(&source, &Options::default()).is_err(), "image {number} cut at {length}");
            assert!(imported(&Stream(source), &Options::default()).is_err(), "image {number} cut at {length}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever a byte is changed to: a disk within bounds or a sentence, and the same disk in every way.
    #[test]
    fn any_change_is_survived(
        number in 0_usize..7,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0_usize..600, any::<u8>()), 1..4),
    ) {
        let makers = [qcow2, vmdk, vmdk_stream, vdi, vhd, vhdx, vhdx_unclosed];
        let mut image = makers[number]().0;
        for (place, offset, value) in changes {
            let at = *place.get(TABLES[number]) + offset;
            image[at] = value;
        }
        let dir = tempfile::tempdir().unwrap();
        let import = |name: &str, source: &dyn disk::Source| {
            let path = dir.path().join(name);
            let done = import_into(&path, 8 * SIZE, source, &Options::default()).ok()?;
            assert_eq!(done.size, std::fs::metadata(&path).unwrap().len());
            Some(std::fs::read(path).unwrap())
        };
        let source = Memory::new(image);
        let by_ranges = import("by-ranges", &source);
        let forward = import("forward", &Stream(source));
        if let (Some(one), Some(other)) = (by_ranges, forward) {
            prop_assert!(one == other, "image {number}: the ways differ");
        }
    }
}

/// Where the images have what can be lied about.
const TABLES: [&[usize]; 7] = [
    &[0, QCOW2_L1, QCOW2_L2],
    &[0, VMDK_DESCRIPTOR, VMDK_DIRECTORY],
    &[0, VMDK_DESCRIPTOR, VMDK_FIRST_MARKER],
    &[0, 300, VDI_MAP],
    &[0, 512, VHD_TABLE],
    &[0, VHDX_HEADER, VHDX_REGIONS, VHDX_METADATA, VHDX_METADATA + (64 << 10), VHDX_BLOCKS],
    &[VHDX_HEADER, VHDX_LOG, VHDX_LOG + 4096, VHDX_METADATA],
];
