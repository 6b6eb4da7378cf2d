//! VHDX's log: changes of tables that were promised before they were made. An image that was not closed has some that are
//! not in place; they are made in memory, over the tables as they are read.
//!
//! ```text
//! log (a ring) ──> sequences of entries, each one more than the one before ──> the newest ──> Changes, oldest first
//! ```

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::super::bytes::{le32, le64};
use super::super::crc::crc32c;

/// No log is longer: those that are written have 1 MiB.
pub(super) const LONGEST: u64 = 8 << 20;
const SECTOR: usize = 4096;
/// Bytes of an entry before its descriptors, and of one of those.
const HEAD: usize = 64;
const DESCRIPTOR: usize = 32;
/// Lengths of a log that may be summed up until a sequence is found. A log that was written needs two.
const EFFORT: usize = 16;

/// What a log wants changed.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Oldest first.
    all: Vec<Change>,
    /// Where they begin and end, without overlaps.
    ranges: BTreeMap<u64, u64>,
    /// Bytes that the file has at least.
    pub(super) file_size: u64,
}

#[derive(Debug)]
struct Change {
    at: u64,
    length: u64,
    /// None: zeros.
    sector: Option<Vec<u8>>,
}

impl Changes {
    /// `bytes`, which lie at `host`, as the log wants them.
    pub(super) fn over<'a>(&self, host: u64, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        let mut changed = Cow::Borrowed(bytes);
        let end = host + bytes.len() as u64;
        for change in &self.all {
            let (first, last) = (change.at.max(host), change.at.saturating_add(change.length).min(end));
            if first >= last {
                continue;
            }
            let place = (first - host) as usize..(last - host) as usize;
            let from = (first - change.at) as usize;
            let length = place.len();
            let into = &mut changed.to_mut()[place];
            match &change.sector {
                Some(sector) => into.copy_from_slice(&sector[from..from + length]),
                None => into.fill(0),
            }
        }
        changed
    }

    /// Whether some of these bytes are to be changed.
    pub(super) fn touch(&self, host: u64, length: u64) -> bool {
        let before = self.ranges.range(..host.saturating_add(length)).next_back();
        before.is_some_and(|(_, end)| *end > host)
    }

    fn push(&mut self, change: Change) {
        let (mut start, mut end) = (change.at, change.at.saturating_add(change.length));
        self.all.push(change);
        while let Some((&at, &until)) = self.ranges.range(..=end).next_back().filter(|(_, until)| **until >= start) {
            self.ranges.remove(&at);
            (start, end) = (start.min(at), end.max(until));
        }
        self.ranges.insert(start, end);
    }
}

/// The changes of the newest sequence in a log that is marked by `guid`. None: there is no sequence that is whole.
pub(super) fn replay(log: &[u8], guid: &[u8]) -> Option<Changes> {
    let mut effort = log.len().saturating_mul(EFFORT);
    let mut newest: Option<Vec<Entry<'_>>> = None;
    let mut start = 0;
    while start < log.len() {
        let (sequence, length) = sequence(log, guid, start, &mut effort)?;
        start += length.max(SECTOR);
        let number = |entries: &[Entry<'_>]| entries.last().map(|entry| entry.number);
        if newest.as_deref().and_then(number) < number(&sequence) {
            newest = Some(sequence);
        }
    }
    let entries = newest?;
    let mut changes = Changes { file_size: entries.last()?.file_size, ..Changes::default() };
    entries.iter().flat_map(Entry::changes).for_each(|change| changes.push(change));
    Some(changes)
}

/// The entries from `start` on of which the last one says that they are needed, and the length of all that follow each
/// other there. None: the log costs more than any does.
fn sequence<'a>(log: &'a [u8], guid: &[u8], start: usize, effort: &mut usize) -> Option<(Vec<Entry<'a>>, usize)> {
    let mut entries: Vec<Entry<'a>> = Vec::new();
    let mut length = 0;
    while let Some(entry) = Entry::read(log, guid, (start + length) % log.len()) {
        *effort = effort.checked_sub(entry.bytes.len())?;
        let follows = entries.last().is_none_or(|before| before.number.checked_add(1) == Some(entry.number));
        if !follows || length + entry.bytes.len() > log.len() || !entry.is_whole() {
            break;
        }
        length += entry.bytes.len();
        entries.push(entry);
    }
    let Some(tail) = entries.last().map(|head| head.tail) else { return Some((entries, 0)) };
    match entries.iter().position(|entry| entry.at == tail) {
        Some(first) => Some((entries.split_off(first), length)),
        // The oldest one that is needed was overwritten.
        None => Some((Vec::new(), 0)),
    }
}

