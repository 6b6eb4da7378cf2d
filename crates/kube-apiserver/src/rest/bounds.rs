//! How much a body may hold, whatever it is encoded in.

use apimachinery::error::ApiError;

/// Values in one body at most: scalars, lists and maps alike.
pub(super) const VALUES: usize = 500_000;

pub(super) fn too_many_values() -> ApiError {
    let text = format!("Request entity too large: the body holds more than {VALUES} values");
    ApiError::new(413, "RequestEntityTooLarge", text)
}
