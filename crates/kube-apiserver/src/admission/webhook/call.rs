//! One exchange with a webhook: the AdmissionReview sent, the answer checked, the patch applied.

use serde_json::{Value, json};

use apimachinery::error::{ApiError, Cause};
use apimachinery::patch::json;
use apimachinery::pointer::text;

use super::{Hook, Place};
use crate::admission::{Attributes, Operation};
use crate::authz::reviews::user_info;
use crate::crd::convert::between;
use crate::registry::Resource;

/// Why a hook gave no verdict.
#[derive(Debug)]
pub(super) enum Failure {
    /// The failure policy decides.
    Call(String),
    /// The request itself is at fault.
    Refused(ApiError),
}

impl Failure {
    pub(super) fn settle(self, hook: &Hook) -> Result<(), ApiError> {
        match self {
            Self::Refused(error) => Err(error),
            Self::Call(reason) if hook.ignore_failures => {
                tracing::warn!(webhook = %hook.name, %reason, "webhook failed, ignored by its failure policy");
                Ok(())
            }
            Self::Call(reason) => Err(ApiError::internal(format!(
                "Internal error occurred: failed calling webhook {:?}: {reason}",
                hook.name
            ))),
        }
    }
}

/// An object as the hook wants it. The answers of subresources have one version, whatever that of the resource is.
async fn in_version(
    place: &Place<'_>,
    object: Option<&Value>,
    attributes: &Attributes,
    version: &str,
) -> Result<Value, ApiError> {
    let object = object.cloned().unwrap_or(Value::Null);
    if object["kind"] != *attributes.resource.kind {
        return Ok(object);
    }
    between(place.view, place.registry, &attributes.resource, object, version).await
}

async fn document(uid: &str, version: &str, place: &Place<'_>, attributes: &Attributes) -> Result<Value, ApiError> {
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
    let object = in_version(place, attributes.object.as_ref(), attributes, version).await?;
    let old = in_version(place, attributes.old.as_deref(), attributes, version).await?;
    let mut request = json!({
        "uid": uid,
        "kind": gvk,
        "resource": {"group": resource.group, "version": version, "resource": resource.plural},
        "requestKind": own_gvk,
        "requestResource": {"group": resource.group, "version": own, "resource": resource.plural},
        "operation": attributes.operation.word(),
        "userInfo": user_info(&attributes.user),
        "object": object,
        "oldObject": old,
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
    Ok(json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}))
}

/// Sends the review; yields the checked `response`.
pub(super) async fn review(
    place: &Place<'_>,
    hook: &Hook,
    version: &str,
    attributes: &Attributes,
) -> Result<Value, Failure> {
    if attributes.dry_run && !hook.dry_run_safe {
        let why = format!("admission webhook {:?} does not support dry run", hook.name);
        return Err(Failure::Refused(ApiError::bad_request(why)));
    }
    let uid = uuid::Uuid::new_v4().to_string();
    let body = document(&uid, version, place, attributes).await.map_err(Failure::Refused)?.to_string();
    let answer = hook.client.post(place.view, body, hook.timeout).await;
    let answer = answer.map_err(|why| Failure::Call(format!("failed to call webhook: {why}")))?;
    let response =
        checked(&uid, answer).map_err(|why| Failure::Call(format!("received invalid webhook response: {why}")))?;
    for (key, value) in response.get("auditAnnotations").and_then(Value::as_object).into_iter().flatten() {
        tracing::info!(target: "audit", annotation = %format!("{}/{key}", hook.name), %value, "audit annotation of a webhook");
    }
    Ok(response)
}

/// The `response` of an answer that is one to the review of this `uid`.
fn checked(uid: &str, mut answer: Value) -> Result<Value, String> {
    let got = (text(&answer, "/apiVersion"), text(&answer, "/kind"));
    if got != ("admission.k8s.io/v1", "AdmissionReview") {
        let (version, kind) = got;
        return Err(format!(
            "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {version}, Kind={kind}"
        ));
    }
    let response = answer["response"].take();
    if !response.is_object() {
        return Err("webhook response was absent".to_owned());
    }
    let said = text(&response, "/uid");
    if said != uid {
        return Err(format!("expected response.uid={uid:?}, got {said:?}"));
    }
    match (text(&response, "/patch"), text(&response, "/patchType")) {
        ("", "") => Ok(response),
        ("", _) => Err("webhook returned response.patchType but not response.patch".to_owned()),
        (_, "") => Err("webhook returned response.patch but not response.patchType".to_owned()),
        (_, "JSONPatch") => Ok(response),
        (_, other) => Err(format!("webhook returned invalid response.patchType of {other:?}")),
    }
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
pub(super) async fn patched(
    place: &Place<'_>,
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
    if attributes.operation == Operation::Delete {
        return Err(Failure::Call("received invalid webhook response: a DELETE cannot be patched".into()));
    }
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(encoded)
        .map_err(|_| Failure::Call("received invalid webhook response: patch is not base64".into()))?;
    let patch = serde_json::from_slice(&bytes)
        .map_err(|error| error.to_string())
        .and_then(|document| json::decode(document).map_err(|error| error.message))
        .map_err(|why| Failure::Call(format!("unable to decode patch: {why}")))?;
    let object = in_version(place, attributes.object.as_ref(), attributes, version).await.map_err(Failure::Refused)?;
    let object = json::apply(&object, &patch).map_err(|error| {
        Failure::Refused(ApiError::internal(format!(
            "Internal error occurred: admission webhook {:?} sent a patch that does not apply: {}",
            hook.name, error.message
        )))
    })?;
    let resource = &attributes.resource;
    if object["kind"] != *resource.kind || resource.version == version {
        return Ok(Some(object));
    }
    let seen = Resource { version: version.to_owned(), ..(**resource).clone() };
    let back = between(place.view, place.registry, &seen, object, &resource.version).await;
    back.map(Some).map_err(Failure::Refused)
}
