//! VHDX: two headers of which the newer counts, a table of regions, a table of metadata, a table of blocks.
//!
//! An image that was not closed has changes of those tables in its [`log`]: they are made over what is read.

mod log;

use log::Changes;

use super::bytes::{le16, le32, le64};
use super::crc::crc32c;
use super::{Extent, File, Form, Found, Layout, PIECE, Table};
use crate::Refusal;

const MIB: u64 = 1 << 20;
const HEADERS: [u64; 2] = [64 << 10, 128 << 10];
const REGIONS: [u64; 2] = [192 << 10, 256 << 10];
const HEADER_LENGTH: u32 = 4096;
const REGION_LENGTH: u32 = 64 << 10;
/// The metadata that is read: its table and what lies right behind it.
const METADATA_LENGTH: u32 = 256 << 10;

/// Ids of tables; pieces of the log and of the table of blocks have theirs from these on.
const HEADER: u64 = 1 << 63;
const LOG: u64 = 1 << 62;
const REGION: u64 = HEADER + 2;
const METADATA: u64 = HEADER + 4;

/// Identifiers, as their bytes lie in the file.
const BLOCKS: [u8; 16] = guid(0x2dc2_7766, 0xf623, 0x4200, 0x9d64_115e_9bfd_4a08);
const META: [u8; 16] = guid(0x8b7c_a206, 0x4790, 0x4b9a, 0xb8fe_575f_050f_886e);
const PARAMETERS: [u8; 16] = guid(0xcaa1_6737, 0xfa36, 0x4d43, 0xb3b6_33f0_aa44_e76b);
const DISK_SIZE: [u8; 16] = guid(0x2fa5_4224, 0xcd1b, 0x4876, 0xb211_5dbe_d83b_f4b8);
const SECTOR_SIZE: [u8; 16] = guid(0x8141_bf1d, 0xa96f, 0x4709, 0xba47_f233_a8fa_ab5f);

const fn guid(first: u32, second: u16, third: u16, rest: u64) -> [u8; 16] {
    let (a, b, c, d) = (first.to_le_bytes(), second.to_le_bytes(), third.to_le_bytes(), rest.to_be_bytes());
    [a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]]
}

/// What a state of a block says about its bytes.
const PRESENT: u64 = 6;
const PARTIAL: u64 = 7;

#[derive(Debug)]
pub(super) struct Vhdx {
    file: File,
    /// Sequence number of the newest good header, and its log, unless that is empty.
    newest: Option<(u64, Option<Log>)>,
    changes: Changes,
    /// Tables of regions that wait for the log.
    held: Vec<Vec<u8>>,
    regions: Option<Regions>,
    size: Option<u64>,
    block: u64,
    /// Blocks between two entries for bitmaps of sectors.
    ratio: u64,
}

/// A log that has to be read.
#[derive(Debug)]
struct Log {
    guid: [u8; 16],
    at: u64,
    length: u64,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Regions {
    blocks: (u64, u64),
    metadata: u64,
}

impl Vhdx {
    pub(super) fn open(file: File, found: &mut Found) -> Self {
        for (number, at) in (0..).zip(HEADERS) {
            found.table(at, HEADER_LENGTH, HEADER + number);
        }
        for (number, at) in (0..).zip(REGIONS) {
            found.table(at, REGION_LENGTH, REGION + number);
        }
        let changes = Changes::default();
        Self { file, newest: None, changes, held: Vec::new(), regions: None, size: None, block: 0, ratio: 0 }
    }

