//! The requests of an upload: by path whether the answer waits for the volume, and whether the body is a form.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, Request};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Extension, Router, middleware};
use futures::StreamExt;
use kit::server::Peer;
use tokio::sync::oneshot;

use super::clients::Client;
use super::state::{Busy, Outcome, Server, Session};
use super::store::{Content, Refused};
use crate::unread;

/// What is sent: another claim's content, when a pod of ours sends it.
const CONTENT_TYPE: &str = "x-cdi-content-type";
/// A name the client gives to its upload, so that it may continue it.
pub(crate) const UPLOAD_NAME: &str = "x-cdi-upload-id";
/// Where a request continues the upload of its name, and where it can be continued.
pub(crate) const UPLOAD_OFFSET: &str = "upload-offset";
/// What somebody is told who shows no certificate, or that of somebody else.
const STRANGER: &str = "uploads are taken from the upload proxy, and copies from the pods that make them";
/// What a client is told that sends what it is not for.
const OTHERS: &str = "the upload proxy sends images and archives, and the pods that make copies send copies";
/// How long an upload whose connection broke is kept for its client to come back.
const KEPT: Duration = Duration::from_secs(60);

/// How a path wants its upload taken.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Answer when all has arrived and looks like an image, before all is on the volume.
    early: bool,
    form: bool,
    archive: bool,
}

/// The server's paths, in both versions.
pub(super) fn router(server: &Arc<Server>) -> Router {
    let mut router = Router::new();
    for version in ["v1beta1", "v1alpha1"] {
        for (path, early, form, archive) in [
            ("upload", false, false, false),
            ("upload-async", true, false, false),
            ("upload-form", false, true, false),
            ("upload-form-async", true, true, false),
            ("upload-archive", false, false, true),
        ] {
            let (server, way) = (server.clone(), Way { early, form, archive });
            let handler = move |peer: Option<Extension<Peer>>, request: Request| async move {
                handle(server, way, peer.map(|Extension(peer)| peer), request).await
            };
            router = router.route(&format!("/{version}/{path}"), any(handler));
        }
    }
    router.layer(DefaultBodyLimit::disable()).layer(middleware::from_fn(unread::read_on))
}

