//! What virt-api asks of this node: consoles, facts of the guest, power buttons. Mutual TLS; the client must be virt-api
//! (rule R4), which has authorised the user.

mod console;
mod pull;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use kit::store::Key;
use kube::Resource;
use rpc::launcher::{BackupRequest, CheckpointRequest, Empty, FreezeRequest, ScreenshotRequest};
use serde::Deserialize;
use serde_json::Value;

use crate::launcher::{Launcher, answer};
use crate::vmi::Context;

pub(crate) use console::Consoles;

/// Bytes of a request body; the largest is an option object.
const LARGEST_BODY: usize = 64 << 10;
const CALL: Duration = Duration::from_secs(30);

/// Shared by the handlers.
#[derive(Clone)]
struct Shared {
    context: Context,
    consoles: Arc<Consoles>,
}

/// Routes below `/v1/namespaces/{namespace}/virtualmachineinstances/{name}/`.
pub(crate) fn router(context: Context) -> Router {
    let shared = Shared { context, consoles: Arc::default() };
    let vmi = Router::new()
        .route("/console", get(console::serial))
        .route("/vnc", get(console::vnc))
        .route("/vnc/screenshot", get(screenshot))
        .route("/guestosinfo", get(guest_info))
        .route("/userlist", get(users))
        .route("/filesystemlist", get(filesystems))
        .route("/pause", put(pause))
        .route("/unpause", put(unpause))
        .route("/reset", put(reset))
        .route("/softreboot", put(soft_reboot))
        .route("/freeze", put(freeze))
        .route("/unfreeze", put(unfreeze))
        .route("/backup", put(backup))
        .route("/redefine-checkpoint", put(redefine_checkpoint))
        .layer(axum::extract::DefaultBodyLimit::max(LARGEST_BODY))
        .with_state(shared);
    Router::new().nest("/v1/namespaces/{namespace}/virtualmachineinstances/{name}", vmi)
}

/// A refusal: the status code and the sentence that virt-api passes on.
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, self.1).into_response()
    }
}

impl From<tonic::Status> for Refusal {
    fn from(status: tonic::Status) -> Self {
        let code = match status.code() {
            tonic::Code::FailedPrecondition | tonic::Code::Aborted => StatusCode::CONFLICT,
            tonic::Code::InvalidArgument => StatusCode::BAD_REQUEST,
            tonic::Code::NotFound => StatusCode::NOT_FOUND,
            // What the request builds on is not there any more, and will not come back.
            tonic::Code::DataLoss => StatusCode::GONE,
            tonic::Code::DeadlineExceeded | tonic::Code::Cancelled => StatusCode::GATEWAY_TIMEOUT,
            tonic::Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(code, status.message().to_owned())
    }
}

impl Shared {
    fn launcher(&self, (namespace, name): &(String, String)) -> Result<Launcher, Refusal> {
        let guest = self.context.guest(&Key::new(namespace, name));
        guest.and_then(|guest| guest.launcher()).ok_or_else(|| {
            let text = format!("VirtualMachineInstance {namespace}/{name} is not running on this node");
            Refusal(StatusCode::NOT_FOUND, text)
        })
    }

    /// Records the event of what was done to a guest of this node.
    fn tell(&self, (namespace, name): &(String, String), (reason, message): Done) {
        if let Some(vmi) = self.context.vmis.get(&Key::new(namespace, name)) {
            self.context.recorder.normal(&vmi.object_ref(&()), reason, message);
        }
    }
}

/// The event of what was done to a guest: its reason and message, as in KubeVirt.
type Done = (&'static str, &'static str);

const PAUSED: Done = ("Paused", "VirtualMachineInstance paused");
const UNPAUSED: Done = ("Unpaused", "VirtualMachineInstance unpaused");
const RESET: Done = ("Reset", "VirtualMachineInstance reset");
const SOFT_REBOOTED: Done = ("SoftRebooted", "VirtualMachineInstance soft rebooted");

type Vmi = Path<(String, String)>;

fn call<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(CALL);
    request
}

/// JSON from the launcher, checked to be JSON before it goes on.
fn json(text: &str) -> Result<Response, Refusal> {
    serde_json::from_str::<Value>(text)
        .map(|value| Json(value).into_response())
        .map_err(|_| Refusal(StatusCode::BAD_GATEWAY, "the launcher's answer is not JSON".to_owned()))
}

async fn guest_info(State(shared): State<Shared>, Path(vmi): Vmi) -> Result<Response, Refusal> {
    json(&answer(CALL, shared.launcher(&vmi)?.client.guest_info(call(Empty {}))).await?.json)
}

async fn users(State(shared): State<Shared>, Path(vmi): Vmi) -> Result<Response, Refusal> {
    json(&answer(CALL, shared.launcher(&vmi)?.client.users(call(Empty {}))).await?.json)
}

