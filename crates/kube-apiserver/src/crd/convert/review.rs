//! The ConversionReview sent to a webhook, and the answer checked: the webhook of somebody else is not believed.

use serde_json::{Value, json};

/// The review that asks for `objects` in `wanted`.
pub(super) fn request(uid: &str, version: &str, objects: &[&Value], wanted: &str) -> Value {
    json!({"kind": "ConversionReview", "apiVersion": format!("apiextensions.k8s.io/{version}"),
        "request": {"uid": uid, "desiredAPIVersion": wanted, "objects": objects}})
}

/// The converted objects of an answer, with the metadata a webhook may not change as it was. The error continues
/// "conversion webhook for GROUP/VERSION, Kind=KIND".
pub(super) fn converted(
    uid: &str,
    version: &str,
    originals: &[&Value],
    wanted: &str,
    mut answer: Value,
) -> Result<Vec<Value>, String> {
    let failed = |why: String| Err(format!(" failed: {why}"));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let expected = (format!("apiextensions.k8s.io/{version}"), "ConversionReview".to_owned());
    let got = (text(&answer["apiVersion"]), text(&answer["kind"]));
    if got != expected {
        return failed(format!(
            "expected webhook response of {}, Kind={}, got {}, Kind={}",
            expected.0, expected.1, got.0, got.1
        ));
    }
    let response = answer["response"].take();
    if !response.is_object() {
        return failed("no response provided".to_owned());
    }
    let said = text(&response["uid"]);
    if said != uid {
        return failed(format!("expected response.uid={uid:?}, got {said:?}"));
    }
    let status = text(&response["result"]["status"]);
    if status != "Success" {
        let message = text(&response["result"]["message"]);
        return failed(if message.is_empty() {
            format!("response.result.status was '{status}', not 'Success'")
        } else {
            message
        });
    }
    let Value::Array(objects) = response["convertedObjects"].clone() else {
        return Err(format!(" returned 0 objects, expected {}", originals.len()));
    };
    if objects.len() != originals.len() {
        return Err(format!(" returned {} objects, expected {}", objects.len(), originals.len()));
    }
    let pairs = originals.iter().zip(objects).enumerate();
    pairs.map(|(at, (original, object))| checked(at, original, object, wanted)).collect()
}

/// One object of the answer, which must be the original in another version.
fn checked(at: usize, original: &Value, mut object: Value, wanted: &str) -> Result<Value, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let invalid = |why: String| Err(format!(" returned invalid converted object at index {at}: {why}"));
    let version = text(&object["apiVersion"]);
    if version != wanted {
        return invalid(format!("invalid groupVersion (expected {wanted}, received {version})"));
    }
    if object["kind"] != original["kind"] {
        let (before, after) = (text(&original["kind"]), text(&object["kind"]));
        return invalid(format!("invalid kind (expected {before}, received {after})"));
    }
    for (field, word) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let (before, after) = (text(&original["metadata"][field]), text(&object["metadata"][field]));
        if before != after {
            return invalid(format!("must have the same {word}: {before} != {after}"));
        }
    }
    let Value::Object(from) = object["metadata"].take() else {
        return Err(" returned invalid metadata: missing metadata in converted object".to_owned());
    };
    let mut metadata = original["metadata"].as_object().cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        match from.get(field) {
            None | Some(Value::Null) => {
                metadata.remove(field);
            }
            Some(Value::Object(map)) if map.values().all(Value::is_string) => {
                metadata.insert(field.to_owned(), Value::Object(map.clone()));
            }
            Some(_) => return Err(format!(" returned invalid metadata: {field} must be a map of strings")),
        }
    }
    object["metadata"] = Value::Object(metadata);
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(change: &[(&str, Value)], expect: Result<Value, &str>) {
        let original = json!({"apiVersion": "e.com/v1", "kind": "A", "metadata": {"name": "a", "uid": "1",
            "resourceVersion": "7", "labels": {"x": "1"}}});
        let mut answer = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": {
            "uid": "u", "result": {"status": "Success"}, "convertedObjects": [{"apiVersion": "e.com/v2", "kind": "A",
                "metadata": {"name": "a", "uid": "1", "labels": {"y": "2"}, "resourceVersion": "9", "finalizers": ["z"]},
                "spec": {}}]}});
        for (pointer, value) in change {
            *answer.pointer_mut(pointer).unwrap() = value.clone();
        }
        let got = converted("u", "v1", &[&original], "e.com/v2", answer);
        match expect {
            Ok(object) => assert_eq!(got, Ok(vec![object])),
            Err(text) => assert_eq!(got.unwrap_err(), text),
        }
    }

    #[test]
    fn answers_are_checked() {
        const FIRST: &str = "/response/convertedObjects/0";
        let at = |path: &str| format!("{FIRST}{path}");
        check(
            &[],
            Ok(json!({"apiVersion": "e.com/v2", "kind": "A", "spec": {}, "metadata": {"name": "a", "uid": "1",
                "resourceVersion": "7", "labels": {"y": "2"}}})),
        );
        check(&[("/response", Value::Null)], Err(" failed: no response provided"));
        check(&[("/response/uid", json!("v"))], Err(" failed: expected response.uid=\"u\", got \"v\""));
        check(
            &[("/response/result", json!({"status": "Failure"}))],
            Err(" failed: response.result.status was 'Failure', not 'Success'"),
        );
        check(&[("/response/result", json!({"status": "Failure", "message": "no way"}))], Err(" failed: no way"));
        check(&[("/response/convertedObjects", json!([]))], Err(" returned 0 objects, expected 1"));
        let invalid = " returned invalid converted object at index 0: ";
        check(
            &[(&at("/apiVersion"), json!("e.com/v3"))],
            Err(&format!("{invalid}invalid groupVersion (expected e.com/v2, received e.com/v3)")),
        );
        check(&[(&at("/kind"), json!("B"))], Err(&format!("{invalid}invalid kind (expected A, received B)")));
        check(&[(&at("/metadata/name"), json!("b"))], Err(&format!("{invalid}must have the same name: a != b")));
        check(&[(&at("/metadata/uid"), json!("2"))], Err(&format!("{invalid}must have the same UID: 1 != 2")));
        check(
            &[(&at("/metadata/labels"), json!({"y": 1}))],
            Err(" returned invalid metadata: labels must be a map of strings"),
        );
    }
}
