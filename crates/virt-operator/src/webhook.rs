//! Admission of the KubeVirt object itself.

use api::kubevirt::v1::{KubeVirt, VirtualMachineInstance};
use axum::{
    Json, Router,
    body::Bytes,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use kit::{
    admission::{self, Cause, Request, Verdict},
    store::{Key, Store},
};
use kube::{Api, Client, api::ListParams};
use serde_json::Value;

use crate::certificates;

/// What protects a cluster with machines in it.
const BLOCK: &str = "BlockUninstallIfWorkloadsExist";

/// Serves the three paths.
pub fn router(kubevirts: Store<KubeVirt>, client: Client) -> Router {
    let router =
        admission::route(Router::new(), "/kubevirt-validate-create", move |request| create(request, &kubevirts.keys()));
    let router = admission::route(router, "/kubevirt-validate-update", update);
    router.route("/kubevirt-validate-delete", post(move |body: Bytes| answer_delete(client, body)))
}

async fn answer_delete(client: Client, body: Bytes) -> Response {
    let request = match admission::review(&body) {
        Ok(request) => request,
        Err(message) => return (StatusCode::BAD_REQUEST, message).into_response(),
    };
    let machines: Api<VirtualMachineInstance> = Api::all(client);
    // Before the product is installed there is no such kind, and nothing to protect.
    let machines = machines.list_metadata(&ListParams::default()).await.map_or(0, |list| list.items.len());
    Json(admission::response(&request.uid, delete(&request, machines))).into_response()
}

fn create(request: &Request, held: &[Key]) -> Verdict {
    if let Some(other) = held.iter().find(|key| **key != Key::new(&request.namespace, &request.name)) {
        return Verdict::Deny {
            code: 422,
            reason: "Invalid",
            message: format!("KubeVirt is already created: only one is deployed per cluster, and {other} is it"),
        };
    }
    Verdict::of_causes(rotation(&request.object))
}

fn update(request: &Request) -> Verdict {
    Verdict::of_causes(rotation(&request.object))
}

fn rotation(object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for part in ["ca", "server"] {
        for field in ["duration", "renewBefore"] {
            let pointer = format!("/spec/certificateRotateStrategy/selfSigned/{part}/{field}");
            let Some(text) = object.pointer(&pointer).and_then(Value::as_str) else { continue };
            if certificates::duration(text).is_none() {
                let path = format!("spec.certificateRotateStrategy.selfSigned.{part}.{field}");
                causes.push(Cause {
                    reason: "FieldValueInvalid",
                    message: format!("{path} is {text:?}, which is not a duration: write it like 24h or 4h48m"),
                    field: path,
                });
            }
        }
    }
    causes
}

fn delete(request: &Request, machines: usize) -> Verdict {
    let strategy = request.old_object.pointer("/spec/uninstallStrategy").and_then(Value::as_str).unwrap_or_default();
    if strategy == BLOCK && machines > 0 {
        return Verdict::Deny {
            code: 403,
            reason: "Forbidden",
            message: format!(
                "there are still {machines} Virtual Machine Instances present: delete them, or set \
                 spec.uninstallStrategy to RemoveWorkloads"
            ),
        };
    }
    Verdict::allow()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn machines_block_an_uninstall_when_asked_to() {
        let old_object = json!({ "spec": { "uninstallStrategy": BLOCK } });
        let request = Request { old_object, ..Default::default() };
        assert!(matches!(delete(&request, 1), Verdict::Deny { code: 403, .. }));
        assert_eq!(delete(&request, 0), Verdict::allow());
        assert_eq!(delete(&Request::default(), 1), Verdict::allow());
    }

    #[test]
    fn a_bad_duration_is_named() {
        let object =
            json!({ "spec": { "certificateRotateStrategy": { "selfSigned": { "ca": { "duration": "5d" } } } } });
        let Verdict::Invalid(causes) = update(&Request { object, ..Default::default() }) else { panic!() };
        assert_eq!(causes[0].field, "spec.certificateRotateStrategy.selfSigned.ca.duration");
    }
}