async fn filesystems(State(shared): State<Shared>, Path(vmi): Vmi) -> Result<Response, Refusal> {
    json(&answer(CALL, shared.launcher(&vmi)?.client.filesystems(call(Empty {}))).await?.json)
}

async fn pause(State(shared): State<Shared>, Path(vmi): Vmi) -> Result<StatusCode, Refusal> {
    answer(CALL, shared.launcher(&vmi)?.client.pause(call(Empty {}))).await?;
    shared.tell(&vmi, PAUSED);
    Ok(StatusCode::ACCEPTED)
}

async fn unpause(State(shared): State<Shared>, Path(vmi): Vmi) -> Result<StatusCode, Refusal> {
    answer(CALL, shared.launcher(&vmi)?.client.unpause(call(Empty {}))).await?;
    shared.tell(&vmi, UNPAUSED);
    Ok(StatusCode::ACCEPTED)
}

async fn reset(State(shared): State<Shared>, Path(vmi): Vmi) -> Result<StatusCode, Refusal> {
    answer(CALL, shared.launcher(&vmi)?.client.reset(call(Empty {}))).await?;
    shared.tell(&vmi, RESET);
    Ok(StatusCode::ACCEPTED)
}

async fn soft_reboot(State(shared): State<Shared>, Path(vmi): Vmi) -> Result<StatusCode, Refusal> {
    answer(CALL, shared.launcher(&vmi)?.client.soft_reboot(call(Empty {}))).await?;
    shared.tell(&vmi, SOFT_REBOOTED);
    Ok(StatusCode::ACCEPTED)
}

/// Body of a freeze request.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Freeze {
    /// How clients write durations: `5m0s`; none or zero is as long as the launcher allows.
    unfreeze_timeout: Option<String>,
}

/// Whole seconds of `text`, at least one unless it is zero.
fn seconds(text: &str) -> Option<i32> {
    let duration = text.parse::<jiff::SignedDuration>().ok().filter(|duration| !duration.is_negative())?;
    let seconds = duration.as_secs() + i64::from(duration.subsec_nanos() > 0);
    i32::try_from(seconds).ok()
}

async fn freeze(State(shared): State<Shared>, Path(vmi): Vmi, body: axum::body::Bytes) -> Result<StatusCode, Refusal> {
    let bad = |why: String| Refusal(StatusCode::BAD_REQUEST, format!("Can not unmarshal Request body: {why}"));
    let asked: Freeze = if body.is_empty() {
        Freeze::default()
    } else {
        serde_json::from_slice(&body).map_err(|e| bad(e.to_string()))?
    };
    let unfreeze_timeout_seconds = match asked.unfreeze_timeout.as_deref() {
        None => 0,
        Some(text) => {
            seconds(text).ok_or_else(|| bad(format!("unfreezeTimeout {text:?} is no duration such as 5m0s")))?
        }
    };
    answer(CALL, shared.launcher(&vmi)?.client.freeze(call(FreezeRequest { unfreeze_timeout_seconds }))).await?;
    Ok(StatusCode::ACCEPTED)
}

async fn unfreeze(State(shared): State<Shared>, Path(vmi): Vmi) -> Result<StatusCode, Refusal> {
    answer(CALL, shared.launcher(&vmi)?.client.unfreeze(call(Empty {}))).await?;
    Ok(StatusCode::ACCEPTED)
}

async fn backup(State(shared): State<Shared>, Path(vmi): Vmi, options: String) -> Result<StatusCode, Refusal> {
    if let Some(options) = pull::asked(&options) {
        pull::lend(&shared, &vmi, &options).await?;
        return Ok(StatusCode::ACCEPTED);
    }
    answer(CALL, shared.launcher(&vmi)?.client.backup(call(BackupRequest { options }))).await?;
    Ok(StatusCode::ACCEPTED)
}

async fn redefine_checkpoint(
    State(shared): State<Shared>,
    Path(vmi): Vmi,
    checkpoint: String,
) -> Result<StatusCode, Refusal> {
    answer(CALL, shared.launcher(&vmi)?.client.redefine_checkpoint(call(CheckpointRequest { checkpoint }))).await?;
    Ok(StatusCode::ACCEPTED)
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Screenshot {
    move_cursor: bool,
}

async fn screenshot(
    State(shared): State<Shared>,
    Path(vmi): Vmi,
    Query(options): Query<Screenshot>,
) -> Result<Response, Refusal> {
    let request = ScreenshotRequest { move_cursor: options.move_cursor };
    let png = answer(CALL, shared.launcher(&vmi)?.for_screenshots().screenshot(call(request))).await?.data;
    Ok(([(header::CONTENT_TYPE, "image/png")], png).into_response())
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn durations_are_those_of_go() {
        let check = |text: &str, expect: Option<i32>| assert_eq!(seconds(text), expect, "{text}");
        check("5m0s", Some(300));
        check("0s", Some(0));
        check("500ms", Some(1));
        check("1h30m", Some(5400));
        check("-1s", None);
        check("soon", None);
    }
}
