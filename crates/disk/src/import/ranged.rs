//! Reading an image by ranges: its tables first, then its data by several readers at once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::image::{Image, Order};
use super::journal::Done;
use super::{Import, ImportError};
use crate::Refusal;
use crate::fetch::{Fetch, Tally};
use crate::layout::{Extent, Form, Found, Layout};
use crate::source::Source;
use crate::window::Window;

/// Readers at once. More gain nothing on a link that one of them fills, and are a burden to a server.
const READERS: u64 = 4;
/// Bytes that are worth a reader.
const SHARE: u64 = 8 << 20;
/// Gaps up to this are read through rather than asked around.
const GAP: u64 = 1 << 20;
/// Bytes after which the progress moves.
const STEP: u64 = 4 << 20;

/// Reads everything that is found, and what that leads to.
pub(super) fn read(
    import: &Import<'_, '_>,
    image: Image,
    layout: &mut dyn Layout,
    mut found: Found,
) -> Result<(), ImportError> {
    import.disk.prepare_for(layout)?;
    let mut reader = Ranges::new(import, image);
    let mut tables = Order::default();
    let (mut passed, mut batch) = (0, 0);
    loop {
        while !found.is_much()
            && let Some(table) = found.next_table()
        {
            tables.table(image, &table)?;
            import.take(image, table, reader.at(table.host)?, layout, &mut found)?;
        }
        if found.is_too_much(0) {
            return Err(Refusal::Scattered(image.format).into());
        }
        reader.close();
        let extents = found.take_extents();
        if extents.is_empty() {
            return Ok(());
        }
        let mut order = Order::default();
        extents.iter().try_for_each(|extent| order.extent(image, extent))?;
        let shares = shares(extents, &mut passed);
        match import.disk.earlier() {
            Some(earlier) if batch < earlier.batch => {
                let all: Vec<_> = shares.iter().map(|share| share.len() as u64).collect();
                copy(import, image, batch, &shares, &all)?;
            }
            Some(earlier) if batch == earlier.batch && earlier.steps.len() == shares.len() => {
                copy(import, image, batch, &shares, &earlier.steps)?;
            }
            _ => copy(import, image, batch, &shares, &vec![0; shares.len()])?,
        }
        batch += 1;
    }
}

/// What one reader takes, and how many bytes of the image are dealt with by each step.
type Share = Vec<(Extent, u64)>;

/// Divides `extents` into steps, and those among readers, in the order of the image. `passed` is how far the image is
/// dealt with before and after.
fn shares(extents: Vec<Extent>, passed: &mut u64) -> Vec<Share> {
    let total: u64 = extents.iter().map(Extent::stored).sum();
    let each = total.div_ceil((total / SHARE).clamp(1, READERS));
    let mut shares: Vec<Share> = vec![Vec::new()];
    let mut taken = 0;
    for step in extents.into_iter().flat_map(steps) {
        let end = step.host + step.stored();
        let dealt = end.saturating_sub(*passed);
        *passed = (*passed).max(end);
        if taken >= each {
            shares.push(Vec::new());
            taken = 0;
        }
        taken += step.stored();
        if let Some(share) = shares.last_mut() {
            share.push((step, dealt));
        }
    }
    shares
}

fn steps(extent: Extent) -> impl Iterator<Item = Extent> {
    let step = if extent.form == Form::Plain { STEP } else { extent.length.max(1) };
    (0..extent.length.div_ceil(step)).map(move |number| {
        let at = number * step;
        let length = step.min(extent.length - at);
        Extent { host: extent.host + at, guest: extent.guest + at, length, form: extent.form }
    })
}

/// Every share by a reader of its own, each from the step where an earlier one stopped. The first failure ends all of
/// them.
fn copy(
    import: &Import<'_, '_>,
    image: Image,
    batch: u64,
    shares: &[Share],
    earlier: &[u64],
) -> Result<(), ImportError> {
    let failed = AtomicBool::new(false);
    let counters: Vec<_> = earlier.iter().map(|steps| AtomicU64::new(*steps)).collect();
    let done = || Done { batch, steps: counters.iter().map(|steps| steps.load(Ordering::Acquire)).collect() };
    let work = |(share, counter): (&Share, &AtomicU64)| {
        let outcome = one(import, image, share, counter, &done, &failed);
        failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
        outcome
    };
    let work = &work;
    let outcomes = thread::scope(|scope| {
        let readers: Vec<_> = shares.iter().zip(&counters).map(|part| scope.spawn(move || work(part))).collect();
        readers.into_iter().map(|reader| reader.join()).collect::<Vec<_>>()
    });
    let outcome = outcomes.into_iter().try_for_each(|outcome| {
        outcome.unwrap_or_else(|_| Err(ImportError::Thread(std::io::Error::other("a reader panicked"))))
    });
    if outcome.is_err() && import.disk.earlier().is_none_or(|earlier| earlier.batch <= batch) {
        import.disk.leave(&done());
    }
    outcome
}

fn one(
    import: &Import<'_, '_>,
    image: Image,
    share: &Share,
    counter: &AtomicU64,
    done: &impl Fn() -> Done,
    failed: &AtomicBool,
) -> Result<(), ImportError> {
    let mut reader = Ranges::new(import, image);
    let (mut writer, mut buffer) = (import.disk.writer(), Vec::new());
    let earlier = counter.load(Ordering::Relaxed);
    for (number, (extent, dealt)) in (0..).zip(share) {
        if failed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let is_done = number < earlier;
        if !is_done || import.disk.is_withheld(extent) {
            import.disk.copy(image, extent, reader.at(extent.host)?, &mut writer, &mut buffer)?;
        }
        import.disk.progress.add_done(*dealt);
        if !is_done {
            counter.fetch_add(1, Ordering::Release);
            import.disk.tick(done)?;
        }
    }
    Ok(())
}

/// A reader that goes to where it is wanted.
struct Ranges<'a> {
    source: &'a dyn Source,
    tally: &'a Tally<'a>,
    image: Image,
    window: Option<Window<'a>>,
}

impl<'a> Ranges<'a> {
    fn new(import: &Import<'_, 'a>, image: Image) -> Self {
        Self { source: import.source, tally: import.tally, image, window: None }
    }

    /// The window that has `host`, or comes to it soon.
    fn at(&mut self, host: u64) -> Result<&mut Window<'a>, ImportError> {
        let near = |window: &Window<'_>| window.base() <= host && host <= window.position() + GAP;
        let kept = self.window.take().filter(near);
        let window = match kept {
            Some(window) => window,
            None => {
                let fetch = Fetch::part(self.source, self.tally, host);
                Window::new(host, Box::new(fetch.map_err(|error| self.image.reading(error))?))
            }
        };
        Ok(self.window.insert(window))
    }

    fn close(&mut self) {
        self.window = None;
    }
}
