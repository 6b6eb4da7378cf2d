//! qcow2: reading a header without trusting it, and writing empty images and overlays without another process.

use std::io::Write;

use crate::Error;

/// Sizes beyond this are a mistake or an attack.
pub const MAX_VIRTUAL_SIZE: u64 = 64 << 40;

const CLUSTER_BITS: u32 = 16;
const CLUSTER: u64 = 1 << CLUSTER_BITS;
/// Guest bytes that one L1 entry covers: a cluster of eight-byte L2 entries, a cluster each.
const PER_L1_ENTRY: u64 = CLUSTER / 8 * CLUSTER;

const EXTENSION_END: u32 = 0;
const EXTENSION_BACKING_FORMAT: u32 = 0xe279_2aca;
const EXTENSION_DATA_FILE: u32 = 0x4441_5441;

/// How compressed clusters are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    #[default]
    Zlib,
    Zstd,
}

/// What a header says, as far as we decide by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    pub version: u32,
    pub virtual_size: u64,
    pub cluster_bits: u32,
    pub crypt_method: u32,
    /// Name of the backing file, when there is one.
    pub backing: Option<String>,
    pub external_data: bool,
    pub corrupt: bool,
    pub compression: Compression,
    /// Entries of L2 tables say which parts of a cluster are there.
    pub extended_l2: bool,
    /// Features that a reader must know and we do not.
    pub unknown_features: u64,
    pub l1_entries: u32,
    pub l1_offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("the file ends within its header")]
    Short,
    #[error("version {0} is not known")]
    Version(u32),
    #[error("a header of {0} bytes is not possible")]
    Length(u32),
    #[error("clusters of 2^{0} bytes are not possible")]
    ClusterBits(u32),
    #[error("compression {0} is not known")]
    Compression(u8),
}

fn be32(bytes: &[u8], at: usize) -> Result<u32, HeaderError> {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()).ok_or(HeaderError::Short)?;
    Ok(u32::from_be_bytes(*field))
}

fn be64(bytes: &[u8], at: usize) -> Result<u64, HeaderError> {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()).ok_or(HeaderError::Short)?;
    Ok(u64::from_be_bytes(*field))
}

impl Header {
    /// Reads the header at the start of `bytes`, which may be cut after some tens of KiB.
    pub fn parse(bytes: &[u8]) -> Result<Self, HeaderError> {
        let version = be32(bytes, 4)?;
        if !(2..=3).contains(&version) {
            return Err(HeaderError::Version(version));
        }
        let cluster_bits = be32(bytes, 20)?;
        if !(9..=21).contains(&cluster_bits) {
            return Err(HeaderError::ClusterBits(cluster_bits));
        }
        let mut header = Self {
            version,
            cluster_bits,
            virtual_size: be64(bytes, 24)?,
            crypt_method: be32(bytes, 32)?,
            l1_entries: be32(bytes, 36)?,
            l1_offset: be64(bytes, 40)?,
            ..Self::default()
        };
        let (offset, length) = (be64(bytes, 8)?, be32(bytes, 16)?);
        if offset != 0 || length != 0 {
            // The name is for the message only: lossy, and cut where the bytes end.
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            let end = start.saturating_add(length.min(1023) as usize);
            let name = bytes.get(start..end.min(bytes.len())).unwrap_or_default();
            header.backing = Some(String::from_utf8_lossy(name).into_owned());
        }
        let mut extensions = 72;
        if version == 3 {
            let features = be64(bytes, 72)?;
            // Bit 0: not closed after the last write, its refcounts may be behind.
            header.corrupt = features & 2 != 0;
            header.external_data = features & 4 != 0;
            header.unknown_features = features & !0b1_1111;
            let length = be32(bytes, 100)?;
            if !(104..=1 << cluster_bits).contains(&length) {
                return Err(HeaderError::Length(length));
            }
            if features & 8 != 0 {
                header.compression = match bytes.get(104).copied().ok_or(HeaderError::Short)? {
                    0 => Compression::Zlib,
                    1 => Compression::Zstd,
                    other => return Err(HeaderError::Compression(other)),
                };
            }
            header.extended_l2 = features & 16 != 0;
            extensions = length as usize;
        }
        header.external_data |= names_data_file(bytes, extensions);
        Ok(header)
    }
}

/// Walks the extensions until they end, stop making sense, or the bytes run out.
fn names_data_file(bytes: &[u8], mut at: usize) -> bool {
    while let (Ok(kind), Ok(length)) = (be32(bytes, at), be32(bytes, at + 4)) {
        match kind {
            EXTENSION_END => return false,
            EXTENSION_DATA_FILE => return true,
            _ => {}
        }
        let Some(next) = (length as usize).checked_next_multiple_of(8).and_then(|l| at.checked_add(8 + l)) else {
            return false;
        };
        at = next;
    }
    false
}

/// Format of a backing file, as QEMU names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackingFile<'a> {
    pub path: &'a str,
    pub format: &'a str,
}

