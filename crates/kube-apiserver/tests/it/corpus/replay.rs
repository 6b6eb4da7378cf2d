//! Sends the requests to a server in this process, one after the other.

use std::collections::HashMap;
use std::time::Duration;

use apimachinery::request::User;
use axum::body::Body;
use serde_json::Value;
use tower::ServiceExt;

use super::answer::Answer;
use super::compare::{self, Difference};
use super::entry::{self, Entry};
use super::protobuf;

/// What our HTTP library does not take in an address, though servers do.
const UNFIT: &percent_encoding::AsciiSet = &percent_encoding::CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'`')
    .add(b'{')
    .add(b'}')
    .add(b'|')
    .add(b'\\')
    .add(b'^')
    .add(b'#');

/// The differences between the answers of a fresh server and the recorded ones. `begin` comes first and is compared if `counted`.
pub(super) fn run(begin: &[Entry], entries: &[Entry], counted: bool) -> Vec<Difference> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        // The server that was recorded was not young: it had forgotten its first revisions.
        let server = super::super::forgetful().await;
        let router = server.network_router().layer(axum::Extension(User::admin()));
        let mut runner = Runner { router, variables: HashMap::new() };
        let mut differences = Vec::new();
        for entry in begin {
            let difference = runner.replay(entry).await;
            differences.extend(difference.into_iter().filter(|_| counted));
        }
        for entry in entries {
            differences.extend(runner.replay(entry).await);
        }
        differences
    })
}

struct Runner {
    router: axum::Router,
    /// What earlier answers held.
    variables: HashMap<String, String>,
}

impl Runner {
    async fn replay(&mut self, entry: &Entry) -> Vec<Difference> {
        let body = entry.body.as_ref().map(|body| entry::substitute(body, &self.variables));
        let patience = entry.until.or(entry.absent).unwrap_or_default();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(patience);
        let answer = loop {
            let answer = self.send(entry, body.as_ref()).await;
            let done = if entry.absent.is_some() { answer.code == 404 } else { (200..300).contains(&answer.code) };
            if done || tokio::time::Instant::now() >= deadline {
                break answer;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        };
        for (name, path) in &entry.capture {
            let pointer = format!("/{}", path.replace('.', "/"));
            let held = answer.value.as_ref().and_then(|value| value.pointer(&pointer));
            let held = held.map_or("0".to_owned(), |v| v.as_str().map_or_else(|| v.to_string(), ToOwned::to_owned));
            self.variables.insert(name.clone(), held);
        }
        let mut found = compare::differences(entry, &answer.digest(entry, body.as_ref()), body.as_ref());
        found.extend(answer.value.as_ref().and_then(|value| protobuf::unlike(entry, value)));
        found
    }

    async fn send(&self, entry: &Entry, body: Option<&Value>) -> Answer {
        let mut uri = entry::substitute_text(&entry.path, &self.variables);
        if !entry.query.is_empty() {
            uri = format!("{uri}?{}", entry::substitute_text(&entry.query, &self.variables));
        }
        let bytes = match (body, &entry.raw) {
            (Some(body), _) => Some(serde_json::to_vec(body).unwrap()),
            (None, Some(raw)) => Some(entry::substitute_text(raw, &self.variables).into_bytes()),
            (None, None) => None,
        };
        let mut headers: HashMap<String, String> =
            [("User-Agent".into(), "corpus".into()), ("Accept".into(), "application/json".into())].into();
        if let Some(kind) =
            entry.content_type.clone().or(body.map(|_| "application/json".into())).filter(|_| bytes.is_some())
        {
            headers.insert("Content-Type".into(), kind);
        }
        headers.extend(entry.headers.clone());
        let uri = percent_encoding::utf8_percent_encode(&uri, UNFIT).to_string();
        let mut request = http::Request::builder().method(entry.method.as_str()).uri(uri);
        for (name, value) in &headers {
            request = request.header(name, value);
        }
        let request = request.body(bytes.map_or_else(Body::empty, Body::from)).unwrap();
        let (parts, body) = self.router.clone().oneshot(request).await.unwrap().into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
        Answer::read(&parts, if entry.method == "HEAD" { &[] } else { &bytes })
    }
}
