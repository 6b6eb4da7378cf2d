//! An image from its source to its target in one pass: fetch, unpack, decode, write what is not zero.
//!
//! Two ways lead through an image. A compressed one, one with a checksum, and one whose source knows no ranges are read
//! [`forward`]: all tables and extents that are known wait in the order of the image, and what turns out to lie behind is
//! read in another pass. Everything else is read by [`ranged`]: tables first, then data by several readers at once.

use std::io;
use std::path::PathBuf;
use std::thread::{Scope, scope};

use crate::ahead::Ahead;
use crate::checksum::{Checksum, Hasher};
use crate::detect::{HEADER, Kind, detect};
use crate::fetch::{Fetch, Tally};
use crate::layout::{self, FOOTER, Found, Layout, Raw, Table, footer_size};
use crate::progress::Progress;
use crate::source::Source;
use crate::target::Target;
use crate::unpack::{demand, is_packed, unpack};
use crate::window::Window;
use crate::{Refusal, source};

mod disk;
mod forward;
mod image;
mod journal;
mod ranged;
mod tail;

use disk::Disk;
use image::Image;
pub use journal::{Place, Resume};

/// What is wanted besides the image's bytes.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What the bytes at the source add up to. Data that does not is deleted.
    pub checksum: Option<Checksum>,
    /// Bytes that the disk shall have, where the image has fewer; never more than the target holds.
    pub size: Option<u64>,
    /// Claim the space of the whole disk.
    pub preallocate: bool,
    /// A directory with room for what a source that is read only once has sent too early: tables behind the data that they
    /// lead to. Without it such an image is refused.
    pub spool: Option<PathBuf>,
    /// What an interrupted import leaves, and the next one goes on by. It needs a source with ranges and an identity, and
    /// an image that is not packed; without them an import starts anew.
    pub resume: Option<Resume>,
}

/// What an import made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The format of the image, after unpacking.
    pub format: Kind,
    /// How the image was packed.
    pub packing: Option<Kind>,
    /// Bytes of memory that unpacking took besides: the packing's dictionary, where that is told.
    pub dictionary: u64,
    /// Bytes of the image's disk.
    pub virtual_size: u64,
    /// Bytes of the target's disk: the image's, or as many as were asked for.
    pub size: u64,
    /// Bytes that were not zero, without those of an earlier import that this one went on with.
    pub written: u64,
    /// Whether the space of the whole disk is claimed.
    pub preallocated: bool,
}

impl Imported {
    /// What became of bytes that were taken as they are.
    pub fn raw(virtual_size: u64, size: u64, written: u64, preallocated: bool) -> Self {
        Self { format: Kind::Raw, packing: None, dictionary: 0, virtual_size, size, written, preallocated }
    }
}

/// Why an image was not imported. The sentence is the user's.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("cannot read the source at byte {offset}")]
    Source {
        offset: u64,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(
        "the image's virtual size of {}{virtual_size} bytes is larger than the {available} bytes that the volume offers: \
         ask for a larger volume",
        if *.at_least { "at least " } else { "" }
    )]
    TooLarge {
        virtual_size: u64,
        available: u64,
        /// The image is a stream whose end was not reached.
        at_least: bool,
    },
    #[error("the source's checksum is {found}, not {expected}: what was fetched is deleted")]
    Checksum { expected: Checksum, found: Checksum },
    #[error("the volume is full after {written} bytes: free space on its storage or use a larger one")]
    Full { written: u64 },
    #[error("cannot {op} the volume")]
    Target {
        op: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("cannot start a thread to read on")]
    Thread(#[source] io::Error),
    #[error("the import was cancelled")]
    Cancelled,
}

impl ImportError {
    /// Whatever was written is of no use.
    fn is_of_the_image(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::TooLarge { .. } | Self::Checksum { .. })
    }

    /// Trying again cannot help: the image, its checksum or its size is at fault.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.is_final(),
            Self::TooLarge { .. } | Self::Checksum { .. } => true,
            Self::Source { source, .. } => source::is_final(source),
            Self::Full { .. } | Self::Target { .. } | Self::Thread(_) | Self::Cancelled => false,
        }
    }
}

/// Fills `target` with the disk in the image at `source`, and returns when it is on stable storage.
///
/// Blocks: run it where that is no harm. Format and compression are told by content. Memory is bounded by the dictionary of
/// the image's compression and some 40 MiB besides. After an error the target holds a part of the disk, or nothing. It
/// returns within the time that a reader of the source takes to fail or go on.
pub fn import(
    source: &dyn Source,
    target: &Target,
    options: &Options,
    progress: &Progress,
) -> Result<Imported, ImportError> {
    progress.begin(source.size());
    let hasher = options.checksum.as_ref().map(|sum| Hasher::new(sum.algorithm()));
    let tally = Tally::new(progress, hasher);
    let disk = Disk::new(target, options, progress);
    let outcome = scope(|scope| Import { scope, source, tally: &tally, disk: &disk, options }.run());
    if let Err(ImportError::Checksum { .. }) = &outcome {
        target.discard().map_err(|source| ImportError::Target { op: "clear", source })?;
    }
    if outcome.as_ref().is_err_and(ImportError::is_of_the_image) {
        disk.forget()?;
    }
    let (Image { format, packing, dictionary }, virtual_size) = outcome?;
    let size = disk.finish(virtual_size)?;
    if let Some(total) = progress.total() {
        progress.set_done(total);
    }
    let written = progress.written();
    Ok(Imported { format, packing, dictionary, virtual_size, size, written, preallocated: options.preallocate })
}

