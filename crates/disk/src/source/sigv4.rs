//! Signatures of requests to object stores: AWS Signature Version 4 in the header, for requests without a body.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use ring::{digest, hmac};
use url::Url;

/// Everything but what RFC 3986 calls unreserved is encoded, and nothing else is.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const PATH: &AsciiSet = &QUERY.remove(b'/');

/// Who signs.
#[derive(Clone)]
pub(super) struct Key {
    pub(super) id: String,
    pub(super) secret: String,
}

/// For what a signature holds.
pub(super) struct Scope<'a> {
    pub(super) region: &'a str,
    pub(super) service: &'a str,
    /// `20130524T000000Z`
    pub(super) time: &'a str,
}

/// A path as signatures want it written; a request has to be sent with the same.
pub(super) fn canonical_path(path: &str) -> String {
    let raw: Vec<u8> = percent_decode_str(path).collect();
    percent_encoding::percent_encode(&raw, PATH).to_string()
}

fn canonical_query(url: &Url) -> String {
    let encode = |text: &str| utf8_percent_encode(text, QUERY).to_string();
    let mut pairs: Vec<_> = url.query_pairs().map(|(name, value)| (encode(&name), encode(&value))).collect();
    pairs.sort();
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

/// The digest of no body.
pub(super) fn empty_body() -> String {
    hex(digest::digest(&digest::SHA256, b"").as_ref())
}

/// The `Authorization` header of a request with these headers: names in lower case, in order, `host` among them.
pub(super) fn authorization(method: &str, url: &Url, headers: &[(&str, &str)], key: &Key, scope: &Scope<'_>) -> String {
    let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
    let request = format!(
        "{method}\n{}\n{}\n{lines}\n{names}\n{}",
        canonical_path(url.path()),
        canonical_query(url),
        empty_body()
    );
    let date = scope.time.get(..8).unwrap_or_default();
    let credential = format!("{date}/{}/{}/aws4_request", scope.region, scope.service);
    let hashed = hex(digest::digest(&digest::SHA256, request.as_bytes()).as_ref());
    let message = format!("AWS4-HMAC-SHA256\n{}\n{credential}\n{hashed}", scope.time);
    let mut derived = hmac::Key::new(hmac::HMAC_SHA256, format!("AWS4{}", key.secret).as_bytes());
    for part in [date, scope.region, scope.service, "aws4_request"] {
        derived = hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&derived, part.as_bytes()).as_ref());
    }
    let signature = hex(hmac::sign(&derived, message.as_bytes()).as_ref());
    format!("AWS4-HMAC-SHA256 Credential={}/{credential}, SignedHeaders={names}, Signature={signature}", key.id)
}

/// Bytes in lower-case hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key { id: "AKIAIOSFODNN7EXAMPLE".into(), secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into() }
    }

    const SCOPE: Scope<'static> = Scope { region: "us-east-1", service: "s3", time: "20130524T000000Z" };

    /// The examples that AWS publishes with the specification.
    #[test]
    fn the_published_examples_come_out() {
        let url = Url::parse("https://examplebucket.s3.amazonaws.com/test.txt").unwrap();
        let (host, body) = ("examplebucket.s3.amazonaws.com", empty_body());
        let headers = [
            ("host", host),
            ("range", "bytes=0-9"),
            ("x-amz-content-sha256", body.as_str()),
            ("x-amz-date", SCOPE.time),
        ];
        let signed = authorization("GET", &url, &headers, &key(), &SCOPE);
        let expect = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41";
        assert!(signed.ends_with(&format!("Signature={expect}")), "{signed}");
        assert!(signed.contains("SignedHeaders=host;range;x-amz-content-sha256;x-amz-date"), "{signed}");

        let url = Url::parse("https://examplebucket.s3.amazonaws.com/?max-keys=2&prefix=J").unwrap();
        let headers = [("host", host), ("x-amz-content-sha256", body.as_str()), ("x-amz-date", SCOPE.time)];
        let signed = authorization("GET", &url, &headers, &key(), &SCOPE);
        let expect = "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7";
        assert!(signed.ends_with(&format!("Signature={expect}")), "{signed}");
    }

    #[test]
    fn paths_are_encoded_once() {
        let check = |path: &str, expect: &str| assert_eq!(canonical_path(path), expect);
        check("/a/b.img", "/a/b.img");
        check("/a b+(1)=2", "/a%20b%2B%281%29%3D2");
        check("/a%20b", "/a%20b");
        check("/%C3%BC", "/%C3%BC");
    }
}
