//! One exchange with a webhook: the AdmissionReview sent, the answer checked, the patch applied.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Hook, Target};
use crate::admission::{Attributes, Operation};
use crate::aggregation::dial;
use crate::authz::reviews::user_info;
use crate::authz::view::{View, text};
use crate::error::{ApiError, Cause};

/// Why a hook gave no verdict.
#[derive(Debug)]
pub(super) enum Failure {
    /// The failure policy decides.
    Call(String),
    /// The request itself is at fault.
    Refused(ApiError),
}

impl Failure {
    pub(super) fn settle(self, hook: &Hook, warnings: &mut Vec<String>) -> Result<(), ApiError> {
        match self {
            Self::Refused(error) => Err(error),
            Self::Call(reason) if hook.ignore_failures => {
                tracing::warn!(webhook = %hook.name, %reason, "webhook failed, ignored by its failure policy");
                let _ = warnings;
                Ok(())
            }
            Self::Call(reason) => Err(ApiError::internal(format!(
                "Internal error occurred: failed calling webhook {:?}: {reason}",
                hook.name
            ))),
        }
    }
}

/// The object as the hook wants it: storage conversion between versions of one schema is the version's name.
fn in_version(object: Option<&Value>, group: &str, version: &str, own: &str) -> Value {
    let mut object = object.cloned().unwrap_or(Value::Null);
    if version != own && object.is_object() {
        object["apiVersion"] = if group.is_empty() { version.into() } else { format!("{group}/{version}").into() };
    }
    object
}

fn document(uid: &str, version: &str, attributes: &Attributes) -> Value {
    let resource = &attributes.resource;
    let own = attributes.info.version.as_str();
    // Subresources such as scale and eviction carry a kind of their own.
    let carried = attributes.object.as_ref().filter(|_| !attributes.info.subresource.is_empty());
    let (group, kind_version, kind) = match carried.map(|o| (text(o, "/apiVersion"), text(o, "/kind"))) {
        Some((api, kind)) if !kind.is_empty() => {
            let (group, kind_version) = api.split_once('/').unwrap_or(("", api));
            (group.to_owned(), kind_version.to_owned(), kind.to_owned())
        }
        _ => (resource.group.clone(), version.to_owned(), resource.kind.clone()),
    };
    let gvk = json!({"group": group, "version": kind_version, "kind": kind});
    let own_gvk = if carried.is_some() {
        gvk.clone()
    } else {
        json!({"group": resource.group, "version": own, "kind": resource.kind})
    };
    let mut request = json!({
        "uid": uid,
        "kind": gvk,
        "resource": {"group": resource.group, "version": version, "resource": resource.plural},
        "requestKind": own_gvk,
        "requestResource": {"group": resource.group, "version": own, "resource": resource.plural},
        "operation": attributes.operation.word(),
        "userInfo": user_info(&attributes.user),
        "object": in_version(attributes.object.as_ref(), &resource.group, version, own),
        "oldObject": in_version(attributes.old.as_ref(), &resource.group, version, own),
        "dryRun": attributes.dry_run,
        "options": attributes.options,
    });
    if !attributes.info.subresource.is_empty() {
        request["subResource"] = attributes.info.subresource.clone().into();
        request["requestSubResource"] = attributes.info.subresource.clone().into();
    }
    if !attributes.name.is_empty() {
        request["name"] = attributes.name.clone().into();
    }
    if !attributes.namespace.is_empty() {
        request["namespace"] = attributes.namespace.clone().into();
    }
    json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request})
}

