//! Images in Google Cloud Storage: public objects, and others with the key of a service account.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use tokio::sync::Mutex;
use url::Url;

use super::connection::Connection;
use super::http::address;
use super::origin::{Credentials, Later, Origin};
use super::remote::Remote;
use super::{Error, Source};

const STORE: &str = "https://storage.googleapis.com";
const READ: &str = "https://www.googleapis.com/auth/devstorage.read_only";
const GRANT: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const FORM: HeaderValue = HeaderValue::from_static("application/x-www-form-urlencoded");
/// A token is a line of text.
const TOKEN_LIMIT: usize = 64 << 10;
/// Seconds for which a token is kept, whatever is said of it.
const LONGEST: u64 = 86400;
/// Renewed this long before it ends, so that none ends on its way.
const MARGIN: Duration = Duration::from_secs(60);

/// An object in the store.
#[derive(Clone, Debug, Default)]
pub struct Object {
    /// `gs://bucket/object`, or the https address of either form.
    pub url: String,
    /// The key file of a service account; none asks anonymously.
    pub account: Option<PathBuf>,
}

/// Asks the store for the object and returns it as a source. Call it within the runtime that is to do the work.
///
/// # Errors
/// When the address or the key cannot be used, or the store does not give the object to this account.
pub async fn gcs(object: &Object, connection: &Connection) -> Result<impl Source + use<>, Error> {
    let url = place(&object.url)?;
    let credentials: Arc<dyn Credentials> = match &object.account {
        Some(path) => Arc::new(Account::read(path, connection)?),
        None => Arc::new(HeaderMap::new()),
    };
    Remote::probe(Origin::new(connection, url, HeaderMap::new(), credentials)?).await
}

fn place(text: &str) -> Result<Url, Error> {
    let refused = |why: &str| Error::Address { url: text.to_owned(), why: why.to_owned() };
    match text.strip_prefix("gs://") {
        None => address(text),
        Some(rest) => match rest.split_once('/') {
            Some((bucket, object)) if !bucket.is_empty() && !object.is_empty() => {
                address(&format!("{STORE}/{bucket}/{object}"))
            }
            _ => Err(refused("an object is gs://bucket/object")),
        },
    }
}

/// The parts of a key file that are needed.
#[derive(Deserialize)]
struct KeyFile {
    client_email: String,
    private_key: String,
    #[serde(default = "google")]
    token_uri: String,
}

fn google() -> String {
    "https://oauth2.googleapis.com/token".to_owned()
}

#[derive(Deserialize)]
struct Granted {
    access_token: String,
    expires_in: u64,
}

/// A service account, and the token it was last given.
struct Account {
    email: String,
    key: RsaKeyPair,
    /// Where tokens are given.
    desk: Origin,
    token: Mutex<Option<(HeaderValue, Instant)>>,
}

impl Account {
    fn read(path: &Path, connection: &Connection) -> Result<Self, Error> {
        let text = std::fs::read(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
        let content = |source: Box<dyn std::error::Error + Send + Sync>| Error::Content {
            path: path.to_owned(),
            what: "the JSON key of a service account",
            source,
        };
        let file: KeyFile = serde_json::from_slice(&text).map_err(|e| content(e.into()))?;
        let key = PrivatePkcs8KeyDer::from_pem_slice(file.private_key.as_bytes()).map_err(|e| content(e.into()))?;
        let key = RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()).map_err(|e| content(e.to_string().into()))?;
        let desk = Origin::new(connection, address(&file.token_uri)?, HeaderMap::new(), Arc::new(HeaderMap::new()))?;
        Ok(Self { email: file.client_email, key, desk, token: Mutex::new(None) })
    }

