//! The same address on two running interfaces: told on both, and counted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::ObjectReference;
use kit::events::Recorder;
use kit::queue::{Next, Queue};
use kit::shutdown::CancellationToken;
use kit::store::{Store, Watch};
use kit::{Task, served};
use kube::core::NamespaceResourceScope;
use kube::discovery::ApiResource;
use kube::{Api, Client, Resource};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::mac::Mac;
use super::watched::{Addressed, Pod, VirtualMachineInstance, index};

/// Who has an address more than one have, by address; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Collisions(Arc<Mutex<BTreeMap<Mac, BTreeSet<Holder>>>>);

/// An object with an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Holder {
    kind: String,
    namespace: String,
    name: String,
    uid: String,
}

impl Holder {
    fn of<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        let meta = object.meta();
        Holder {
            kind: K::kind(&()).into_owned(),
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
        }
    }

    fn reference(&self) -> ObjectReference {
        let version = if self.kind == "Pod" { "v1" } else { "kubevirt.io/v1" };
        ObjectReference {
            api_version: Some(version.to_owned()),
            kind: Some(self.kind.clone()),
            namespace: Some(self.namespace.clone()),
            name: Some(self.name.clone()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

struct Watched {
    instances: Store<VirtualMachineInstance>,
    pods: Store<Pod>,
}

impl Collisions {
    /// Follows what runs while the tasks are held.
    pub(super) fn start(self, client: &Client, recorder: Recorder, stop: &CancellationToken) -> Vec<Task<()>> {
        let watched = Arc::new(Watched { instances: Store::default(), pods: Store::default() });
        let queue: Queue<Mac> = Queue::default();
        let instances = follow(client, &watched.instances, &queue);
        let pods = follow(client, &watched.pods, &queue);
        let stop = stop.clone();
        let work = kit::spawn("collisions", async move {
            watched.instances.synced().await;
            watched.pods.synced().await;
            let look = move |mac: Mac| {
                self.look(mac, &watched, &recorder);
                std::future::ready(Next::Wait)
            };
            for worker in queue.run(1, &stop, look) {
                if let Err(error) = worker.await {
                    tracing::error!(%error, "a worker ended");
                }
            }
        });
        vec![instances, pods, work]
    }

    fn look(&self, mac: Mac, watched: &Watched, recorder: &Recorder) {
        let word = mac.to_string();
        let mut now: BTreeSet<Holder> =
            watched.instances.by_index(&word).iter().filter(|one| one.is_running()).map(Holder::of).collect();
        now.extend(watched.pods.by_index(&word).iter().filter(|one| one.is_running()).map(Holder::of));
        for (holder, others) in self.set(mac, now) {
            let message = format!("MAC address {mac} is the address of {others} as well: give one of them another");
            recorder.warning(&holder.reference(), "MACCollision", message);
        }
    }

    /// Takes in who has an address, and returns who is to be told, with whom.
    fn set(&self, mac: Mac, now: BTreeSet<Holder>) -> Vec<(Holder, String)> {
        let mut all = self.lock();
        let before = all.remove(&mac).unwrap_or_default();
        if now.len() < 2 {
            return Vec::new();
        }
        let told = |holder: &Holder| {
            let others: Vec<String> = now.iter().filter(|other| *other != holder).map(Holder::to_string).collect();
            (holder.clone(), others.join(", "))
        };
        // Whoever was told with the same others is not told again.
        let news = if before == now { Vec::new() } else { now.iter().map(told).collect() };
        all.insert(mac, now);
        news
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Mac, BTreeSet<Holder>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is counted, as of when it is asked.
    pub fn registry(&self) -> Registry {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.clone()));
        registry
    }
}

impl Collector for Collisions {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let help = "Count of running objects sharing the same MAC address";
        let kind = ConstGauge::new(0i64).metric_type();
        let mut family = encoder.encode_descriptor("kmp_mac_collisions", help, None, kind)?;
        for (mac, holders) in self.lock().iter() {
            let labels = [("mac", mac.to_string())];
            ConstGauge::new(i64::try_from(holders.len()).unwrap_or(i64::MAX)).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn follow<K>(client: &Client, store: &Store<K>, queue: &Queue<Mac>) -> Task<()>
where
    K: Addressed
        + Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Serialize
        + Send
        + Sync
        + 'static,
{
    let queue = queue.clone();
    let how = Watch { trim: K::trim, index, ..Watch::default() };
    let resource = ApiResource::erase::<K>(&());
    served::watch(client, &resource, Api::all(client.clone()), how, store.clone(), move |change| {
        queue.add_all(change.was.iter().chain(change.is).filter_map(|text| Mac::parse(text)));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(name: &str) -> Holder {
        Holder { kind: "VirtualMachineInstance".into(), namespace: "ns".into(), name: name.into(), uid: name.into() }
    }

    fn metrics(collisions: &Collisions) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &collisions.registry()).unwrap();
        text
    }

    #[test]
    fn both_are_told_once_and_counted_while_they_collide() {
        let collisions = Collisions::default();
        let mac = Mac::parse("02:00:00:00:00:01").unwrap();
        let of = |names: &[&str]| names.iter().map(|name| holder(name)).collect::<BTreeSet<_>>();
        assert!(collisions.set(mac, of(&["a"])).is_empty());
        let told = collisions.set(mac, of(&["a", "b"]));
        assert_eq!(told[0], (holder("a"), "VirtualMachineInstance ns/b".to_owned()));
        assert_eq!(told.len(), 2);
        assert!(collisions.set(mac, of(&["a", "b"])).is_empty());
        assert!(
            metrics(&collisions).contains("kmp_mac_collisions{mac=\"02:00:00:00:00:01\"} 2"),
            "{}",
            metrics(&collisions)
        );
        assert!(collisions.set(mac, of(&["b"])).is_empty());
        assert!(!metrics(&collisions).contains("mac="));
    }
}
