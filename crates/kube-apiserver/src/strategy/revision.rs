//! ControllerRevisions: a state that is an object, and a number.

use serde_json::Value;

use super::field::{Causes, Field, NOT_NEGATIVE};

/// Checks a revision.
pub(super) fn validate(revision: &Value, causes: &mut Causes) {
    let revision = Field::new("", revision);
    let data = revision.get("data");
    if !data.is_set() {
        data.required("data is mandatory", causes);
    } else if !data.value.is_object() {
        data.required("data must be a valid JSON object", causes);
    }
    revision.get("revision").check(&NOT_NEGATIVE, causes);
}
