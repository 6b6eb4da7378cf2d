//! Addresses that more than one running object has: told to whoever may act on it, not prevented.
//!
//! A request may name an address that is taken: a machine is restored beside the one it was saved from, or cloned to replace it.
//! That is fine until both run. What runs is watched; each collision is a series of the metric, and an event on every object.
//! An event names objects of its own namespace only: who else runs what is nobody's business. The log names all.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use k8s_openapi::api::core::v1::ObjectReference;
use kit::events::Recorder;
use kit::queue::Next;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::detect::{Running, collision, told};
use super::mac::Mac;
use super::mirror::Mirror;
use super::reservation::Object;

/// How many of the objects that share an address are told of another one, beside that one.
const TOLD: usize = 16;
const REASON: &str = "MACCollision";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Address {
    mac: String,
}

/// What is known of collisions.
pub(super) struct Collisions {
    gauge: Family<Address, Gauge>,
    /// Who was told of an address.
    told: Mutex<HashMap<Mac, BTreeSet<Object>>>,
    events: Recorder,
}

impl Collisions {
    /// None yet.
    pub(super) fn new(events: Recorder) -> Self {
        Collisions { gauge: Family::default(), told: Mutex::default(), events }
    }

    /// The metric.
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Count of running objects sharing the same MAC address (collision when > 1)";
        registry.register("kmp_mac_collisions", help, self.gauge.clone());
    }

    /// Looks who has `mac`. Events are told by one replica, which `leads`.
    pub(super) fn look(&self, mirror: &Mirror, mac: Mac, leads: bool) -> Next {
        let found = collision(mirror.running(mac));
        let address = Address { mac: mac.to_string() };
        if found.is_empty() {
            self.gauge.remove(&address);
        } else {
            self.gauge.get_or_create(&address).set(i64::try_from(found.len()).unwrap_or(i64::MAX));
        }
        if leads {
            self.tell(mac, &found);
        }
        Next::Wait
    }

    fn tell(&self, mac: Mac, found: &[Running]) {
        let now: BTreeSet<Object> = found.iter().map(|running| running.object.clone()).collect();
        let mut known = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let before = if now.is_empty() { known.remove(&mac) } else { known.insert(mac, now.clone()) };
        let before = before.unwrap_or_default();
        if now.is_subset(&before) {
            return;
        }
        let all: Vec<String> = now.iter().take(TOLD).map(ToString::to_string).collect();
        tracing::warn!(%mac, count = now.len(), objects = all.join(", "), "running objects share a MAC address");
        let old = found.iter().filter(|running| before.contains(&running.object)).take(TOLD);
        let new = found.iter().filter(|running| !before.contains(&running.object));
        for running in old.chain(new) {
            self.events.warning(&reference(running), REASON, told(mac, &running.object.namespace, &now));
        }
    }
}

fn reference(running: &Running) -> ObjectReference {
    let Object { namespace, kind, name } = &running.object;
    ObjectReference {
        api_version: Some(running.api_version.to_owned()),
        kind: Some(kind.to_string()),
        namespace: Some(namespace.clone()),
        name: Some(name.clone()),
        uid: Some(running.uid.clone()),
        ..ObjectReference::default()
    }
}
