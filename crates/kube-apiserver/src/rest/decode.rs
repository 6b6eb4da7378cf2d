//! Request bodies: bounded, JSON or YAML, with duplicate fields noticed.

use axum::body::Body;
use bytes::Bytes;
use http::header;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::{Call, protobuf};
use crate::error::ApiError;

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

/// JSON, at most 128 levels deep (the parser's own limit).
pub(super) fn json(bytes: &[u8]) -> Result<(Value, Vec<String>), ApiError> {
    let mut duplicates = Vec::new();
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let seed = Tree { path: &mut String::new(), duplicates: &mut duplicates };
    let value = seed.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    value
        .map(|value| (value, duplicates))
        .map_err(|error| ApiError::bad_request(format!("the body is not valid JSON: {error}")))
}

/// YAML (and so JSON), within the parser's budget for depth and aliases.
pub(super) fn yaml(bytes: &[u8]) -> Result<(Value, Vec<String>), ApiError> {
    if let Ok(found) = json(bytes) {
        return Ok(found);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| ApiError::bad_request("the body is not valid UTF-8"))?;
    let value: Value = serde_saphyr::from_str(text)
        .map_err(|error| ApiError::bad_request(format!("the body is not valid YAML: {error}")))?;
    Ok((value, Vec::new()))
}

/// Builds a [`Value`], keeping the last of duplicate fields and noting their paths.
struct Tree<'a> {
    path: &'a mut String,
    duplicates: &'a mut Vec<String>,
}

/// Paths noted at most; a hostile body may hold millions.
const NOTED: usize = 20;

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;
    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let Self { path, duplicates } = self;
        let mut items = Vec::new();
        let length = path.len();
        loop {
            path.push_str(&format!("[{}]", items.len()));
            let item = seq.next_element_seed(Tree { path: &mut *path, duplicates: &mut *duplicates })?;
            path.truncate(length);
            match item {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }
    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let Self { path, duplicates } = self;
        let mut map = Map::new();
        let length = path.len();
        while let Some(key) = access.next_key::<String>()? {
            if length > 0 {
                path.push('.');
            }
            path.push_str(&key);
            if map.contains_key(&key) && duplicates.len() < NOTED {
                duplicates.push(path.clone());
            }
            let value = access.next_value_seed(Tree { path: &mut *path, duplicates: &mut *duplicates })?;
            path.truncate(length);
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_noted_with_their_path() {
        let (value, duplicates) = json(br#"{"a":{"b":1,"b":2},"l":[{"x":1},{"y":1,"y":3}]}"#).unwrap();
        assert_eq!(value, serde_json::json!({"a": {"b": 2}, "l": [{"x": 1}, {"y": 3}]}));
        assert_eq!(duplicates, ["a.b", "l[1].y"]);
    }

    #[test]
    fn depth_is_bounded() {
        let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
        assert_eq!(json(deep.as_bytes()).unwrap_err().code, 400);
        assert_eq!(yaml(deep.as_bytes()).unwrap_err().code, 400);
        assert_eq!(yaml(b"a: [1, x]").unwrap().0, serde_json::json!({"a": [1, "x"]}));
    }
}
