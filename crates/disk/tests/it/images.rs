//! Images byte by byte, so that each byte can be a lie. All of them are good, and hold a disk of 1 MiB or so with data in
//! its first and fourth 64 KiB.

use std::io::Write as _;

pub(crate) const SIZE: u64 = 1 << 20;
const CLUSTER: usize = 64 << 10;

/// An image under construction.
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl Bytes {
    pub(crate) fn new(length: usize) -> Self {
        Self(vec![0; length])
    }

    /// Overwrites what is at `at`.
    pub(crate) fn put(mut self, at: usize, bytes: &[u8]) -> Self {
        if self.0.len() < at + bytes.len() {
            self.0.resize(at + bytes.len(), 0);
        }
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub(crate) fn le32(self, at: usize, value: u32) -> Self {
        self.put(at, &value.to_le_bytes())
    }

    pub(crate) fn le64(self, at: usize, value: u64) -> Self {
        self.put(at, &value.to_le_bytes())
    }

    pub(crate) fn be32(self, at: usize, value: u32) -> Self {
        self.put(at, &value.to_be_bytes())
    }

    pub(crate) fn be64(self, at: usize, value: u64) -> Self {
        self.put(at, &value.to_be_bytes())
    }

    pub(crate) fn cut(mut self, length: usize) -> Self {
        self.0.truncate(length);
        self
    }
}

/// The disk that all images here hold.
pub(crate) fn disk() -> Vec<u8> {
    let mut disk = vec![0; SIZE as usize];
    disk[..CLUSTER].fill(0x11);
    disk[3 * CLUSTER..4 * CLUSTER].fill(0x44);
    disk
}

/// Header, refcounts, L1 table at 3 clusters, L2 table at 4, data at 5 and 6.
pub(crate) fn qcow2() -> Bytes {
    let mut image = Vec::new();
    disk::qcow2::create(&mut image, SIZE, None).unwrap();
    let at = |cluster: usize| cluster * CLUSTER;
    let entry = |cluster: usize| 1 << 63 | at(cluster) as u64;
    Bytes(image)
        .be64(at(3), entry(4))
        .be64(at(4), entry(5))
        .be64(at(4) + 3 * 8, entry(6))
        .put(at(5), &[0x11; CLUSTER])
        .put(at(6), &[0x44; CLUSTER])
}

pub(crate) const QCOW2_L1: usize = 3 * CLUSTER;
pub(crate) const QCOW2_L2: usize = 4 * CLUSTER;

const DESCRIPTOR: &str = "# Disk DescriptorFile\nversion=1\nCID=1\nparentCID=ffffffff\ncreateType=\"monolithicSparse\"\n\
                          RW 2048 SPARSE \"disk.vmdk\"\n";
pub(crate) const VMDK_DESCRIPTOR: usize = 512;
pub(crate) const VMDK_DIRECTORY: usize = 21 * 512;
pub(crate) const VMDK_TABLE: usize = 22 * 512;

/// Header, descriptor, directory, one table, two grains of 64 KiB at 64 and 128 KiB.
pub(crate) fn vmdk() -> Bytes {
    Bytes::new(0)
        .put(0, b"KDMV")
        .le32(4, 1)
        .le32(8, 3)
        .le64(12, SIZE / 512)
        .le64(20, 128)
        .le64(28, 1)
        .le64(36, 20)
        .le32(44, 512)
        .le64(48, 0)
        .le64(56, 21)
        .le64(64, 128)
        .put(73, b"\n \r\n")
        .put(VMDK_DESCRIPTOR, DESCRIPTOR.as_bytes())
        .le32(VMDK_DIRECTORY, 22)
        .le32(VMDK_TABLE, 128)
        .le32(VMDK_TABLE + 12, 256)
        .put(64 << 10, &[0x11; CLUSTER])
        .put(128 << 10, &[0x44; CLUSTER])
}

/// A descriptor within an image of its own kind, for another text.
pub(crate) fn vmdk_described(text: &str) -> Bytes {
    vmdk().put(VMDK_DESCRIPTOR, &[0; 512]).put(VMDK_DESCRIPTOR, text.as_bytes())
}

/// Grains behind markers, from 64 KiB on.
pub(crate) fn vmdk_stream() -> Bytes {
    let grain = |fill: u8| {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&[fill; CLUSTER]).unwrap();
        encoder.finish().unwrap()
    };
    let mut image = vmdk_described(&DESCRIPTOR.replace("monolithicSparse", "streamOptimized")).cut(22 * 512).le32(4, 3);
    image = image.le32(8, 0x3_0001).put(77, &[1, 0]).le64(56, u64::MAX);
    let mut at = VMDK_FIRST_MARKER;
    for (lba, fill) in [(0, 0x11), (3 * 128, 0x44)] {
        let grain = grain(fill);
        image = image.le64(at, lba).le32(at + 8, grain.len() as u32).put(at + 12, &grain);
        at = (at + 12 + grain.len()).next_multiple_of(512);
    }
    image.put(at, &[0; 512])
}