/// Changes that are made together.
#[derive(Debug)]
struct Entry<'a> {
    at: usize,
    bytes: Cow<'a, [u8]>,
    number: u64,
    /// Where the oldest entry lies that is needed with this one.
    tail: usize,
    descriptors: usize,
    file_size: u64,
}

impl<'a> Entry<'a> {
    /// What looks like an entry.
    fn read(log: &'a [u8], guid: &[u8], at: usize) -> Option<Self> {
        let head = log.get(at..at + HEAD).filter(|head| head.starts_with(b"loge") && head[32..48] == *guid)?;
        let (length, tail) = (le32(head, 8) as usize, le32(head, 12) as usize);
        let (number, descriptors) = (le64(head, 16), le32(head, 24) as usize);
        let possible = length.is_multiple_of(SECTOR)
            && (SECTOR..=log.len()).contains(&length)
            && tail.is_multiple_of(SECTOR)
            && descriptors <= length / DESCRIPTOR
            && number > 0;
        if !possible {
            return None;
        }
        // The log is a ring.
        let bytes = match log.get(at..at + length) {
            Some(bytes) => Cow::Borrowed(bytes),
            None => Cow::Owned([&log[at..], &log[..at + length - log.len()]].concat()),
        };
        Some(Self { at, bytes, number, tail, descriptors, file_size: le64(head, 48) })
    }

    fn is_whole(&self) -> bool {
        le32(&self.bytes, 4) == crc32c(&self.bytes, 4) && self.parts().all(|part| part.is_some())
    }

    fn changes(&self) -> impl Iterator<Item = Change> + '_ {
        self.parts().flatten()
    }

    /// Each descriptor with the sector that belongs to it. None: it is not of this entry.
    fn parts(&self) -> impl Iterator<Item = Option<Change>> + '_ {
        let mut next = (HEAD + self.descriptors * DESCRIPTOR).next_multiple_of(SECTOR);
        (0..self.descriptors).map(move |number| {
            let at = HEAD + number * DESCRIPTOR;
            let descriptor = self.bytes.get(at..at + DESCRIPTOR)?;
            let (host, length) = (le64(descriptor, 16), le64(descriptor, 8));
            if le64(descriptor, 24) != self.number || !host.is_multiple_of(SECTOR as u64) {
                return None;
            }
            match &descriptor[..4] {
                b"zero" if length.is_multiple_of(SECTOR as u64) => Some(Change { at: host, length, sector: None }),
                b"desc" => {
                    let data = self.bytes.get(next..next + SECTOR)?;
                    next += SECTOR;
                    let number = u64::from(le32(data, 4)) << 32 | u64::from(le32(data, SECTOR - 4));
                    if !data.starts_with(b"data") || number != self.number {
                        return None;
                    }
                    // The first and last bytes of the sector are in its descriptor: their place has the number.
                    let sector = [&descriptor[8..16], &data[8..SECTOR - 4], &descriptor[4..8]].concat();
                    Some(Change { at: host, length: SECTOR as u64, sector: Some(sector) })
                }
                _ => None,
            }
        })
    }
}

#[cfg(test)]
mod tests;
