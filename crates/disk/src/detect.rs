//! What the first bytes of a file say it is.

/// Bytes that decide: an ISO's signature lies at 32769.
pub(crate) const HEADER: usize = 34 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Qcow2,
    Qcow1,
    Vmdk,
    Vdi,
    Vhd,
    Vhdx,
    Qed,
    Parallels,
    Luks,
    Iso,
    Gzip,
    Xz,
    Zstd,
    Bzip2,
    Zip,
    SevenZip,
    Tar,
    Html,
    Text,
    Elf,
    /// Nothing that we know: bytes of a disk, as far as a header can tell.
    Raw,
    Empty,
}

impl Kind {
    /// As a sentence says it: "a VMDK image".
    pub fn article(self) -> &'static str {
        match self {
            Self::Qcow2 => "a qcow2 image",
            Self::Qcow1 => "a qcow image of version 1",
            Self::Vmdk => "a VMDK image",
            Self::Vdi => "a VDI image",
            Self::Vhd => "a VHD image",
            Self::Vhdx => "a VHDX image",
            Self::Qed => "a QED image",
            Self::Parallels => "a Parallels image",
            Self::Luks => "a LUKS container",
            Self::Iso => "an ISO image",
            Self::Gzip => "a gzip archive",
            Self::Xz => "an xz archive",
            Self::Zstd => "a zstd archive",
            Self::Bzip2 => "a bzip2 archive",
            Self::Zip => "a zip archive",
            Self::SevenZip => "a 7z archive",
            Self::Tar => "a tar archive",
            Self::Html => "an HTML page",
            Self::Text => "a text file",
            Self::Elf => "a program",
            Self::Raw => "a raw image",
            Self::Empty => "an empty file",
        }
    }
}

impl Kind {
    /// Without its article: "VMDK image".
    pub fn noun(self) -> &'static str {
        self.article().split_once(' ').map_or("", |(_, noun)| noun)
    }
}

/// The kind of a file that starts with `header`: its first 34 KiB, or all of it when it is shorter.
pub fn detect(header: &[u8]) -> Kind {
    const MAGICS: &[(usize, &[u8], Kind)] = &[
        (0, b"KDMV", Kind::Vmdk),
        (0, b"COWD", Kind::Vmdk),
        (0, b"# Disk DescriptorFile", Kind::Vmdk),
        (64, &[0x7f, 0x10, 0xda, 0xbe], Kind::Vdi),
        (0, b"conectix", Kind::Vhd),
        (0, b"vhdxfile", Kind::Vhdx),
        (0, b"QED\0", Kind::Qed),
        (0, b"WithoutFreeSpace", Kind::Parallels),
        (0, b"WithouFreSpacExt", Kind::Parallels),
        (0, b"LUKS\xba\xbe", Kind::Luks),
        (0, &[0x1f, 0x8b, 8], Kind::Gzip),
        (0, &[0xfd, b'7', b'z', b'X', b'Z', 0], Kind::Xz),
        (0, &[0x28, 0xb5, 0x2f, 0xfd], Kind::Zstd),
        (0, b"BZh", Kind::Bzip2),
        (0, b"PK\x03\x04", Kind::Zip),
        (0, &[b'7', b'z', 0xbc, 0xaf, 0x27, 0x1c], Kind::SevenZip),
        (0, b"\x7fELF", Kind::Elf),
        (257, b"ustar", Kind::Tar),
        (32769, b"CD001", Kind::Iso),
    ];
    if header.is_empty() {
        return Kind::Empty;
    }
    if header.starts_with(b"QFI\xfb") {
        // A header too short for its version reads as version 2, and is refused later for what it lacks.
        return if header.get(4..8) == Some(&[0, 0, 0, 1]) { Kind::Qcow1 } else { Kind::Qcow2 };
    }
    for (offset, magic, kind) in MAGICS {
        if header.get(*offset..).is_some_and(|rest| rest.starts_with(magic)) {
            return *kind;
        }
    }
    text(header)
}

fn text(header: &[u8]) -> Kind {
    let head = &header[..header.len().min(4096)];
    let trimmed = head.trim_ascii_start();
    let lower: Vec<u8> = trimmed.iter().take(64).map(u8::to_ascii_lowercase).collect();
    if lower.starts_with(b"<!doctype html") || lower.starts_with(b"<html") {
        return Kind::Html;
    }
    let printable = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | 0x20..=0x7e);
    if head.iter().all(printable) { Kind::Text } else { Kind::Raw }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(header: &[u8], expect: Kind) {
        assert_eq!(detect(header), expect);
    }

    fn at(offset: usize, magic: &[u8]) -> Vec<u8> {
        let mut header = vec![0; offset];
        header.extend_from_slice(magic);
        header.resize(header.len() + 64, 0);
        header
    }

    #[test]
    fn kinds() {
        check(b"", Kind::Empty);
        check(b"QFI\xfb\0\0\0\x03", Kind::Qcow2);
        check(b"QFI\xfb\0\0\0\x01", Kind::Qcow1);
        check(&at(0, b"KDMV"), Kind::Vmdk);
        check(&at(64, &[0x7f, 0x10, 0xda, 0xbe]), Kind::Vdi);
        check(&at(0, b"vhdxfile"), Kind::Vhdx);
        check(&at(257, b"ustar"), Kind::Tar);
        check(&at(32769, b"CD001"), Kind::Iso);
        check(&at(510, &[0x55, 0xaa]), Kind::Raw);
        check(b"  <!DOCTYPE HTML PUBLIC", Kind::Html);
        check(b"not a disk\n", Kind::Text);
        check(&[0x1f, 0x8b, 8, 0], Kind::Gzip);
    }
}
