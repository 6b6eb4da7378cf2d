//! Kubernetes' protobuf, which Go's clients send and ask for: for the built-in kinds, and for metadata of all kinds.
//!
//! ```text
//! body:    "k8s\0" Unknown { typeMeta { apiVersion, kind }, raw: the object's message }
//! watch:   frames of a length (four bytes, big end first) and a WatchEvent { type, object { raw: a body as above } }
//! ```
//!
//! Field numbers, JSON names and types are data ([`table`]); decoding and encoding are one generic walk each. Go's encoder
//! writes zero values of fields that are no pointers, which in JSON would be absent: decoding leaves them out, except in fields
//! where zero says something; encoding writes what is there. Guarantees: arbitrary bytes end in an error, never in a panic,
//! and nest within the bounds of JSON; an object is written with every field that it has, or not at all.

mod decode;
mod encode;
mod table;
mod wire;

use apimachinery::error::ApiError;

pub use decode::document;
pub(super) use encode::{Items, frame};
pub use encode::{Unfit, encode};

/// The media type.
pub(super) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// The media type of a watch.
pub(super) const WATCH: &str = "application/vnd.kubernetes.protobuf;stream=watch";
const MAGIC: &[u8] = b"k8s\0";

fn malformed() -> ApiError {
    ApiError::bad_request("the body is not a valid protobuf object")
}

#[cfg(test)]
mod tests;
