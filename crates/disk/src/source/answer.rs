//! What the headers of an answer say about the bytes behind it.

use std::time::Duration;

use http::header::{self, HeaderMap, HeaderValue};

/// What is known of a thing that is fetched, so that a later answer can be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// Its length, if the server said.
    pub(super) size: Option<u64>,
    /// Whether it can be asked for from an offset on.
    pub(super) ranged: bool,
    pub(super) validator: Validator,
}

/// What tells two versions of one address apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Validator {
    tag: Option<HeaderValue>,
    modified: Option<HeaderValue>,
}

impl Validator {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        Self { tag: headers.get(header::ETAG).cloned(), modified: headers.get(header::LAST_MODIFIED).cloned() }
    }

    /// What `If-Range` may carry: a weak tag promises nothing about bytes.
    pub(super) fn condition(&self) -> Option<&HeaderValue> {
        match &self.tag {
            Some(tag) if !tag.as_bytes().starts_with(b"W/") => Some(tag),
            Some(_) => None,
            None => self.modified.as_ref(),
        }
    }

    /// Whether `later` can be the same version. What one of the two does not say proves nothing.
    pub(super) fn allows(&self, later: &Validator) -> bool {
        match (&self.tag, &later.tag) {
            (Some(before), Some(now)) => before == now,
            _ => match (&self.modified, &later.modified) {
                (Some(before), Some(now)) => before == now,
                _ => true,
            },
        }
    }

    /// As text, to be kept; none when it tells nothing.
    pub(super) fn text(&self) -> Option<String> {
        let value = self.tag.as_ref().or(self.modified.as_ref())?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tag.is_none() && self.modified.is_none()
    }
}

/// Where the body of a partial answer begins, and how long the whole is: `bytes 7-99/100`, `bytes 7-99/*`.
pub(super) fn content_range(value: &str) -> Option<(u64, Option<u64>)> {
    let (range, whole) = value.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.trim().split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let whole = match whole.trim() {
        "*" => None,
        number => Some(number.parse().ok()?),
    };
    let sound = first <= last && whole.is_none_or(|whole| last < whole);
    sound.then_some((first, whole))
}

/// `Retry-After` in seconds, bounded: a server does not decide that an import takes a day.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.min(60)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(input: &str, expect: Option<(u64, Option<u64>)>) {
        assert_eq!(content_range(input), expect, "{input}");
    }

    #[test]
    fn ranges_are_read_as_they_are_written() {
        check("bytes 0-99/100", Some((0, Some(100))));
        check("bytes 7-99/*", Some((7, None)));
        check(" bytes 7-7/8 ", Some((7, Some(8))));
        check("bytes 7-99/99", None);
        check("bytes 9-7/99", None);
        check("bytes */99", None);
        check("items 0-1/2", None);
        check("bytes 0-18446744073709551616/2", None);
        check("", None);
    }

    fn validator(pairs: &[(header::HeaderName, &'static str)]) -> Validator {
        Validator::of(&pairs.iter().map(|(n, v)| (n.clone(), HeaderValue::from_static(v))).collect())
    }

    #[test]
    fn versions_are_told_apart_by_what_both_answers_say() {
        let (tag, modified) = (header::ETAG, header::LAST_MODIFIED);
        let first = validator(&[(tag.clone(), "\"a\""), (modified.clone(), "Mon")]);
        assert!(first.allows(&validator(&[(tag.clone(), "\"a\""), (modified.clone(), "Tue")])));
        assert!(!first.allows(&validator(&[(tag.clone(), "\"b\""), (modified.clone(), "Mon")])));
        assert!(!first.allows(&validator(&[(modified.clone(), "Tue")])));
        assert!(first.allows(&validator(&[])));
        assert_eq!(first.condition().unwrap(), "\"a\"");
        assert_eq!(validator(&[(tag, "W/\"a\"")]).condition(), None);
        assert_eq!(validator(&[(modified, "Mon")]).condition().unwrap(), "Mon");
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A range that lies in the whole, or none.
        #[test]
        fn any_content_range_lies_in_the_whole(text in "(bytes )?[0-9]{0,21}-?[0-9]{0,21}/?([0-9]{0,21}|\\*)|\\PC{0,40}") {
            if let Some((_, Some(whole))) = content_range(&text) {
                prop_assert!(content_range(&text).unwrap().0 < whole);
            }
        }

        #[test]
        fn a_range_is_read_as_it_was_written(first in any::<u64>(), length in 0_u64..1 << 40, more in proptest::option::of(1_u64..1 << 40)) {
            let last = first.saturating_add(length);
            let whole = more.and_then(|more| last.checked_add(more));
            let shown = whole.map_or("*".to_owned(), |whole| whole.to_string());
            prop_assert_eq!(content_range(&format!("bytes {first}-{last}/{shown}")), Some((first, whole)));
        }

        #[test]
        fn no_server_makes_an_import_wait_for_long(value in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                let pause = retry_after(&HeaderMap::from_iter([(header::RETRY_AFTER, value)]));
                prop_assert!(pause.is_none_or(|pause| pause <= Duration::from_secs(60)));
            }
        }
    }
}
