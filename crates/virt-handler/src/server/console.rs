//! The guest's serial console and screen: bytes between a websocket and QEMU's socket in the pod.
//!
//! A console has one user at a time. A new one takes over and the old connection is closed, as in KubeVirt, unless it asks
//! to preserve the session that is there.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use domain::MigrationOutcome;
use kit::shutdown::CancellationToken;
use kit::store::Key;
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};

use super::{Refusal, Shared, Vmi};
use crate::launcher::{self, PRIVATE};
use crate::migration;
use crate::vmi::Context;

/// Bytes moved at a time, and so the memory of a slow console (rule R7).
const CHUNK: usize = 32 << 10;
/// The websocket subprotocol of KubeVirt's streams.
const PROTOCOL: &str = "plain.kubevirt.io";

const CLOSED: &str = "the guest's console closed";
/// What `virtctl console` connects again for.
const MOVED: &str = "the virtual machine moved to another node";
/// How long the outcome of a migration is waited for, and how often it is looked for.
const OUTCOME: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);

/// Who uses which console.
#[derive(Default)]
pub(crate) struct Consoles(Mutex<HashMap<(String, String, &'static str), CancellationToken>>);

impl Consoles {
    /// Takes the console over. `None` when somebody uses it and `preserve` is asked.
    fn take(&self, key: (String, String, &'static str), preserve: bool) -> Option<CancellationToken> {
        let mut users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if preserve && users.get(&key).is_some_and(|user| !user.is_cancelled()) {
            return None;
        }
        let mine = CancellationToken::new();
        if let Some(before) = users.insert(key, mine.clone()) {
            before.cancel();
        }
        users.retain(|_, user| !user.is_cancelled());
        Some(mine)
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Options {
    preserve_session: bool,
}

pub(super) async fn serial(
    State(shared): State<Shared>,
    Path(vmi): Vmi,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Refusal> {
    attach(&shared, vmi, domain::console::SERIAL, false, upgrade)
}

pub(super) async fn vnc(
    State(shared): State<Shared>,
    Path(vmi): Vmi,
    Query(options): Query<Options>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Refusal> {
    attach(&shared, vmi, domain::console::VNC, options.preserve_session, upgrade)
}

fn attach(
    shared: &Shared,
    vmi: (String, String),
    socket: &'static str,
    preserve: bool,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Refusal> {
    let launcher = shared.launcher(&vmi)?;
    let key = Key::new(vmi.0.as_str(), vmi.1.as_str());
    let uid = shared.context.vmis.get(&key).and_then(|vmi| vmi.metadata.uid).unwrap_or_default();
    let mine = shared.consoles.take((vmi.0, vmi.1, socket), preserve).ok_or_else(|| {
        Refusal(StatusCode::CONFLICT, "somebody is connected and the session is to be preserved".to_owned())
    })?;
    let unavailable = |error: &dyn std::fmt::Display| {
        Refusal(StatusCode::SERVICE_UNAVAILABLE, format!("the console does not answer: {error}"))
    };
    let (stream, _, _) = launcher::open(&shared.context.pods, &launcher.pod, PRIVATE, &format!("{uid}/{socket}"))
        .map_err(|e| unavailable(&e))?;
    stream.set_nonblocking(true).map_err(|e| unavailable(&e))?;
    let stream = UnixStream::from_std(stream).map_err(|e| unavailable(&e))?;
    let context = shared.context.clone();
    Ok(upgrade.protocols([PROTOCOL]).max_message_size(1 << 20).on_upgrade(move |mut websocket| async move {
        if let Some(goodbye) = pump(&mut websocket, stream, &mine).await {
            let reason = if goodbye == CLOSED && has_moved(&context, &key).await { MOVED } else { goodbye };
            let frame = CloseFrame { code: close_code::NORMAL, reason: reason.into() };
            let _ = websocket.send(Message::Close(Some(frame))).await;
        }
        mine.cancel();
    }))
}

/// Whether the guest behind a console that has closed goes on elsewhere. How its migration ended is known a moment later.
async fn has_moved(context: &Context, key: &Key) -> bool {
    let deadline = Instant::now() + OUTCOME;
    loop {
        let Some(vmi) = context.vmis.get(key) else { return true };
        let Some(guest) = context.guest(key) else { return migration::plan::has_left(&vmi, &context.node) };
        let outcome = guest.migration().1.and_then(|progress| progress.outcome);
        if outcome == Some(MigrationOutcome::Moved) || migration::plan::has_left(&vmi, &context.node) {
            return true;
        }
        if !migration::plan::is_leaving(&vmi, &context.node) || outcome.is_some() || Instant::now() >= deadline {
            return false;
        }
        sleep(LOOK).await;
    }
}

/// Copies both ways until either side ends or somebody takes over: what there is to say about it to who is still there.
async fn pump(websocket: &mut WebSocket, stream: UnixStream, mine: &CancellationToken) -> Option<&'static str> {
    let (mut from_guest, mut to_guest) = stream.into_split();
    let mut buffer = vec![0; CHUNK];
    loop {
        tokio::select! {
            () = mine.cancelled() => return Some("another user took the console over"),
            read = from_guest.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return Some(CLOSED),
                Ok(length) => {
                    let bytes = bytes::Bytes::copy_from_slice(&buffer[..length]);
                    websocket.send(Message::Binary(bytes)).await.ok()?;
                }
            },
            message = websocket.recv() => {
                let bytes = match message {
                    Some(Ok(Message::Binary(bytes))) => bytes,
                    Some(Ok(Message::Text(text))) => text.into(),
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
                };
                if to_guest.write_all(&bytes).await.is_err() {
                    return Some(CLOSED);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_has_one_user() {
        let consoles = Consoles::default();
        let key = || ("n".to_owned(), "a".to_owned(), "serial");
        let first = consoles.take(key(), false).unwrap();
        assert!(consoles.take(key(), true).is_none(), "preserved");
        let second = consoles.take(key(), false).unwrap();
        assert!(first.is_cancelled() && !second.is_cancelled());
        second.cancel();
        assert!(consoles.take(key(), true).is_some(), "free again");
    }
}
