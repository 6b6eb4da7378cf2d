//! The guest's serial console and screen: bytes between a websocket and QEMU's socket in the pod.
//!
//! A console has one user at a time. A new one takes over and the old connection is closed, as in KubeVirt, unless it asks
//! to preserve the session that is there. Whoever does not read, a user or a guest, holds up nothing but their own
//! connection, and that one for a limited time.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use api::kubevirt::v1::VirtualMachineInstance;
use axum::extract::ws::{CloseFrame, Message, WebSocketUpgrade, close_code};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use domain::MigrationOutcome;
use futures::{Sink, SinkExt as _, Stream, StreamExt as _};
use kit::Chain;
use kit::shutdown::CancellationToken;
use kit::store::Key;
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};

use super::{Refusal, Shared, Vmi};
use crate::launcher::{self, PRIVATE};
use crate::migration;
use crate::vmi::Context;

/// Bytes moved at a time, and so the memory of a slow console (rule R7).
const CHUNK: usize = 32 << 10;
/// The websocket subprotocol of KubeVirt's streams.
const PROTOCOL: &str = "plain.kubevirt.io";

const TAKEN: &str = "another user took the console over";
/// How long a user's side may take no bytes, and how long it may take to hear the last word.
const STALLED: Duration = Duration::from_secs(300);
const FAREWELL: Duration = Duration::from_secs(5);
/// How long the outcome of a migration is waited for, and how often it is looked for.
const OUTCOME: Duration = Duration::from_secs(30);
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
    attach(&shared, vmi, domain::console::SERIAL, false, upgrade).await
}

pub(super) async fn vnc(
    State(shared): State<Shared>,
    Path(vmi): Vmi,
    Query(options): Query<Options>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Refusal> {
    attach(&shared, vmi, domain::console::VNC, options.preserve_session, upgrade).await
}

async fn attach(
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
    // Whatever becomes of the connection, the console is free again.
    let over = mine.clone().drop_guard();
    let place = format!("{uid}/{socket}");
    let opened = tokio::select! {
        opened = launcher::open(&shared.context.pods, &launcher.pod, PRIVATE, &place) => opened,
        () = mine.cancelled() => return Err(Refusal(StatusCode::CONFLICT, TAKEN.to_owned())),
    };
    let (stream, _) = opened.map_err(|error| {
        Refusal(StatusCode::SERVICE_UNAVAILABLE, format!("the console does not answer: {}", Chain(&error)))
    })?;
    let context = shared.context.clone();
    Ok(upgrade.protocols([PROTOCOL]).max_message_size(1 << 20).on_upgrade(move |mut websocket| async move {
        let _over = over;
        if let Some(goodbye) = pump(&mut websocket, stream, &mine).await {
            let moved = goodbye == Goodbye::Closed && has_moved(&context, &key).await;
            let frame = if moved { Goodbye::Moved } else { goodbye }.frame();
            let _ = timeout(FAREWELL, websocket.send(Message::Close(Some(frame)))).await;
        }
    }))
}

/// Whether the guest behind a console that has closed goes on elsewhere. How its migration ended is known a moment later.
async fn has_moved(context: &Context, key: &Key) -> bool {
    let deadline = Instant::now() + OUTCOME;
    loop {
        let outcome = context.guest(key).and_then(|guest| guest.migration().1).and_then(|progress| progress.outcome);
        match goes_on(context.vmis.get(key).as_ref(), outcome.as_ref(), &context.node) {
            Some(known) => return known,
            None if Instant::now() >= deadline => return false,
            None => sleep(LOOK).await,
        }
    }
}

/// Whether a guest whose console on `node` has closed goes on elsewhere, once that is known. The launcher it leaves may be gone
/// before the instance says where the guest is.
fn goes_on(vmi: Option<&VirtualMachineInstance>, outcome: Option<&MigrationOutcome>, node: &str) -> Option<bool> {
    let Some(vmi) = vmi else { return Some(true) };
    match outcome {
        Some(MigrationOutcome::Moved) => Some(true),
        _ if migration::plan::has_left(vmi, node) => Some(true),
        None if migration::plan::is_leaving(vmi, node) => None,
        _ => Some(false),
    }
}

/// Why a console ends that its user has not left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goodbye {
    Closed,
    Moved,
    Taken,
}

impl Goodbye {
    /// Clients take a code other than the normal one for an error: nothing that the user wanted has ended.
    fn frame(self) -> CloseFrame {
        let (code, reason) = match self {
            Self::Closed => (close_code::NORMAL, "the guest's console closed"),
            // What `virtctl console` connects again for.
            Self::Moved => (close_code::NORMAL, "the virtual machine moved to another node"),
            Self::Taken => (close_code::POLICY, TAKEN),
        };
        CloseFrame { code, reason: reason.into() }
    }
}

