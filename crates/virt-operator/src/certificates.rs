//! The product's certificates: one authority, a leaf for each component, and the bundle that verifies them.
//!
//! ```text
//! Secret kubevirt-ca (key, certificate) --signs--> Secrets kubevirt-*-certs
//!                    `--> ConfigMap kubevirt-ca: the authority, and those before it until they end
//! ```
//! A new authority joins the bundle at once, but leaves of the old one are kept until their own renewal: by then every
//! component has reloaded the bundle it mounts, so no connection meets an unknown authority.

use std::time::Duration;

use api::kubevirt::v1::KubeVirtSpec;
use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kit::certs::{self, Authority, Leaf, Pair, Rotation};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::{error::Error, manifests::workloads};

const HOUR: u64 = 3600;
/// Secret of the authority.
pub const AUTHORITY: &str = "kubevirt-ca";

/// How long certificates live and when they are renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// Of the authority.
    pub ca: Duration,
    /// Renewed this long before its end.
    pub ca_renew: Duration,
    /// Of the leaves.
    pub leaf: Duration,
    /// Renewed this long before their end.
    pub leaf_renew: Duration,
}

/// As the KubeVirt object says; a week and a day by default, renewed when a fifth is left.
pub fn lifetimes(spec: &KubeVirtSpec) -> Lifetimes {
    let signed = spec.certificate_rotate_strategy.as_ref().and_then(|strategy| strategy.self_signed.as_ref());
    let of = |config: Option<&api::kubevirt::v1::CertConfig>, default: Duration| {
        let duration = config.and_then(|c| c.duration.as_deref()).and_then(duration).unwrap_or(default);
        let renew = config.and_then(|c| c.renew_before.as_deref()).and_then(self::duration).unwrap_or(duration / 5);
        (duration, renew)
    };
    let (ca, ca_renew) = of(signed.and_then(|s| s.ca.as_ref()), Duration::from_secs(7 * 24 * HOUR));
    let (leaf, leaf_renew) = of(signed.and_then(|s| s.server.as_ref()), Duration::from_secs(24 * HOUR));
    Lifetimes { ca, ca_renew, leaf: leaf.min(ca), leaf_renew }
}

/// `24h30m`, as Go writes durations.
pub fn duration(text: &str) -> Option<Duration> {
    let mut total = 0.0;
    let mut rest = text;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let unit_end = rest[digits..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |at| digits + at);
        total += number
            * match &rest[digits..unit_end] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                _ => return None,
            };
        rest = &rest[unit_end..];
    }
    Duration::try_from_secs_f64(total).ok()
}

/// The certificates as they are now in the cluster.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// The authority.
    pub authority: Option<Pair>,
    /// The bundle.
    pub bundle: String,
    /// Leaves by Secret name.
    pub leaves: std::collections::BTreeMap<String, Pair>,
}

/// The certificates as they should be.
#[derive(Debug)]
pub struct Wanted {
    /// To be applied in this order.
    pub manifests: Vec<Value>,
    /// The bundle.
    pub bundle: String,
    /// The operator's own leaf.
    pub own: Pair,
    /// When something must be renewed next.
    pub again: Duration,
}

/// The leaves of the components, by Secret.
pub fn leaves(namespace: &str) -> Vec<(String, Leaf)> {
    let service = |name: &str| {
        ["", ".cluster.local"]
            .map(|domain| format!("{name}.{namespace}.svc{domain}"))
            .into_iter()
            .chain([format!("{name}.{namespace}")])
    };
    let leaf = |role: &str, services: &[&str]| Leaf {
        name: format!("kubevirt.io:system:{role}"),
        role: role.to_owned(),
        node: None,
        dns: services.iter().flat_map(|name| service(name)).collect(),
    };
    [
        ("virt-api", vec!["virt-api"]),
        ("virt-controller", vec!["virt-controller"]),
        ("virt-handler", vec!["virt-handler"]),
        ("virt-operator", vec!["kubevirt-operator-webhook"]),
    ]
    .into_iter()
    .map(|(role, services)| (workloads::certificate_secret(role), leaf(role, &services)))
    .collect()
}

/// Decides what to keep and what to renew. Makes keys, otherwise pure.
///
/// # Errors
/// When a certificate cannot be made.
pub fn plan(namespace: &str, held: &Held, lifetimes: Lifetimes, now: Timestamp) -> Result<Wanted, Error> {
    let kept = held
        .authority
        .clone()
        .filter(|pair| matches!(certs::rotation(&pair.certificate, now, lifetimes.ca_renew), Rotation::Keep(_)));
    let kept = kept.and_then(|pair| Authority::from_pair(pair).ok());
    let renewed = kept.is_none();
    let authority = match kept {
        Some(authority) => authority,
        None => {
            let name = format!("kubevirt.io@{}", now.as_second());
            Authority::generate(&name, now, lifetimes.ca).map_err(Error::Certificates)?
        }
    };
    let bundle = certs::bundle(&authority.pair().certificate, &held.bundle, now);
    let mut again = lifetimes.leaf;
    let mut look = |certificate: &str, renew: Duration| match certs::rotation(certificate, now, renew) {
        Rotation::Keep(left) => again = again.min(left),
        Rotation::Renew => again = Duration::ZERO,
    };
    look(&authority.pair().certificate, lifetimes.ca_renew);
    let mut manifests = vec![config_map(namespace, &bundle), secret(namespace, AUTHORITY, authority.pair(), "Opaque")];
    // No leaf outlives its authority.
    let end = certs::lifetime(&authority.pair().certificate).map_or(now, |(_, until)| until);
    let left = Duration::try_from(end.duration_since(now)).unwrap_or_default();
    let mut own = None;
    for (name, leaf) in leaves(namespace) {
        let good = held.leaves.get(&name).filter(|pair| {
            let known = !renewed || !held.bundle.is_empty();
            known && matches!(certs::rotation(&pair.certificate, now, lifetimes.leaf_renew), Rotation::Keep(_))
        });
        let pair = match good {
            Some(pair) => pair.clone(),
            None => authority.issue(&leaf, now, lifetimes.leaf.min(left)).map_err(Error::Certificates)?,
        };
        look(&pair.certificate, lifetimes.leaf_renew);
        manifests.push(secret(namespace, &name, &pair, "kubernetes.io/tls"));
        if leaf.role == "virt-operator" {
            own = Some(pair);
        }
    }
    let own = own.unwrap_or_else(|| authority.pair().clone());
    Ok(Wanted { manifests, bundle, own, again: again.max(Duration::from_secs(10)) })
}

