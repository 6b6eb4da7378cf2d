//! qcow2, versions 2 and 3: an L1 table names L2 tables, whose entries name clusters, plain or compressed.
//!
//! An image that was not closed has refcounts that are behind. Those matter to who writes it: they are not read here.

use super::bytes::be64;
use super::{Extent, File, Form, Found, Layout, Table};
use crate::Refusal;
use crate::qcow2::{Compression, Header};

/// Ids of the L1 table's pieces; those of L2 tables are their numbers.
const L1: u64 = 1 << 63;
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const L1_RESERVED: u64 = 0x7f00_0000_0000_01ff;
const L2_RESERVED: u64 = 0x3f00_0000_0000_01fe;
const COMPRESSED: u64 = 1 << 62;
const ZERO: u64 = 1;
/// Parts of a cluster that have a bit of their own in an extended entry.
const SUBCLUSTERS: u64 = 32;

#[derive(Debug)]
pub(super) struct Qcow2 {
    file: File,
    header: Header,
    cluster: u64,
    /// Bytes of an L2 entry.
    entry: u64,
    /// Entries of the L1 table that cover the disk.
    l1_needed: u64,
}

impl Qcow2 {
    pub(super) fn open(head: &[u8], file: File, found: &mut Found) -> Result<Self, Refusal> {
        let header = Header::parse(head).map_err(Refusal::Header)?;
        header.judge()?;
        let cluster = 1 << header.cluster_bits;
        let entry = if header.extended_l2 { 16 } else { 8 };
        if header.extended_l2 && header.cluster_bits < 14 {
            return Err(file.damaged("its clusters are too small to be divided"));
        }
        let layout =
            Self { file, cluster, entry, l1_needed: header.virtual_size.div_ceil(cluster / entry * cluster), header };
        let header = &layout.header;
        if u64::from(header.l1_entries) < layout.l1_needed {
            return Err(file.damaged("its L1 table is too short for its virtual size"));
        }
        if !header.l1_offset.is_multiple_of(cluster) || header.l1_offset == 0 {
            return Err(file.damaged("its L1 table lies where none can"));
        }
        file.holds(header.l1_offset, layout.l1_needed * 8)?;
        found.pieces(header.l1_offset, layout.l1_needed * 8, L1);
        Ok(layout)
    }

    fn l1(&self, piece: u64, bytes: &[u8], found: &mut Found) -> Result<(), Refusal> {
        for (at, entry) in bytes.chunks_exact(8).enumerate() {
            let entry = be64(entry, 0);
            let offset = entry & OFFSET;
            if entry & L1_RESERVED != 0 || !offset.is_multiple_of(self.cluster) {
                return Err(self.file.damaged("an entry of its L1 table has bits that none can have"));
            }
            if offset != 0 {
                self.file.holds(offset, self.cluster)?;
                found.table(offset, self.cluster as u32, piece * (super::PIECE / 8) + at as u64);
            }
        }
        Ok(())
    }

    fn l2(&self, number: u64, bytes: &[u8], found: &mut Found) -> Result<(), Refusal> {
        let covered = self.cluster / self.entry * self.cluster;
        for (at, entry) in bytes.chunks_exact(self.entry as usize).enumerate() {
            let guest = number * covered + at as u64 * self.cluster;
            let length = self.cluster.min(self.header.virtual_size.saturating_sub(guest));
            if length == 0 {
                break;
            }
            let (entry, bitmap) = (be64(entry, 0), be64(entry, 8));
            if entry & COMPRESSED != 0 {
                found.extent(self.compressed(entry, guest, length)?);
                continue;
            }
            let host = entry & OFFSET;
            if entry & L2_RESERVED != 0 || !host.is_multiple_of(self.cluster) {
                return Err(self.file.damaged("an entry of an L2 table has bits that none can have"));
            }
            if self.header.extended_l2 {
                self.divided(host, bitmap, guest, length, found)?;
            } else if host != 0 && !(entry & ZERO != 0 && self.header.version >= 3) {
                self.file.holds(host, length)?;
                found.extent(Extent { host, guest, length, form: Form::Plain });
            }
        }
        Ok(())
    }

    fn compressed(&self, entry: u64, guest: u64, length: u64) -> Result<Extent, Refusal> {
        let bits = 62 - (self.header.cluster_bits - 8);
        let host = entry & ((1 << bits) - 1);
        let sectors = (entry >> bits & ((1 << (self.header.cluster_bits - 8)) - 1)) + 1;
        let stored = (sectors * 512 - host % 512) as u32;
        // The last sector need not be there in full.
        self.file.holds(host, 1)?;
        let form = match self.header.compression {
            Compression::Zlib => Form::Deflate(stored),
            Compression::Zstd => Form::Zstd(stored),
        };
        Ok(Extent { host, guest, length, form })
    }

    /// A cluster whose parts are each present, zero or not there.
    fn divided(&self, host: u64, bitmap: u64, guest: u64, length: u64, found: &mut Found) -> Result<(), Refusal> {
        let (present, zero) = (bitmap & 0xffff_ffff, bitmap >> 32);
        if present & zero != 0 || (present != 0 && host == 0) {
            return Err(self.file.damaged("a part of a cluster is both present and not"));
        }
        let part = self.cluster / SUBCLUSTERS;
        for number in (0..SUBCLUSTERS).filter(|number| present >> number & 1 == 1) {
            let at = number * part;
            let length = part.min(length.saturating_sub(at));
            if length > 0 {
                self.file.holds(host + at, length)?;
                found.extent(Extent { host: host + at, guest: guest + at, length, form: Form::Plain });
            }
        }
        Ok(())
    }
}

impl Layout for Qcow2 {
    fn virtual_size(&self) -> Option<u64> {
        Some(self.header.virtual_size)
    }

    fn table(&mut self, table: Table, bytes: &[u8], found: &mut Found) -> Result<(), Refusal> {
        if table.id & L1 != 0 { self.l1(table.id & !L1, bytes, found) } else { self.l2(table.id, bytes, found) }
    }
}
