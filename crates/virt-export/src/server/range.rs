//! The header `Range`, as far as it asks for one range. Pure.

use std::ops::Range;

/// What is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// All of it.
    Whole,
    /// These bytes.
    Some(Range<u64>),
    /// There are no such bytes.
    Beyond,
}

/// What `header` asks for of `size` bytes. What cannot be understood, and several ranges at once, are answered with the whole.
pub(super) fn part(header: Option<&str>, size: u64) -> Part {
    let Some(spec) = header.and_then(|header| header.trim().strip_prefix("bytes=")) else { return Part::Whole };
    let Some((first, last)) = spec.split_once('-').filter(|_| !spec.contains(',')) else { return Part::Whole };
    let (first, last) = (first.trim(), last.trim());
    let number = |text: &str| text.parse::<u64>().ok();
    match (first.is_empty(), last.is_empty()) {
        (true, true) => Part::Whole,
        (true, false) => match number(last) {
            Some(0) => Part::Beyond,
            Some(_) if size == 0 => Part::Beyond,
            Some(length) => Part::Some(size.saturating_sub(length)..size),
            None => Part::Whole,
        },
        (false, open) => match (number(first), if open { Some(u64::MAX) } else { number(last) }) {
            (Some(first), Some(last)) if first <= last && first < size => {
                Part::Some(first..last.saturating_add(1).min(size))
            }
            (Some(first), Some(last)) if first <= last => Part::Beyond,
            _ => Part::Whole,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        #[track_caller]
        fn check(header: &str, size: u64, expect: &Part) {
            assert_eq!(&part(Some(header), size), expect, "{header}");
        }
        check("bytes=0-9", 100, &Part::Some(0..10));
        check("bytes=90-", 100, &Part::Some(90..100));
        check("bytes=90-900", 100, &Part::Some(90..100));
        check("bytes=-10", 100, &Part::Some(90..100));
        check("bytes=-1000", 100, &Part::Some(0..100));
        check("bytes=100-", 100, &Part::Beyond);
        check("bytes=-0", 100, &Part::Beyond);
        check("bytes=0-", 0, &Part::Beyond);
        check("bytes=-5", 0, &Part::Beyond);
        for odd in ["bytes=9-3", "bytes=a-b", "bytes=-", "bytes=0-1,5-6", "items=0-1", "bytes=99999999999999999999-"] {
            check(odd, 100, &Part::Whole);
        }
        assert_eq!(part(None, 5), Part::Whole);
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_range_lies_in_the_volume(header in ".{0,40}|bytes= ?[0-9]{0,21} ?- ?[0-9]{0,21}", size in any::<u64>()) {
            if let Part::Some(range) = part(Some(&header), size) {
                prop_assert!(range.start < range.end && range.end <= size, "{:?}", range);
            }
        }
    }
}
