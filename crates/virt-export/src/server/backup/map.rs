//! The extents of a volume, page by page: where it holds data, or what of it changed.

use std::io;

use axum::Json;
use axum::body::Body;
use axum::http::Method;
use axum::response::{IntoResponse, Response};
use nbd::{Client, DIRTY, Extent, HOLE, ZERO};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

use super::asked::Asked;
use super::plain;

/// Bytes that QEMU is asked about at once.
const AT_ONCE: u64 = 1 << 30;

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Page {
    extents: Vec<Shown>,
    /// Where the next page begins; none when this is the last.
    next_offset: Option<u64>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Shown {
    offset: u64,
    length: u64,
    #[serde(rename = "type")]
    flags: u32,
    description: &'static str,
}

/// The page of what `disk` holds that is asked for.
pub(super) async fn answer(mut disk: Client<UnixStream>, asked: &Asked, method: &Method) -> io::Result<Response> {
    let bytes = match asked.bytes(disk.size()) {
        Ok(bytes) => bytes,
        Err(refusal) => return Ok(refusal.into_response()),
    };
    let page = page(&mut disk, bytes, asked.page).await.map_err(plain)?;
    let mut response = Json(page).into_response();
    if method == Method::HEAD {
        *response.body_mut() = Body::empty();
    }
    Ok(response)
}

async fn page<S>(disk: &mut Client<S>, bytes: std::ops::Range<u64>, most: usize) -> Result<Page, nbd::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut extents = Vec::new();
    let (mut at, mut changes) = (bytes.start, false);
    // One more than are shown: only then the last one shown has its whole length.
    while at < bytes.end && extents.len() <= most {
        let length = u32::try_from((bytes.end - at).min(AT_ONCE)).unwrap_or(u32::MAX);
        let mut lists = disk.status(at, length).await?;
        changes = lists.len() > 1;
        let merged = match lists.as_slice() {
            [allocation, dirty] => nbd::merge(allocation, dirty),
            _ => lists.pop().unwrap_or_default(),
        };
        for extent in merged {
            nbd::append(&mut extents, extent);
        }
        at = extents.last().map_or(bytes.end, |last: &Extent| last.offset + last.length);
    }
    let next_offset = extents.get(most).map(|extent| extent.offset);
    extents.truncate(most);
    let shown = extents.iter().map(|extent| Shown {
        offset: extent.offset,
        length: extent.length,
        flags: extent.flags,
        description: describe(extent.flags, changes),
    });
    Ok(Page { extents: shown.collect(), next_offset })
}

fn describe(flags: u32, changes: bool) -> &'static str {
    const BOTH: u32 = HOLE | ZERO;
    match (changes, flags) {
        (false, 0) => "data",
        (false, HOLE) => "hole",
        (false, ZERO) => "zero",
        (false, BOTH) => "hole,zero",
        (true, 0) => "clean",
        (true, DIRTY) => "dirty",
        (true, ZERO) => "zero",
        (true, BOTH) => "dirty,zero",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_in_words() {
        let check = |flags: u32, data: &str, changed: &str| {
            assert_eq!((describe(flags, false), describe(flags, true)), (data, changed));
        };
        check(0, "data", "clean");
        check(1, "hole", "dirty");
        check(2, "zero", "zero");
        check(3, "hole,zero", "dirty,zero");
        check(4, "unknown", "unknown");
    }
}
