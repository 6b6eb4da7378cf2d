//! An authority, the leaves it signs and the bundle that verifies them, as they lie in a namespace and are renewed.
//!
//! ```text
//! Secret (key, certificate) --signs--> a Secret for each leaf
//!                    `--> ConfigMap: the authority, and those before it until they end
//! ```
//! A new authority joins the bundle at once, but leaves of the old one are kept until their own renewal: by then every
//! component has reloaded the bundle it mounts, so no connection meets an unknown authority.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::certs::{self, Authority, Error, Leaf, Pair, Rotation};

/// How long certificates live and when they are renewed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// What is to be there.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    /// Secret of the authority.
    pub authority: String,
    /// ConfigMap with the bundle.
    pub bundle: String,
    /// The bundle's key in it.
    pub bundle_key: String,
    /// What the authority is called; the time it was made is added.
    pub name: String,
    /// The leaves, by Secret.
    pub leaves: Vec<(String, Leaf)>,
    /// How long they live.
    pub lifetimes: Lifetimes,
}

/// The certificates as they are now in the cluster.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// The authority.
    pub authority: Option<Pair>,
    /// The bundle.
    pub bundle: String,
    /// Leaves by Secret name.
    pub leaves: BTreeMap<String, Pair>,
}

/// The certificates as they should be.
#[derive(Clone, Debug)]
pub struct Renewed {
    /// The authority.
    pub authority: Pair,
    /// The bundle.
    pub bundle: String,
    /// Leaves by Secret name.
    pub leaves: BTreeMap<String, Pair>,
    /// When something must be renewed next.
    pub again: Duration,
}

impl Keyring {
    /// Decides what to keep and what to renew. Makes keys, otherwise pure.
    ///
    /// # Errors
    /// When a certificate cannot be made.
    pub fn plan(&self, held: &Held, now: Timestamp) -> Result<Renewed, Error> {
        let lifetimes = self.lifetimes;
        let good = |certificate: &str, renew: Duration, life: Duration| {
            let kept = matches!(certs::rotation(certificate, now, sane(certificate, renew)), Rotation::Keep(_));
            kept && !outlives(certificate, life)
        };
        let kept = held.authority.clone().filter(|pair| good(&pair.certificate, lifetimes.ca_renew, lifetimes.ca));
        let kept = kept.and_then(|pair| Authority::from_pair(pair).ok());
        let renewed = kept.is_none();
        let authority = match kept {
            Some(authority) => authority,
            None => Authority::generate(&format!("{}@{}", self.name, now.as_second()), now, lifetimes.ca)?,
        };
        let bundle = certs::bundle(&authority.pair().certificate, &held.bundle, now);
        let mut again = lifetimes.leaf;
        let mut look =
            |certificate: &str, renew: Duration| match certs::rotation(certificate, now, sane(certificate, renew)) {
                Rotation::Keep(left) => again = again.min(left),
                Rotation::Renew => again = Duration::ZERO,
            };
        look(&authority.pair().certificate, lifetimes.ca_renew);
        // No leaf outlives its authority.
        let end = certs::lifetime(&authority.pair().certificate).map_or(now, |(_, until)| until);
        let left = Duration::try_from(end.duration_since(now)).unwrap_or_default();
        let mut leaves = BTreeMap::new();
        for (name, leaf) in &self.leaves {
            let kept = held.leaves.get(name).filter(|pair| {
                let known = !renewed || !held.bundle.is_empty();
                known && good(&pair.certificate, lifetimes.leaf_renew, lifetimes.leaf)
            });
            let pair = match kept {
                Some(pair) => pair.clone(),
                None => authority.issue(leaf, now, lifetimes.leaf.min(left))?,
            };
            look(&pair.certificate, lifetimes.leaf_renew);
            leaves.insert(name.clone(), pair);
        }
        let again = again.max(Duration::from_secs(10));
        Ok(Renewed { authority: authority.pair().clone(), bundle, leaves, again })
    }

    /// The ConfigMap and the Secrets, with `labels`.
    pub fn manifests(&self, renewed: &Renewed, namespace: &str, labels: &Value) -> Vec<Value> {
        let metadata = |name: &str| json!({ "name": name, "namespace": namespace, "labels": labels });
        let secret = |name: &str, pair: &Pair, kind: &str| {
            json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": metadata(name), "type": kind,
                "data": {
                    "tls.crt": BASE64_STANDARD.encode(&pair.certificate),
                    "tls.key": BASE64_STANDARD.encode(&pair.key),
                },
            })
        };
        let bundle = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(&self.bundle),
            "data": { (self.bundle_key.as_str()): renewed.bundle },
        });
        let mut out = vec![bundle, secret(&self.authority, &renewed.authority, "Opaque")];
        out.extend(renewed.leaves.iter().map(|(name, pair)| secret(name, pair, "kubernetes.io/tls")));
        out
    }

    /// Reads what is there.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn read(&self, client: &Client, namespace: &str) -> kube::Result<Held> {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let pair = async |name: &str| {
            let data = secrets.get_opt(name).await?.and_then(|secret| secret.data).unwrap_or_default();
            let text = |key: &str| data.get(key).and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
            Ok::<_, kube::Error>(
                text("tls.crt").zip(text("tls.key")).map(|(certificate, key)| Pair { certificate, key }),
            )
        };
        let mut held = Held { authority: pair(&self.authority).await?, ..Default::default() };
        let map = maps.get_opt(&self.bundle).await?;
        held.bundle = map.and_then(|map| map.data?.get(&self.bundle_key).cloned()).unwrap_or_default();
        for (name, _) in &self.leaves {
            if let Some(pair) = pair(name).await? {
                held.leaves.insert(name.clone(), pair);
            }
        }
        Ok(held)
    }
}

