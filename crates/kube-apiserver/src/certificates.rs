//! CertificateSigningRequests: who asked is noted by the server, approval is guarded per signer, and what is approved
//! is signed by the cluster's authority as its signer allows.
//!
//! ```text
//!   create (username, groups noted) -> approved: by whoever may, or at once for a node's own
//!                                        -> checked by the rules of the signer -> certificate, or condition Failed
//! ```

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use apimachinery::pointer::text;
use kube_store::Object;

use crate::ApiServer;

mod approval;
mod condition;
mod signer;

use crate::csr::Request;
pub(crate) use condition::{keep_approval, keep_others};

const RESOURCE: &str = "certificatesigningrequests.certificates.k8s.io";

/// Signs what waits since before the server was started.
pub(crate) async fn resume(server: &ApiServer) {
    for object in server.store().list(RESOURCE, None).objects {
        after_write(server, &object).await;
    }
}

/// Approves a node's own request, and signs an approved one. A lost race is decided by the write that won it.
pub(crate) async fn after_write(server: &ApiServer, object: &Arc<Object>) {
    let mut csr = object.value();
    let Some(signer) = signer::of(text(&csr, "/spec/signerName")) else { return };
    let is = |csr: &Value, kind: &str| condition::is(csr, kind);
    let open = text(&csr, "/status/certificate").is_empty() && !is(&csr, "Denied") && !is(&csr, "Failed");
    if !open {
        return;
    }
    let parsed = STANDARD.decode(text(&csr, "/spec/request")).ok().and_then(|pem| String::from_utf8(pem).ok());
    let Some(request) = parsed.as_deref().and_then(Request::parse) else { return };
    if !is(&csr, "Approved") {
        let hosts_of = |node: &str| server.edges().pki.hosts_of(node);
        let Some(why) = approval::of(server.authorizer(), &csr, signer, &request, hosts_of) else { return };
        condition::set(&mut csr, "Approved", "AutoApproved", why);
    }
    let usages = apimachinery::pointer::strings(&csr, "/spec/usages");
    let seconds = csr.pointer("/spec/expirationSeconds").and_then(Value::as_i64);
    match signer.check(&request, &usages) {
        Err(why) => condition::set(&mut csr, "Failed", "SignerValidationFailure", &why),
        Ok(()) => match server.edges().pki.sign(request.into_params(), &usages, seconds) {
            Ok(chain) => csr["status"]["certificate"] = json!(STANDARD.encode(chain)),
            Err(error) => {
                tracing::warn!(%error, name = %object.key.name, "cannot sign a certificate");
                return;
            }
        },
    }
    if let Err(error) = server.store().update(object.key.clone(), csr, object.revision).await {
        tracing::debug!(%error, name = %object.key.name, "a signing request was changed meanwhile");
    }
}
