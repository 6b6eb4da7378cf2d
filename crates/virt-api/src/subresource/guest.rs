//! What reaches the guest through virt-handler: streams, reads and actions, after the instance's state allows them.

use api::kubevirt::constants::{condition, phase};
use api::kubevirt::v1::VirtualMachineInstance;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Method, StatusCode, header};
use hyper_util::rt::TokioIo;

use super::options::Options;
use super::{Context, Object, node};
use crate::cluster;
use crate::status::{Refusal, conflict};

const KIND: &str = "virtualmachineinstance";
/// Largest answer of the guest passed on: a screenshot.
const ANSWER: usize = 32 << 20;

/// What is done to a guest by a PUT.
pub(super) const ACTIONS: [&str; 8] =
    ["pause", "unpause", "reset", "softreboot", "freeze", "unfreeze", "backup", "redefine-checkpoint"];

fn path(object: &Object, subresource: &str) -> String {
    format!("/v1/namespaces/{}/virtualmachineinstances/{}/{subresource}", object.namespace, object.name)
}

fn has(vmi: &VirtualMachineInstance, kind: &str) -> bool {
    let conditions = vmi.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions.iter().any(|c| c.type_ == kind && c.status == "True")
}

/// Why `subresource` cannot be served now; none when it can.
fn refusal(vmi: &VirtualMachineInstance, subresource: &str) -> Option<Refusal> {
    let name = vmi.metadata.name.as_deref().unwrap_or_default();
    let refuse = |message: &str| Some(conflict(KIND, name, message));
    let devices = &vmi.spec.domain.devices;
    let paused = has(vmi, condition::PAUSED);
    let status = vmi.status.clone().unwrap_or_default();
    let runs = status.phase.as_deref() == Some(phase::RUNNING) && status.node_name.is_some();
    match subresource {
        "console" if devices.autoattach_serial_console == Some(false) => {
            Some(Refusal::bad_request("No serial consoles are present."))
        }
        "vnc" | "vnc/screenshot" if devices.autoattach_graphics_device == Some(false) => {
            Some(Refusal::bad_request("No graphics devices are present."))
        }
        "console" if status.phase.as_deref() == Some(phase::FAILED) => refuse("VMI is in failed status"),
        // Clients wait for a console or a screen as long as the answer is 400.
        "console" | "vnc" | "vnc/screenshot" if !runs => Some(Refusal::bad_request("VMI is not running")),
        "pause" | "freeze" | "softreboot" if !runs => refuse("VM is not running"),
        _ if !runs => refuse("VMI is not running"),
        "guestosinfo" | "userlist" | "filesystemlist" if !has(vmi, condition::AGENT_CONNECTED) => {
            refuse("VMI does not have guest agent connected")
        }
        "pause" if vmi.spec.liveness_probe.is_some() => {
            Some(Refusal::forbidden("Pausing VMIs with LivenessProbe is currently not supported"))
        }
        "pause" if paused => refuse("VMI is already paused"),
        "unpause" if !paused => refuse("VMI is not paused"),
        "softreboot" if paused => refuse("VMI is paused"),
        "softreboot" => {
            let acpi = vmi.spec.domain.features.as_ref().and_then(|f| f.acpi.as_ref()).and_then(|acpi| acpi.enabled);
            let reachable = has(vmi, condition::AGENT_CONNECTED) || acpi != Some(false);
            if reachable { None } else { refuse("VMI neither have the agent connected nor the ACPI feature enabled") }
        }
        "freeze" | "unfreeze" if paused => refuse("VMI is paused"),
        _ => None,
    }
}

async fn ready(context: &Context, object: &Object, subresource: &str) -> Result<String, Refusal> {
    let vmi = cluster::vmi(&context.client, &object.namespace, &object.name).await?;
    if let Some(refusal) = refusal(&vmi, subresource) {
        return Err(refusal);
    }
    Ok(vmi.status.and_then(|status| status.node_name).unwrap_or_default())
}

/// Why no picture is taken of a screen whose cursor is to be moved before.
fn moved_cursor(query: &str) -> Option<Refusal> {
    query.split('&').any(|option| option == "moveCursor=true").then(|| {
        Refusal::bad_request(
            "moveCursor true cannot be used in this version: the cursor is not moved: leave it out, and wake the screen with a \
             key by VNC",
        )
    })
}

/// GET: the answer is passed on, bounded.
pub(super) async fn read(
    context: &Context,
    object: &Object,
    subresource: &str,
    query: Option<&str>,
) -> Result<Response, Refusal> {
    if let Some(refusal) = query.and_then(moved_cursor) {
        return Err(refusal);
    }
    let node = ready(context, object, subresource).await?;
    let mut path = path(object, subresource);
    if let Some(query) = query {
        path = format!("{path}?{query}");
    }
    let answer = node::send(context, &node, Method::GET, &path, HeaderMap::new(), Body::empty()).await?;
    pass_on(answer).await
}

