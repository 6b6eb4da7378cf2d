//! One address that is asked for bytes: headers, credentials, redirections, and what counts as an answer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use reqwest::Response;
use url::Url;

use super::Error;
use super::answer::retry_after;
use super::connection::{Connection, Patience};
use super::error::shown;

/// Redirections that are followed; browsers follow twenty, curl fifty, Go ten.
const REDIRECTIONS: usize = 10;

/// A future in a box, because credentials are chosen at run time.
pub(super) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What proves to an origin who asks. Never sent to another.
pub(super) trait Credentials: Send + Sync {
    /// The headers for a request to `url`, made for each one anew: signatures carry the time, tokens expire.
    fn headers<'a>(&'a self, method: &'a Method, url: &'a Url) -> Later<'a, Result<HeaderMap, Error>>;

    /// The origin refused a request with such headers. True when asking once more can help.
    fn refused<'a>(&'a self, status: StatusCode, headers: &'a HeaderMap) -> Later<'a, Result<bool, Error>> {
        let _ = (status, headers);
        Box::pin(async { Ok(false) })
    }
}

/// The same headers for each request; none for a stranger.
impl Credentials for HeaderMap {
    fn headers<'a>(&'a self, _: &'a Method, _: &'a Url) -> Later<'a, Result<HeaderMap, Error>> {
        Box::pin(async { Ok(self.clone()) })
    }
}

/// An address, and how to ask for it.
#[derive(Clone)]
pub(super) struct Origin {
    client: reqwest::Client,
    pub(super) patience: Patience,
    pub(super) url: Url,
    /// Headers for everybody, those behind a redirection included.
    plain: HeaderMap,
    credentials: Arc<dyn Credentials>,
}

/// From where on, and of which version.
#[derive(Clone, Debug, Default)]
pub(super) struct Ask {
    /// A range from here on; none asks for the whole.
    pub(super) from: Option<u64>,
    /// Only if the thing is still this; otherwise the whole is sent.
    pub(super) condition: Option<HeaderValue>,
}

impl Origin {
    pub(super) fn new(
        connection: &Connection,
        url: Url,
        plain: HeaderMap,
        credentials: Arc<dyn Credentials>,
    ) -> Result<Self, Error> {
        Ok(Self { client: connection.client()?, patience: connection.patience, url, plain, credentials })
    }

    /// The same way to another address of the same party.
    pub(super) fn at(&self, url: Url) -> Self {
        Self { url, ..self.clone() }
    }

    /// The same address with other headers in place of the plain ones.
    pub(super) fn with(&self, plain: HeaderMap) -> Self {
        Self { plain, ..self.clone() }
    }

    /// As it may be shown.
    pub(super) fn name(&self) -> String {
        shown(&self.url)
    }

    /// Asks once, through redirections, and returns the answer whose status says that bytes follow.
    pub(super) async fn get(&self, ask: &Ask) -> Result<Response, Error> {
        let (mut url, mut second) = (self.url.clone(), false);
        for _ in 0..=REDIRECTIONS {
            let own = trusted(&self.url, &url);
            let answer = self.send(&url, own, ask).await?;
            let status = answer.status();
            if own && !second && !status.is_success() && self.credentials.refused(status, answer.headers()).await? {
                second = true;
                continue;
            }
            if let Some(location) = location(&answer) {
                url = follow(&url, &location)?;
                continue;
            }
            return match status {
                StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(answer),
                status => Err(Error::Status { url: self.name(), status, again: retry_after(answer.headers()) }),
            };
        }
        Err(Error::Redirects { url: self.name(), limit: REDIRECTIONS })
    }