/// How long a certificate was made for.
fn life(certificate: &str) -> Option<Duration> {
    certs::life(certificate).and_then(|(made, until)| Duration::try_from(until.duration_since(made)).ok())
}

/// How long before its end a certificate is renewed: one that would be due at once, and so again and again, at half of its time.
fn sane(certificate: &str, renew: Duration) -> Duration {
    life(certificate).filter(|life| *life <= renew).map_or(renew, |life| life / 2)
}

/// True when a certificate was made for longer than certificates are to live now.
fn outlives(certificate: &str, life: Duration) -> bool {
    // Certificates count in whole seconds.
    self::life(certificate).is_some_and(|found| found > life + Duration::from_secs(1))
}

/// The names under which a Service of `namespace` is reached.
pub fn service_names(name: &str, namespace: &str) -> [String; 3] {
    [format!("{name}.{namespace}.svc"), format!("{name}.{namespace}.svc.cluster.local"), format!("{name}.{namespace}")]
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    fn held(renewed: &Renewed) -> Held {
        Held {
            authority: Some(renewed.authority.clone()),
            bundle: renewed.bundle.clone(),
            leaves: renewed.leaves.clone(),
        }
    }

    fn hours(hours: u64) -> Duration {
        Duration::from_secs(hours * 3600)
    }

    fn start() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    /// For these roles.
    fn ring(roles: &[&str], lifetimes: Lifetimes) -> Keyring {
        let leaf = |role: &&str| (format!("{role}-certs"), Leaf { role: (*role).to_owned(), ..Leaf::default() });
        Keyring { leaves: roles.iter().map(leaf).collect(), lifetimes, ..Keyring::default() }
    }

    #[test]
    fn leaves_are_renewed_without_the_authority_and_the_authority_without_a_gap() {
        let lifetimes = Lifetimes { ca: hours(168), ca_renew: hours(34), leaf: hours(24), leaf_renew: hours(5) };
        let ring = ring(&["a", "b"], lifetimes);
        let start = start();
        let first = ring.plan(&Held::default(), start).unwrap();
        assert_eq!(first.leaves.len(), 2);
        let same = ring.plan(&held(&first), start + SignedDuration::from_hours(1)).unwrap();
        assert_eq!((&same.leaves, &same.authority), (&first.leaves, &first.authority));
        assert_eq!(same.again, hours(18));

        let day = ring.plan(&held(&first), start + SignedDuration::from_hours(20)).unwrap();
        assert_eq!(day.authority, first.authority);
        assert!(day.leaves.iter().all(|(name, pair)| first.leaves[name] != *pair));

        let week = ring.plan(&held(&day), start + SignedDuration::from_hours(160)).unwrap();
        assert_ne!(week.authority, first.authority);
        assert!(week.bundle.contains(first.authority.certificate.trim()));
    }

    #[test]
    fn a_certificate_due_at_once_is_not_renewed_in_a_loop() {
        let lifetimes = Lifetimes { ca: hours(2), ca_renew: hours(1), leaf: hours(2), leaf_renew: hours(12) };
        let ring = ring(&["a"], lifetimes);
        let start = start();
        let first = ring.plan(&Held::default(), start).unwrap();
        let second = ring.plan(&held(&first), start).unwrap();
        assert_eq!((second.leaves, second.again), (first.leaves, hours(1)));
    }

    #[test]
    fn certificates_longer_than_a_shortened_lifetime_are_renewed_once() {
        let lifetimes = Lifetimes { ca: hours(48), ca_renew: hours(24), leaf: hours(24), leaf_renew: hours(12) };
        let long = ring(&["a"], lifetimes);
        let shorter = Lifetimes { ca: hours(2), ca_renew: hours(1), leaf: hours(1), leaf_renew: hours(0) };
        let short = Keyring { lifetimes: shorter, ..long.clone() };
        let start = start();
        let first = long.plan(&Held::default(), start).unwrap();
        let second = short.plan(&held(&first), start).unwrap();
        assert_ne!((&second.authority, &second.leaves), (&first.authority, &first.leaves));
        let third = short.plan(&held(&second), start).unwrap();
        assert_eq!((third.authority, third.leaves), (second.authority.clone(), second.leaves));
    }
}