async fn handle(server: Arc<Server>, way: Way, peer: Option<Peer>, request: Request) -> Response {
    let name = request.headers().get(UPLOAD_NAME).and_then(|name| name.to_str().ok()).map(str::to_owned);
    let who = peer.and_then(|peer| peer.identity()).and_then(|who| server.clients.of(&who));
    match *request.method() {
        Method::POST => match who {
            Some(who) => upload(server, way, who, name, request).await,
            None => (StatusCode::UNAUTHORIZED, STRANGER).into_response(),
        },
        Method::HEAD => match name {
            Some(name) if who == Some(Client::Proxy) => match server.offset(&name) {
                Some(offset) => [(UPLOAD_OFFSET, offset.to_string())].into_response(),
                None => StatusCode::NOT_FOUND.into_response(),
            },
            _ if way.early => StatusCode::OK.into_response(),
            _ => StatusCode::NOT_FOUND.into_response(),
        },
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn upload(server: Arc<Server>, way: Way, who: Client, name: Option<String>, request: Request) -> Response {
    let headers = request.headers();
    let content = match content(headers, way) {
        Ok(content) => content,
        Err(message) => return (StatusCode::BAD_REQUEST, message).into_response(),
    };
    let copy = matches!(content, Content::FileSystem | Content::Device);
    if copy != (who == Client::Cloner) {
        return (StatusCode::FORBIDDEN, OTHERS).into_response();
    }
    let number = |name: &str| headers.get(name).and_then(|text| text.to_str().ok()?.parse::<u64>().ok());
    let offset = number(UPLOAD_OFFSET).unwrap_or(0);
    // A form's length is not that of its file.
    let size =
        number(header::CONTENT_LENGTH.as_str()).filter(|_| !way.form).and_then(|length| length.checked_add(offset));
    let body = match Incoming::new(way, request).await {
        Ok(body) => body,
        Err(message) => return (StatusCode::BAD_REQUEST, message).into_response(),
    };
    let session = match server.begin(content, size, name.as_deref(), offset) {
        Ok(session) => session,
        Err(busy) => return busy.into_response(),
    };
    // A handler ends with its connection; what it received has to be dealt with all the same.
    let (answer, answered) = oneshot::channel();
    kit::spawn("upload", receive(server, way, session, body, answer)).detach();
    match answered.await {
        Ok(response) => response,
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn content(headers: &HeaderMap, way: Way) -> Result<Content, String> {
    let said = headers.get(CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    match said.as_deref() {
        None | Some("") if way.archive => Ok(Content::Archive),
        None | Some("" | "kubevirt") => Ok(Content::Image),
        Some("archive") => Ok(Content::Archive),
        Some("filesystem-clone") if way.early => Err("async filesystem clone not supported".into()),
        Some("filesystem-clone") => Ok(Content::FileSystem),
        Some("blockdevice-clone") => Ok(Content::Device),
        Some(other) => Err(format!("{CONTENT_TYPE} is {other:?}, which is not a content that can be uploaded")),
    }
}

/// Hands a body over to the thread that stores it, and answers.
async fn receive(
    server: Arc<Server>,
    way: Way,
    mut session: Session,
    body: Incoming,
    answer: oneshot::Sender<Response>,
) {
    let poured = body.pour(&mut session).await;
    let mut outcome = session.outcome.clone();
    if let Err(broken) = poured {
        let unfinished = outcome.borrow().is_none();
        if unfinished && session.name.is_some() {
            let received = session.received;
            tracing::info!(received, "the connection of the upload broke; it can be continued");
            server.suspend(session);
            tokio::time::sleep(KEPT).await;
            server.forget(received);
            return;
        }
        // Nobody is left to answer, but a form that is none.
        let _ = session.pieces.send(Err(broken)).await;
    } else if session.pieces.send(Ok(Bytes::new())).await.is_ok()
        && way.early
        && server.accepted(session.content, &mut outcome).await
    {
        let _ = answer.send(StatusCode::OK.into_response());
        drop(session);
        if let Some(Err(refused)) = settled(&mut outcome).await {
            server.fail(refused.message);
        }
        return;
    }
    drop(session);
    let response = match settled(&mut outcome).await {
        Some(Ok(())) => StatusCode::OK.into_response(),
        Some(Err(refused)) => refused.into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    };
    // The client may have gone.
    let _ = answer.send(response);
}

async fn settled(outcome: &mut tokio::sync::watch::Receiver<Outcome>) -> Outcome {
    outcome.wait_for(Option::is_some).await.ok()?.clone()
}

/// Where the bytes are in a request.
enum Incoming {
    Body(Body),
    Form(Multipart),
}

impl Incoming {
    async fn new(way: Way, request: Request) -> Result<Self, String> {
        if !way.form {
            return Ok(Self::Body(request.into_body()));
        }
        let form = Multipart::from_request(request, &()).await;
        form.map(Self::Form).map_err(|e| format!("the request is not a form: {}", e.body_text()))
    }

    /// Moves all bytes into the session. Once nobody takes them any more, the rest is read and dropped: an image may end
    /// before its file does.
    async fn pour(self, session: &mut Session) -> io::Result<()> {
        match self {
            Self::Body(body) => {
                let mut body = body.into_data_stream();
                while let Some(piece) = body.next().await {
                    if !push(session, piece.map_err(io::Error::other)?).await {
                        return Ok(());
                    }
                }
                Ok(())
            }
            Self::Form(mut form) => {
                while let Some(mut field) = form.next_field().await.map_err(io::Error::other)? {
                    if field.name() != Some("file") {
                        continue;
                    }
                    while let Some(piece) = field.chunk().await.map_err(io::Error::other)? {
                        if !push(session, piece).await {
                            return Ok(());
                        }
                    }
                    return Ok(());
                }
                Err(io::Error::new(io::ErrorKind::InvalidInput, "the form has no part named \"file\""))
            }
        }
    }
}

/// Hands over one piece; false when the upload has failed, and nothing more is wanted.
async fn push(session: &mut Session, piece: Bytes) -> bool {
    if piece.is_empty() {
        return true;
    }
    session.received += piece.len() as u64;
    if session.pieces.send(Ok(piece)).await.is_ok() {
        return true;
    }
    !matches!(settled(&mut session.outcome).await, Some(Err(_)))
}

impl IntoResponse for Busy {
    fn into_response(self) -> Response {
        match self {
            Self::Concurrent => {
                (StatusCode::SERVICE_UNAVAILABLE, "another upload into this volume is going on").into_response()
            }
            Self::Done => (StatusCode::CONFLICT, "this volume has its upload already").into_response(),
            Self::Unknown => elsewhere(0),
            Self::Offset(offset) => elsewhere(offset),
        }
    }
}

fn elsewhere(offset: u64) -> Response {
    let sentence = format!("the upload can be continued at byte {offset} only");
    (StatusCode::CONFLICT, [(UPLOAD_OFFSET, offset.to_string())], sentence).into_response()
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.status, format!("Saving stream failed: {}", self.message)).into_response()
    }
}
