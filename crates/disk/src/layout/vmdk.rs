//! VMDK in one file: tables of grains (monolithicSparse), or grains one after the other with markers (streamOptimized).
//!
//! A descriptor within the file names the files that the disk consists of: a disk of several, or one with a parent, is
//! refused.

use super::bytes::{le16, le32, le64};
use super::{Extent, File, Form, Found, Layout, PIECE, Table};
use crate::Refusal;

const SECTOR: u64 = 512;
/// Ids of tables; those of grain tables are their numbers.
const DESCRIPTOR: u64 = 1 << 63;
const MARKER: u64 = DESCRIPTOR + 1;
const DIRECTORY: u64 = 1 << 62;
/// The tables are behind the grains: a footer says where.
const AT_END: u64 = u64::MAX;
const COMPRESSED: u32 = 1 << 16;
const MARKERS: u32 = 1 << 17;
/// Bytes of a marker before the grain that it announces.
const MARKER_HEAD: u64 = 12;

#[derive(Debug)]
pub(super) struct Vmdk {
    file: File,
    size: u64,
    grain: u64,
    /// Grains that one table covers.
    per_table: u64,
    compressed: bool,
    chain: bool,
}

impl Vmdk {
    pub(super) fn open(head: &[u8], file: File, found: &mut Found) -> Result<Self, Refusal> {
        if head.starts_with(b"#") {
            return Err(Refusal::Descriptor);
        }
        if head.starts_with(b"COWD") {
            return Err(file.damaged("it is a sparse extent of an ESX host, which only its datastore can read"));
        }
        if head.len() < SECTOR as usize {
            return Err(Refusal::Cut { kind: file.kind, end: SECTOR, size: head.len() as u64 });
        }
        let (version, flags) = (le32(head, 4), le32(head, 8));
        if !(1..=3).contains(&version) {
            return Err(file.damaged(format!("version {version} is not known")));
        }
        if flags & 1 != 0 && head[73..77] != *b"\n \r\n" {
            return Err(file.damaged("its line ends were changed by a transfer as text"));
        }
        let grain = le64(head, 20).saturating_mul(SECTOR);
        if !grain.is_power_of_two() || !(4096..=4 << 20).contains(&grain) {
            return Err(file.damaged(format!("grains of {grain} bytes are not possible")));
        }
        let size = le64(head, 12).saturating_mul(SECTOR);
        file.size_is_sane(size)?;
        let per_table = u64::from(le32(head, 44));
        if !(1..=4096).contains(&per_table) {
            return Err(file.damaged(format!("tables of {per_table} grains are not possible")));
        }
        let compressed = flags & COMPRESSED != 0;
        if compressed && le16(head, 77) != 1 {
            return Err(file.damaged(format!("compression {} is not known", le16(head, 77))));
        }
        let chain = le64(head, 56) == AT_END;
        if chain && flags & MARKERS == 0 {
            return Err(file.damaged("nothing says where its grains are"));
        }
        let layout = Self { file, size, grain, per_table, compressed, chain };
        layout.descriptor_of(head, found)?;
        if chain {
            layout.marker_at(le64(head, 64).max(1).saturating_mul(SECTOR), found)?;
        } else {
            layout.directory_of(head, found)?;
        }
        Ok(layout)
    }

    fn descriptor_of(&self, head: &[u8], found: &mut Found) -> Result<(), Refusal> {
        let (at, length) = (le64(head, 28).saturating_mul(SECTOR), le64(head, 36).saturating_mul(SECTOR));
        if at == 0 || length == 0 {
            return Err(Refusal::Descriptor);
        }
        if length > PIECE {
            return Err(self.file.damaged(format!("a descriptor of {length} bytes is not possible")));
        }
        self.file.holds(at, length)?;
        found.table(at, length as u32, DESCRIPTOR);
        Ok(())
    }

    fn directory_of(&self, head: &[u8], found: &mut Found) -> Result<(), Refusal> {
        let at = le64(head, 56).saturating_mul(SECTOR);
        let length = self.size.div_ceil(self.grain * self.per_table) * 4;
        if at == 0 {
            return Err(self.file.damaged("its directory lies where none can"));
        }
        self.file.holds(at, length)?;
        found.pieces(at, length, DIRECTORY);
        Ok(())
    }

