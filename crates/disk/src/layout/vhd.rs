//! VHD of dynamic size: a copy of the footer, a header, one table of blocks. One of fixed size is raw (see `raw`).

use super::bytes::{be32, be64};
use super::raw::footer_sum;
use super::{Extent, File, Form, Found, Layout, PIECE, Table};
use crate::Refusal;

const HEADER: u64 = 1 << 63;
const HEADER_LENGTH: usize = 1024;
const DYNAMIC: u32 = 3;
const DIFFERENCING: u32 = 4;
const ABSENT: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Vhd {
    file: File,
    size: u64,
    block: u64,
}

impl Vhd {
    pub(super) fn open(head: &[u8], file: File, found: &mut Found) -> Result<Self, Refusal> {
        let Some(footer) = head.get(..512) else {
            return Err(Refusal::Cut { kind: file.kind, end: 512, size: head.len() as u64 });
        };
        if be32(footer, 64) != footer_sum(footer, 64) {
            return Err(file.damaged("the checksum of its footer is wrong"));
        }
        match be32(footer, 60) {
            DYNAMIC => {}
            DIFFERENCING => return Err(Refusal::Parent(file.kind)),
            kind => return Err(file.damaged(format!("disks of type {kind} are not known"))),
        }
        let size = be64(footer, 48);
        file.size_is_sane(size)?;
        let header = be64(footer, 16);
        if header < 512 {
            return Err(file.damaged("its header lies where none can"));
        }
        file.holds(header, HEADER_LENGTH as u64)?;
        found.table(header, HEADER_LENGTH as u32, HEADER);
        Ok(Self { file, size, block: 0 })
    }

    fn header(&mut self, bytes: &[u8], found: &mut Found) -> Result<(), Refusal> {
        if !bytes.starts_with(b"cxsparse") || be32(bytes, 36) != footer_sum(bytes, 36) {
            return Err(self.file.damaged("its header is not one"));
        }
        let (table, entries) = (be64(bytes, 16), u64::from(be32(bytes, 28)));
        self.block = u64::from(be32(bytes, 32));
        if !self.block.is_power_of_two() || !(4096..=256 << 20).contains(&self.block) {
            return Err(self.file.damaged(format!("blocks of {} bytes are not possible", self.block)));
        }
        let needed = self.size.div_ceil(self.block);
        if entries < needed {
            return Err(self.file.damaged(format!("{entries} blocks are too few for a disk of {} bytes", self.size)));
        }
        if table < 512 {
            return Err(self.file.damaged("its table of blocks lies where none can"));
        }
        self.file.holds(table, needed * 4)?;
        found.pieces(table, needed * 4, 0);
        Ok(())
    }
}

impl Layout for Vhd {
    fn virtual_size(&self) -> Option<u64> {
        Some(self.size)
    }

    fn table(&mut self, table: Table, bytes: &[u8], found: &mut Found) -> Result<(), Refusal> {
        if table.id == HEADER {
            return self.header(bytes, found);
        }
        // A block begins with a bit for each of its sectors, in whole sectors.
        let bitmap = (self.block / 512 / 8).next_multiple_of(512);
        for (at, entry) in bytes.chunks_exact(4).enumerate() {
            let sector = be32(entry, 0);
            if sector == ABSENT {
                continue;
            }
            let host = u64::from(sector) * 512 + bitmap;
            let guest = (table.id * (PIECE / 4) + at as u64) * self.block;
            let length = self.block.min(self.size - guest);
            self.file.holds(host, length)?;
            found.extent(Extent { host, guest, length, form: Form::Plain });
        }
        Ok(())
    }
}