pub(crate) const VMDK_FIRST_MARKER: usize = 64 << 10;

pub(crate) const VDI_MAP: usize = 512;

/// Header, map, two blocks of 64 KiB at 4 KiB and behind.
pub(crate) fn vdi() -> Bytes {
    let image = Bytes::new(0)
        .put(0, b"<<< a disk >>>\n")
        .le32(64, 0xbeda_107f)
        .le32(68, 0x1_0001)
        .le32(72, 0x190)
        .le32(76, 1)
        .le32(340, 512)
        .le32(344, 4096)
        .le32(360, 512)
        .le64(368, SIZE)
        .le32(376, CLUSTER as u32)
        .le32(384, 16)
        .le32(388, 2);
    (0..16_usize)
        .fold(image, |image, block| {
            let stored = [(0, 0), (3, 1)].iter().find(|(at, _)| *at == block).map_or(u32::MAX, |(_, stored)| *stored);
            image.le32(VDI_MAP + block * 4, stored)
        })
        .put(4096, &[0x11; CLUSTER])
        .put(4096 + CLUSTER, &[0x44; CLUSTER])
}

fn vhd_sum(image: Bytes, start: usize, length: usize, hole: usize) -> Bytes {
    let image = image.be32(start + hole, 0);
    let sum = !image.0[start..start + length].iter().fold(0_u32, |sum, byte| sum.wrapping_add(u32::from(*byte)));
    image.be32(start + hole, sum)
}

/// Sums anew what the header and the footer's copy say.
pub(crate) fn vhd_summed(image: Bytes) -> Bytes {
    vhd_sum(vhd_sum(image, 0, 512, 64), 512, 1024, 36)
}

pub(crate) const VHD_TABLE: usize = 1536;

/// Footer, header, table, one block of 1 MiB behind its bitmap.
pub(crate) fn vhd() -> Bytes {
    let image = Bytes::new(0)
        .put(0, b"conectix")
        .be32(8, 2)
        .be32(12, 0x1_0000)
        .be64(16, 512)
        .be64(40, SIZE)
        .be64(48, SIZE)
        .be32(60, 3)
        .put(512, b"cxsparse")
        .be64(520, u64::MAX)
        .be64(528, VHD_TABLE as u64)
        .be32(536, 0x1_0000)
        .be32(540, 1)
        .be32(544, 1 << 20)
        .be32(VHD_TABLE, 4)
        .put(4 * 512, &[0xff; 512])
        .put(5 * 512, &disk());
    vhd_summed(image)
}

/// A disk and a footer.
pub(crate) fn vhd_fixed() -> Bytes {
    let footer = Bytes::new(512).put(0, b"conectix").be64(16, u64::MAX).be64(48, SIZE).be32(60, 2);
    let footer = vhd_sum(footer, 0, 512, 64);
    Bytes(disk()).put(SIZE as usize, &footer.0)
}

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0x82f6_3b78 } else { sum >> 1 })
    })
}

/// Sums anew a header or a table of regions.
pub(crate) fn vhdx_summed(image: Bytes, start: usize, length: usize) -> Bytes {
    let image = image.le32(start + 4, 0);
    let sum = crc32c(&image.0[start..start + length]);
    image.le32(start + 4, sum)
}

const MIB: usize = 1 << 20;
pub(crate) const VHDX_HEADER: usize = 64 << 10;
pub(crate) const VHDX_REGIONS: usize = 192 << 10;
pub(crate) const VHDX_METADATA: usize = 2 * MIB;
pub(crate) const VHDX_BLOCKS: usize = 3 * MIB;

