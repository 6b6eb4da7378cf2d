//! Where an image has the bytes of its disk: tables are read as they come, extents are what they say.
//!
//! ```text
//! head ──> open ──> tables wanted ──bytes──> Layout::table ──> more tables wanted
//!                                                         └──> extents
//! ```
//! Pure: nothing here reads. What no extent covers is zero. A layout trusts no number of an image: sizes are bounded
//! before they are used, and what lies beyond the end of an image is refused before anything is written.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Refusal;
use crate::detect::Kind;
use crate::qcow2::MAX_VIRTUAL_SIZE;

mod bytes;
mod crc;
mod qcow2;
mod raw;
mod vdi;
mod vhd;
mod vhdx;
mod vmdk;

/// Tables are read in pieces of at most this many bytes; qcow2's clusters may be as large.
pub(crate) const PIECE: u64 = 256 << 10;
/// Tables and extents that are kept at once: some 30 MiB of them.
const MOST: usize = 600_000;

/// Bytes of the image that say where others are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Table {
    pub(crate) host: u64,
    pub(crate) length: u32,
    /// What the layout knows it by.
    pub(crate) id: u64,
}

/// How the bytes of an extent are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Form {
    Plain,
    /// A raw deflate stream in at most so many bytes.
    Deflate(u32),
    /// A zstd frame in at most so many bytes.
    Zstd(u32),
    /// A zlib stream of exactly so many bytes.
    Zlib(u32),
    /// A grain's marker, which has the length of the zlib stream that follows it; in all at most so many bytes.
    Grain(u32),
}

/// A part of the disk and where the image has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Extent {
    pub(crate) host: u64,
    pub(crate) guest: u64,
    /// Bytes of the disk.
    pub(crate) length: u64,
    pub(crate) form: Form,
}

impl Extent {
    /// Bytes of the image, at most.
    pub(crate) fn stored(&self) -> u64 {
        match self.form {
            Form::Plain => self.length,
            Form::Deflate(stored) | Form::Zstd(stored) | Form::Zlib(stored) | Form::Grain(stored) => stored.into(),
        }
    }
}

/// Tables and extents that were found and not yet read, in the order of the image.
#[derive(Debug, Default)]
pub(crate) struct Found {
    tables: BinaryHeap<Reverse<Table>>,
    extents: BinaryHeap<Reverse<Extent>>,
    /// The newest extent, which the next one may continue.
    newest: Option<Extent>,
}

impl Found {
    pub(crate) fn table(&mut self, host: u64, length: u32, id: u64) {
        self.tables.push(Reverse(Table { host, length, id }));
    }

    /// A long table, in pieces that are numbered from `id` on.
    pub(crate) fn pieces(&mut self, host: u64, length: u64, id: u64) {
        for piece in 0..length.div_ceil(PIECE) {
            let at = piece * PIECE;
            self.table(host + at, (length - at).min(PIECE) as u32, id + piece);
        }
    }

    pub(crate) fn extent(&mut self, extent: Extent) {
        if let Some(newest) = &mut self.newest
            && newest.form == Form::Plain
            && extent.form == Form::Plain
            && newest.host + newest.length == extent.host
            && newest.guest + newest.length == extent.guest
        {
            newest.length += extent.length;
            return;
        }
        if let Some(done) = self.newest.replace(extent) {
            self.extents.push(Reverse(done));
        }
    }

    fn settle(&mut self) {
        self.extents.extend(self.newest.take().map(Reverse));
    }

    /// More than may be kept, with so many others.
    pub(crate) fn is_too_much(&self, others: usize) -> bool {
        self.tables.len() + self.extents.len() + others > MOST
    }

    /// As much as is worth to be written before more tables are read.
    pub(crate) fn is_much(&self) -> bool {
        self.extents.len() > MOST / 3
    }

    pub(crate) fn next_table(&mut self) -> Option<Table> {
        self.tables.pop().map(|Reverse(table)| table)
    }

    pub(crate) fn next_extent(&mut self) -> Option<Extent> {
        self.settle();
        self.extents.pop().map(|Reverse(extent)| extent)
    }

    /// Where the next of both lies in the image.
    pub(crate) fn next_host(&mut self) -> (Option<u64>, Option<u64>) {
        self.settle();
        (self.tables.peek().map(|Reverse(table)| table.host), self.extents.peek().map(|Reverse(extent)| extent.host))
    }

    /// All extents, in the order of the image.
    pub(crate) fn take_extents(&mut self) -> Vec<Extent> {
        self.settle();
        let mut extents: Vec<_> = std::mem::take(&mut self.extents).into_iter().map(|Reverse(extent)| extent).collect();
        extents.sort_unstable();
        extents
    }
}

/// A format's reader of tables.
pub(crate) trait Layout: Send {
    /// Bytes of the disk, once a table said so; extents are found only after that.
    fn virtual_size(&self) -> Option<u64>;

    /// Takes a table that was asked for: all of it.
    fn table(&mut self, table: Table, bytes: &[u8], found: &mut Found) -> Result<(), Refusal>;

    /// Tables lie between the data and lead from one to the next: only reading on finds them.
    fn is_chain(&self) -> bool {
        false
    }
}

/// The layout of an image that is not raw, from its first bytes. `size` is the image's, where it is known.
pub(crate) fn open(kind: Kind, head: &[u8], size: Option<u64>, found: &mut Found) -> Result<Box<dyn Layout>, Refusal> {
    let file = File { kind, size };
    Ok(match kind {
        Kind::Qcow2 => Box::new(qcow2::Qcow2::open(head, file, found)?),
        Kind::Vmdk => Box::new(vmdk::Vmdk::open(head, file, found)?),
        Kind::Vdi => Box::new(vdi::Vdi::open(head, file, found)?),
        Kind::Vhd => Box::new(vhd::Vhd::open(head, file, found)?),
        Kind::Vhdx => Box::new(vhdx::Vhdx::open(file, found)),
        kind => return Err(Refusal::NotADisk(kind)),
    })
}

pub(crate) use crc::crc32c;
pub(crate) use raw::{FOOTER, Raw, footer_size};

/// What is known of the file that an image is.
#[derive(Clone, Copy, Debug)]
struct File {
    kind: Kind,
    size: Option<u64>,
}

impl File {
    fn damaged(self, what: impl Into<String>) -> Refusal {
        Refusal::Damaged { kind: self.kind, what: what.into() }
    }

    /// Something lies within the file, as far as its size is known.
    fn holds(self, host: u64, length: u64) -> Result<(), Refusal> {
        let end = host.checked_add(length).ok_or_else(|| self.damaged("an offset is beyond all bounds"))?;
        match self.size {
            Some(size) if end > size => Err(Refusal::Cut { kind: self.kind, end, size }),
            _ => Ok(()),
        }
    }

    fn size_is_sane(self, virtual_size: u64) -> Result<(), Refusal> {
        match virtual_size {
            0 => Err(self.damaged("its virtual size is 0 bytes")),
            size if size > MAX_VIRTUAL_SIZE => Err(Refusal::VirtualSize { size, limit: MAX_VIRTUAL_SIZE }),
            _ => Ok(()),
        }
    }
}
