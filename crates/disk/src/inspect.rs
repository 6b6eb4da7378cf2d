//! Whether a file may be a virtual machine's disk. Whatever an image asks a reader to open besides itself is refused.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt as _;

use crate::detect::{HEADER, Kind, detect};
use crate::qcow2::{Header, HeaderError, MAX_VIRTUAL_SIZE};

/// Formats that QEMU may open for a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Raw,
    Qcow2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    pub format: Format,
    /// Bytes the guest sees.
    pub virtual_size: u64,
}

/// Why an image is not accepted. The sentence is the user's: it says what was found and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("the image cannot be read")]
    Read(#[from] std::io::Error),
    #[error("the file is empty, not a disk image")]
    Empty,
    #[error("the file is {}, not a disk image: put a qcow2 or raw image in its place", .0.article())]
    NotADisk(Kind),
    #[error("the file is {}: unpack it to the qcow2 or raw image inside", .0.article())]
    Compressed(Kind),
    #[error("the file is {}: convert it with `qemu-img convert -O qcow2`", .0.article())]
    Foreign(Kind),
    #[error("the qcow2 header is damaged: {0}")]
    Header(HeaderError),
    #[error(
        "the qcow2 image has a backing file ({0:?}), which would make QEMU read another file: \
         make it stand alone with `qemu-img convert -O qcow2`"
    )]
    BackingFile(String),
    #[error(
        "the qcow2 image keeps its data in an external file, which would make QEMU read another file: \
         make it stand alone with `qemu-img convert -O qcow2`"
    )]
    DataFile,
    #[error("the qcow2 image is encrypted: decrypt it with `qemu-img convert -O qcow2`")]
    Encrypted,
    #[error("the qcow2 image is marked corrupt: repair it with `qemu-img check -r all`")]
    Corrupt,
    #[error("the qcow2 image uses features that are not known (bits {0:#x})")]
    Features(u64),
    #[error("the image claims a virtual size of {size} bytes, more than the {limit} that are allowed")]
    VirtualSize { size: u64, limit: u64 },
    #[error("the qcow2 image claims a virtual size of 0 bytes")]
    NoSize,
    #[error("the qcow2 image's tables do not fit its size: the file is cut short or damaged")]
    Tables,
    #[error("the {} is damaged: {what}: convert it anew with `qemu-img convert -O qcow2`", kind.noun())]
    Damaged { kind: Kind, what: String },
    #[error("the {} is cut short: it needs {end} bytes and has {size}: fetch or upload it again", kind.noun())]
    Cut { kind: Kind, end: u64, size: u64 },
    #[error(
        "the {} has a parent, an image that it holds the changes of: \
         make it stand alone with `qemu-img convert -O qcow2`", .0.noun()
    )]
    Parent(Kind),
    #[error(
        "the VMDK file describes a disk of other or several files: \
         make it one file with `qemu-img convert -O qcow2` where all of them are"
    )]
    Descriptor,
    #[error("the {} is damaged: two of its parts lie in the same place, at byte {at}", kind.noun())]
    Overlap { kind: Kind, at: u64 },
    #[error("the {}'s tables are too scattered to keep in memory: rewrite it with `qemu-img convert -O qcow2`", .0.noun())]
    Scattered(Kind),
    #[error(
        "the {} has its tables behind its data, and this source can be read only once: \
         rewrite it with `qemu-img convert -O qcow2`", .0.noun()
    )]
    Once(Kind),
    #[error("the {} is cut short: fetch or upload it again", .0.noun())]
    PackedShort(Kind),
    #[error(
        "the {} needs a dictionary larger than {} MiB to unpack: compress it again with a smaller one",
        kind.noun(), limit >> 20
    )]
    PackedMemory { kind: Kind, limit: u64 },
    #[error("the {} is damaged ({said}): fetch or upload it again", kind.noun())]
    PackedDamaged { kind: Kind, said: String },
    #[error("the file is {} within another: unpack it to the disk image inside", .0.article())]
    PackedTwice(Kind),
}

impl Refusal {
    /// Trying again cannot help: the file itself is at fault.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Read(_))
    }
}