/// PUT: the body goes with it.
pub(super) async fn act(
    context: &Context,
    object: &Object,
    subresource: &str,
    body: Bytes,
) -> Result<Response, Refusal> {
    let dry_run = Options::of(&body)?.is_dry_run();
    let node = ready(context, object, subresource).await?;
    if dry_run {
        return Ok(StatusCode::OK.into_response());
    }
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    headers.insert(header::CONTENT_LENGTH, header::HeaderValue::from(body.len()));
    let path = path(object, subresource);
    let answer = node::send(context, &node, Method::PUT, &path, headers, Body::from(body)).await?;
    pass_on(answer).await
}

async fn pass_on(answer: http::Response<hyper::body::Incoming>) -> Result<Response, Refusal> {
    let (head, body) = answer.into_parts();
    let bytes = axum::body::to_bytes(Body::new(body), ANSWER)
        .await
        .map_err(|error| Refusal::unreachable(format!("virt-handler's answer cannot be read: {error}")))?;
    let mut response = (head.status, bytes).into_response();
    if let Some(kind) = head.headers.get(header::CONTENT_TYPE) {
        response.headers_mut().insert(header::CONTENT_TYPE, kind.clone());
    }
    Ok(response)
}

/// A console: the upgrade is made with virt-handler, then bytes are copied both ways without being looked at.
pub(super) async fn stream(
    context: &Context,
    object: &Object,
    subresource: &str,
    mut request: Request,
) -> Result<Response, Refusal> {
    let wants = request.headers().get(header::UPGRADE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !wants.eq_ignore_ascii_case("websocket") {
        return Err(Refusal::bad_request("this is a stream: connect with a websocket"));
    }
    let node = ready(context, object, subresource).await?;
    let mut headers = HeaderMap::new();
    for name in [
        header::CONNECTION,
        header::UPGRADE,
        header::SEC_WEBSOCKET_KEY,
        header::SEC_WEBSOCKET_VERSION,
        header::SEC_WEBSOCKET_PROTOCOL,
    ] {
        for value in request.headers().get_all(&name) {
            headers.append(&name, value.clone());
        }
    }
    let mut path = path(object, subresource);
    if let Some(query) = request.uri().query() {
        path = format!("{path}?{query}");
    }
    let mut answer = node::send(context, &node, Method::GET, &path, headers, Body::empty()).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return pass_on(answer).await;
    }
    let mut response = StatusCode::SWITCHING_PROTOCOLS.into_response();
    *response.headers_mut() = answer.headers().clone();
    let (ours, theirs) = (hyper::upgrade::on(&mut request), hyper::upgrade::on(&mut answer));
    kit::spawn("console", async move {
        let (Ok(ours), Ok(theirs)) = (ours.await, theirs.await) else { return };
        let (mut ours, mut theirs) = (TokioIo::new(ours), TokioIo::new(theirs));
        // Either side may go at any time; that is how consoles end.
        let _ = tokio::io::copy_bidirectional(&mut ours, &mut theirs).await;
    })
    .detach();
    Ok(response)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(mut vmi: Value, subresource: &str, expect: Option<(u16, &str)>) {
        vmi["metadata"] = json!({ "name": "vm" });
        let vmi = serde_json::from_value(vmi).unwrap();
        let found = refusal(&vmi, subresource);
        let found = found.as_ref().map(|r| (r.code.as_u16(), r.message.as_str()));
        assert_eq!(found, expect);
    }

    fn running(condition: &str) -> Value {
        json!({ "status": {
            "phase": "Running", "nodeName": "n", "conditions": [{ "type": condition, "status": "True" }],
        } })
    }

    #[test]
    fn a_cursor_that_is_to_be_moved_is_refused() {
        let code = |query: &str| moved_cursor(query).map(|refusal| refusal.code.as_u16());
        assert_eq!(code("moveCursor=true"), Some(400));
        assert_eq!(code("moveCursor=false"), None);
        assert_eq!(code(""), None);
    }

    #[test]
    fn requests_the_phase_forbids_are_refused_without_asking_the_node() {
        let prefix = "Operation cannot be fulfilled on virtualmachineinstance.kubevirt.io \"vm\": ";
        let says = |text: &str| format!("{prefix}{text}");
        let stopped = json!({ "status": { "phase": "Scheduling" } });
        check(stopped.clone(), "console", Some((400, "VMI is not running")));
        check(stopped.clone(), "vnc", Some((400, "VMI is not running")));
        check(stopped.clone(), "pause", Some((409, &says("VM is not running"))));
        check(stopped, "unpause", Some((409, &says("VMI is not running"))));
        let failed = json!({ "status": { "phase": "Failed" } });
        check(failed, "console", Some((409, &says("VMI is in failed status"))));
        check(running("Ready"), "console", None);
        check(running("Ready"), "guestosinfo", Some((409, &says("VMI does not have guest agent connected"))));
        check(running("AgentConnected"), "guestosinfo", None);
        check(running("Paused"), "pause", Some((409, &says("VMI is already paused"))));
        check(running("Ready"), "unpause", Some((409, &says("VMI is not paused"))));
        let mut headless = running("Ready");
        headless["spec"] = json!({ "domain": { "devices": { "autoattachGraphicsDevice": false } } });
        check(headless, "vnc", Some((400, "No graphics devices are present.")));
    }
}
