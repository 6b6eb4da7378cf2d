//! Continue tokens: where a limited list goes on.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use apimachinery::error::ApiError;
use kube_store::Key;

/// Where to go on, and the revision of the first page. In a list of one namespace the key is a name, else it begins with the
/// namespace.
pub(super) struct Token {
    /// None goes on in what is there now: the client chose that when the revision had been forgotten.
    pub(super) revision: Option<u64>,
    start: String,
}

const VERSION: &str = "meta.k8s.io/v1";

impl Token {
    /// The token to go on with after `last` in a list of `namespace`, or of all namespaces where that is empty.
    pub(super) fn after(last: &Key, namespace: &str, revision: u64) -> Self {
        // No name holds this character, so that the first one not handed out yet comes next.
        let name = format!("{}\0", last.name);
        let across = namespace.is_empty() && !last.namespace.is_empty();
        let start = if across { format!("{}/{name}", last.namespace) } else { name };
        Self { revision: Some(revision), start }
    }

    /// Whether an object is still to be handed out in a list of `namespace`.
    pub(super) fn is_before(&self, key: &Key, namespace: &str) -> bool {
        let start = self.start.split_once('/').filter(|_| namespace.is_empty());
        (&*key.namespace, &*key.name) >= start.unwrap_or((namespace, self.start.as_str()))
    }

    pub(super) fn encode(&self) -> String {
        let revision = self.revision.map_or(json!(-1), Value::from);
        URL_SAFE_NO_PAD.encode(json!({"v": VERSION, "rv": revision, "start": self.start}).to_string())
    }

    pub(super) fn decode(text: &str) -> Result<Self, ApiError> {
        let read = || {
            let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
            let value: Value = serde_json::from_slice(&bytes).ok()?;
            let revision = match value["rv"].as_i64()? {
                -1 => None,
                number => Some(u64::try_from(number).ok().filter(|number| *number > 0)?),
            };
            let start = value["start"].as_str().filter(|start| !start.is_empty())?;
            (value["v"] == VERSION).then(|| Self { revision, start: start.to_owned() })
        };
        read().ok_or_else(|| ApiError::bad_request("continue key is not valid: start a new list without it"))
    }

    /// What a client hears whose revision has been forgotten, with a token to go on without it.
    pub(super) fn expired(&self) -> ApiError {
        let mut error = ApiError::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list \
             without the continue parameter, or use the continue token in this response to retrieve the remainder of the \
             results. Continuing with the provided token results in an inconsistent list - objects that were created, \
             modified, or deleted between the time the first chunk was returned and now may show up in the list.",
        );
        let now = Self { revision: None, start: self.start.clone() };
        error.resume = Some(now.encode().into());
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_and_strangers_are_refused() {
        for revision in [Some(7), None] {
            let token = Token { revision, start: "n/a".into() };
            let read = Token::decode(&token.encode()).unwrap();
            assert_eq!((read.revision, read.start.as_str()), (revision, "n/a"));
        }
        let strange = |token: Value| URL_SAFE_NO_PAD.encode(token.to_string());
        for text in [
            "x".to_owned(),
            strange(json!({})),
            strange(json!({"v": VERSION, "rv": "1", "start": "a"})),
            strange(json!({"v": VERSION, "rv": 0, "start": "a"})),
            strange(json!({"v": VERSION, "rv": 1, "start": ""})),
            strange(json!({"v": "v2", "rv": 1, "start": "a"})),
        ] {
            assert_eq!(Token::decode(&text).err().map(|e| e.code), Some(400), "{text}");
        }
    }

    #[test]
    fn a_list_goes_on_after_the_last_key() {
        let key = |namespace: &str, name: &str| Key::new("pods", namespace, name);
        let across = Token::after(&key("b", "m"), "", 7);
        let left = [("a", "z"), ("b", "m"), ("b", "m-1"), ("b-c", "a"), ("c", "a")];
        let left = left.map(|(namespace, name)| across.is_before(&key(namespace, name), ""));
        assert_eq!(left, [false, false, true, true, true]);
        for namespace in ["b", ""] {
            let within = Token::after(&key(namespace, "m"), namespace, 7);
            assert_eq!(
                ["a", "m", "m-1"].map(|n| within.is_before(&key(namespace, n), namespace)),
                [false, false, true]
            );
        }
    }
}