/// Looks at the header of an opened regular file or block device. Reads at most some tens of KiB.
pub fn inspect(file: &File, length: u64) -> Result<Image, Refusal> {
    let mut header = vec![0; HEADER.min(usize::try_from(length).unwrap_or(HEADER))];
    let mut filled = 0;
    while filled < header.len() {
        match file.read_at(&mut header[filled..], filled as u64) {
            Ok(0) => break,
            Ok(got) => filled += got,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    header.truncate(filled);
    judge(&header, length)
}

/// The same for anything that can be read from its start.
pub fn inspect_reader(reader: impl Read, length: u64) -> Result<Image, Refusal> {
    let mut header = Vec::new();
    reader.take(HEADER as u64).read_to_end(&mut header)?;
    judge(&header, length)
}

fn judge(header: &[u8], length: u64) -> Result<Image, Refusal> {
    match detect(header) {
        Kind::Empty => Err(Refusal::Empty),
        Kind::Qcow2 => qcow2(header, length),
        Kind::Raw | Kind::Iso | Kind::Luks => {
            if length > MAX_VIRTUAL_SIZE {
                return Err(Refusal::VirtualSize { size: length, limit: MAX_VIRTUAL_SIZE });
            }
            Ok(Image { format: Format::Raw, virtual_size: length })
        }
        kind @ (Kind::Html | Kind::Text | Kind::Tar | Kind::Elf) => Err(Refusal::NotADisk(kind)),
        kind @ (Kind::Gzip | Kind::Xz | Kind::Zstd | Kind::Bzip2 | Kind::Zip | Kind::SevenZip) => {
            Err(Refusal::Compressed(kind))
        }
        kind @ (Kind::Qcow1 | Kind::Vmdk | Kind::Vdi | Kind::Vhd | Kind::Vhdx | Kind::Qed | Kind::Parallels) => {
            Err(Refusal::Foreign(kind))
        }
    }
}

impl Header {
    /// What the header alone forbids.
    pub(crate) fn judge(&self) -> Result<(), Refusal> {
        if let Some(backing) = &self.backing {
            return Err(Refusal::BackingFile(backing.clone()));
        }
        if self.external_data {
            return Err(Refusal::DataFile);
        }
        if self.crypt_method != 0 {
            return Err(Refusal::Encrypted);
        }
        if self.corrupt {
            return Err(Refusal::Corrupt);
        }
        if self.unknown_features != 0 {
            return Err(Refusal::Features(self.unknown_features));
        }
        if self.virtual_size == 0 {
            return Err(Refusal::NoSize);
        }
        if self.virtual_size > MAX_VIRTUAL_SIZE {
            return Err(Refusal::VirtualSize { size: self.virtual_size, limit: MAX_VIRTUAL_SIZE });
        }
        if self.l1_entries > 4 << 20 {
            return Err(Refusal::Tables);
        }
        Ok(())
    }
}

fn qcow2(bytes: &[u8], length: u64) -> Result<Image, Refusal> {
    let header = Header::parse(bytes).map_err(Refusal::Header)?;
    header.judge()?;
    let table_end = header.l1_offset.saturating_add(u64::from(header.l1_entries) * 8);
    if table_end > length {
        return Err(Refusal::Tables);
    }
    Ok(Image { format: Format::Qcow2, virtual_size: header.virtual_size })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qcow2::{BackingFile, create};

    fn image(backing: Option<BackingFile<'_>>) -> Vec<u8> {
        let mut out = Vec::new();
        create(&mut out, 1 << 30, backing).unwrap();
        out
    }

    #[track_caller]
    fn check(bytes: &[u8], expect: Result<Format, &str>) {
        let found = inspect_reader(bytes, bytes.len() as u64);
        match (found, expect) {
            (Ok(image), Ok(format)) => assert_eq!(image.format, format),
            (Err(refusal), Err(sentence)) => assert_eq!(refusal.to_string(), sentence),
            (found, expect) => panic!("{found:?} instead of {expect:?}"),
        }
    }

    #[test]
    fn disks_are_accepted() {
        check(&image(None), Ok(Format::Qcow2));
        check(&[[0; 510].as_slice(), &[0x55, 0xaa]].concat(), Ok(Format::Raw));
    }

    #[test]
    fn files_that_are_no_disk_image_are_named() {
        check(b"", Err("the file is empty, not a disk image"));
        check(
            b"<!doctype html><title>404",
            Err("the file is an HTML page, not a disk image: put a qcow2 or raw image in its place"),
        );
        check(
            b"this is not a disk\n",
            Err("the file is a text file, not a disk image: put a qcow2 or raw image in its place"),
        );
        check(&[0x1f, 0x8b, 8, 0, 0], Err("the file is a gzip archive: unpack it to the qcow2 or raw image inside"));
        check(b"KDMV\x01\0\0\0", Err("the file is a VMDK image: convert it with `qemu-img convert -O qcow2`"));
    }

    #[test]
    fn images_that_reach_elsewhere_are_refused() {
        check(
            &image(Some(BackingFile { path: "/etc/passwd", format: "raw" })),
            Err("the qcow2 image has a backing file (\"/etc/passwd\"), which would make QEMU read another file: \
                 make it stand alone with `qemu-img convert -O qcow2`"),
        );
        let mut data = image(None);
        data[79] |= 4;
        check(
            &data,
            Err("the qcow2 image keeps its data in an external file, which would make QEMU read another file: \
                 make it stand alone with `qemu-img convert -O qcow2`"),
        );
    }

    #[test]
    fn impossible_headers_are_refused() {
        let mut absurd = image(None);
        absurd[24..32].copy_from_slice(&(1_u64 << 60).to_be_bytes());
        check(
            &absurd,
            Err(
                "the image claims a virtual size of 1152921504606846976 bytes, more than the 70368744177664 that are allowed",
            ),
        );
        check(&image(None)[..90], Err("the qcow2 header is damaged: the file ends within its header"));
        let mut cut = image(None);
        cut.truncate(4096);
        check(&cut, Err("the qcow2 image's tables do not fit its size: the file is cut short or damaged"));
        let mut encrypted = image(None);
        encrypted[35] = 2;
        check(&encrypted, Err("the qcow2 image is encrypted: decrypt it with `qemu-img convert -O qcow2`"));
    }
}