/// One header, one table of regions, metadata at 2 MiB, blocks at 3, data at 4.
pub(crate) fn vhdx() -> Bytes {
    let id = |text: &str| {
        let digits: Vec<u8> = (0..16).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect();
        [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15].map(|at| digits[at])
    };
    let item = |image: Bytes, number: usize, id: [u8; 16], at: u32| {
        let entry = VHDX_METADATA + 32 + number * 32;
        image.put(entry, &id).le32(entry + 16, at)
    };
    let region = |image: Bytes, number: usize, id: [u8; 16], at: usize| {
        let entry = VHDX_REGIONS + 16 + number * 32;
        image.put(entry, &id).le64(entry + 16, at as u64).le32(entry + 24, MIB as u32).le32(entry + 28, 1)
    };
    let mut image = Bytes::new(4 * MIB)
        .put(0, b"vhdxfile")
        .put(VHDX_HEADER, b"head")
        .le64(VHDX_HEADER + 8, 1)
        .put(VHDX_HEADER + 66, &[1, 0])
        .put(VHDX_REGIONS, b"regi")
        .le32(VHDX_REGIONS + 8, 2)
        .put(VHDX_METADATA, b"metadata")
        .put(VHDX_METADATA + 10, &[3, 0])
        .le32(VHDX_METADATA + (64 << 10), MIB as u32)
        .le64(VHDX_METADATA + (64 << 10) + 8, SIZE)
        .le32(VHDX_METADATA + (64 << 10) + 16, 512)
        .le64(VHDX_BLOCKS, 4 << 20 | 6)
        .put(4 * MIB, &disk());
    image = region(image, 0, id("2dc27766f62342009d64115e9bfd4a08"), VHDX_BLOCKS);
    image = region(image, 1, id("8b7ca20647904b9ab8fe575f050f886e"), VHDX_METADATA);
    image = item(image, 0, id("caa16737fa364d43b3b633f0aa44e76b"), 64 << 10);
    image = item(image, 1, id("2fa54224cd1b4876b2115dbed83bf4b8"), (64 << 10) + 8);
    image = item(image, 2, id("8141bf1da96f4709ba47f233a8faab5f"), (64 << 10) + 16);
    vhdx_summed(vhdx_summed(image, VHDX_HEADER, 4096), VHDX_REGIONS, 64 << 10)
}

pub(crate) const VHDX_LOG: usize = MIB;

/// Not closed: what says where its blocks are is in its log only.
pub(crate) fn vhdx_unclosed() -> Bytes {
    let sector = vhdx().0[VHDX_BLOCKS..VHDX_BLOCKS + 4096].to_vec();
    vhdx_logged(vhdx(), VHDX_BLOCKS as u64, &sector).put(VHDX_BLOCKS, &[0; 4096])
}

/// Marks an image as one that was not closed, with one change in its log at 1 MiB: this sector at this offset.
pub(crate) fn vhdx_logged(image: Bytes, host: u64, sector: &[u8]) -> Bytes {
    const GUID: [u8; 16] = [0x5a; 16];
    let mut entry = Bytes::new(2 * 4096)
        .put(0, b"loge")
        .le32(8, 2 * 4096)
        .le64(16, 1)
        .le32(24, 1)
        .put(32, &GUID)
        .le64(48, image.0.len() as u64)
        .le64(56, image.0.len() as u64)
        .put(64, b"desc")
        .put(68, &sector[4092..])
        .put(72, &sector[..8])
        .le64(80, host)
        .le64(88, 1)
        .put(4096, b"data")
        .put(4096 + 8, &sector[8..4092])
        .le32(2 * 4096 - 4, 1);
    let sum = crc32c(&entry.0);
    entry = entry.le32(4, sum);
    let mut image = image.put(VHDX_LOG, &[0; MIB]).put(VHDX_LOG, &entry.0);
    for header in [VHDX_HEADER, 2 * VHDX_HEADER] {
        if image.0[header..].starts_with(b"head") {
            image = image.put(header + 48, &GUID).le32(header + 68, MIB as u32).le64(header + 72, VHDX_LOG as u64);
            image = vhdx_summed(image, header, 4096);
        }
    }
    image
}
