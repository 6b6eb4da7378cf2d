//! What a connection asks of a pod, as the object that admission sees: from the query of the request, and back.

use serde_json::{Value, json};

use apimachinery::error::ApiError;

/// What can be connected.
const SWITCHES: [&str; 4] = ["stdin", "stdout", "stderr", "tty"];

/// Whether a parameter says yes.
pub(super) fn is_true(value: &str) -> bool {
    matches!(value, "1" | "t" | "T" | "true" | "True" | "TRUE")
}

/// The options object of a subresource.
pub(super) fn of_query(subresource: &str, pairs: &[(String, String)]) -> Value {
    let kind = match subresource {
        "exec" => "PodExecOptions",
        "attach" => "PodAttachOptions",
        _ => "PodPortForwardOptions",
    };
    let mut object = json!({"apiVersion": "v1", "kind": kind});
    let (mut command, mut ports) = (Vec::new(), Vec::new());
    for (name, value) in pairs {
        match (kind, name.as_str()) {
            ("PodPortForwardOptions", "ports") => {
                ports.extend(value.split(',').filter_map(|port| port.parse::<u16>().ok()));
            }
            ("PodPortForwardOptions", _) => {}
            ("PodExecOptions", "command") => command.push(value.as_str()),
            (_, "container") if object["container"].is_null() => object["container"] = value.as_str().into(),
            (_, name) if SWITCHES.contains(&name) && is_true(value) => object[name] = true.into(),
            _ => {}
        }
    }
    if !command.is_empty() {
        object["command"] = json!(command);
    }
    if !ports.is_empty() {
        object["ports"] = json!(ports);
    }
    object
}

/// The query that asks for what an options object says.
///
/// # Errors
/// When admission made something of it that is no such object.
pub(super) fn to_query(object: &Value) -> Result<String, ApiError> {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    let unreadable = |field: &str, must: &str| {
        let kind = object["kind"].as_str().unwrap_or_default();
        ApiError::bad_request(format!("what admission made of {kind} cannot be read: {field} {must}"))
    };
    for (field, value) in object.as_object().into_iter().flatten() {
        match (field.as_str(), value) {
            ("apiVersion" | "kind", _) | (_, Value::Null | Value::Bool(false)) => {}
            (field, Value::Bool(true)) if SWITCHES.contains(&field) => {
                query.append_pair(field, "true");
            }
            (field, _) if SWITCHES.contains(&field) => return Err(unreadable(field, "must be true or false")),
            ("container", Value::String(name)) => {
                query.append_pair("container", name);
            }
            ("container", _) => return Err(unreadable("container", "must be a string")),
            ("command", Value::Array(words)) if words.iter().all(Value::is_string) => {
                query.extend_pairs(words.iter().filter_map(Value::as_str).map(|word| ("command", word)));
            }
            ("command", _) => return Err(unreadable("command", "must be a list of strings")),
            ("ports", Value::Array(ports)) if ports.iter().all(Value::is_u64) => {
                query.extend_pairs(ports.iter().map(|port| ("ports", port.to_string())));
            }
            ("ports", _) => return Err(unreadable("ports", "must be a list of numbers")),
            (field, _) => return Err(unreadable(field, "is an unknown field")),
        }
    }
    Ok(query.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(subresource: &str, query: &str, expect: &Value) {
        let pairs = |query: &str| url::form_urlencoded::parse(query.as_bytes()).into_owned().collect::<Vec<_>>();
        let object = of_query(subresource, &pairs(query));
        assert_eq!(object, *expect, "{query}");
        assert_eq!(of_query(subresource, &pairs(&to_query(&object).unwrap())), *expect, "{query}");
    }

    #[test]
    fn options_are_what_the_query_asks() {
        let exec = json!({"apiVersion": "v1", "kind": "PodExecOptions", "container": "c", "command": ["sh", "-c", "a b&c"],
            "stdin": true, "tty": true});
        check("exec", "command=sh&command=-c&command=a+b%26c&container=c&stdin=true&tty=1&stderr=false", &exec);
        let attach = json!({"apiVersion": "v1", "kind": "PodAttachOptions", "stdout": true});
        check("attach", "stdout=true&command=sh", &attach);
        let forward = json!({"apiVersion": "v1", "kind": "PodPortForwardOptions", "ports": [80, 443]});
        check("portforward", "ports=80,443", &forward);
    }

    #[test]
    fn malformed_options_are_refused_by_field() {
        for (part, words) in [
            (json!({"stdin": "yes"}), "PodExecOptions cannot be read: stdin must be true or false"),
            (json!({"command": "sh"}), "command must be a list of strings"),
            (json!({"user": "root"}), "user is an unknown field"),
        ] {
            let mut object = json!({"apiVersion": "v1", "kind": "PodExecOptions"});
            json_patch::merge(&mut object, &part);
            let error = to_query(&object).unwrap_err();
            assert!(error.message.contains(words), "{error}");
        }
    }
}