    async fn send(&self, url: &Url, own: bool, ask: &Ask) -> Result<Response, Error> {
        let mut headers = self.plain.clone();
        if own {
            headers.extend(self.credentials.headers(&Method::GET, url).await?);
        }
        if let Some(from) = ask.from {
            headers.insert(header::RANGE, text(format!("bytes={from}-")));
        }
        if let Some(condition) = &ask.condition {
            headers.insert(header::IF_RANGE, condition.clone());
        }
        headers.entry(header::USER_AGENT).or_insert(HeaderValue::from_static("cdi-importer"));
        let sent = self.client.get(url.clone()).headers(headers).send();
        match tokio::time::timeout(self.patience.answer, sent).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(source)) => Err(self.failed(url, source)),
            Err(_) => Err(Error::Silent { url: shown(url), after: self.patience.answer }),
        }
    }

    fn failed(&self, url: &Url, source: reqwest::Error) -> Error {
        let url = shown(url);
        match (source.is_timeout(), source.is_connect()) {
            (true, true) => Error::Silent { url, after: self.patience.connect },
            (true, false) => Error::Silent { url, after: self.patience.idle },
            (false, _) => Error::Request { url, source: source.without_url() },
        }
    }

    /// A small answer as a whole, asked for again as long as that may help.
    pub(super) async fn document(&self, what: &'static str, limit: usize) -> Result<(HeaderMap, Bytes), Error> {
        let mut tries = Tries::new(self.patience);
        loop {
            let error = match self.once(what, limit).await {
                Ok(document) => return Ok(document),
                Err(error) => error,
            };
            match tries.pause(&error) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(error),
            }
        }
    }

    /// A small answer as a whole.
    pub(super) async fn once(&self, what: &'static str, limit: usize) -> Result<(HeaderMap, Bytes), Error> {
        let mut answer = self.get(&Ask::default()).await?;
        let headers = answer.headers().clone();
        let mut body = Vec::new();
        while let Some(piece) = self.piece(&mut answer).await? {
            if body.len() + piece.len() > limit {
                return Err(Error::Large { url: self.name(), what, limit });
            }
            body.extend_from_slice(&piece);
        }
        Ok((headers, body.into()))
    }

    /// The next piece of a body.
    pub(super) async fn piece(&self, answer: &mut Response) -> Result<Option<Bytes>, Error> {
        answer.chunk().await.map_err(|source| self.failed(&self.url, source))
    }

    /// Sends a small document and returns the small answer. Nothing is sent twice, and no redirection followed.
    pub(super) async fn post(&self, kind: HeaderValue, body: String, limit: usize) -> Result<Bytes, Error> {
        self.exchange(kind, body, limit).await.map(|(_, answer)| answer)
    }

    /// As [`post`](Self::post), for whoever wants the headers too.
    pub(super) async fn exchange(
        &self,
        kind: HeaderValue,
        body: String,
        limit: usize,
    ) -> Result<(HeaderMap, Bytes), Error> {
        let mut headers = self.plain.clone();
        headers.extend(self.credentials.headers(&Method::POST, &self.url).await?);
        headers.insert(header::CONTENT_TYPE, kind);
        let request = self.client.post(self.url.clone()).headers(headers).body(body).send();
        let mut answer = tokio::time::timeout(self.patience.answer, request)
            .await
            .map_err(|_| Error::Silent { url: self.name(), after: self.patience.answer })?
            .map_err(|source| self.failed(&self.url, source))?;
        if !answer.status().is_success() {
            return Err(Error::Status { url: self.name(), status: answer.status(), again: None });
        }
        let (headers, mut whole) = (answer.headers().clone(), Vec::new());
        while let Some(piece) = self.piece(&mut answer).await? {
            if whole.len() + piece.len() > limit {
                return Err(Error::Large { url: self.name(), what: "a short answer", limit });
            }
            whole.extend_from_slice(&piece);
        }
        Ok((headers, whole.into()))
    }
}

fn text(text: String) -> HeaderValue {
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}

fn location(answer: &Response) -> Option<String> {
    let redirects = matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    let location = answer.headers().get(header::LOCATION).filter(|_| redirects)?;
    Some(String::from_utf8_lossy(location.as_bytes()).into_owned())
}

fn follow(from: &Url, location: &str) -> Result<Url, Error> {
    let refused = || Error::Redirect { url: shown(from), location: location.chars().take(200).collect() };
    let mut url = from.join(location).map_err(|_| refused())?;
    // A server does not choose with which name and password we introduce ourselves elsewhere.
    let cleared = url.set_username("").and_then(|()| url.set_password(None));
    match url.scheme() {
        "http" | "https" if cleared.is_ok() => Ok(url),
        _ => Err(refused()),
    }
}

/// Whether what is secret between us and `origin` may be told to `url`: the same server, and no less protected.
fn trusted(origin: &Url, url: &Url) -> bool {
    let same_port = origin.port_or_known_default() == url.port_or_known_default();
    let upgrade = origin.scheme() == "http" && url.scheme() == "https";
    let standard = origin.port().is_none() && url.port().is_none();
    origin.host() == url.host() && (origin.scheme() == url.scheme() && same_port || upgrade && standard)
}

/// `Name: value`, as `extraHeaders` carries it.
pub(super) fn header_of(line: &str) -> Result<(HeaderName, HeaderValue), Error> {
    let (name, value) = line.split_once(':').unwrap_or((line, ""));
    let refused = || Error::Header { name: name.chars().take(60).collect() };
    if !line.contains(':') {
        // Without a colon, the whole line may be the secret.
        return Err(Error::Header { name: String::new() });
    }
    let parsed = HeaderName::try_from(name.trim()).map_err(|_| refused())?;
    let mut value = HeaderValue::try_from(value.trim()).map_err(|_| refused())?;
    value.set_sensitive(true);
    Ok((parsed, value))
}

/// How often something failed since it last made progress.
pub(super) struct Tries {
    patience: Patience,
    failures: u32,
    progress: u64,
}

impl Tries {
    /// Bytes that make a server worth asking afresh; one that sends a few at a time is not.
    const WORTH: u64 = 256 << 10;

    pub(super) fn new(patience: Patience) -> Self {
        Self { patience, failures: 0, progress: 0 }
    }

    pub(super) fn progressed(&mut self, bytes: u64) {
        self.progress += bytes;
        if self.progress >= Self::WORTH {
            (self.failures, self.progress) = (0, 0);
        }
    }

    /// How long to wait after this failure, or none when it is the last.
    pub(super) fn pause(&mut self, error: &Error) -> Option<Duration> {
        self.failures += 1;
        if !error.transient() || self.failures >= self.patience.attempts {
            return None;
        }
        let doubled = self.patience.first.saturating_mul(1 << (self.failures - 1).min(16));
        Some(doubled.min(self.patience.longest).max(error.again().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests;
