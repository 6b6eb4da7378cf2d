//! The decoders of request bodies, and the encoder of answers in protobuf.
//!
//! Guarantees: arbitrary bytes end in a document or in an error, never in a panic; a document nests within bounds and its
//! values are counted, so that it costs no more than a small multiple of its bytes.

pub use crate::rest::decode::{json, yaml};
pub use crate::rest::protobuf::{Unfit, document as protobuf, encode as to_protobuf};
