//! Certificates of nodes: each virt-handler asks for one, and gets it for the node that its token is bound to.
//!
//! What the request says of its maker is not looked at. The API server wrote down whose token filed it and on which node
//! that token was made; of the request only the key is used.

use std::sync::Arc;
use std::time::Duration;

use api::kubevirt::constants::SIGNER;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kit::certs::{Authority, Leaf};
use kit::queue::{Next, Queue};
use kit::store::{self, Key, Store, Watch};
use kit::{Chain, Task, clock};
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use serde_json::{Value, json};

use crate::certificates;
use crate::context::Context;
use crate::error::Error;

/// Where the API server writes the node of a token.
const NODE: &str = "authentication.kubernetes.io/node-name";
/// While there is no authority yet.
const SOON: Duration = Duration::from_secs(1);

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// It is somebody else's, or answered.
    Leave,
    /// A certificate of this node.
    Sign(String),
    /// None, and why.
    Deny(String),
}

fn judge(request: &CertificateSigningRequest, namespace: &str) -> Verdict {
    let status = request.status.clone().unwrap_or_default();
    let decided =
        status.conditions.into_iter().flatten().any(|known| matches!(known.type_.as_str(), "Denied" | "Failed"));
    if request.spec.signer_name != SIGNER || decided || status.certificate.is_some() {
        return Verdict::Leave;
    }
    let agent = format!("system:serviceaccount:{namespace}:kubevirt-handler");
    let user = request.spec.username.as_deref().unwrap_or_default();
    if user != agent {
        return Verdict::Deny(format!("{user} is not virt-handler"));
    }
    match request.spec.extra.as_ref().and_then(|extra| extra.get(NODE)).map(Vec::as_slice) {
        Some([node]) if !node.is_empty() => Verdict::Sign(node.clone()),
        _ => Verdict::Deny("the token of virt-handler is not bound to a node".to_owned()),
    }
}

/// The watch, and what it fills.
pub(crate) fn watch(context: &Context, queue: &Queue<Key>) -> (Task<()>, Store<CertificateSigningRequest>) {
    let store = Store::default();
    let config = watcher::Config::default().fields(&format!("spec.signerName={SIGNER}"));
    let wake = queue.clone();
    let how = Watch { config, ..Watch::default() };
    let task =
        store::watch(Api::all(context.client.clone()), how, store.clone(), move |change| wake.add(change.key.clone()));
    (task, store)
}

/// Answers one request.
pub(crate) async fn reconcile(context: Arc<Context>, store: Store<CertificateSigningRequest>, key: Key) -> Next {
    let Some(request) = store.get(&key) else { return Next::Wait };
    let Some(namespace) = context.kubevirts.keys().into_iter().map(|key| key.namespace).next() else {
        return Next::After(SOON);
    };
    match answer(&context, &namespace, &request, &key.name).await {
        Ok(next) => next,
        Err(error) => {
            tracing::warn!(request = key.name, error = %Chain(&error), "a node's certificate was not signed");
            Next::Retry
        }
    }
}

async fn answer(
    context: &Context,
    namespace: &str,
    request: &CertificateSigningRequest,
    name: &str,
) -> Result<Next, Error> {
    let api: Api<CertificateSigningRequest> = Api::all(context.client.clone());
    let decide = async |kind: &str, reason: &str, message: &str| {
        let now = clock::time();
        let conditions = json!([{
            "type": kind, "status": "True", "reason": reason, "message": message,
            "lastUpdateTime": now, "lastTransitionTime": now,
        }]);
        let patch = Patch::Merge(json!({ "status": { "conditions": conditions } }));
        let decided = api.patch_approval(name, &PatchParams::default(), &patch).await;
        decided.map_err(Error::api("decide on", "certificatesigningrequest", name))
    };
    match judge(request, namespace) {
        Verdict::Leave => {}
        Verdict::Deny(why) => {
            tracing::warn!(request = name, why, "a signing request was denied");
            decide("Denied", "NotANodeAgent", &why).await?;
        }
        Verdict::Sign(node) => {
            let kubevirt = context.kubevirts.list().into_iter().next();
            let lifetimes = certificates::lifetimes(&kubevirt.map(|kubevirt| kubevirt.spec).unwrap_or_default());
            let ring = certificates::keyring(namespace, lifetimes);
            let held = ring.read(&context.client, namespace).await;
            let held = held.map_err(Error::api("read", "certificates", namespace))?;
            let Some(authority) = held.authority else { return Ok(Next::After(SOON)) };
            let authority = Authority::from_pair(authority).map_err(Error::Certificates)?;
            decide("Approved", "BoundToNode", &format!("its token is bound to node {node}")).await?;
            let certificate = sign(&authority, request, &node, lifetimes.leaf)?;
            let patch: Value = json!({ "status": { "certificate": BASE64_STANDARD.encode(certificate) } });
            let signed = api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await;
            signed.map_err(Error::api("sign", "certificatesigningrequest", name))?;
            tracing::info!(request = name, node, "signed the certificate of a node");
        }
    }
    Ok(Next::Wait)
}

fn sign(
    authority: &Authority,
    request: &CertificateSigningRequest,
    node: &str,
    lifetime: Duration,
) -> Result<String, Error> {
    let leaf = Leaf {
        name: format!("kubevirt.io:system:virt-handler:{node}"),
        role: "virt-handler".to_owned(),
        node: Some(node.to_owned()),
        dns: Vec::new(),
    };
    let now = clock::now();
    let text = String::from_utf8_lossy(&request.spec.request.0);
    authority.answer(&text, &leaf, now, lifetime).map_err(Error::Certificates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(signer: &str, user: &str, extra: Value, status: Value, expect: Verdict) {
        let spec = json!({"request": "eA==", "signerName": signer, "username": user, "extra": extra, "usages": []});
        let request = json!({"metadata": {"name": "r"}, "spec": spec, "status": status});
        assert_eq!(judge(&serde_json::from_value(request).unwrap(), "kubevirt"), expect);
    }

    #[test]
    fn the_node_is_the_tokens() {
        const AGENT: &str = "system:serviceaccount:kubevirt:kubevirt-handler";
        let on = |nodes: Value| json!({ NODE: nodes });
        check(SIGNER, AGENT, on(json!(["n1"])), json!({}), Verdict::Sign("n1".into()));
        check("kubernetes.io/kubelet-serving", AGENT, on(json!(["n1"])), json!({}), Verdict::Leave);
        check(SIGNER, AGENT, on(json!(["n1"])), json!({"certificate": "eA=="}), Verdict::Leave);
        let denied = json!({"conditions": [{"type": "Denied", "status": "True"}]});
        check(SIGNER, AGENT, on(json!(["n1"])), denied, Verdict::Leave);
        let unbound = Verdict::Deny("the token of virt-handler is not bound to a node".into());
        check(SIGNER, AGENT, json!({}), json!({}), unbound.clone());
        check(SIGNER, AGENT, on(json!(["n1", "n2"])), json!({}), unbound);
        let other = "system:serviceaccount:other:kubevirt-handler";
        check(SIGNER, other, on(json!(["n1"])), json!({}), Verdict::Deny(format!("{other} is not virt-handler")));
    }
}
