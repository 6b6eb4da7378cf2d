//! What is asked of a volume: `offset`, `length` and `page_size` of the query. Pure.

use std::ops::Range;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

/// Extents of a page when nobody says how many, and at most.
const PAGE: usize = 512;
const LARGEST_PAGE: usize = 1 << 16;

/// As the query has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) offset: Option<u64>,
    /// None, or zero, is up to the end.
    pub(super) length: Option<u64>,
    pub(super) page: usize,
}

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// A parameter is none.
    Parameter(String),
    /// Nothing is there; how long the volume is.
    Beyond(u64),
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Refusal::Parameter(why) => (StatusCode::BAD_REQUEST, why).into_response(),
            Refusal::Beyond(size) => {
                let range = [(header::CONTENT_RANGE, format!("bytes */{size}"))];
                let why = format!("the volume ends at {size}: ask for an offset before that");
                (StatusCode::RANGE_NOT_SATISFIABLE, range, why).into_response()
            }
        }
    }
}

/// What `query` asks for.
pub(super) fn parse(query: &str) -> Result<Asked, Refusal> {
    let mut asked = Asked { page: PAGE, ..Asked::default() };
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        let number = || {
            let wrong = || Refusal::Parameter(format!("{name}={value} is not a number of bytes: write digits alone"));
            value.parse::<u64>().map_err(|_| wrong())
        };
        match name {
            "offset" if !value.is_empty() => asked.offset = Some(number()?),
            "length" if !value.is_empty() => asked.length = Some(number()?),
            "page_size" if !value.is_empty() => {
                let wrong = || Refusal::Parameter(format!("page_size={value} is not a number of extents"));
                let page = value.parse::<usize>().ok().filter(|page| *page > 0).ok_or_else(wrong)?;
                asked.page = page.min(LARGEST_PAGE);
            }
            _ => {}
        }
    }
    Ok(asked)
}

impl Asked {
    /// The bytes that are asked for of `size`: as far as there are any.
    pub(super) fn bytes(&self, size: u64) -> Result<Range<u64>, Refusal> {
        let offset = self.offset.unwrap_or_default();
        if offset >= size {
            return Err(Refusal::Beyond(size));
        }
        let length = self.length.filter(|length| *length > 0).unwrap_or(u64::MAX);
        Ok(offset..offset.saturating_add(length).min(size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_parsed_or_refused() {
        #[track_caller]
        fn check(query: &str, expect: Result<Range<u64>, Refusal>) {
            assert_eq!(parse(query).and_then(|asked| asked.bytes(100)), expect, "{query}");
        }
        check("", Ok(0..100));
        check("offset=&length=", Ok(0..100));
        check("offset=7&length=3", Ok(7..10));
        check("offset=7&length=0", Ok(7..100));
        check("x-kubevirt-export-token=t&offset=99&length=5", Ok(99..100));
        check("offset=1&length=18446744073709551615", Ok(1..100));
        check("offset=100", Err(Refusal::Beyond(100)));
        check("offset=18446744073709551615&length=2", Err(Refusal::Beyond(100)));
        for wrong in ["offset=-1", "offset=18446744073709551616", "length=0x5", "length=1e3", "page_size=0"] {
            assert!(matches!(parse(wrong), Err(Refusal::Parameter(_))), "{wrong}");
        }
        assert_eq!(parse("page_size=3").unwrap().page, 3);
        assert_eq!(parse("page_size=99999999").unwrap().page, LARGEST_PAGE);
        assert_eq!(parse("").unwrap().page, PAGE);
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_query_asks_for_bytes_in_the_volume(query in ".{0,60}|((offset|length|page_size)=[0-9]{0,21}&){0,4}", size in any::<u64>()) {
            let Ok(asked) = parse(&query) else { return Ok(()) };
            prop_assert!((1..=LARGEST_PAGE).contains(&asked.page));
            if let Ok(range) = asked.bytes(size) {
                prop_assert!(range.start < range.end && range.end <= size, "{:?}", range);
            }
        }
    }
}
