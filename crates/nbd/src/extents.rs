//! Extents: where blocks of one kind lie. Pure.

/// Of an allocation: nothing is stored there.
pub const HOLE: u32 = 1;
/// Of an allocation, and of what was merged: it reads as zeros.
pub const ZERO: u32 = 2;
/// Of a bitmap, and of what was merged: it changed.
pub const DIRTY: u32 = 1;

/// Blocks of one kind, side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where they begin.
    pub offset: u64,
    /// How long they are together.
    pub length: u64,
    /// Their kind.
    pub flags: u32,
}

/// Appends `extent`, as a part of the last one where it goes on.
pub fn append(list: &mut Vec<Extent>, extent: Extent) {
    match list.last_mut() {
        Some(last) if last.flags == extent.flags && last.offset + last.length == extent.offset => {
            last.length += extent.length;
        }
        _ => list.push(extent),
    }
}

/// What changed, and of it what reads as zeros: as far as both lists go, which begin at one place and have no gaps.
pub fn merge(allocation: &[Extent], dirty: &[Extent]) -> Vec<Extent> {
    let mut merged = Vec::new();
    let (mut first, mut second) = (allocation.iter().copied(), dirty.iter().copied());
    let (mut here, mut there) = (first.next(), second.next());
    while let (Some(mut one), Some(mut other)) = (here, there) {
        let length = one.length.min(other.length);
        let flags = (one.flags & ZERO) | (other.flags & DIRTY);
        append(&mut merged, Extent { offset: one.offset, length, flags });
        let cut = |extent: &mut Extent| {
            extent.offset += length;
            extent.length -= length;
            extent.length > 0
        };
        here = if cut(&mut one) { Some(one) } else { first.next() };
        there = if cut(&mut other) { Some(other) } else { second.next() };
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Extents that follow each other from `start` on.
    fn list(start: u64, parts: &[(u64, u32)]) -> Vec<Extent> {
        let mut at = start;
        let extents = parts.iter().map(|(length, flags)| {
            let extent = Extent { offset: at, length: *length, flags: *flags };
            at += length;
            extent
        });
        extents.collect()
    }

    #[test]
    fn dirty_extents_are_split_at_zeroes() {
        #[track_caller]
        fn check(allocation: &[(u64, u32)], dirty: &[(u64, u32)], expect: &[(u64, u32)]) {
            assert_eq!(merge(&list(7, allocation), &list(7, dirty)), list(7, expect));
        }
        check(&[], &[(4, DIRTY)], &[]);
        check(&[(4, 0)], &[(4, DIRTY)], &[(4, DIRTY)]);
        check(&[(4, 0), (4, HOLE | ZERO)], &[(2, 0), (6, DIRTY)], &[(2, 0), (2, DIRTY), (4, ZERO | DIRTY)]);
        // A hole that does not read as zeros is like data, and neighbours of one kind are one.
        check(&[(4, HOLE), (4, 0)], &[(8, 0)], &[(8, 0)]);
        // The shorter list is the end.
        check(&[(4, 0)], &[(2, 0), (9, DIRTY)], &[(2, 0), (2, DIRTY)]);
    }
}
