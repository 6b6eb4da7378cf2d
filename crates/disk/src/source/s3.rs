//! Images in object stores that speak the protocol of S3.

use std::sync::{Arc, Mutex, PoisonError};

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use url::Url;

use super::connection::Connection;
use super::origin::{Credentials, Later, Origin};
use super::remote::Remote;
use super::sigv4::{Key, Scope, authorization, canonical_path, empty_body};
use super::{Error, Source};

/// The region of stores that have none of their own.
const REGION: &str = "us-east-1";
/// Where Amazon says a bucket really is.
const BUCKET_REGION: &str = "x-amz-bucket-region";

/// An object in a store.
#[derive(Clone, Debug, Default)]
pub struct Object {
    /// `https://host/bucket/key`, `https://bucket.host/key`, `s3://host.domain/bucket/key` or `s3://bucket/key`.
    pub url: String,
    /// Access key and secret key; none asks anonymously.
    pub key: Option<(String, String)>,
}

/// Asks the store for the object and returns it as a source. Call it within the runtime that is to do the work.
///
/// # Errors
/// When the address cannot be used, or the store does not give the object to this key.
pub async fn s3(object: &Object, connection: &Connection) -> Result<impl Source + use<>, Error> {
    let url = address(&object.url)?;
    let credentials: Arc<dyn Credentials> = match object.key.clone() {
        Some((id, secret)) => {
            let region = Mutex::new(region(url.host_str().unwrap_or_default()).to_owned());
            Arc::new(Signer { key: Key { id, secret }, region })
        }
        None => Arc::new(HeaderMap::new()),
    };
    Remote::probe(Origin::new(connection, url, HeaderMap::new(), credentials)?).await
}

fn address(text: &str) -> Result<Url, Error> {
    let refused = |why: String| Error::Address { url: text.to_owned(), why };
    let url = Url::parse(text)
        .map_err(|e| refused(format!("{e}; an object is s3://bucket/key or https://host/bucket/key")))?;
    let path = url.path().trim_start_matches('/');
    if path.is_empty() {
        return Err(refused("it names no object; an object is s3://bucket/key or https://host/bucket/key".into()));
    }
    let host = url.host_str().filter(|host| !host.is_empty()).ok_or_else(|| refused("it names no host".into()))?;
    let authority = match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    };
    let place = match url.scheme() {
        "http" | "https" => format!("{}://{authority}/{path}", url.scheme()),
        // A name with a dot or a port is a server; a single word is a bucket at Amazon.
        "s3" if authority.contains(['.', ':']) || host == "localhost" => format!("https://{authority}/{path}"),
        "s3" => format!("https://s3.amazonaws.com/{authority}/{path}"),
        other => return Err(refused(format!("the scheme is {other:?}, and it has to be s3, http or https"))),
    };
    let mut found = Url::parse(&place).map_err(|e| refused(e.to_string()))?;
    found.set_path(&canonical_path(found.path()));
    found.set_query(url.query());
    Ok(found)
}

/// The region in the name of one of Amazon's servers: `s3.eu-west-1.amazonaws.com`, `bucket.s3-eu-west-1.amazonaws.com`.
fn region(host: &str) -> &str {
    let Some(name) = host.strip_suffix(".amazonaws.com").or_else(|| host.strip_suffix(".amazonaws.com.cn")) else {
        return REGION;
    };
    let mut labels = name.rsplit('.');
    let last = labels.next().unwrap_or_default();
    match last.strip_prefix("s3-") {
        Some(region) => region,
        None if last == "s3" => REGION,
        None => last,
    }
}

struct Signer {
    key: Key,
    region: Mutex<String>,
}

impl Signer {
    fn sign(&self, method: &Method, url: &Url) -> HeaderMap {
        #[expect(clippy::disallowed_methods, reason = "the server compares it with its own wall clock")]
        let now = jiff::Timestamp::now();
        let time = now.strftime("%Y%m%dT%H%M%SZ").to_string();
        let region = self.region.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let host = match (url.host_str().unwrap_or_default(), url.port()) {
            (host, Some(port)) => format!("{host}:{port}"),
            (host, None) => host.to_owned(),
        };
        let body = empty_body();
        let signed = [("host", host.as_str()), ("x-amz-content-sha256", &body), ("x-amz-date", &time)];
        let scope = Scope { region: &region, service: "s3", time: &time };
        let authorization = authorization(method.as_str(), url, &signed, &self.key, &scope);
        let mut headers = HeaderMap::new();
        // The host is the client's to send.
        let sent = signed.into_iter().skip(1).chain([("authorization", authorization.as_str())]);
        for (name, value) in sent {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                headers.insert(name, value);
            }
        }
        headers
    }
}

