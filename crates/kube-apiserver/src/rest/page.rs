//! Continue tokens: where a limited list goes on.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::error::ApiError;

/// The last key handed out and the revision of the first page.
pub(super) struct Token {
    /// None goes on in what is there now: the client chose that when the revision had been forgotten.
    pub(super) revision: Option<u64>,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Token {
    pub(super) fn encode(&self) -> String {
        let text = json!({"v": 1, "rv": self.revision, "ns": self.namespace, "name": self.name}).to_string();
        URL_SAFE_NO_PAD.encode(text)
    }

    pub(super) fn decode(text: &str) -> Result<Self, ApiError> {
        let read = || {
            let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
            let value: Value = serde_json::from_slice(&bytes).ok()?;
            let revision = match value.get("rv")? {
                Value::Null => None,
                number => Some(number.as_u64()?),
            };
            Some(Self {
                revision,
                namespace: value["ns"].as_str()?.to_owned(),
                name: value["name"].as_str()?.to_owned(),
            })
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
        let now = Self { revision: None, namespace: self.namespace.clone(), name: self.name.clone() };
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
            let token = Token { revision, namespace: "n".into(), name: "a".into() };
            let read = Token::decode(&token.encode()).unwrap();
            assert_eq!((read.revision, read.namespace.as_str(), read.name.as_str()), (revision, "n", "a"));
        }
        for text in ["x", "e30", &URL_SAFE_NO_PAD.encode(r#"{"rv": "1", "ns": "", "name": ""}"#)] {
            assert_eq!(Token::decode(text).err().map(|e| e.code), Some(400), "{text}");
        }
    }
}
