//! What the other operators would say: their objects are written, and deleted, by dry runs.

use api::hco::HyperConverged;
use kit::admission::{Request, Verdict};
use kit::merge_patch;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Api, Client};
use serde_json::json;

use super::deny;
use crate::child::Child;
use crate::render::{self, Input};

/// Warnings, or the refusal of one of the operators.
pub(super) async fn judge(client: &Client, request: &Request, input: &Input) -> Result<Vec<String>, Verdict> {
    match request.operation.as_str() {
        "DELETE" => delete(client, input).await,
        "UPDATE" if changes(request) => update(client, request, input).await,
        _ => Ok(Vec::new()),
    }
}

fn changes(request: &Request) -> bool {
    let (new, old) = (&request.object, &request.old_object);
    new["metadata"]["deletionTimestamp"].is_null()
        && (new["spec"] != old["spec"] || new["metadata"]["annotations"] != old["metadata"]["annotations"])
}

fn api(client: &Client, child: Child, namespace: &str) -> Api<DynamicObject> {
    let kind = child.kind();
    let (group, version) = kind.api_version.split_once('/').unwrap_or_default();
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind.kind), kind.plural);
    match kind.namespaced {
        true => Api::namespaced_with(client.clone(), namespace, &resource),
        false => Api::all_with(client.clone(), &resource),
    }
}

async fn update(client: &Client, request: &Request, input: &Input) -> Result<Vec<String>, Verdict> {
    let Ok(hco) = serde_json::from_value::<HyperConverged>(request.object.clone()) else { return Ok(Vec::new()) };
    let mut warnings = Vec::new();
    for child in Child::ALL {
        let Ok(wanted) = render::render(child, &hco, input) else { continue };
        let api = api(client, child, &input.namespace);
        let held = match api.get_opt(child.kind().name).await {
            Ok(Some(held)) => held,
            Ok(None) => continue,
            Err(error) => {
                warnings.push(unchecked(child, &error));
                continue;
            }
        };
        let now = held.data.get("spec").cloned().unwrap_or_else(|| json!({}));
        let Some(change) = merge_patch::difference(&now, wanted["spec"].clone()) else { continue };
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        match api.patch(child.kind().name, &params, &Patch::Merge(json!({ "spec": change }))).await {
            Ok(_) => {}
            Err(error) => refuse_or_warn(child, error, &mut warnings)?,
        }
    }
    Ok(warnings)
}

/// KubeVirt and CDI know whether something is left that would be lost.
async fn delete(client: &Client, input: &Input) -> Result<Vec<String>, Verdict> {
    let mut warnings = Vec::new();
    for child in [Child::KubeVirt, Child::Cdi] {
        let params = DeleteParams { dry_run: true, ..DeleteParams::default() };
        match api(client, child, &input.namespace).delete(child.kind().name, &params).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => refuse_or_warn(child, error, &mut warnings)?,
        }
    }
    Ok(warnings)
}

/// A refusal is one here as well. When an operator does not answer, its object cannot be written later either, and the status says
/// so: whoever wants to mend it is not held up.
fn refuse_or_warn(child: Child, error: kube::Error, warnings: &mut Vec<String>) -> Result<(), Verdict> {
    match error {
        kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 409 && status.code != 429 => {
            Err(deny(format!("{} {}: {}", child.kind().kind, child.kind().name, status.message)))
        }
        error => {
            warnings.push(unchecked(child, &error));
            Ok(())
        }
    }
}

fn unchecked(child: Child, error: &kube::Error) -> String {
    let kind = child.kind();
    format!("whether {} {} can be written could not be found out: {}", kind.kind, kind.name, kit::Chain(error))
}
