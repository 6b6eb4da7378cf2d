//! Images on web servers.

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::header::{self, HeaderMap, HeaderValue};
use url::Url;

use super::connection::Connection;
use super::origin::{Origin, header_of};
use super::remote::Remote;
use super::{Error, Source};

/// What the API says about an image on a web server.
#[derive(Clone, Debug, Default)]
pub struct Web {
    /// An http or https address; a name and password in it are used as basic authentication.
    pub url: String,
    /// Name and password.
    pub basic: Option<(String, String)>,
    /// `Name: value`, for every server that is asked on the way.
    pub headers: Vec<String>,
    /// `Name: value`, for the server of `url` only.
    pub secret_headers: Vec<String>,
}

/// Asks the server for the image and returns it as a source. Call it within the runtime that is to do the work.
///
/// # Errors
/// When the address, a header or a certificate cannot be used, or the server has no image there.
pub async fn web(web: &Web, connection: &Connection) -> Result<impl Source + use<>, Error> {
    Remote::probe(origin(web, connection)?).await
}

fn origin(web: &Web, connection: &Connection) -> Result<Origin, Error> {
    let mut url = address(&web.url)?;
    let mut plain = HeaderMap::new();
    let mut secret = HeaderMap::new();
    for line in &web.headers {
        let (name, value) = header_of(line)?;
        // These prove something wherever they come from.
        let proves = [header::AUTHORIZATION, header::COOKIE, header::PROXY_AUTHORIZATION].contains(&name);
        if proves {
            secret.append(name, value)
        } else {
            plain.append(name, value)
        };
    }
    for line in &web.secret_headers {
        let (name, value) = header_of(line)?;
        plain.remove(&name);
        secret.append(name, value);
    }
    if let Some((name, password)) = web.basic.clone().or_else(|| inline(&url)) {
        secret.insert(header::AUTHORIZATION, basic(&name, &password)?);
    }
    // An address with a host has room for neither failure.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    Origin::new(connection, url, plain, Arc::new(secret))
}

/// An address of a web server.
pub(super) fn address(text: &str) -> Result<Url, Error> {
    let refused = |why: String| Error::Address { url: text.rsplit('@').next().unwrap_or_default().to_owned(), why };
    let url =
        Url::parse(text).map_err(|e| refused(format!("{e}; an address is http://host/path or https://host/path")))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        other => Err(refused(format!("the scheme is {other:?}, and it has to be http or https"))),
    }
}

fn inline(url: &Url) -> Option<(String, String)> {
    let decoded = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
    (!url.username().is_empty()).then(|| (decoded(url.username()), decoded(url.password().unwrap_or_default())))
}

pub(super) fn basic(name: &str, password: &str) -> Result<HeaderValue, Error> {
    let encoded = BASE64_STANDARD.encode(format!("{name}:{password}"));
    let mut value = HeaderValue::try_from(format!("Basic {encoded}"))
        .map_err(|_| Error::Header { name: "Authorization".into() })?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, expect: &str) {
        let found = match address(url) {
            Ok(url) => url.to_string(),
            Err(error) => error.to_string(),
        };
        assert!(found.contains(expect), "{url}: {found}");
    }

    #[test]
    fn addresses_are_of_web_servers() {
        check("http://host/disk.img", "http://host/disk.img");
        check("ftp://host/disk.img", "has to be http or https");
        check("disk.img", "an address is http://host/path");
        check("", "an address is");
        let error = address("ftp://me:secret@host/x").unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}