    /// The claim that we are this account, valid for as long as Google allows.
    fn assertion(&self, now: i64) -> Result<String, Error> {
        let claims = serde_json::json!({
            "iss": self.email, "scope": READ, "aud": self.desk.url.as_str(), "iat": now, "exp": now + 3600,
        });
        let head = BASE64_URL_SAFE_NO_PAD.encode(r#"{"alg":"RS256","typ":"JWT"}"#);
        let message = format!("{head}.{}", BASE64_URL_SAFE_NO_PAD.encode(claims.to_string()));
        let mut signature = vec![0; self.key.public().modulus_len()];
        let unsigned = |_| Error::Credentials { url: self.desk.name(), why: "the account's key cannot sign".into() };
        self.key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message.as_bytes(), &mut signature).map_err(unsigned)?;
        Ok(format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
    }

    async fn ask(&self) -> Result<(HeaderValue, Instant), Error> {
        #[expect(clippy::disallowed_methods, reason = "the server compares it with its own wall clock")]
        let now = jiff::Timestamp::now();
        let assertion = self.assertion(now.as_second())?;
        let grant = utf8_percent_encode(GRANT, NON_ALPHANUMERIC);
        let answer = self.desk.post(FORM, format!("grant_type={grant}&assertion={assertion}"), TOKEN_LIMIT).await?;
        let document = |source: Box<dyn std::error::Error + Send + Sync>| Error::Document {
            url: self.desk.name(),
            what: "an access token",
            source,
        };
        let (value, lasts) = granted(&answer).map_err(document)?;
        Ok((value, Instant::now() + lasts))
    }
}

/// The token in an answer as it is shown to the store, and for how long.
fn granted(answer: &[u8]) -> Result<(HeaderValue, Duration), Box<dyn std::error::Error + Send + Sync>> {
    let granted: Granted = serde_json::from_slice(answer)?;
    let mut value = HeaderValue::try_from(format!("Bearer {}", granted.access_token))?;
    value.set_sensitive(true);
    Ok((value, Duration::from_secs(granted.expires_in.min(LONGEST)).saturating_sub(MARGIN)))
}

impl Credentials for Account {
    fn headers<'a>(&'a self, _: &'a Method, _: &'a Url) -> Later<'a, Result<HeaderMap, Error>> {
        Box::pin(async {
            let mut token = self.token.lock().await;
            let value = match &*token {
                Some((value, until)) if Instant::now() < *until => value.clone(),
                _ => token.insert(self.ask().await?).0.clone(),
            };
            Ok(HeaderMap::from_iter([(header::AUTHORIZATION, value)]))
        })
    }

    /// A token may end before its time; the next one is asked for.
    fn refused<'a>(&'a self, status: StatusCode, _: &'a HeaderMap) -> Later<'a, Result<bool, Error>> {
        Box::pin(async move {
            let expired = status == StatusCode::UNAUTHORIZED;
            Ok(expired && self.token.lock().await.take().is_some())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_have_a_bucket_and_a_name() {
        let check = |input: &str, expect: &str| {
            let found = match place(input) {
                Ok(url) => url.to_string(),
                Err(error) => error.to_string(),
            };
            assert!(found.contains(expect), "{input}: {found}");
        };
        check("gs://bucket/dir/a.img", "https://storage.googleapis.com/bucket/dir/a.img");
        check("https://storage.googleapis.com/bucket/a", "https://storage.googleapis.com/bucket/a");
        check("gs://bucket", "an object is gs://bucket/object");
        check("gs:///a", "an object is gs://bucket/object");
        check("s3://bucket/a", "has to be http or https");
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    proptest! {
        /// A token that may stand in a header for a time that is bounded, or none.
        #[test]
        fn any_answer_of_a_token_server_is_parsed_or_refused(answer in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = granted(&answer);
        }

        #[test]
        fn an_answer_that_was_changed_is_a_token_or_none(
            token in "[ -~]{0,40}", seconds in any::<u64>(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
        ) {
            let mut answer = json!({ "access_token": token, "expires_in": seconds, "more": [] }).to_string().into_bytes();
            let (shown, lasts) = granted(&answer).unwrap();
            prop_assert_eq!(shown.to_str().unwrap(), format!("Bearer {token}"));
            prop_assert!(shown.is_sensitive() && lasts == Duration::from_secs(seconds.min(LONGEST)).saturating_sub(MARGIN));
            let at = at.index(answer.len());
            answer[at] = byte;
            if let Ok((shown, lasts)) = granted(&answer) {
                prop_assert!(lasts <= Duration::from_secs(LONGEST));
                prop_assert!(!shown.as_bytes().iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
            }
        }
    }
}
