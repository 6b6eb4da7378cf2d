//! What is mounted on the node.

use std::path::Path;

/// True when something is mounted at `path`, also a part of the same file system.
pub(crate) fn is_mounted(path: &Path) -> bool {
    // Not to know is not to be sure: whoever asks does the idempotent thing again, or removes nothing.
    sys::mount::points().is_ok_and(|points| points.iter().any(|point| point == path))
}
