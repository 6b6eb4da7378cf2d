//! How registries let one in: they refuse, and say in the refusal who gives tokens.

use std::sync::Arc;

use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use serde::Deserialize;
use tokio::sync::Mutex;
use url::Url;

use crate::source::Error;
use crate::source::connection::Connection;
use crate::source::http::{address, basic};
use crate::source::origin::{Credentials, Later, Origin};

const TOKEN_LIMIT: usize = 256 << 10;

/// What one registry was shown last.
pub(super) struct Token {
    connection: Connection,
    login: Option<(String, String)>,
    scope: String,
    shown: Mutex<Option<HeaderValue>>,
}

/// What a registry asks for.
#[derive(Debug, PartialEq, Eq)]
enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

#[derive(Deserialize)]
struct Given {
    token: Option<String>,
    access_token: Option<String>,
}

impl Token {
    pub(super) fn new(connection: &Connection, login: Option<(String, String)>, scope: String) -> Self {
        let login = login.filter(|(name, password)| !name.is_empty() || !password.is_empty());
        Self { connection: connection.clone(), login, scope, shown: Mutex::new(None) }
    }

    async fn answer(&self, challenge: Challenge) -> Result<Option<HeaderValue>, Error> {
        match (challenge, &self.login) {
            (Challenge::Basic, Some((name, password))) => basic(name, password).map(Some),
            (Challenge::Basic, None) => Ok(None),
            (Challenge::Bearer { realm, service, scope }, _) => self.fetch(&realm, service, scope).await.map(Some),
        }
    }

    async fn fetch(&self, realm: &str, service: Option<String>, scope: Option<String>) -> Result<HeaderValue, Error> {
        let mut url: Url = address(realm)?;
        if let Some(service) = service {
            url.query_pairs_mut().append_pair("service", &service);
        }
        url.query_pairs_mut().append_pair("scope", scope.as_deref().unwrap_or(&self.scope));
        let secret = match &self.login {
            Some((name, password)) => HeaderMap::from_iter([(header::AUTHORIZATION, basic(name, password)?)]),
            None => HeaderMap::new(),
        };
        let desk = Origin::new(&self.connection, url, HeaderMap::new(), Arc::new(secret))?;
        let (_, text) = desk.document("a token", TOKEN_LIMIT).await.map_err(|error| match error {
            Error::Status { url, status, .. } => Error::Credentials {
                url,
                why: format!(
                    "the registry's token service answered {status}; check the name and password of the secret"
                ),
            },
            other => other,
        })?;
        let document = |source: Box<dyn std::error::Error + Send + Sync>| Error::Document {
            url: desk.name(),
            what: "a token",
            source,
        };
        let given: Given = serde_json::from_slice(&text).map_err(|e| document(e.into()))?;
        let token = given.token.or(given.access_token).ok_or_else(|| document("it has no member \"token\"".into()))?;
        let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|e| document(e.into()))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

impl Credentials for Token {
    fn headers<'a>(&'a self, _: &'a Method, _: &'a Url) -> Later<'a, Result<HeaderMap, Error>> {
        Box::pin(async {
            let shown = self.shown.lock().await.clone();
            Ok(shown.map(|value| (header::AUTHORIZATION, value)).into_iter().collect())
        })
    }

    fn refused<'a>(&'a self, status: StatusCode, headers: &'a HeaderMap) -> Later<'a, Result<bool, Error>> {
        Box::pin(async move {
            let asked = headers.get_all(header::WWW_AUTHENTICATE).iter();
            let mut asked = asked.filter_map(|value| value.to_str().ok()).filter_map(challenge);
            let Some(challenge) = asked.next().filter(|_| status == StatusCode::UNAUTHORIZED) else { return Ok(false) };
            let Some(value) = self.answer(challenge).await? else { return Ok(false) };
            let mut shown = self.shown.lock().await;
            let new = shown.as_ref() != Some(&value);
            *shown = Some(value);
            Ok(new)
        })
    }
}

/// `Bearer realm="https://host/token",service="host",scope="repository:name:pull"`
fn challenge(text: &str) -> Option<Challenge> {
    let (scheme, rest) = text.split_once(' ').unwrap_or((text, ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let (mut realm, mut service, mut scope) = (None, None, None);
    let mut rest = rest;
    while let Some((name, after)) = rest.split_once('=') {
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_at(after.find(',').unwrap_or(after.len())),
        };
        match name.trim_start_matches([',', ' ']).trim().to_ascii_lowercase().as_str() {
            "realm" => realm = Some(value.to_owned()),
            "service" => service = Some(value.to_owned()),
            "scope" => scope = Some(value.to_owned()),
            _ => {}
        }
        rest = after;
    }
    Some(Challenge::Bearer { realm: realm?, service, scope })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read() {
        let check = |text: &str, realm: &str, service: Option<&str>, scope: Option<&str>| {
            let (service, scope) = (service.map(str::to_owned), scope.map(str::to_owned));
            let expect = Challenge::Bearer { realm: realm.to_owned(), service, scope };
            assert_eq!(challenge(text), Some(expect), "{text}");
        };
        check(
            r#"Bearer realm="https://a/token",service="a, b",scope="repository:x:pull,push""#,
            "https://a/token",
            Some("a, b"),
            Some("repository:x:pull,push"),
        );
        check(r#"bearer realm=https://a/token, service=a"#, "https://a/token", Some("a"), None);
        assert_eq!(challenge(r#"Basic realm="x""#), Some(Challenge::Basic));
        for text in ["Bearer", "Negotiate", "Bearer service=\"x\"", "Bearer realm=\"x", ""] {
            assert_eq!(challenge(text), None, "{text}");
        }
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// What a registry's refusal says is a challenge with a realm, or none.
        #[test]
        fn any_challenge_has_a_realm_or_is_none(text in ".{0,120}|[Bb]earer ((realm|service|scope)=(\"[^\"]{0,20}\"?|[a-z:/]{0,10}),? ?){0,5}") {
            if let Some(Challenge::Bearer { realm, service, scope }) = challenge(&text) {
                let lengths = realm.len() + service.map_or(0, |s| s.len()) + scope.map_or(0, |s| s.len());
                prop_assert!(lengths <= text.len());
            }
        }
    }
}