/// Copies both ways, neither waiting for the other, until either side ends or somebody takes over: what there is to say about
/// it to who is still there.
async fn pump<S>(websocket: &mut S, stream: UnixStream, mine: &CancellationToken) -> Option<Goodbye>
where
    S: Stream<Item = Result<Message, axum::Error>> + Sink<Message> + Unpin,
{
    let (mut to_user, mut from_user) = websocket.split();
    let (mut from_guest, mut to_guest) = stream.into_split();
    let showing = async {
        let mut buffer = vec![0; CHUNK];
        loop {
            match from_guest.read(&mut buffer).await {
                Ok(0) | Err(_) => return Some(Goodbye::Closed),
                Ok(length) => {
                    let bytes = bytes::Bytes::copy_from_slice(&buffer[..length]);
                    timeout(STALLED, to_user.send(Message::Binary(bytes))).await.ok()?.ok()?;
                }
            }
        }
    };
    let typing = async {
        loop {
            let bytes = match from_user.next().await {
                Some(Ok(Message::Binary(bytes))) => bytes,
                Some(Ok(Message::Text(text))) => text.into(),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
            };
            if to_guest.write_all(&bytes).await.is_err() {
                return Some(Goodbye::Closed);
            }
        }
    };
    tokio::select! {
        () = mine.cancelled() => Some(Goodbye::Taken),
        ended = showing => ended,
        ended = typing => ended,
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

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

    #[test]
    fn a_console_that_closes_in_a_migration_waits_for_how_that_ended() {
        let check = |state: serde_json::Value, outcome: Option<MigrationOutcome>, expect: Option<bool>| {
            let vmi = serde_json::json!({ "status": { "migrationState": state } });
            let vmi: VirtualMachineInstance = serde_json::from_value(vmi).unwrap();
            assert_eq!(goes_on(Some(&vmi), outcome.as_ref(), "here"), expect, "{state} {outcome:?}");
        };
        let state = |more: serde_json::Value| {
            let mut state = serde_json::json!({ "migrationUid": "m", "sourceNode": "here", "targetNode": "there" });
            state.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
            state
        };
        let began = "2026-01-01T00:00:00Z";
        let (leaving, left) = (
            state(serde_json::json!({ "startTimestamp": began })),
            state(serde_json::json!({ "startTimestamp": began, "endTimestamp": began, "completed": true })),
        );
        check(serde_json::Value::Null, None, Some(false));
        // The launcher may have gone already, and what it told with it.
        check(leaving.clone(), None, None);
        check(leaving.clone(), Some(MigrationOutcome::Moved), Some(true));
        check(leaving.clone(), Some(MigrationOutcome::Aborted), Some(false));
        check(leaving, Some(MigrationOutcome::Failed("lost".to_owned())), Some(false));
        check(left, None, Some(true));
        assert_eq!(goes_on(None, None, "here"), Some(true), "an instance of another node is not watched");
    }

    /// A user who neither types nor reads.
    struct Stalled;

    impl Stream for Stalled {
        type Item = Result<Message, axum::Error>;
        fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            Poll::Pending
        }
    }

    impl Sink<Message> for Stalled {
        type Error = axum::Error;
        fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), axum::Error>> {
            Poll::Pending
        }
        fn start_send(self: Pin<&mut Self>, _: Message) -> Result<(), axum::Error> {
            Ok(())
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), axum::Error>> {
            Poll::Pending
        }
        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), axum::Error>> {
            Poll::Pending
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_who_does_not_read_is_displaced_and_does_not_stay_for_ever() {
        let (stream, mut guest) = UnixStream::pair().unwrap();
        guest.write_all(b"login:").await.unwrap();
        let mine = CancellationToken::new();
        let taking = async {
            sleep(Duration::from_secs(1)).await;
            mine.cancel();
        };
        let mut user = Stalled;
        let (ended, ()) = tokio::join!(pump(&mut user, stream, &mine), taking);
        assert_eq!(ended, Some(Goodbye::Taken));

        let (stream, mut guest) = UnixStream::pair().unwrap();
        guest.write_all(b"login:").await.unwrap();
        assert_eq!(pump(&mut Stalled, stream, &CancellationToken::new()).await, None);
    }

    #[test]
    fn being_displaced_is_told_from_a_clean_end() {
        let code = |goodbye: Goodbye| goodbye.frame().code;
        assert_eq!([code(Goodbye::Closed), code(Goodbye::Moved)], [close_code::NORMAL; 2]);
        assert_eq!(code(Goodbye::Taken), close_code::POLICY);
        assert!(Goodbye::Taken.frame().reason.contains("took the console over"));
    }
}
