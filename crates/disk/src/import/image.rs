//! What an image is called in the sentences about it, and the order that its parts must have.

use std::io;

use super::ImportError;
use crate::Refusal;
use crate::detect::Kind;
use crate::fetch::FetchError;
use crate::layout::{Extent, Form, Table};
use crate::unpack;

/// An image's format, and what it came packed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Image {
    pub(super) format: Kind,
    pub(super) packing: Option<Kind>,
    /// Bytes that its packing wants kept while it is unpacked.
    pub(super) dictionary: u64,
}

impl Image {
    /// What a failed read says: about the source, or about the stream that was unpacked.
    pub(super) fn reading(self, error: io::Error) -> ImportError {
        match error.downcast::<FetchError>() {
            Ok(FetchError::Source { offset, source }) => ImportError::Source { offset, source },
            Ok(FetchError::Cancelled) => ImportError::Cancelled,
            Err(error) => unpack::refusal(self.packing.unwrap_or(self.format), &error).into(),
        }
    }

    pub(super) fn damaged(self, what: impl Into<String>) -> Refusal {
        Refusal::Damaged { kind: self.format, what: what.into() }
    }

    /// It needs bytes up to `end`, and there are `size`.
    pub(super) fn cut(self, end: u64, size: u64) -> Refusal {
        Refusal::Cut { kind: self.format, end, size }
    }
}

/// Parts of an image that were taken in its order: none may lie in another.
#[derive(Debug, Default)]
pub(super) struct Order {
    start: u64,
    end: u64,
}

impl Order {
    pub(super) fn extent(&mut self, image: Image, extent: &Extent) -> Result<(), Refusal> {
        // What is compressed is rounded up to sectors, into the next one's first.
        let length = if extent.form == Form::Plain { extent.length } else { 1 };
        self.follow(image, extent.host, length)
    }

    pub(super) fn table(&mut self, image: Image, table: &Table) -> Result<(), Refusal> {
        self.follow(image, table.host, table.length.into())
    }

    fn follow(&mut self, image: Image, at: u64, length: u64) -> Result<(), Refusal> {
        // What lies before all of that was found late, and is read in another pass.
        if (self.start..self.end).contains(&at) {
            return Err(Refusal::Overlap { kind: image.format, at });
        }
        if at >= self.end {
            (self.start, self.end) = (at, at.saturating_add(length));
        }
        Ok(())
    }
}
