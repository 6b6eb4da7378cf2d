//! Packed images: every compression around every format, members one after the other, damage at every place.

use std::io::Write as _;

use disk::source::Memory;
use disk::{Kind, Options};

use crate::guest::{converted, disk};
use crate::imported;
use crate::origins::{Once, Stream};

pub(crate) fn packed(kind: Kind, bytes: &[u8]) -> Vec<u8> {
    match kind {
        Kind::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        Kind::Bzip2 => {
            let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        Kind::Xz => liblzma::encode_all(bytes, 0).unwrap(),
        Kind::Zstd => {
            let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
            encoder.include_checksum(true).unwrap();
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        kind => panic!("{kind:?} packs nothing"),
    }
}

pub(crate) const PACKINGS: [Kind; 4] = [Kind::Gzip, Kind::Xz, Kind::Zstd, Kind::Bzip2];

#[test]
fn every_packing_of_every_format() {
    let disk = disk(3_000_320);
    let formats: [(Kind, &[&str]); 8] = [
        (Kind::Raw, &["-O", "raw"]),
        (Kind::Qcow2, &["-O", "qcow2"]),
        (Kind::Qcow2, &["-c", "-O", "qcow2"]),
        (Kind::Vmdk, &["-O", "vmdk"]),
        (Kind::Vmdk, &["-O", "vmdk", "-o", "subformat=streamOptimized"]),
        (Kind::Vdi, &["-O", "vdi"]),
        (Kind::Vhd, &["-O", "vpc", "-o", "force_size=on"]),
        (Kind::Vhdx, &["-O", "vhdx"]),
    ];
    for (format, arguments) in formats {
        let dir = tempfile::tempdir().unwrap();
        let image = std::fs::read(converted(dir.path(), &disk, arguments)).unwrap();
        for packing in PACKINGS {
            let source = Once::new(packed(packing, &image));
            let (done, bytes) = imported(&source, &Options::default()).unwrap();
            assert_eq!((done.format, done.packing), (format, Some(packing)));
            assert!(bytes[..disk.len()] == disk, "{format:?} in {packing:?}");
        }
    }
}

#[test]
fn members_follow_each_other() {
    let disk = disk(1 << 20);
    for packing in PACKINGS {
        let members: Vec<u8> = disk.chunks(300_000).flat_map(|part| packed(packing, part)).collect();
        let (_, bytes) = imported(&Stream(Memory::new(members)), &Options::default()).unwrap();
        assert!(bytes == disk, "{packing:?}");
    }
}

#[test]
fn a_stream_cut_anywhere_is_refused() {
    let disk = disk(400_384);
    for packing in PACKINGS {
        let whole = packed(packing, &disk);
        // Behind the magic, through everything, to the last byte.
        for cut in [20, whole.len() / 3, whole.len() / 2, whole.len() - 9, whole.len() - 1] {
            let error = imported(&Stream(Memory::new(&whole[..cut])), &Options::default()).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("the {} is cut short: fetch or upload it again", packing.noun()),
                "{packing:?} cut at {cut}"
            );
            assert!(error.is_final());
        }
    }
}

#[test]
fn a_changed_byte_is_seen() {
    let disk = disk(400_384);
    for packing in PACKINGS {
        let mut bytes = packed(packing, &disk);
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x10;
        let error = imported(&Memory::new(bytes), &Options::default()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("the {} is ", packing.noun())), "{error}");
    }
}

/// A gibibyte of zeros in a megabyte ends where the volume does.
#[test]
fn a_bomb_ends_where_the_volume_does() {
    let zeros = vec![0; 64 << 20];
    for packing in [Kind::Gzip, Kind::Xz, Kind::Zstd] {
        let bomb = packed(packing, &zeros).repeat(2);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        let source = Memory::new(bomb);
        let error = crate::import_into(&path, 16 << 20, &source, &Options::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the image's virtual size of at least 17825792 bytes is larger than the 16777216 bytes that the volume \
             offers: ask for a larger volume"
        );
    }
}

#[test]
fn a_packing_within_another_is_refused() {
    let twice = packed(Kind::Xz, &packed(Kind::Gzip, &disk(100_000)));
    let error = imported(&Memory::new(twice), &Options::default()).unwrap_err();
    assert_eq!(error.to_string(), "the file is a gzip archive within another: unpack it to the disk image inside");
}

/// The dictionary is as large as its header says, whatever follows.
#[test]
fn a_dictionary_beyond_bounds_is_refused() {
    use liblzma::stream::{Check, Filters, LzmaOptions, Stream as Xz};
    let mut options = LzmaOptions::new_preset(0).unwrap();
    options.dict_size(512 << 20);
    let mut filters = Filters::new();
    filters.lzma2(&options);
    let stream = Xz::new_stream_encoder(&filters, Check::Crc32).unwrap();
    let mut encoder = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
    encoder.write_all(&disk(100_352)).unwrap();
    let error = imported(&Memory::new(encoder.finish().unwrap()), &Options::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the xz archive needs a dictionary larger than 64 MiB to unpack: compress it again with a smaller one"
    );
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(28).unwrap();
    encoder.write_all(&disk(100_352)).unwrap();
    let error = imported(&Memory::new(encoder.finish().unwrap()), &Options::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the zstd archive needs a dictionary larger than 128 MiB to unpack: compress it again with a smaller one"
    );
}

/// The largest that are in use are taken, and an import says what they cost.
#[test]
fn large_dictionaries_cost_what_they_say() {
    let disk = disk(1 << 20);
    let xz = liblzma::encode_all(disk.as_slice(), 9).unwrap();
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(27).unwrap();
    encoder.write_all(&disk).unwrap();
    let zstd = encoder.finish().unwrap();
    for (image, mib) in [(xz, 64), (zstd, 128), (packed(Kind::Gzip, &disk), 0)] {
        let (done, bytes) = imported(&Memory::new(image), &Options::default()).unwrap();
        assert!(bytes == disk);
        assert_eq!(done.dictionary, mib << 20);
    }
}