/// One import, with the threads that it starts.
struct Import<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    source: &'env dyn Source,
    tally: &'env Tally<'env>,
    disk: &'env Disk<'env>,
    options: &'env Options,
}

/// An image that is read from its start, unpacked.
struct Opened<'a> {
    image: Image,
    head: Vec<u8>,
    window: Window<'a>,
}

impl<'scope> Import<'scope, '_> {
    fn run(&self) -> Result<(Image, u64), ImportError> {
        let opened = self.open()?;
        let image = opened.image;
        let size = if image.packing.is_none() { self.source.size() } else { None };
        acceptable(&opened.head, image.format, size)?;
        let mut found = Found::default();
        let by_ranges = image.packing.is_none() && self.source.ranged() && self.options.checksum.is_none();
        let is_raw = matches!(image.format, Kind::Raw | Kind::Iso | Kind::Luks | Kind::Text);
        let mut layout: Box<dyn Layout> = match size {
            Some(size) if is_raw && by_ranges => {
                Box::new(Raw::new(self.without_footer(size)?, self.source.data(), &mut found))
            }
            _ if is_raw => {
                let size = forward::raw(self, opened)?;
                self.judge_checksum()?;
                return Ok((image, size));
            }
            _ => layout::open(image.format, &opened.head, size, &mut found)?,
        };
        if by_ranges && !layout.is_chain() {
            if let (Some(identity), Some(size)) = (self.source.identity(), size) {
                self.disk.may_go_on(identity, size);
            }
            drop(opened.window);
            ranged::read(self, image, layout.as_mut(), found)?;
        } else {
            forward::read(self, opened, layout.as_mut(), found)?;
        }
        Ok((image, layout.virtual_size().unwrap_or_default()))
    }

    /// Opens the source, and what is packed in it, for reading on.
    fn open(&self) -> Result<Opened<'scope>, ImportError> {
        let mut image = Image { format: Kind::Raw, packing: None, dictionary: 0 };
        let fetch = Fetch::whole(self.source, self.tally).map_err(|error| image.reading(error))?;
        let mut window = Window::new(0, Box::new(fetch));
        loop {
            let head = window.fill(0, HEADER).map_err(|error| image.reading(error))?.to_vec();
            image.format = detect(&head);
            if !is_packed(image.format) {
                return Ok(Opened { image, head, window });
            }
            if image.packing.is_some() {
                return Err(Refusal::PackedTwice(image.format).into());
            }
            image.packing = Some(image.format);
            image.dictionary = demand(image.format, &head).unwrap_or(0);
            let packed = Ahead::spawn(self.scope, "fetch", window).map_err(ImportError::Thread)?;
            let inner = unpack(image.format, packed).map_err(|error| image.reading(error))?;
            let inner = Ahead::spawn(self.scope, "unpack", inner).map_err(ImportError::Thread)?;
            window = Window::new(0, Box::new(inner));
        }
    }

    /// Reads a table and hands it to the layout.
    fn take(
        &self,
        image: Image,
        table: Table,
        window: &mut Window<'_>,
        layout: &mut dyn Layout,
        found: &mut Found,
    ) -> Result<(), ImportError> {
        self.disk.check()?;
        let length = table.length as usize;
        let bytes = window.fill(table.host, length).map_err(|error| image.reading(error))?;
        if bytes.len() < length {
            return Err(image.cut(table.host + u64::from(table.length), window.position()).into());
        }
        layout.table(table, bytes, found)?;
        window.consume(table.host + u64::from(table.length));
        self.disk.prepare_for(layout)
    }

    /// The bytes of a raw image of which `size` are at the source.
    fn without_footer(&self, size: u64) -> Result<u64, ImportError> {
        if size <= FOOTER || !size.is_multiple_of(512) {
            return Ok(size);
        }
        let image = Image { format: Kind::Raw, packing: None, dictionary: 0 };
        let reading = |error| image.reading(error);
        let at = size - FOOTER;
        let fetch = Fetch::part(self.source, self.tally, at).map_err(reading)?;
        let mut window = Window::new(at, Box::new(fetch));
        Ok(footer_size(window.fill(at, FOOTER as usize).map_err(reading)?, at).unwrap_or(size))
    }

    /// After everything was fetched.
    fn judge_checksum(&self) -> Result<(), ImportError> {
        match (self.tally.checksum(), &self.options.checksum) {
            (Some(found), Some(expected)) if found != *expected => {
                Err(ImportError::Checksum { expected: expected.clone(), found })
            }
            _ => Ok(()),
        }
    }
}

/// Whether a file of this kind, of `size` bytes where that is known, can be a disk at all.
fn acceptable(head: &[u8], kind: Kind, size: Option<u64>) -> Result<(), Refusal> {
    let size = size.or_else(|| (head.len() < HEADER).then_some(head.len() as u64));
    match kind {
        Kind::Empty => Err(Refusal::Empty),
        // Disks of printable characters exist, in tests at least. They have whole sectors.
        Kind::Text if size.is_none_or(|size| size % 512 == 0) => Ok(()),
        Kind::Html | Kind::Text | Kind::Tar | Kind::Elf | Kind::Zip | Kind::SevenZip => Err(Refusal::NotADisk(kind)),
        Kind::Qcow1 | Kind::Qed | Kind::Parallels => Err(Refusal::Foreign(kind)),
        _ => Ok(()),
    }
}
