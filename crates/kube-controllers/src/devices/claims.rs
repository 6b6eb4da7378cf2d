//! Which claims a pod uses, and who uses a claim. Pure.

use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use kit::controller::owner::controller_of;
use kit::controller::pod;
use kit::store::Key;

use super::kinds::{Consumer, ResourceClaim};

/// One of a pod's claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// The claim of this name; whether it was made for the pod.
    Claim(String, bool),
    /// It is still to be made of this template.
    Awaited(String),
}

/// The pod's claims with the names the pod gives them; what needs no claim is left out.
pub(crate) fn of(pod: &Pod) -> impl Iterator<Item = (&str, Named)> {
    let entries = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    entries.filter_map(move |entry| Some((entry.name.as_str(), named(pod, entry)?)))
}

fn named(pod: &Pod, entry: &PodResourceClaim) -> Option<Named> {
    if let Some(name) = &entry.resource_claim_name {
        return Some(Named::Claim(name.clone(), false));
    }
    let template = entry.resource_claim_template_name.clone()?;
    let mut statuses = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    match statuses.find(|status| status.name == entry.name) {
        Some(status) => status.resource_claim_name.clone().map(|name| Named::Claim(name, true)),
        None => Some(Named::Awaited(template)),
    }
}

/// The keys of the claims that are known by name.
pub(crate) fn keys(pod: &Pod) -> impl Iterator<Item = Key> {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    of(pod).filter_map(move |(_, named)| match named {
        Named::Claim(name, _) => Some(Key::new(namespace.clone(), name)),
        Named::Awaited(_) => None,
    })
}

/// Whether the claim was made for this very pod.
pub(crate) fn belongs_to(claim: &ResourceClaim, pod: &Pod) -> bool {
    controller_of(&claim.metadata).is_some_and(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref())
}

/// Who may use the claim.
pub(crate) fn consumers(claim: &ResourceClaim) -> &[Consumer] {
    claim.status.as_ref().map(|status| status.reserved_for.as_slice()).unwrap_or_default()
}

/// Whether the claim is reserved for others than this pod.
pub(crate) fn is_used_by_others(claim: &ResourceClaim, pod: &Pod) -> bool {
    consumers(claim).iter().any(|consumer| Some(&consumer.uid) != pod.metadata.uid.as_ref())
}

/// A pod that needs its devices no more: it has ended, or goes without ever having had a node.
pub(crate) fn is_done(pod: &Pod) -> bool {
    pod::is_finished(pod) || (pod::is_terminating(pod) && pod::node_name(pod).is_none())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_of_a_pod_are_named_by_reference_or_status() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"containers": [],
            "resourceClaims": [{"name": "a", "resourceClaimName": "shared"},
                {"name": "b", "resourceClaimTemplateName": "t"}, {"name": "c", "resourceClaimTemplateName": "u"},
                {"name": "d", "resourceClaimTemplateName": "none"}]},
            "status": {"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "p-b-x"}, {"name": "d"}]}}))
        .unwrap();
        let expect = [
            ("a", Named::Claim("shared".into(), false)),
            ("b", Named::Claim("p-b-x".into(), true)),
            ("c", Named::Awaited("u".into())),
        ];
        assert_eq!(of(&pod).collect::<Vec<_>>(), expect);
    }
}