/// Writes an image of `virtual_size` bytes with nothing in it: reads fall through to `backing`, or are zero.
pub fn create(out: &mut impl Write, virtual_size: u64, backing: Option<BackingFile<'_>>) -> Result<(), Error> {
    if virtual_size > MAX_VIRTUAL_SIZE {
        return Err(Error::Size(virtual_size));
    }
    // QEMU counts disks in sectors.
    let virtual_size = virtual_size.next_multiple_of(512);
    let l1_entries = virtual_size.div_ceil(PER_L1_ENTRY).max(1);
    let l1_clusters = (l1_entries * 8).div_ceil(CLUSTER);
    // Cluster 0 is the header, 1 the refcount table, 2 its one block, from 3 on the L1 table.
    let clusters = 3 + l1_clusters;

    let mut header = Vec::with_capacity(1024);
    let mut push = |bytes: &[u8]| header.extend_from_slice(bytes);
    push(b"QFI\xfb");
    push(&3_u32.to_be_bytes());
    push(&[0; 12]); // backing file, filled in below
    push(&CLUSTER_BITS.to_be_bytes());
    push(&virtual_size.to_be_bytes());
    push(&0_u32.to_be_bytes()); // no encryption
    push(&u32::try_from(l1_entries).map_err(|_| Error::Size(virtual_size))?.to_be_bytes());
    push(&(3 * CLUSTER).to_be_bytes());
    push(&CLUSTER.to_be_bytes());
    push(&1_u32.to_be_bytes());
    push(&[0; 12]); // no snapshots
    push(&[0; 24]); // no features
    push(&4_u32.to_be_bytes()); // refcounts of 2^4 bits
    push(&104_u32.to_be_bytes());
    if let Some(backing) = backing {
        if backing.path.len() > 1023 {
            return Err(Error::BackingPath(backing.path.len()));
        }
        push(&EXTENSION_BACKING_FORMAT.to_be_bytes());
        push(&u32::try_from(backing.format.len()).unwrap_or(0).to_be_bytes());
        push(backing.format.as_bytes());
        header.resize(header.len().next_multiple_of(8), 0);
    }
    header.extend_from_slice(&[0; 8]); // end of extensions
    if let Some(backing) = backing {
        let offset = header.len() as u64;
        header[8..16].copy_from_slice(&offset.to_be_bytes());
        header[16..20].copy_from_slice(&u32::try_from(backing.path.len()).unwrap_or(0).to_be_bytes());
        header.extend_from_slice(backing.path.as_bytes());
    }
    let mut cluster = |content: &[u8]| -> Result<(), Error> {
        let mut bytes = content.to_vec();
        bytes.resize(CLUSTER as usize, 0);
        out.write_all(&bytes)?;
        Ok(())
    };
    cluster(&header)?;
    cluster(&(2 * CLUSTER).to_be_bytes())?;
    cluster(&1_u16.to_be_bytes().repeat(clusters as usize))?;
    for _ in 0..l1_clusters {
        cluster(&[])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn made(size: u64, backing: Option<BackingFile<'_>>) -> Vec<u8> {
        let mut out = Vec::new();
        create(&mut out, size, backing).unwrap();
        out
    }

    #[test]
    fn written_headers_parse_to_the_same() {
        let header = Header::parse(&made(1 << 30, None)).unwrap();
        assert_eq!((header.version, header.virtual_size, header.backing), (3, 1 << 30, None));
        let overlay = made(10 << 40, Some(BackingFile { path: "/disks/base.img", format: "raw" }));
        let header = Header::parse(&overlay).unwrap();
        assert_eq!(header.backing.as_deref(), Some("/disks/base.img"));
        assert!(!header.external_data && header.unknown_features == 0);
        assert_eq!(u64::from(header.l1_entries), (10_u64 << 40) / PER_L1_ENTRY);
        assert!(overlay.len() as u64 >= header.l1_offset + u64::from(header.l1_entries) * 8);
    }

    #[test]
    fn sizes_are_whole_sectors() {
        assert_eq!(Header::parse(&made(1000, None)).unwrap().virtual_size, 1024);
        assert!(create(&mut Vec::new(), u64::MAX, None).is_err());
    }

    #[test]
    fn a_data_file_is_seen_in_bits_and_in_extensions() {
        let mut bits = made(1 << 20, None);
        bits[79] |= 4;
        assert!(Header::parse(&bits).unwrap().external_data);
        let mut named = made(1 << 20, None);
        named[104..112].copy_from_slice(&[0x44, 0x41, 0x54, 0x41, 0, 0, 0, 4]);
        assert!(Header::parse(&named).unwrap().external_data);
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_fail(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), version in 2_u8..4) {
            if bytes.len() > 24 {
                bytes[..8].copy_from_slice(&[b'Q', b'F', b'I', 0xfb, 0, 0, 0, version]);
                bytes[20..24].copy_from_slice(&[0, 0, 0, 16]);
            }
            let _ = Header::parse(&bytes);
        }
    }
}
