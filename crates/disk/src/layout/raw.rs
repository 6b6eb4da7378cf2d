//! Raw: the image is the disk. A VHD of fixed size is that too, with a footer behind it.

use std::ops::Range;

use super::bytes::{be32, be64};
use super::{Extent, Form, Found, Layout, Table};
use crate::Refusal;

/// Bytes of VHD's footer.
pub(crate) const FOOTER: u64 = 512;

/// A raw image of known size.
#[derive(Debug)]
pub(crate) struct Raw {
    size: u64,
}

impl Raw {
    /// With data in these places, or anywhere.
    pub(crate) fn new(size: u64, data: Option<Vec<Range<u64>>>, found: &mut Found) -> Self {
        let anywhere = data.is_none().then_some(0..size);
        for Range { start, end } in data.into_iter().flatten().chain(anywhere) {
            let length = end.min(size).saturating_sub(start);
            if length > 0 {
                found.extent(Extent { host: start, guest: start, length, form: Form::Plain });
            }
        }
        Self { size }
    }
}

impl Layout for Raw {
    fn virtual_size(&self) -> Option<u64> {
        Some(self.size)
    }

    fn table(&mut self, _: Table, _: &[u8], _: &mut Found) -> Result<(), Refusal> {
        Ok(())
    }
}

/// The size of the disk before `footer`, if these are the last bytes of a VHD of fixed size whose disk lies in the
/// `before` bytes in front of it.
pub(crate) fn footer_size(footer: &[u8], before: u64) -> Option<u64> {
    const FIXED: u32 = 2;
    let is_footer = footer.len() as u64 == FOOTER
        && footer.starts_with(b"conectix")
        && be32(footer, 60) == FIXED
        && be64(footer, 48) == before
        && be32(footer, 64) == footer_sum(footer, 64);
    is_footer.then_some(before)
}

/// The complement of the sum of all bytes but those of the sum itself, which stand at `hole`.
pub(super) fn footer_sum(bytes: &[u8], hole: usize) -> u32 {
    let counted = bytes.iter().enumerate().filter(|(at, _)| !(hole..hole + 4).contains(at));
    !counted.fold(0_u32, |sum, (_, byte)| sum.wrapping_add(u32::from(*byte)))
}
