//! The product's certificates: one authority, a leaf for each component, and the bundle that verifies them.

use std::time::Duration;

use api::export::constants::{AUTHORITY as EXPORTS, PROXY};
use api::kubevirt::v1::KubeVirtSpec;
use kit::certs::Leaf;
use kit::keyring::{Keyring, Lifetimes, service_names};

use serde_json::{Value, json};

use crate::MANAGER;
use crate::manifests::workloads;

const HOUR: u64 = 3600;
/// Secret of the authority.
pub const AUTHORITY: &str = "kubevirt-ca";
/// Secret of the operator's own leaf.
pub const OWN: &str = "kubevirt-operator-certs";

/// Labels of what holds certificates.
pub fn labels() -> Value {
    json!({ "app.kubernetes.io/managed-by": MANAGER, "kubevirt.io": "" })
}

/// As the KubeVirt object says; a week and a day by default, renewed when a fifth is left. No leaf outlives its authority.
pub fn lifetimes(spec: &KubeVirtSpec) -> Lifetimes {
    let signed = spec.certificate_rotate_strategy.as_ref().and_then(|strategy| strategy.self_signed.as_ref());
    let of = |config: Option<&api::kubevirt::v1::CertConfig>, default: Duration| {
        let parse = kit::duration::parse;
        let duration = config.and_then(|c| c.duration.as_deref()).and_then(parse).unwrap_or(default);
        let renew = config.and_then(|c| c.renew_before.as_deref()).and_then(parse).unwrap_or(duration / 5);
        (duration, renew)
    };
    let older = |field: Option<&String>| field.and_then(|text| kit::duration::parse(text));
    let (ca, ca_renew) = of(signed.and_then(|s| s.ca.as_ref()), Duration::from_secs(7 * 24 * HOUR));
    let (leaf, leaf_renew) = of(signed.and_then(|s| s.server.as_ref()), Duration::from_secs(24 * HOUR));
    // The older fields win; an object that mixes them with the newer ones is refused.
    let (ca, ca_renew) = match older(signed.and_then(|s| s.ca_rotate_interval.as_ref())) {
        Some(ca) => (ca, ca / 5),
        None => (ca, ca_renew),
    };
    let ca_renew = older(signed.and_then(|s| s.ca_overlap_interval.as_ref())).unwrap_or(ca_renew);
    let (leaf, leaf_renew) = match older(signed.and_then(|s| s.cert_rotate_interval.as_ref())) {
        Some(leaf) => (leaf, leaf / 5),
        None => (leaf, leaf_renew),
    };
    Lifetimes { ca, ca_renew, leaf: leaf.min(ca), leaf_renew }
}

/// What is to be there in the namespace of the KubeVirt object.
pub fn keyring(namespace: &str, lifetimes: Lifetimes) -> Keyring {
    let leaf = |(role, service): (&str, &str)| {
        let leaf = Leaf {
            name: format!("kubevirt.io:system:{role}"),
            role: role.to_owned(),
            node: None,
            dns: service_names(service, namespace).into(),
        };
        (workloads::certificate_secret(role), leaf)
    };
    let leaves = [
        ("virt-api", "virt-api"),
        ("virt-controller", "virt-controller"),
        ("virt-handler", "virt-handler"),
        ("virt-operator", "kubevirt-operator-webhook"),
        (PROXY, PROXY),
    ];
    Keyring {
        authority: AUTHORITY.to_owned(),
        bundle: workloads::CA_BUNDLE.to_owned(),
        bundle_key: "ca-bundle".to_owned(),
        name: "kubevirt.io".to_owned(),
        leaves: leaves.map(leaf).into(),
        lifetimes,
    }
}

/// The authority of export servers, whose leaves virt-controller signs: clients outside of the product believe it, and are to
/// believe nothing else for that.
pub fn exports(lifetimes: Lifetimes) -> Keyring {
    Keyring {
        authority: EXPORTS.to_owned(),
        bundle: EXPORTS.to_owned(),
        bundle_key: "ca-bundle".to_owned(),
        name: "export.kubevirt.io".to_owned(),
        leaves: Vec::new(),
        lifetimes,
    }
}

#[cfg(test)]
mod tests {
    use kit::keyring::rehearse;

    use super::*;

    #[test]
    fn ten_rotations_interrupt_nobody() {
        let check = |said: Value| {
            let spec = serde_json::from_value(json!({ "certificateRotateStrategy": { "selfSigned": said } })).unwrap();
            assert_eq!(rehearse(&keyring("ns", lifetimes(&spec)), 10), Ok(()));
            assert_eq!(rehearse(&exports(lifetimes(&spec)), 10), Ok(()));
        };
        check(Value::Null);
        let span = |duration: &str, renew: &str| json!({ "duration": duration, "renewBefore": renew });
        check(json!({ "ca": span("300s", "225s"), "server": span("150s", "100s") }));
        check(json!({ "caRotateInterval": "48h", "certRotateInterval": "24h", "caOverlapInterval": "24h" }));
    }
}
