//! From a pod's claims to the objects: which claim it is, which devices it has, and whether the pod may use it.

use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use kube::Api;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::Value;

use crate::context::Context;
use crate::error::{Error, Result};

/// A claim that the pod may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allocated {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Whose devices it has, each once.
    pub(crate) drivers: Vec<String>,
}

/// The kind, which the node's other types lack.
pub(crate) fn kind(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("resource.k8s.io", "v1", kind))
}

/// The name of a claim of the pod; none when it needs none.
pub(crate) fn name_of(pod: &Pod, entry: &PodResourceClaim) -> Result<Option<String>> {
    if let Some(name) = &entry.resource_claim_name {
        return Ok(Some(name.clone()));
    }
    let mut statuses = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    match statuses.find(|status| status.name == entry.name) {
        Some(status) => Ok(status.resource_claim_name.clone()),
        None => {
            let template = entry.resource_claim_template_name.as_deref().unwrap_or_default();
            Err(Error::Invalid(format!("claim {:?} is not made yet of resourceclaimtemplate {template:?}", entry.name)))
        }
    }
}

/// Reads the claim of this name.
pub(crate) async fn read(context: &Context, pod: &Pod, entry: &PodResourceClaim, name: &str) -> Result<Allocated> {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let api: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), &namespace, &kind("ResourceClaim"));
    let claim = api.get(name).await.map_err(Error::api(format!("read resourceclaim {namespace}/{name}")))?;
    check(pod, entry, &claim).map_err(|why| Error::Invalid(format!("resourceclaim {namespace}/{name} {why}")))
}

/// The claim, if it is the pod's.
fn check(pod: &Pod, entry: &PodResourceClaim, claim: &DynamicObject) -> Result<Allocated, String> {
    let own = pod.metadata.uid.as_deref().unwrap_or_default();
    let mut owners = claim.metadata.owner_references.iter().flatten().filter(|owner| owner.controller == Some(true));
    if entry.resource_claim_template_name.is_some() && !owners.any(|owner| owner.uid == own) {
        return Err("was not made for the pod".into());
    }
    let status = &claim.data["status"];
    let mut reserved = status["reservedFor"].as_array().into_iter().flatten();
    if !reserved.any(|consumer| consumer["uid"] == own && consumer["resource"] == "pods") {
        return Err("is not reserved for the pod".into());
    }
    let results = status["allocation"]["devices"]["results"].as_array();
    if status["allocation"].is_null() {
        return Err("has no devices yet".into());
    }
    let mut drivers: Vec<String> =
        results.into_iter().flatten().filter_map(|result| result["driver"].as_str()).map(str::to_owned).collect();
    drivers.sort();
    drivers.dedup();
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let (namespace, name) = (text(&claim.metadata.namespace), text(&claim.metadata.name));
    Ok(Allocated { namespace, name, uid: text(&claim.metadata.uid), drivers })
}

/// A field of an object as text.
pub(crate) fn text<'a>(object: &'a DynamicObject, pointer: &str) -> &'a str {
    object.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_is_used_only_by_pods_it_is_reserved_for() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "uid": "me"}})).unwrap();
        let check = |entry: Value, owner: &str, status: Value, expect: Result<&[&str], &str>| {
            let owners = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": true}]);
            let claim = json!({"metadata": {"name": "c", "uid": "c", "ownerReferences": owners}, "status": status});
            let entry = serde_json::from_value(entry).unwrap();
            let got = check(&pod, &entry, &serde_json::from_value(claim).unwrap());
            assert_eq!(
                got.map(|claim| claim.drivers),
                expect.map(|d| d.iter().map(|d| (*d).to_owned()).collect::<Vec<_>>()).map_err(str::to_owned)
            );
        };
        let (named, made) =
            (json!({"name": "x", "resourceClaimName": "c"}), json!({"name": "x", "resourceClaimTemplateName": "t"}));
        let results = json!([{"driver": "b"}, {"driver": "a"}, {"driver": "b"}]);
        let status = |uid: &str| {
            json!({"allocation": {"devices": {"results": results}},
                "reservedFor": [{"resource": "pods", "name": "p", "uid": uid}]})
        };
        check(named.clone(), "", status("me"), Ok(&["a", "b"]));
        check(named.clone(), "", status("other"), Err("is not reserved for the pod"));
        check(named, "", json!({"reservedFor": [{"resource": "pods", "uid": "me"}]}), Err("has no devices yet"));
        check(made.clone(), "me", status("me"), Ok(&["a", "b"]));
        check(made, "other", status("me"), Err("was not made for the pod"));
    }
}
