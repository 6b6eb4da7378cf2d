//! The disk in the making: sized, cleared and written in one place, whoever reads.

use std::io;
use std::sync::OnceLock;

use super::image::Image;
use super::journal::{Done, Journal, Store, Task};
use super::tail::Tail;
use super::{ImportError, Options};
use crate::decode::{Decoded, decode};
use crate::layout::{Extent, Form, Layout};
use crate::progress::Progress;
use crate::target::{Target, Writer};
use crate::window::Window;

/// Bytes that are moved at once.
pub(super) const PIECE: usize = 1 << 20;

pub(super) struct Disk<'a> {
    target: &'a Target,
    options: &'a Options,
    pub(super) progress: &'a Progress,
    /// The virtual size, once the target is prepared for it.
    prepared: OnceLock<u64>,
    /// The source's identity and size, when an earlier import of it may be gone on with.
    source: OnceLock<(String, u64)>,
    /// Where a journal may be.
    store: Option<Store<'a>>,
    journal: OnceLock<Journal>,
    earlier: OnceLock<Done>,
}

impl<'a> Disk<'a> {
    pub(super) fn new(target: &'a Target, options: &'a Options, progress: &'a Progress) -> Self {
        let (prepared, source, journal, earlier) = Default::default();
        let store = options.resume.as_ref().and_then(|resume| Store::of(&resume.place, target));
        Self { target, options, progress, prepared, source, store, journal, earlier }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.target.capacity()
    }

