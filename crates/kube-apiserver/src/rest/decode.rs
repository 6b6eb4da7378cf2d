//! Request bodies: bounded, JSON or YAML, with duplicate fields noticed.

use axum::body::Body;
use bytes::Bytes;
use http::header;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeSeed;
use serde_json::Value;

use apimachinery::error::ApiError;

use super::{Call, protobuf};
use tree::{Reading, Tree};

mod tree;

/// Reads the whole body, within the server's limit.
pub(super) async fn read(call: &Call, body: Body) -> Result<Bytes, ApiError> {
    let limit = call.server.config().body_limit;
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => {
            Err(ApiError::new(413, "RequestEntityTooLarge", format!("Request entity too large: limit is {limit}")))
        }
        Err(_) => Err(ApiError::bad_request("the request body could not be read")),
    }
}

/// The media type of a request without its parameters.
pub(super) fn content_type(call: &Call) -> String {
    let value = call.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// A body as a tree, with the paths of fields it names twice.
pub(super) fn document(call: &Call, bytes: &[u8]) -> Result<(Value, Vec<String>), ApiError> {
    match content_type(call).as_str() {
        "" | "application/json" => json(bytes),
        "application/yaml" | "application/apply-patch+yaml" | "application/x-yaml" => yaml(bytes),
        protobuf::MEDIA_TYPE => Ok((protobuf::document(bytes)?, Vec::new())),
        other => Err(ApiError::new(
            415,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml (got {other})"
            ),
        )),
    }
}

/// JSON, with the paths of fields it names twice.
pub fn json(bytes: &[u8]) -> Result<(Value, Vec<String>), ApiError> {
    let mut reading = Reading::default();
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = Tree(&mut reading).deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    match value {
        Ok(value) => Ok((value, reading.duplicates)),
        Err(error) => Err(reading
            .refused
            .unwrap_or_else(|| ApiError::bad_request(format!("the body is not valid JSON: {error}")))),
    }
}

/// YAML (and so JSON), with the paths of fields it names twice; aliases are paid from the parser's own budget.
pub fn yaml(bytes: &[u8]) -> Result<(Value, Vec<String>), ApiError> {
    match json(bytes) {
        Err(error) if !error.message.starts_with("the body is not valid JSON") => return Err(error),
        Err(_) => {}
        found => return found,
    }
    let text = std::str::from_utf8(bytes).map_err(|_| ApiError::bad_request("the body is not valid UTF-8"))?;
    let text = first_document(text);
    let mut reading = Reading::default();
    let options = serde_saphyr::options! { duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::LastWins };
    let value = serde_saphyr::with_deserializer_from_str_with_options(text, options, |reader| {
        Tree(&mut reading).deserialize(reader)
    });
    match value {
        Ok(value) => Ok((value, reading.duplicates)),
        Err(error) => Err(reading
            .refused
            .unwrap_or_else(|| ApiError::bad_request(format!("the body is not valid YAML: {error}")))),
    }
}

/// The first of the documents a text holds, which is the one that counts.
fn first_document(text: &str) -> &str {
    let (mut begun, mut end) = (false, 0);
    for line in text.split_inclusive('\n') {
        let content = line.trim_end();
        let begins = content == "---" || content.starts_with("--- ");
        if content == "..." || begins && begun {
            return &text[..end];
        }
        begun |= begins || !content.is_empty() && !content.starts_with(['#', '%']);
        end += line.len();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::bounds::VALUES;

    #[test]
    fn duplicates_are_noted_with_their_path() {
        let (value, duplicates) = json(br#"{"a":{"b":1,"b":2},"l":[{"x":1},{"y":1,"y":3}]}"#).unwrap();
        assert_eq!(value, serde_json::json!({"a": {"b": 2}, "l": [{"x": 1}, {"y": 3}]}));
        assert_eq!(duplicates, ["a.b", "l[1].y"]);
    }

    #[test]
    fn yaml_keeps_the_last_of_two_and_notes_it() {
        let (value, duplicates) = yaml(b"a:\n  b: 1\n  b: 2\nl: [{x: 1, x: 3}]\n").unwrap();
        assert_eq!(value, serde_json::json!({"a": {"b": 2}, "l": [{"x": 3}]}));
        assert_eq!(duplicates, ["a.b", "l[0].x"]);
    }

    #[test]
    fn the_first_of_several_yaml_documents_counts() {
        for text in
            ["a: 1\n---\na: 2\n", "# x\n---\na: 1\n--- # y\na: 2\n", "%YAML 1.2\n---\na: 1\n...\nb: 2\n", "a: 1"]
        {
            assert_eq!(yaml(text.as_bytes()).unwrap().0, serde_json::json!({"a": 1}), "{text}");
        }
        let quoted = "a: |\n  ---\n  b\n";
        assert_eq!(yaml(quoted.as_bytes()).unwrap().0, serde_json::json!({"a": "---\nb\n"}));
    }

    #[test]
    fn depth_is_bounded() {
        let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels)).into_bytes();
        for levels in [101, 5000, 1_000_000] {
            for error in [json(&deep(levels)).unwrap_err(), yaml(&deep(levels)).unwrap_err()] {
                assert_eq!(error.code, 400);
                assert!(error.message.contains("nested too deeply"), "{error}");
            }
        }
        let block: String = (0..200).map(|n| format!("{}a:\n", " ".repeat(n))).collect();
        assert_eq!(yaml(block.as_bytes()).unwrap_err().code, 400);
        assert!(json(&deep(100)).is_ok());
        assert_eq!(yaml(b"a: [1, x]").unwrap().0, serde_json::json!({"a": [1, "x"]}));
    }

    #[test]
    fn values_are_counted() {
        let many = |count: usize| format!("[{}1]", "1,".repeat(count - 2)).into_bytes();
        assert!(json(&many(VALUES)).is_ok());
        for error in [json(&many(VALUES + 1)).unwrap_err(), yaml(&many(VALUES + 1)).unwrap_err()] {
            assert_eq!((error.code, error.reason), (413, "RequestEntityTooLarge"));
        }
    }

    #[test]
    fn aliases_do_not_multiply() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..12 {
            let alias = format!("*a{}", n - 1);
            bomb.push_str(&format!("a{n}: &a{n} [{}]\n", [alias.as_str(); 9].join(", ")));
        }
        let error = yaml(bomb.as_bytes()).unwrap_err();
        assert!(matches!(error.code, 400 | 413), "{error}");
    }
}
