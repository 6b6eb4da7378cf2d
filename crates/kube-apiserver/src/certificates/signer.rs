//! The signers of the cluster's authority and what each of them signs. Pure.

use crate::csr::Request;

pub(super) const NODE: &str = "system:node:";
pub(super) const NODES: &str = "system:nodes";

/// A signer by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signer {
    /// Clients of the API server.
    Client,
    /// Nodes as clients of the API server.
    KubeletClient,
    /// Nodes as servers.
    KubeletServing,
    /// Whatever was asked for before signers had names.
    Legacy,
}

/// The signer of a name; None for one that somebody else serves.
pub(super) fn of(name: &str) -> Option<Signer> {
    match name {
        "kubernetes.io/kube-apiserver-client" => Some(Signer::Client),
        "kubernetes.io/kube-apiserver-client-kubelet" => Some(Signer::KubeletClient),
        "kubernetes.io/kubelet-serving" => Some(Signer::KubeletServing),
        "kubernetes.io/legacy-unknown" => Some(Signer::Legacy),
        _ => None,
    }
}

impl Signer {
    /// Whether the signer signs this.
    pub(super) fn check(self, request: &Request, usages: &[String]) -> Result<(), String> {
        match self {
            Self::Legacy => Ok(()),
            Self::Client => within(usages, "client auth", &["digital signature", "key encipherment", "client auth"]),
            Self::KubeletClient => {
                node(request)?;
                if !request.hosts().is_empty() || request.has_other_names() {
                    return Err("DNS, IP, Email and URI subjectAltNames are not allowed".to_owned());
                }
                kubelet(usages, "client auth")
            }
            Self::KubeletServing => {
                node(request)?;
                if request.hosts().is_empty() {
                    return Err("at least one DNS or IP subjectAltName is required".to_owned());
                }
                if request.has_other_names() {
                    return Err("Email and URI subjectAltNames are not allowed".to_owned());
                }
                kubelet(usages, "server auth")
            }
        }
    }
}

fn within(usages: &[String], needed: &str, allowed: &[&str]) -> Result<(), String> {
    if let Some(other) = usages.iter().find(|usage| !allowed.contains(&usage.as_str())) {
        return Err(format!("usages did not match: {other:?} is not among {allowed:?}"));
    }
    if usages.iter().any(|usage| usage == needed) { Ok(()) } else { Err(format!("usages must include {needed:?}")) }
}

fn kubelet(usages: &[String], purpose: &str) -> Result<(), String> {
    within(usages, "digital signature", &["digital signature", "key encipherment", purpose])?;
    within(usages, purpose, &["digital signature", "key encipherment", purpose])
}

fn node(request: &Request) -> Result<(), String> {
    if request.organizations() != [NODES] {
        return Err(format!("subject organization is not {NODES}"));
    }
    let name = request.common_name();
    if name.strip_prefix(NODE).is_none_or(str::is_empty) {
        return Err(format!("subject common name does not begin with {NODE}"));
    }
    Ok(())
}