    fn header(&mut self, bytes: &[u8], is_last: bool, found: &mut Found) -> Result<(), Refusal> {
        if bytes.starts_with(b"head") && le32(bytes, 4) == crc32c(bytes, 4) && le16(bytes, 66) == 1 {
            let sequence = le64(bytes, 8);
            if self.newest.as_ref().is_none_or(|(newest, _)| *newest < sequence) {
                let guid = bytes[48..64].first_chunk().copied().unwrap_or_default();
                let log = Log { guid, at: le64(bytes, 72), length: le32(bytes, 68).into(), bytes: Vec::new() };
                self.newest = Some((sequence, (guid != [0; 16]).then_some(log)));
            }
        }
        match &self.newest {
            None if is_last => Err(self.file.damaged("neither of its headers is good")),
            Some((_, Some(log))) if is_last => {
                let possible = log.at.is_multiple_of(MIB) && log.length.is_multiple_of(MIB);
                if !possible || log.at < MIB || !(MIB..=log::LONGEST).contains(&log.length) {
                    return Err(self
                        .file
                        .damaged(format!("a log of {} bytes at {} is not possible", log.length, log.at)));
                }
                self.file.holds(log.at, log.length)?;
                found.pieces(log.at, log.length, LOG);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A piece of the log; the last one makes its changes known, and what waited for them is read.
    fn log(&mut self, bytes: &[u8], found: &mut Found) -> Result<(), Refusal> {
        let Some((_, Some(log))) = &mut self.newest else { return Ok(()) };
        log.bytes.extend_from_slice(bytes);
        if (log.bytes.len() as u64) < log.length {
            return Ok(());
        }
        let changes = log::replay(&log.bytes, &log.guid);
        if let Some(newest) = &mut self.newest {
            newest.1 = None;
        }
        self.changes = changes.ok_or_else(|| self.file.damaged("its log holds no changes that are whole"))?;
        self.file.holds(0, self.changes.file_size)?;
        let held = std::mem::take(&mut self.held);
        let last = held.len();
        for (number, (bytes, at)) in (1..).zip(held.iter().zip(REGIONS)) {
            let changed = self.changes.over(at, bytes).into_owned();
            self.region(&changed, number == last, found)?;
        }
        Ok(())
    }

    fn region(&mut self, bytes: &[u8], is_last: bool, found: &mut Found) -> Result<(), Refusal> {
        if matches!(self.newest, Some((_, Some(_)))) {
            self.held.push(bytes.to_vec());
            return Ok(());
        }
        if self.regions.is_none() && bytes.starts_with(b"regi") && le32(bytes, 4) == crc32c(bytes, 4) {
            self.regions = Some(self.entries(bytes)?);
        }
        if !is_last {
            return Ok(());
        }
        let regions = self.regions.ok_or_else(|| self.file.damaged("neither of its tables of regions is good"))?;
        self.file.holds(regions.metadata, METADATA_LENGTH.into())?;
        found.table(regions.metadata, METADATA_LENGTH, METADATA);
        Ok(())
    }

    fn entries(&self, bytes: &[u8]) -> Result<Regions, Refusal> {
        let (mut blocks, mut metadata) = (None, None);
        let count = le32(bytes, 8).min(2047) as usize;
        for entry in bytes[16..].chunks_exact(32).take(count) {
            let (offset, length) = (le64(entry, 16), u64::from(le32(entry, 24)));
            if offset < MIB || offset % MIB != 0 || offset > u64::MAX / 2 {
                return Err(self.file.damaged("a region lies where none can"));
            }
            match &entry[..16] {
                id if id == BLOCKS => blocks = Some((offset, length)),
                id if id == META => metadata = Some(offset),
                _ if le32(entry, 28) & 1 == 1 => return Err(self.file.damaged("it needs a region that is not known")),
                _ => {}
            }
        }
        match (blocks, metadata) {
            (Some(blocks), Some(metadata)) => Ok(Regions { blocks, metadata }),
            _ => Err(self.file.damaged("it has no table of blocks or no metadata")),
        }
    }

    fn metadata(&mut self, bytes: &[u8], found: &mut Found) -> Result<(), Refusal> {
        if !bytes.starts_with(b"metadata") {
            return Err(self.file.damaged("its metadata are not where they should be"));
        }
        let (mut parameters, mut size, mut sector) = (None, None, None);
        let count = usize::from(le16(bytes, 10)).min(2047);
        for entry in bytes[32..].chunks_exact(32).take(count) {
            let at = le32(entry, 16) as usize;
            let item = bytes.get(at..at.saturating_add(8));
            let item = item.ok_or_else(|| self.file.damaged("an item of its metadata lies where none can"));
            match &entry[..16] {
                id if id == PARAMETERS => parameters = Some(item?),
                id if id == DISK_SIZE => size = Some(le64(item?, 0)),
                id if id == SECTOR_SIZE => sector = Some(u64::from(le32(item?, 0))),
                _ => {}
            }
        }
        let (Some(parameters), Some(size), Some(sector)) = (parameters, size, sector) else {
            return Err(self.file.damaged("its metadata lack an item"));
        };
        if le32(parameters, 4) & 2 != 0 {
            return Err(Refusal::Parent(self.file.kind));
        }
        self.block = u64::from(le32(parameters, 0));
        if !self.block.is_power_of_two() || !(MIB..=256 * MIB).contains(&self.block) {
            return Err(self.file.damaged(format!("blocks of {} bytes are not possible", self.block)));
        }
        if !matches!(sector, 512 | 4096) {
            return Err(self.file.damaged(format!("sectors of {sector} bytes are not possible")));
        }
        self.file.size_is_sane(size)?;
        (self.size, self.ratio) = (Some(size), (sector << 23) / self.block);
        self.want_blocks(size, found)
    }

    fn want_blocks(&self, size: u64, found: &mut Found) -> Result<(), Refusal> {
        let Some(Regions { blocks: (at, length), .. }) = self.regions else { return Ok(()) };
        let blocks = size.div_ceil(self.block);
        let needed = (blocks + (blocks - 1) / self.ratio) * 8;
        if length < needed {
            return Err(self.file.damaged("its table of blocks is too short for its virtual size"));
        }
        self.file.holds(at, needed)?;
        found.pieces(at, needed, 0);
        Ok(())
    }

    fn blocks(&self, first: u64, size: u64, bytes: &[u8], found: &mut Found) -> Result<(), Refusal> {
        for (number, entry) in (first..).zip(bytes.chunks_exact(8)) {
            // Each run of blocks is followed by the entry of its bitmap, which only images with parents use.
            if number % (self.ratio + 1) == self.ratio {
                continue;
            }
            let entry = le64(entry, 0);
            let host = entry & !(MIB - 1);
            match entry & 7 {
                PRESENT => {}
                PARTIAL => return Err(Refusal::Parent(self.file.kind)),
                _ => continue,
            }
            if host < MIB {
                return Err(self.file.damaged("a block lies where none can"));
            }
            let guest = (number - number / (self.ratio + 1)) * self.block;
            let length = self.block.min(size.saturating_sub(guest));
            if length > 0 {
                if self.changes.touch(host, length) {
                    return Err(self.file.damaged("its log changes data, and it may change tables only"));
                }
                self.file.holds(host, length)?;
                found.extent(Extent { host, guest, length, form: Form::Plain });
            }
        }
        Ok(())
    }
}

impl Layout for Vhdx {
    fn virtual_size(&self) -> Option<u64> {
        self.size
    }

    fn table(&mut self, table: Table, bytes: &[u8], found: &mut Found) -> Result<(), Refusal> {
        if matches!(table.id, LOG..HEADER) {
            return self.log(bytes, found);
        }
        let changed = self.changes.over(table.host, bytes).into_owned();
        let bytes = changed.as_slice();
        match (table.id, self.size) {
            (METADATA, _) => self.metadata(bytes, found),
            (id, _) if id >= REGION => self.region(bytes, id > REGION, found),
            (id, _) if id >= HEADER => self.header(bytes, id > HEADER, found),
            (id, Some(size)) => self.blocks(id * (PIECE / 8), size, bytes, found),
            (_, None) => Ok(()),
        }
    }
}
