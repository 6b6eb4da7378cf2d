//! The layer that holds a disk, and what an image says of it.

use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::facts::Facts;
use crate::Error;

/// Who reads disks of images.
const QEMU: u64 = 107;
const DISK: &str = "disk/disk.img";

/// A layer as it is pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packed {
    pub(super) digest: String,
    /// Of what it is unpacked to.
    diff: String,
    pub(super) size: u64,
}

/// The image's configuration, and its manifest.
pub(super) fn describe(packed: &Packed, facts: &Facts) -> (Vec<u8>, Value) {
    let config = json!({
        "architecture": facts.architecture, "os": "linux", "config": { "Env": facts.variables },
        "rootfs": { "type": "layers", "diff_ids": [packed.diff] },
    });
    let config = config.to_string().into_bytes();
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json", "size": config.len(),
            "digest": format!("sha256:{}", hex(&Sha256::digest(&config))),
        },
        "layers": [{
            "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "size": packed.size, "digest": packed.digest,
        }],
    });
    (config, manifest)
}

/// Packs the disk as a layer: it is read twice, because an archive says how long a file is before it holds it.
pub(super) fn pack(disk: &Path, target: &Path) -> Result<Packed, Error> {
    let open = || {
        let file = std::fs::File::open(disk).map_err(Error::file("read", disk))?;
        Ok::<_, Error>(GzDecoder::new(BufReader::with_capacity(1 << 20, file)))
    };
    let length = std::io::copy(&mut open()?, &mut std::io::sink()).map_err(Error::file("read", disk))?;
    let file = std::fs::File::create(target).map_err(Error::file("write", target))?;
    let written = write_layer(BufWriter::with_capacity(1 << 20, file), open()?, length);
    written.map_err(Error::file("write", target))
}

fn write_layer(to: impl Write, disk: impl Read, length: u64) -> std::io::Result<Packed> {
    let pressed = GzEncoder::new(Counted::new(to), Compression::fast());
    let mut tar = tar::Builder::new(Counted::new(pressed));
    let mut entry = |path: &str, kind: tar::EntryType, mode: u32, size: u64, data: &mut dyn Read| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(QEMU);
        header.set_gid(QEMU);
        header.set_size(size);
        tar.append_data(&mut header, path, data)
    };
    entry("disk/", tar::EntryType::Directory, 0o755, 0, &mut std::io::empty())?;
    let mut disk = disk;
    entry(DISK, tar::EntryType::Regular, 0o440, length, &mut disk)?;
    let inner = tar.into_inner()?;
    let diff = format!("sha256:{}", hex(&inner.hash.finalize()));
    let mut outer = inner.to.finish()?;
    outer.flush()?;
    Ok(Packed { digest: format!("sha256:{}", hex(&outer.hash.finalize())), diff, size: outer.size })
}

/// What passes, with its length and its digest.
struct Counted<W> {
    to: W,
    hash: Sha256,
    size: u64,
}

impl<W> Counted<W> {
    fn new(to: W) -> Self {
        Self { to, hash: Sha256::new(), size: 0 }
    }
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_holds_the_disk_for_who_reads_disks() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, layer) = (dir.path().join("disk.img.gz"), dir.path().join("layer"));
        let mut pressed = GzEncoder::new(std::fs::File::create(&disk).unwrap(), Compression::fast());
        pressed.write_all(&vec![7; 100_000]).unwrap();
        pressed.finish().unwrap();
        let packed = pack(&disk, &layer).unwrap();
        let bytes = std::fs::read(&layer).unwrap();
        assert_eq!(
            (packed.size, packed.digest.clone()),
            (bytes.len() as u64, format!("sha256:{}", hex(&Sha256::digest(&bytes))))
        );
        let mut unpacked = Vec::new();
        GzDecoder::new(&bytes[..]).read_to_end(&mut unpacked).unwrap();
        assert_eq!(packed.diff, format!("sha256:{}", hex(&Sha256::digest(&unpacked))));
        let mut tar = tar::Archive::new(&unpacked[..]);
        let entries: Vec<(String, u64, u64)> = tar
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| {
                let header = entry.header();
                (entry.path().unwrap().display().to_string(), header.uid().unwrap(), header.size().unwrap())
            })
            .collect();
        assert_eq!(entries, [("disk/".to_owned(), QEMU, 0), (DISK.to_owned(), QEMU, 100_000)]);
        let (config, manifest) =
            describe(&packed, &Facts { variables: vec!["A=b".to_owned()], architecture: "arm64".to_owned() });
        let config: Value = serde_json::from_slice(&config).unwrap();
        assert_eq!(
            (&config["config"]["Env"][0], &config["architecture"], &manifest["layers"][0]["digest"]),
            (&json!("A=b"), &json!("arm64"), &json!(packed.digest))
        );
    }
}
