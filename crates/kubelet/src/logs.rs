//! Container logs: files in the CRI format, written by the runtime, read and rotated here.
//!
//! ```text
//! <log dir>/<namespace>_<name>_<uid>/<container>/<attempt>.log
//!                                               /<attempt>.log.1      the older half
//! ```

pub(crate) mod read;
pub(crate) mod record;
pub(crate) mod rotation;
