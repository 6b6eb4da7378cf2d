//! What is written into a HyperConverged object before it is stored. Pure.

use kit::admission::{Cause, Request, Verdict};
use serde_json::{Value, json};

use super::replace;
use crate::conversion::move_gates;

pub(super) fn judge(request: &Request) -> Verdict {
    let mut spec = request.object["spec"].clone();
    if !spec.is_object() {
        spec = json!({});
    }
    if let Err(message) = move_gates(&mut spec) {
        return Verdict::Invalid(vec![Cause {
            reason: "FieldValueInvalid",
            field: "spec.featureGates".to_owned(),
            message,
        }]);
    }
    if request.operation == "CREATE" && spec["virtualization"]["ksmConfiguration"].is_null() {
        // Nodes merge equal pages under pressure unless the object is made with something else.
        crate::tree::put(&mut spec, "virtualization.ksmConfiguration", json!({}));
    }
    if request.object.get("spec").unwrap_or(&Value::Null) == &spec {
        return Verdict::allow();
    }
    Verdict::Patch(replace(&spec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(operation: &str, spec: Value, expect: Option<Value>) {
        let object = json!({ "spec": spec });
        let found = judge(&Request { operation: operation.to_owned(), object, ..Request::default() });
        assert_eq!(found, expect.map_or(Verdict::allow(), |spec| Verdict::Patch(replace(&spec))));
    }

    #[test]
    fn gates_become_fields_and_new_objects_merge_pages() {
        let merging = || json!({ "ksmConfiguration": {} });
        check("CREATE", json!({}), Some(json!({ "virtualization": merging() })));
        check("UPDATE", json!({}), None);
        let gate = json!({ "virtualization": merging(), "featureGates": [{ "name": "persistentReservation" }] });
        let field = json!({ "virtualization": merging(), "storage": { "persistentReservationConfiguration": { "enabled": true } } });
        check("UPDATE", gate, Some(field));
    }

    #[test]
    fn gates_that_contradict_their_fields_are_refused() {
        let spec = json!({
            "featureGates": [{ "name": "persistentReservation" }],
            "storage": { "persistentReservationConfiguration": { "enabled": false } },
        });
        let object = json!({ "spec": spec });
        assert!(matches!(judge(&Request { object, ..Request::default() }), Verdict::Invalid(_)));
    }
}
