//! Reading an image from its start to its end, as often as its order demands: nearly always once.

use std::io;

use super::disk::PIECE;
use super::image::{Image, Order};
use super::{Import, ImportError, Opened, ranged};
use crate::Refusal;
use crate::ahead::Ahead;
use crate::layout::{Extent, FOOTER, Found, Layout, Table, footer_size};
use crate::window::{Spool, Window};

/// Passes over an image: a header, tables of two levels and data may each lie before what leads to them.
const PASSES: u32 = 5;
/// Bytes of unknown use that are kept, because a table that comes later may name them: tables and data are often swapped
/// by a cluster or two.
const ASIDE: usize = 16 << 20;
/// Packed bytes that are read behind the last one of use, to see the sum that closes the stream.
const REST: u64 = 64 << 20;

/// Reads a raw image of unknown size, or of a source without ranges. Returns its size.
pub(super) fn raw<'scope>(import: &Import<'scope, '_>, opened: Opened<'scope>) -> Result<u64, ImportError> {
    let Opened { image, window, .. } = opened;
    let known = if image.packing.is_none() { import.source.size() } else { None };
    let available = import.disk.capacity();
    match known {
        Some(size) if size > available + FOOTER => {
            return Err(ImportError::TooLarge { virtual_size: size, available, at_least: false });
        }
        _ => import.disk.prepare_unknown()?,
    }
    let mut window = read_on(import, window, image)?;
    let mut writer = import.disk.writer();
    let mut offset = 0;
    loop {
        import.disk.check()?;
        // The last bytes are held back: they may be the footer of a VHD.
        let wanted = PIECE + FOOTER as usize;
        let bytes = window.fill(offset, wanted).map_err(|error| image.reading(error))?;
        let is_last = bytes.len() < wanted;
        let take = if is_last { bytes.len() } else { PIECE };
        let end = offset + take as u64;
        if is_last && let Some(tail) = bytes.len().checked_sub(FOOTER as usize) {
            let before = offset + tail as u64;
            if before <= available && footer_size(&bytes[tail..], before).is_some() {
                import.disk.write(&mut writer, offset, &bytes[..tail])?;
                return Ok(before);
            }
        }
        if end > available {
            let virtual_size = known.unwrap_or(end);
            return Err(ImportError::TooLarge { virtual_size, available, at_least: known.is_none() });
        }
        import.disk.write(&mut writer, offset, &bytes[..take])?;
        offset = end;
        if is_last {
            return Ok(offset);
        }
        window.consume(offset);
    }
}

/// Fetches on a thread of its own, which it is already where something is unpacked.
fn read_on<'scope>(
    import: &Import<'scope, '_>,
    window: Window<'scope>,
    image: Image,
) -> Result<Window<'scope>, ImportError> {
    if image.packing.is_some() {
        return Ok(window);
    }
    let base = window.base();
    let ahead = Ahead::spawn(import.scope, "fetch", window).map_err(ImportError::Thread)?;
    Ok(Window::new(base, Box::new(ahead)))
}

/// Reads an image whose layout is known or found on the way.
pub(super) fn read<'scope>(
    import: &Import<'scope, '_>,
    opened: Opened<'scope>,
    layout: &mut dyn Layout,
    mut found: Found,
) -> Result<(), ImportError> {
    import.disk.prepare_for(layout)?;
    let image = opened.image;
    let mut window = read_on(import, opened.window, image)?;
    for number in 0..PASSES {
        let late = pass(import, image, &mut window, layout, &mut found)?;
        if number == 0 {
            rest(import, image, &mut window)?;
            import.judge_checksum()?;
        }
        if late.len() == 0 {
            return Ok(());
        }
        late.put_back(&mut found);
        if image.packing.is_none() && import.source.ranged() {
            return ranged::read(import, image, layout, found);
        }
        window = again(import, image)?;
    }
    Err(image.damaged("its tables lead from one to the next without an end").into())
}

/// Opens the source once more.
fn again<'scope>(import: &Import<'scope, '_>, image: Image) -> Result<Window<'scope>, ImportError> {
    match import.open() {
        Ok(opened) if opened.image == image => read_on(import, opened.window, image),
        Ok(_) => Err(image.damaged("it was another one when it was read a second time").into()),
        Err(ImportError::Source { source, .. }) if source.kind() == io::ErrorKind::Unsupported => {
            Err(Refusal::Once(image.format).into())
        }
        Err(error) => Err(error),
    }
}

/// What is behind the last byte of use: all of it where it has to be summed up, some of it to see that a packed stream
/// ends well.
fn rest(import: &Import<'_, '_>, image: Image, window: &mut Window<'_>) -> Result<(), ImportError> {
    let end = match (&import.options.checksum, image.packing) {
        (Some(_), _) => u64::MAX,
        (None, Some(_)) => window.position() + REST,
        (None, None) => return Ok(()),
    };
    loop {
        import.disk.check()?;
        let at = window.position();
        if at >= end || window.fill(at, PIECE).map_err(|error| image.reading(error))?.is_empty() {
            return Ok(());
        }
    }
}

/// What lies before the place where it was found.
#[derive(Default)]
struct Late {
    tables: Vec<Table>,
    extents: Vec<Extent>,
}

impl Late {
    fn len(&self) -> usize {
        self.tables.len() + self.extents.len()
    }

    fn put_back(self, found: &mut Found) {
        for Table { host, length, id } in self.tables {
            found.table(host, length, id);
        }
        for extent in self.extents {
            found.extent(extent);
        }
    }
}

fn pass(
    import: &Import<'_, '_>,
    image: Image,
    window: &mut Window<'_>,
    layout: &mut dyn Layout,
    found: &mut Found,
) -> Result<Late, ImportError> {
    let (mut late, mut writer, mut buffer) = (Late::default(), import.disk.writer(), Vec::new());
    let (mut tables, mut extents) = (Order::default(), Order::default());
    window.set_aside(ASIDE, import.options.spool.as_deref().and_then(|at| Spool::new(at).ok()));
    loop {
        if found.is_too_much(late.len()) {
            return Err(Refusal::Scattered(image.format).into());
        }
        let table_is_next = match found.next_host() {
            (None, None) => break,
            (Some(table), Some(extent)) => table <= extent,
            (table, _) => table.is_some(),
        };
        if table_is_next && let Some(table) = found.next_table() {
            tables.table(image, &table)?;
            if !window.has(table.host, table.length.into()) {
                late.tables.push(table);
            } else {
                import.take(image, table, window, layout, found)?;
            }
        } else if let Some(extent) = found.next_extent() {
            extents.extent(image, &extent)?;
            if !window.has(extent.host, extent.stored()) {
                late.extents.push(extent);
            } else {
                within(import, image, &extent)?;
                import.disk.copy(image, &extent, window, &mut writer, &mut buffer)?;
            }
        }
    }
    window.set_aside(0, None);
    Ok(late)
}

/// What is packed may claim to have its data behind any number of zeros, which take time to unpack.
fn within(import: &Import<'_, '_>, image: Image, extent: &Extent) -> Result<(), Refusal> {
    let bound = import.disk.capacity().saturating_mul(4).saturating_add(REST);
    if image.packing.is_some() && extent.host > bound {
        return Err(image.damaged(format!("its data lie at byte {}, far beyond its disk's size", extent.host)));
    }
    Ok(())
}
