//! An authority, the leaves it signs and the bundle that verifies them, as they lie in a namespace and are renewed.
//!
//! ```text
//! Secret (key, certificate) --signs--> a Secret for each leaf
//!                    `--> ConfigMap: the authority, and those before it until they end
//! ```
//! A new authority joins the bundle before it signs anything, and leaves of the old one are kept until their own renewal: by then
//! every component has reloaded the bundle it mounts, so no connection meets an unknown authority.

mod lifetimes;
mod rehearsal;
mod succession;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::certs::{self, Error, Leaf, Pair, Rotation};

pub use self::lifetimes::{Lifetimes, Span};
pub use self::rehearsal::rehearse;

/// Keys of a certificate and its key in a Secret.
const OWN: (&str, &str) = ("tls.crt", "tls.key");
/// Keys of the next authority, in the Secret of the one that signs.
const NEXT: (&str, &str) = ("next.crt", "next.key");
/// Between two looks at certificates that live for seconds.
const SHORTEST: Duration = Duration::from_secs(1);

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
    /// The one after it, which signs nothing yet.
    pub next: Option<Pair>,
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
    /// The one after it, which is in the bundle and signs nothing yet.
    pub next: Option<Pair>,
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
        let succession = succession::plan(self, held.authority.as_ref(), held.next.as_ref(), now)?;
        let authority = succession.signs;
        let announced = match &succession.next {
            Some(next) => certs::bundle(&next.certificate, &held.bundle, now),
            None => held.bundle.clone(),
        };
        let bundle = certs::bundle(&authority.pair().certificate, &announced, now);
        let mut again = lifetimes.leaf.min(succession.again);
        let mut look =
            |certificate: &str, renew: Duration| match certs::rotation(certificate, now, sane(certificate, renew)) {
                Rotation::Keep(left) => again = again.min(left),
                Rotation::Renew => again = Duration::ZERO,
            };
        if succession.next.is_none() {
            look(&authority.pair().certificate, lifetimes.ca_renew);
        }
        let mut leaves = BTreeMap::new();
        for (name, leaf) in &self.leaves {
            let kept = held.leaves.get(name).filter(|pair| {
                let known = !succession.first || !held.bundle.is_empty();
                known && good(&pair.certificate, lifetimes.leaf_renew, lifetimes.leaf, now)
            });
            let pair = match kept {
                Some(pair) => pair.clone(),
                None => authority.issue(leaf, now, lifetimes.leaf)?,
            };
            look(&pair.certificate, lifetimes.leaf_renew);
            leaves.insert(name.clone(), pair);
        }
        let again = again.max(SHORTEST);
        Ok(Renewed { authority: authority.pair().clone(), next: succession.next, bundle, leaves, again })
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
        let mut authority = secret(&self.authority, &renewed.authority, "Opaque");
        if let Some(next) = &renewed.next {
            authority["data"][NEXT.0] = json!(BASE64_STANDARD.encode(&next.certificate));
            authority["data"][NEXT.1] = json!(BASE64_STANDARD.encode(&next.key));
        }
        let mut out = vec![bundle, authority];
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
        let pairs = async |name: &str| {
            let data = secrets.get_opt(name).await?.and_then(|secret| secret.data).unwrap_or_default();
            let text = |key: &str| data.get(key).and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
            let pair = |(certificate, key)| {
                text(certificate).zip(text(key)).map(|(certificate, key)| Pair { certificate, key })
            };
            Ok::<_, kube::Error>([OWN, NEXT].map(pair))
        };
        let [authority, next] = pairs(&self.authority).await?;
        let mut held = Held { authority, next, ..Default::default() };
        let map = maps.get_opt(&self.bundle).await?;
        held.bundle = map.and_then(|map| map.data?.get(&self.bundle_key).cloned()).unwrap_or_default();
        for (name, _) in &self.leaves {
            if let [Some(pair), _] = pairs(name).await? {
                held.leaves.insert(name.clone(), pair);
            }
        }
        Ok(held)
    }
}

/// What to do about a certificate that may live for `life` and is renewed `renew` before its end: one that was made for longer is
/// renewed at once, and one that was made for less than `renew` at half of its time.
pub fn due(certificate: &str, renew: Duration, life: Duration, now: Timestamp) -> Rotation {
    if outlives(certificate, life) {
        return Rotation::Renew;
    }
    certs::rotation(certificate, now, sane(certificate, renew))
}

fn good(certificate: &str, renew: Duration, life: Duration, now: Timestamp) -> bool {
    matches!(due(certificate, renew, life, now), Rotation::Keep(_))
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