/// Sends the review; yields the checked `response`.
pub(super) async fn review(
    view: &dyn View,
    hook: &Hook,
    version: &str,
    attributes: &Attributes,
) -> Result<Value, Failure> {
    if attributes.dry_run && !hook.dry_run_safe {
        let why = format!("admission webhook {:?} does not support dry run", hook.name);
        return Err(Failure::Refused(ApiError::bad_request(why)));
    }
    let uid = uuid::Uuid::new_v4().to_string();
    let body = document(&uid, version, attributes).to_string();
    let seconds = hook.timeout.as_secs();
    let (url, host, address) = match &hook.target {
        Target::Broken(reason) => return Err(Failure::Call(reason.clone())),
        Target::Service { namespace, name, port, path } => {
            let host = format!("{name}.{namespace}.svc");
            let shown = format!("https://{host}:{port}{path}?timeout={seconds}s");
            let address = dial::resolve(view, namespace, name, *port)
                .map_err(|e| Failure::Call(format!("failed to call webhook: Post {shown:?}: {e}")))?;
            (shown, host, address)
        }
        Target::Url(url) => {
            let mut shown = url.clone();
            shown.query_pairs_mut().append_pair("timeout", &format!("{seconds}s"));
            let host = url.host_str().unwrap_or_default().to_owned();
            let port = url.port_or_known_default().unwrap_or(443);
            let bare = host.trim_matches(['[', ']']).to_owned();
            let mut addresses = tokio::net::lookup_host((bare, port))
                .await
                .map_err(|e| Failure::Call(format!("failed to call webhook: Post {shown:?}: {e}")))?;
            let address = addresses
                .next()
                .ok_or_else(|| Failure::Call(format!("failed to call webhook: Post {shown:?}: no such host")))?;
            (shown.to_string(), host, address)
        }
    };
    let failed = |why: &dyn std::fmt::Display| Failure::Call(format!("failed to call webhook: Post {url:?}: {why}"));
    let target = url.splitn(4, '/').nth(3).unwrap_or_default();
    let request = http::Request::post(format!("/{target}"))
        .header(http::header::HOST, &host)
        .header(http::header::CONTENT_TYPE, "application/json")
        .header(http::header::ACCEPT, "application/json")
        .body(Bytes::from(body))
        .map_err(|e| failed(&e))?;
    let backend =
        hook.backend.as_ref().ok_or_else(|| Failure::Call("webhook has no usable client configuration".into()))?;
    let response = backend.send(address, request, hook.timeout).await.map_err(|e| failed(&e))?;
    if !response.status().is_success() {
        let text = String::from_utf8_lossy(response.body());
        let first = text.lines().next().unwrap_or_default();
        return Err(Failure::Call(format!("failed to call webhook: {first}")));
    }
    let answer: Value = serde_json::from_slice(response.body())
        .map_err(|e| Failure::Call(format!("failed to call webhook: couldn't decode response: {e}")))?;
    let answer = answer.get("response").cloned().unwrap_or(Value::Null);
    if !answer.is_object() {
        return Err(Failure::Call("Webhook response was absent".into()));
    }
    if text(&answer, "/uid") != uid {
        let got = text(&answer, "/uid");
        return Err(Failure::Call(format!(
            "received invalid webhook response: expected response.uid={uid:?}, got {got:?}"
        )));
    }
    Ok(answer)
}

/// An explicit refusal as an error worded like Kubernetes'.
pub(super) fn verdict(name: &str, answer: &Value) -> Result<(), ApiError> {
    if answer.get("allowed").and_then(Value::as_bool) == Some(true) {
        return Ok(());
    }
    let message = text(answer, "/status/message");
    let reason = text(answer, "/status/reason");
    let denied = format!("admission webhook {name:?} denied the request");
    let sentence = match (message, reason) {
        ("", "") => format!("{denied} without explanation"),
        ("", reason) => format!("{denied}: {reason}"),
        (message, _) => format!("{denied}: {message}"),
    };
    let code = answer.pointer("/status/code").and_then(Value::as_u64).and_then(|c| u16::try_from(c).ok()).unwrap_or(0);
    let mut error = ApiError::new(if (400..600).contains(&code) { code } else { 400 }, word(reason), sentence);
    if let Some(details) = answer.pointer("/status/details").filter(|d| d.is_object()) {
        let mut details = details.clone();
        if let Some(Value::Array(causes)) = details.as_object_mut().and_then(|d| d.remove("causes")) {
            error.causes = causes
                .iter()
                .map(|c| Cause {
                    reason: text(c, "/reason").to_owned(),
                    message: text(c, "/message").to_owned(),
                    field: text(c, "/field").to_owned(),
                })
                .collect();
        }
        error.details = Some(details);
    }
    Err(error)
}

/// Reasons are words of the API; a hook's own word becomes the general one.
fn word(reason: &str) -> &'static str {
    const WORDS: [&str; 12] = [
        "Unauthorized",
        "Forbidden",
        "NotFound",
        "AlreadyExists",
        "Conflict",
        "Gone",
        "Invalid",
        "Timeout",
        "TooManyRequests",
        "BadRequest",
        "MethodNotAllowed",
        "InternalError",
    ];
    WORDS.into_iter().find(|w| *w == reason).unwrap_or("")
}

/// The object after the hook's JSON patch; None when there is none.
pub(super) fn patched(
    hook: &Hook,
    version: &str,
    answer: &Value,
    attributes: &Attributes,
) -> Result<Option<Value>, Failure> {
    use base64::Engine;
    let encoded = text(answer, "/patch");
    if encoded.is_empty() {
        return Ok(None);
    }
    if text(answer, "/patchType") != "JSONPatch" {
        return Err(Failure::Call(format!(
            "received invalid webhook response: unknown patchType {:?}",
            text(answer, "/patchType")
        )));
    }
    if attributes.operation == Operation::Delete {
        return Err(Failure::Call("received invalid webhook response: a DELETE cannot be patched".into()));
    }
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(encoded)
        .map_err(|_| Failure::Call("received invalid webhook response: patch is not base64".into()))?;
    let patch: json_patch::Patch =
        serde_json::from_slice(&bytes).map_err(|e| Failure::Call(format!("unable to decode patch: {e}")))?;
    let (group, own) = (&attributes.resource.group, attributes.info.version.as_str());
    let mut object = in_version(attributes.object.as_ref(), group, version, own);
    json_patch::patch(&mut object, &patch).map_err(|e| {
        Failure::Refused(ApiError::internal(format!(
            "Internal error occurred: admission webhook {:?} sent a patch that does not apply: {e}",
            hook.name
        )))
    })?;
    Ok(Some(in_version(Some(&object), group, own, version)))
}
