//! Admission of the KubeVirt object itself.

mod configuration;
mod migrations;
mod placement;
mod rotation;
mod tls;

use api::kubevirt::v1::{
    CustomizeComponents, KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceReplicaSet,
};
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use kit::admission::{self, Cause, Request, Verdict};
use kit::store::{Key, Store};
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::Value;

use crate::customize;

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
    let left = workloads(&client).await;
    Json(admission::response(&request.uid, delete(&request, left.as_deref()))).into_response()
}

/// The first kind of which something is left, in the plural. What cannot be counted may be there.
async fn workloads(client: &Client) -> Option<String> {
    async fn any<K>(client: &Client) -> bool
    where
        K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
    {
        match Api::<K>::all(client.clone()).list_metadata(&ListParams::default().limit(1)).await {
            Ok(list) => !list.items.is_empty(),
            // Before the product is installed there is no such kind, and nothing to protect.
            Err(kube::Error::Api(status)) => status.code != 404,
            Err(_) => true,
        }
    }
    if any::<VirtualMachineInstance>(client).await {
        Some("Virtual Machine Instances".to_owned())
    } else if any::<VirtualMachine>(client).await {
        Some("Virtual Machines".to_owned())
    } else if any::<VirtualMachineInstanceReplicaSet>(client).await {
        Some("Virtual Machine Instance Replica Sets".to_owned())
    } else {
        None
    }
}

fn create(request: &Request, held: &[Key]) -> Verdict {
    if let Some(other) = held.iter().find(|key| **key != Key::new(&request.namespace, &request.name)) {
        return Verdict::Deny {
            code: 422,
            reason: "Invalid",
            message: format!("KubeVirt is already created: only one is deployed per cluster, and {other} is it"),
        };
    }
    update(request)
}

fn update(request: &Request) -> Verdict {
    let causes = causes(&request.object);
    if causes.is_empty() {
        let mut warnings = tls::warnings(&request.object);
        warnings.extend(configuration::warnings(&request.object));
        return Verdict::Allow { warnings };
    }
    Verdict::Invalid(causes)
}

fn causes(object: &Value) -> Vec<Cause> {
    let mut causes = rotation::causes(object);
    causes.extend(placement::causes(object));
    causes.extend(configuration::causes(object));
    causes.extend(migrations::causes(object));
    causes.extend(tls::causes(object));
    let wanted = object.pointer("/spec/customizeComponents").cloned().unwrap_or_default();
    let wanted: CustomizeComponents = serde_json::from_value(wanted).unwrap_or_default();
    causes.extend(customize::check(&wanted).into_iter().map(|refusal| Cause {
        reason: "FieldValueInvalid",
        message: refusal.to_string(),
        field: refusal.field,
    }));
    causes
}

fn delete(request: &Request, left: Option<&str>) -> Verdict {
    let strategy = request.old_object.pointer("/spec/uninstallStrategy").and_then(Value::as_str).unwrap_or_default();
    match left {
        Some(left) if strategy == BLOCK => Verdict::Deny {
            code: 403,
            reason: "Forbidden",
            message: format!(
                "Rejecting the uninstall request, since there are still {left} present. Either delete all KubeVirt \
                 related workloads or change the uninstall strategy before uninstalling KubeVirt."
            ),
        },
        _ => Verdict::allow(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn machines_block_an_uninstall_when_asked_to() {
        let old_object = json!({ "spec": { "uninstallStrategy": BLOCK } });
        let request = Request { old_object, ..Default::default() };
        let Verdict::Deny { code: 403, message, .. } = delete(&request, Some("Virtual Machines")) else { panic!() };
        assert!(message.contains("there are still Virtual Machines present"), "{message}");
        assert_eq!(delete(&request, None), Verdict::allow());
        assert_eq!(delete(&Request::default(), Some("Virtual Machines")), Verdict::allow());
    }

    #[test]
    fn every_bad_value_of_an_object_is_named_at_once() {
        let object = json!({ "spec": {
            "infra": { "replicas": 0 },
            "certificateRotateStrategy": { "selfSigned": { "ca": { "duration": "5d" } } },
            "configuration": { "additionalGuestMemoryOverheadRatio": "half" },
        } });
        let Verdict::Invalid(causes) = update(&Request { object, ..Default::default() }) else { panic!() };
        let fields: Vec<&str> = causes.iter().map(|cause| cause.field.as_str()).collect();
        let expect = [
            "spec.certificateRotateStrategy.selfSigned.ca.duration",
            "spec.infra.replicas",
            "spec.configuration.additionalGuestMemoryOverheadRatio",
        ];
        assert_eq!(fields, expect);
    }
}