    fn marker_at(&self, host: u64, found: &mut Found) -> Result<(), Refusal> {
        self.file.holds(host, SECTOR)?;
        found.table(host, SECTOR as u32, MARKER);
        Ok(())
    }

    /// What follows a marker, and where the next one is.
    fn marker(&self, host: u64, bytes: &[u8], found: &mut Found) -> Result<(), Refusal> {
        let (value, stored) = (le64(bytes, 0), le32(bytes, 8));
        if stored == 0 {
            // Tables and a footer, of so many sectors; the last marker has none and ends the stream.
            return match (le32(bytes, 12), value) {
                (0, _) => Ok(()),
                (1..=3, sectors) if sectors <= PIECE => self.marker_at(host + SECTOR + sectors * SECTOR, found),
                (kind, _) => Err(self.file.damaged(format!("markers of type {kind} are not known"))),
            };
        }
        let guest = value.saturating_mul(SECTOR);
        if u64::from(stored) > 2 * self.grain + SECTOR || guest % self.grain != 0 || guest >= self.size {
            return Err(self.file.damaged("a grain lies where none can"));
        }
        self.file.holds(host + MARKER_HEAD, stored.into())?;
        let length = self.grain.min(self.size - guest);
        found.extent(Extent { host: host + MARKER_HEAD, guest, length, form: Form::Zlib(stored) });
        self.marker_at((host + MARKER_HEAD + u64::from(stored)).next_multiple_of(SECTOR), found)
    }

    fn directory(&self, piece: u64, bytes: &[u8], found: &mut Found) -> Result<(), Refusal> {
        for (at, entry) in bytes.chunks_exact(4).enumerate() {
            let host = u64::from(le32(entry, 0)) * SECTOR;
            if host != 0 {
                self.file.holds(host, self.per_table * 4)?;
                found.table(host, (self.per_table * 4) as u32, piece * (PIECE / 4) + at as u64);
            }
        }
        Ok(())
    }

    fn grains(&self, number: u64, bytes: &[u8], found: &mut Found) -> Result<(), Refusal> {
        for (at, entry) in bytes.chunks_exact(4).enumerate() {
            let sector = u64::from(le32(entry, 0));
            // 0 is not there, 1 is zero.
            if sector <= 1 {
                continue;
            }
            let (host, guest) = (sector * SECTOR, (number * self.per_table + at as u64) * self.grain);
            let length = self.grain.min(self.size.saturating_sub(guest));
            if length == 0 {
                break;
            }
            let form =
                if self.compressed { Form::Grain((self.grain + self.grain / 8 + SECTOR) as u32) } else { Form::Plain };
            self.file.holds(host, if self.compressed { MARKER_HEAD } else { length })?;
            found.extent(Extent { host, guest, length, form });
        }
        Ok(())
    }
}

/// Whether the file alone is the disk.
fn describes_itself(text: &str) -> Result<(), Refusal> {
    let mut extents = 0;
    for line in text.lines().map(str::trim) {
        let value = |key: &str| {
            let (name, value) = line.split_once('=')?;
            name.trim().eq_ignore_ascii_case(key).then(|| value.trim().trim_matches('"'))
        };
        if value("parentCID").is_some_and(|id| !id.eq_ignore_ascii_case("ffffffff"))
            || value("parentFileNameHint").is_some()
        {
            return Err(Refusal::Parent(crate::Kind::Vmdk));
        }
        if let Some(kind) = value("createType")
            && !["monolithicSparse", "streamOptimized"].iter().any(|known| known.eq_ignore_ascii_case(kind))
        {
            return Err(Refusal::Descriptor);
        }
        extents += usize::from(["RW ", "RDONLY ", "NOACCESS "].iter().any(|access| line.starts_with(access)));
    }
    if extents == 1 { Ok(()) } else { Err(Refusal::Descriptor) }
}

impl Layout for Vmdk {
    fn virtual_size(&self) -> Option<u64> {
        Some(self.size)
    }

    fn table(&mut self, table: Table, bytes: &[u8], found: &mut Found) -> Result<(), Refusal> {
        match table.id {
            DESCRIPTOR => describes_itself(&String::from_utf8_lossy(bytes)),
            MARKER => self.marker(table.host, bytes, found),
            id if id >= DIRECTORY => self.directory(id - DIRECTORY, bytes, found),
            id => self.grains(id, bytes, found),
        }
    }

    fn is_chain(&self) -> bool {
        self.chain
    }
}
