//! Claims on addresses that outlive the pods which have them: the objects IPAMClaim of the Network Plumbing Working Group.
//!
//! Who holds which address is in the pools. A claim says which addresses it has for people and for whoever restores a pool; what it
//! says counts only where the pool says nothing else, so that nobody gets an address by writing it into a claim.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::{Api, Client};
use net::cni::Network;
use serde_json::{Value, json};

use crate::selection::{ClaimReference, Selected};
use crate::{Error, Result};

/// Marks holders in a pool that are claims.
const HOLDER: &str = "ipamclaim:";

/// A claim, as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// The addresses that it says it has.
    pub(crate) ips: Vec<String>,
}

impl Claim {
    /// What a pool says of who holds an address.
    pub(crate) fn holder(&self) -> String {
        format!("{HOLDER}{}", self.uid)
    }

    /// As in `podref`.
    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// The UID of the claim that holds an allocation; none when a sandbox does.
pub(crate) fn uid_of(allocation: &Value) -> Option<&str> {
    allocation["id"].as_str()?.strip_prefix(HOLDER)
}

fn api(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1alpha1", "IPAMClaim");
    let kind = ApiResource::from_gvk_with_plural(&kind, "ipamclaims");
    Api::namespaced_with(client.clone(), namespace, &kind)
}

/// The claim that `reference`, in a pod of `namespace`, names for `selected`.
///
/// # Errors
/// When it is not there, is not of that network, or the API server cannot be asked.
pub(crate) async fn read(
    client: &Client,
    pod: &Pod,
    selected: &Selected,
    reference: &ClaimReference,
    network: &Network,
) -> Result<Claim> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let what = format!("read IPAMClaim {namespace}/{}", reference.name);
    let found = api(client, namespace).get_opt(&reference.name).await.map_err(Error::api(what))?;
    let found =
        found.ok_or_else(|| Error::Invalid(format!("IPAMClaim {namespace}/{} is not there", reference.name)))?;
    fits(&found, reference, &network.name, &selected.interface).map_err(Error::Invalid)?;
    let ips = found.data["status"]["ips"].as_array().into_iter().flatten();
    Ok(Claim {
        namespace: namespace.to_owned(),
        name: reference.name.clone(),
        uid: found.metadata.uid.unwrap_or_default(),
        ips: ips.filter_map(|ip| ip.as_str().map(str::to_owned)).collect(),
    })
}

/// Whether `claim` is the one that was meant, and for this interface.
fn fits(
    claim: &DynamicObject,
    reference: &ClaimReference,
    network: &str,
    interface: &str,
) -> std::result::Result<(), String> {
    let place = format!("IPAMClaim {}/{}", claim.metadata.namespace.as_deref().unwrap_or_default(), reference.name);
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    if let Some(meant) = reference.uid.as_deref().filter(|meant| *meant != uid) {
        return Err(format!(
            "{place} has the UID {uid}, and the pod names the one that had {meant}: make the pod anew"
        ));
    }
    let of = claim.data["spec"]["network"].as_str().unwrap_or_default();
    if of != network {
        return Err(format!("{place} has spec.network {of:?}, and the pod names it for the network {network:?}"));
    }
    // Who makes claims by hand may not know what interfaces are called.
    let called = claim.data["spec"]["interface"].as_str().unwrap_or_default();
    if !called.is_empty() && called != interface {
        return Err(format!(
            "{place} has spec.interface {called:?}, and the pod names it for its interface {interface:?}"
        ));
    }
    Ok(())
}

/// Writes down which addresses `claim` has.
///
/// # Errors
/// When the API server refuses.
pub(crate) async fn publish(client: &Client, claim: &Claim, addresses: &[String]) -> Result<()> {
    if claim.ips == addresses {
        return Ok(());
    }
    // The UID says that it is still the same claim.
    let body = json!({ "metadata": { "uid": claim.uid }, "status": { "ips": addresses } });
    let api = api(client, &claim.namespace);
    let written = api.patch_status(&claim.name, &PatchParams::default(), &Patch::Merge(body)).await;
    written.map(drop).map_err(Error::api(format!("write the addresses of IPAMClaim {}", claim.path())))
}

/// Whether a claim that held an address is no more. When the API server cannot say, it is not known to be gone.
pub(crate) async fn is_gone(client: &Client, path: &str, uid: &str) -> bool {
    let Some((namespace, name)) = path.split_once('/') else { return false };
    match api(client, namespace).get_opt(name).await {
        Ok(None) => true,
        Ok(Some(found)) => found.metadata.uid.as_deref() != Some(uid),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_of_one_network_and_interface() {
        let claim = json!({
            "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim",
            "metadata": { "namespace": "ns", "name": "vm.blue", "uid": "u" },
            "spec": { "network": "blue", "interface": "pod1" },
        });
        let of = |uid: Option<&str>, network: &str, interface: &str, claim: &Value| {
            let reference = ClaimReference { name: "vm.blue".into(), uid: uid.map(str::to_owned) };
            fits(&serde_json::from_value(claim.clone()).unwrap(), &reference, network, interface)
        };
        assert_eq!(of(None, "blue", "pod1", &claim), Ok(()));
        assert_eq!(of(Some("u"), "blue", "pod1", &claim), Ok(()));
        assert!(
            of(Some("older"), "blue", "pod1", &claim).unwrap_err().contains("the pod names the one that had older")
        );
        assert!(of(None, "red", "pod1", &claim).unwrap_err().contains("spec.network \"blue\""));
        assert!(of(None, "blue", "net1", &claim).unwrap_err().contains("spec.interface \"pod1\""));
        let mut by_hand = claim;
        by_hand["spec"]["interface"] = json!("");
        assert_eq!(of(None, "blue", "net1", &by_hand), Ok(()));
    }
}