impl Credentials for Signer {
    fn headers<'a>(&'a self, method: &'a Method, url: &'a Url) -> Later<'a, Result<HeaderMap, Error>> {
        let headers = self.sign(method, url);
        Box::pin(async { Ok(headers) })
    }

    /// A store that says in which region the bucket is wants the request signed for that one.
    fn refused<'a>(&'a self, _: StatusCode, headers: &'a HeaderMap) -> Later<'a, Result<bool, Error>> {
        let other = headers.get(BUCKET_REGION).and_then(|value| value.to_str().ok());
        let mut region = self.region.lock().unwrap_or_else(PoisonError::into_inner);
        let moved = other.is_some_and(|other| other != *region);
        if let (true, Some(other)) = (moved, other) {
            other.clone_into(&mut region);
        }
        Box::pin(async move { Ok(moved) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(input: &str, expect: &str) {
        let found = match address(input) {
            Ok(url) => url.to_string(),
            Err(error) => error.to_string(),
        };
        assert!(found.contains(expect), "{input}: {found}");
    }

    #[test]
    fn objects_are_found_by_path_and_by_host() {
        check("s3://bucket/dir/a.img", "https://s3.amazonaws.com/bucket/dir/a.img");
        check("s3://store.lan/bucket/a.img", "https://store.lan/bucket/a.img");
        check("s3://store:9000/bucket/a.img", "https://store:9000/bucket/a.img");
        check("http://127.0.0.1:9000/bucket/a.img", "http://127.0.0.1:9000/bucket/a.img");
        check(
            "https://bucket.s3.eu-west-1.amazonaws.com/a b.img",
            "https://bucket.s3.eu-west-1.amazonaws.com/a%20b.img",
        );
        check("https://host/bucket/a+b", "https://host/bucket/a%2Bb");
        check("s3://bucket", "names no object");
        check("gs://bucket/x", "has to be s3, http or https");
        check("bucket/x", "an object is s3://bucket/key");
    }

    #[test]
    fn regions_stand_in_the_names_of_servers() {
        let check = |host: &str, expect: &str| assert_eq!(region(host), expect, "{host}");
        check("s3.amazonaws.com", "us-east-1");
        check("bucket.s3.amazonaws.com", "us-east-1");
        check("s3.eu-west-1.amazonaws.com", "eu-west-1");
        check("bucket.s3.eu-west-1.amazonaws.com", "eu-west-1");
        check("s3-eu-west-1.amazonaws.com", "eu-west-1");
        check("s3.cn-north-1.amazonaws.com.cn", "cn-north-1");
        check("minio.default.svc", "us-east-1");
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever region a store names, what is signed for it is a header of one line, and the same answer again moves nobody.
        #[test]
        fn any_region_is_one_header_line_and_followed_once(named in proptest::collection::vec(any::<u8>(), 0..80)) {
            let Ok(value) = HeaderValue::from_bytes(&named) else { return Ok(()) };
            let answer = HeaderMap::from_iter([(HeaderName::from_static(BUCKET_REGION), value)]);
            let signer = Signer { key: Key { id: "id".into(), secret: "secret".into() }, region: Mutex::new(REGION.into()) };
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let moved = runtime.block_on(signer.refused(StatusCode::BAD_REQUEST, &answer)).unwrap();
            let again = runtime.block_on(signer.refused(StatusCode::BAD_REQUEST, &answer)).unwrap();
            prop_assert!(!again, "{named:?} moved twice, first {moved}");
            let url = Url::parse("https://store.lan/bucket/key").unwrap();
            for (_, value) in &signer.sign(&Method::GET, &url) {
                prop_assert!(!value.as_bytes().iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
            }
        }

        #[test]
        fn any_address_is_http_without_credentials_or_refused(text in "(s3|https?|gs)?(://)?[ -~]{0,60}|\\PC{0,40}") {
            if let Ok(url) = address(&text) {
                prop_assert!(matches!(url.scheme(), "http" | "https") && url.host().is_some());
                prop_assert_eq!((url.username(), url.password()), ("", None));
            }
        }
    }
}