fn secret(namespace: &str, name: &str, pair: &Pair, kind: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {
            "name": name, "namespace": namespace,
            "labels": { "app.kubernetes.io/managed-by": "virt-operator", "kubevirt.io": "" },
        },
        "type": kind,
        "data": {
            "tls.crt": BASE64_STANDARD.encode(&pair.certificate), "tls.key": BASE64_STANDARD.encode(&pair.key),
        },
    })
}

fn config_map(namespace: &str, bundle: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": workloads::CA_BUNDLE, "namespace": namespace,
            "labels": { "app.kubernetes.io/managed-by": "virt-operator", "kubevirt.io": "" },
        },
        "data": { "ca-bundle": bundle },
    })
}

/// Reads the certificates from the cluster.
///
/// # Errors
/// When the API server refuses.
pub async fn read(client: &Client, namespace: &str) -> Result<Held, Error> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let pair = async |name: &str| {
        let found = secrets.get_opt(name).await.map_err(Error::api("read", "secret", name))?;
        let data = found.and_then(|secret| secret.data).unwrap_or_default();
        let text = |key: &str| data.get(key).and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
        Ok::<_, Error>(text("tls.crt").zip(text("tls.key")).map(|(certificate, key)| Pair { certificate, key }))
    };
    let mut held = Held { authority: pair(AUTHORITY).await?, ..Default::default() };
    let name = workloads::CA_BUNDLE;
    let map = maps.get_opt(name).await.map_err(Error::api("read", "configmap", name))?;
    held.bundle = map.and_then(|map| map.data?.get("ca-bundle").cloned()).unwrap_or_default();
    for (name, _) in leaves(namespace) {
        if let Some(pair) = pair(&name).await? {
            held.leaves.insert(name, pair);
        }
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    fn held(wanted: &Wanted) -> Held {
        let decode =
            |value: &Value| String::from_utf8(BASE64_STANDARD.decode(value.as_str().unwrap()).unwrap()).unwrap();
        let mut held = Held { bundle: wanted.bundle.clone(), ..Default::default() };
        for manifest in wanted.manifests.iter().filter(|m| m["kind"] == "Secret") {
            let data = &manifest["data"];
            let pair = Pair { certificate: decode(&data["tls.crt"]), key: decode(&data["tls.key"]) };
            let name = manifest["metadata"]["name"].as_str().unwrap();
            if name == AUTHORITY {
                held.authority = Some(pair);
            } else {
                held.leaves.insert(name.to_owned(), pair);
            }
        }
        held
    }

    #[test]
    fn leaves_are_renewed_without_the_authority_and_the_authority_without_a_gap() {
        let lifetimes = lifetimes(&KubeVirtSpec::default());
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let first = plan("kubevirt", &Held::default(), lifetimes, start).unwrap();
        let first_held = held(&first);
        assert_eq!(first_held.leaves.len(), 4);
        let same = plan("kubevirt", &first_held, lifetimes, start + SignedDuration::from_hours(1)).unwrap();
        assert_eq!(same.manifests, first.manifests);
        assert_eq!(same.again.as_secs() / 60, (24 * 60 - 288) - 60);

        let day = plan("kubevirt", &first_held, lifetimes, start + SignedDuration::from_hours(20)).unwrap();
        let day_held = held(&day);
        assert_eq!(day_held.authority, first_held.authority);
        assert!(day_held.leaves.iter().all(|(name, pair)| first_held.leaves[name] != *pair));

        let week = plan("kubevirt", &day_held, lifetimes, start + SignedDuration::from_hours(160)).unwrap();
        let week_held = held(&week);
        assert_ne!(week_held.authority, first_held.authority);
        assert!(week.bundle.contains(first_held.authority.unwrap().certificate.trim()));
    }

    #[test]
    fn durations_as_go_writes_them() {
        assert_eq!(duration("24h0m0s"), Some(Duration::from_secs(86400)));
        assert_eq!(duration("1h30m"), Some(Duration::from_secs(5400)));
        assert_eq!(duration("90s"), Some(Duration::from_secs(90)));
        for wrong in ["", "5", "h", "5d", "1h2"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }
}
