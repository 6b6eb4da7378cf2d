//! VDI, VirtualBox's format: one map of blocks, then the blocks.

use super::bytes::{le32, le64};
use super::{Extent, File, Form, Found, Layout, PIECE, Table};
use crate::Refusal;

const VERSION: u32 = 0x0001_0001;
const DYNAMIC: u32 = 1;
const FIXED: u32 = 2;
/// From here on an entry of the map says that a block is not there, or is zero.
const ABSENT: u32 = 0xffff_fffe;
const HEADER: usize = 512;

#[derive(Debug)]
pub(super) struct Vdi {
    file: File,
    size: u64,
    block: u64,
    data: u64,
    blocks: u32,
}

impl Vdi {
    pub(super) fn open(head: &[u8], file: File, found: &mut Found) -> Result<Self, Refusal> {
        if head.len() < HEADER {
            return Err(Refusal::Cut { kind: file.kind, end: HEADER as u64, size: head.len() as u64 });
        }
        if le32(head, 68) != VERSION {
            return Err(file.damaged(format!(
                "version {}.{} is not known",
                le32(head, 68) >> 16,
                le32(head, 68) & 0xffff
            )));
        }
        if !matches!(le32(head, 76), DYNAMIC | FIXED) || head[424..456].iter().any(|byte| *byte != 0) {
            return Err(Refusal::Parent(file.kind));
        }
        let size = le64(head, 368);
        let (map, data) = (u64::from(le32(head, 340)), u64::from(le32(head, 344)));
        let (block, blocks) = (u64::from(le32(head, 376)), le32(head, 384));
        file.size_is_sane(size)?;
        if le32(head, 360) != 512 || !block.is_power_of_two() || !(64 << 10..=64 << 20).contains(&block) {
            return Err(file.damaged(format!("blocks of {block} bytes are not possible")));
        }
        if le32(head, 380) != 0 {
            return Err(file.damaged("its blocks have bytes of unknown use before them"));
        }
        if u64::from(blocks) != size.div_ceil(block) {
            return Err(file.damaged(format!("{blocks} blocks of {block} bytes are not a disk of {size} bytes")));
        }
        if map < HEADER as u64 || data < map + u64::from(blocks) * 4 {
            return Err(file.damaged("its map of blocks lies where none can"));
        }
        file.holds(map, u64::from(blocks) * 4)?;
        found.pieces(map, u64::from(blocks) * 4, 0);
        Ok(Self { file, size, block, data, blocks })
    }
}

impl Layout for Vdi {
    fn virtual_size(&self) -> Option<u64> {
        Some(self.size)
    }

    fn table(&mut self, table: Table, bytes: &[u8], found: &mut Found) -> Result<(), Refusal> {
        let first = table.id * (PIECE / 4);
        for (at, entry) in bytes.chunks_exact(4).enumerate() {
            let block = le32(entry, 0);
            if block >= ABSENT {
                continue;
            }
            if block >= self.blocks {
                return Err(self.file.damaged(format!("its map names block {block} of {}", self.blocks)));
            }
            let host = self.data + u64::from(block) * self.block;
            let guest = (first + at as u64) * self.block;
            let length = self.block.min(self.size - guest);
            self.file.holds(host, length)?;
            found.extent(Extent { host, guest, length, form: Form::Plain });
        }
        Ok(())
    }
}