    pub(super) fn writer(&self) -> Writer<'a> {
        Writer::new(self.target)
    }

    fn failed(&self, op: &'static str) -> impl FnOnce(io::Error) -> ImportError {
        let written = self.progress.written();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ImportError::Full { written },
            _ => ImportError::Target { op, source },
        }
    }

    pub(super) fn check(&self) -> Result<(), ImportError> {
        if self.progress.is_cancelled() { Err(ImportError::Cancelled) } else { Ok(()) }
    }

    /// Clears the target as soon as the layout knows how large the disk is.
    pub(super) fn prepare_for(&self, layout: &dyn Layout) -> Result<(), ImportError> {
        match layout.virtual_size() {
            Some(size) if self.prepared.get().is_none() => self.prepare(size),
            _ => Ok(()),
        }
    }

    pub(super) fn prepare(&self, virtual_size: u64) -> Result<(), ImportError> {
        let available = self.capacity();
        if virtual_size > available {
            return Err(ImportError::TooLarge { virtual_size, available, at_least: false });
        }
        let whole = self.whole(virtual_size);
        if !self.goes_on(virtual_size)? {
            self.forget()?;
            self.target.clear(whole).map_err(self.failed("clear"))?;
            if self.options.preallocate {
                self.target.preallocate(whole).map_err(self.failed("claim the space of"))?;
            }
        }
        let _ = self.prepared.set(virtual_size);
        self.progress.accept();
        Ok(())
    }

    /// An earlier import of this source may have left something of use. A source with a name without end gets no journal.
    pub(super) fn may_go_on(&self, identity: String, size: u64) {
        const LONGEST: usize = 4 << 10;
        if identity.len() <= LONGEST {
            let _ = self.source.set((identity, size));
        }
    }

    /// Opens the journal, where there may be one. Whether the target has what it says.
    fn goes_on(&self, virtual_size: u64) -> Result<bool, ImportError> {
        let (Some(resume), Some(store), Some((identity, size))) =
            (&self.options.resume, &self.store, self.source.get())
        else {
            return Ok(false);
        };
        let task = Task::new(&resume.place, identity.clone(), *size, virtual_size);
        let (journal, earlier) = Journal::open(store, task, resume.every).map_err(self.failed("keep a journal on"))?;
        let _ = self.journal.set(journal);
        match earlier {
            Some(done) if self.target.is_as_long(virtual_size).map_err(self.failed("look at"))? => {
                let _ = self.earlier.set(done);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// What an earlier import has done.
    pub(super) fn earlier(&self) -> Option<&Done> {
        self.earlier.get()
    }

    /// The part of the target that holds the journal until the import ends.
    fn tail(&self) -> Option<&Tail<'a>> {
        self.journal.get().and(self.store.as_ref()?.tail())
    }

    /// The extent has to be copied again, whatever an earlier import says it did.
    pub(super) fn is_withheld(&self, extent: &Extent) -> bool {
        self.tail().is_some_and(|tail| tail.withholds(extent))
    }

    /// Keeps the journal, now and then.
    pub(super) fn tick(&self, done: impl FnOnce() -> Done) -> Result<(), ImportError> {
        let (Some(store), Some(journal)) = (&self.store, self.journal.get()) else { return Ok(()) };
        journal.tick(store, done, || self.target.sync()).map_err(self.failed("keep a journal on"))
    }

    /// Leaves word for the next import. This one failed already: if that fails too, the next one starts anew.
    pub(super) fn leave(&self, done: &Done) {
        if let (Some(store), Some(journal)) = (&self.store, self.journal.get()) {
            let _ = journal.write(store, done, || self.target.sync());
        }
    }

    /// Whatever a journal says is no longer so.
    pub(super) fn forget(&self) -> Result<(), ImportError> {
        self.store.as_ref().map_or(Ok(()), Store::remove).map_err(self.failed("end the journal on"))
    }

    /// Prepares for a stream whose length shows at its end.
    pub(super) fn prepare_unknown(&self) -> Result<(), ImportError> {
        self.forget()?;
        let size = if self.target.is_device() { self.capacity() } else { self.whole(0) };
        self.target.clear(size).map_err(self.failed("clear"))?;
        if self.options.preallocate {
            self.target.preallocate(size).map_err(self.failed("claim the space of"))?;
        }
        self.progress.accept();
        Ok(())
    }

    /// Bytes of the disk in the end: whole sectors, and as many as were asked for.
    fn whole(&self, virtual_size: u64) -> u64 {
        let asked = self.options.size.unwrap_or(0);
        virtual_size.next_multiple_of(512).max(asked).min(self.capacity()).max(virtual_size)
    }

    /// Everything is written: the length is set, and all of it is on stable storage.
    pub(super) fn finish(&self, virtual_size: u64) -> Result<u64, ImportError> {
        let size = self.whole(virtual_size);
        self.target.resize(size).map_err(self.failed("resize"))?;
        if self.options.preallocate && self.prepared.get().is_none() {
            self.target.claim_holes(size).map_err(self.failed("claim the space of"))?;
        }
        if let Some(tail) = self.tail() {
            // Everything else first: the journal ends here, and the disk is complete.
            self.target.sync().map_err(self.failed("flush"))?;
            tail.restore().map_err(self.failed("write to"))?;
        }
        self.target.sync_all().map_err(self.failed("flush"))?;
        // The end of a device is the disk's own by now, whatever it looks like.
        if !self.target.is_device() {
            self.forget()?;
        }
        Ok(size)
    }

    pub(super) fn write(&self, writer: &mut Writer<'_>, guest: u64, bytes: &[u8]) -> Result<(), ImportError> {
        let written = match self.tail() {
            Some(tail) => tail.divert(writer, guest, bytes),
            None => writer.write(guest, bytes),
        };
        let written = written.map_err(self.failed("write to"))?;
        self.progress.add_written(written);
        Ok(())
    }

    /// Moves an extent from the image to the disk.
    pub(super) fn copy(
        &self,
        image: Image,
        extent: &Extent,
        window: &mut Window<'_>,
        writer: &mut Writer<'_>,
        buffer: &mut Vec<u8>,
    ) -> Result<(), ImportError> {
        let size = self.prepared.get().copied().unwrap_or(0);
        if extent.guest.checked_add(extent.length).is_none_or(|end| end > size) {
            return Err(image.damaged("it has bytes beyond the end of its disk").into());
        }
        if extent.form != Form::Plain {
            self.check()?;
            let stored = window.fill(extent.host, extent.stored() as usize);
            let stored = stored.map_err(|error| image.reading(error))?;
            buffer.resize(extent.length as usize, 0);
            let decoded = decode(extent.form, stored, buffer);
            let Some(Decoded { taken, .. }) = decoded.filter(|decoded| decoded.made == buffer.len()) else {
                // Of most forms it is only known how much is stored at most.
                if (stored.len() as u64) < extent.stored() && matches!(extent.form, Form::Zlib(_)) {
                    return Err(image.cut(extent.host + extent.stored(), window.position()).into());
                }
                let what = format!("what is compressed at byte {} cannot be unpacked", extent.host);
                return Err(image.damaged(what).into());
            };
            window.consume(extent.host + taken as u64);
            return self.write(writer, extent.guest, buffer);
        }
        let mut done = 0;
        while done < extent.length {
            self.check()?;
            let length = (extent.length - done).min(PIECE as u64) as usize;
            let at = extent.host + done;
            let bytes = window.fill(at, length).map_err(|error| image.reading(error))?;
            if bytes.len() < length {
                return Err(image.cut(extent.host + extent.length, window.position()).into());
            }
            self.write(writer, extent.guest + done, bytes)?;
            done += length as u64;
            window.consume(extent.host + done);
        }
        Ok(())
    }
}
