//! Node agents that run no containers: nodes to put load on the control plane with.
//!
//! ```text
//!  one process, one watch on pods --> queue --> writes each pod's status, or ends it
//!              one watch on nodes --> registers them again, says again that they are ready
//!              a lease for each, renewed in turn
//! ```
//!
//! To the cluster they are nodes like any other but for their label [`LABEL`]: pods placed on them get an address, run and
//! are ready at once, and end when deleted. What a pod does beyond that, its annotations say: see [`pod`]. Nothing
//! listens on the nodes' addresses, so logs and exec fail as they do on a node that is cut off.

mod node;
pub mod pod;

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kit::queue::{Next, Queue};
use kube::api::{DeleteParams, ListParams, PartialObjectMeta, Patch, PatchParams, Preconditions};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
pub use crate::labels::{LABEL, SIMULATED};
pub use node::MOST;

/// Requests in flight; the API server lets one user have so many.
const WORKERS: usize = 48;
const BEAT: Duration = Duration::from_secs(10);

/// Namespace, name.
type Key = (String, String);

struct Agents {
    client: Client,
    nodes: BTreeMap<String, node::Place>,
    pods: Mutex<HashMap<Key, Arc<Pod>>>,
    /// Address -> uid of the pod that has it.
    addresses: Mutex<HashMap<Ipv4Addr, String>>,
    queue: Queue<Key>,
    lost: Queue<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Is `count` nodes until `stop`. Simulated nodes beyond them that are left of an earlier run are deleted.
///
/// # Errors
/// When the nodes that are there cannot be listed; what fails later is tried again.
pub async fn run(client: Client, count: u16, stop: CancellationToken) -> Result<()> {
    let places = (1..=count.min(MOST)).map(node::Place::new).map(|place| (place.name(), place));
    let agents = Arc::new(Agents {
        client,
        nodes: places.collect(),
        pods: Mutex::default(),
        addresses: Mutex::default(),
        queue: Queue::default(),
        lost: Queue::default(),
    });
    remove(&agents.client, |name| !agents.nodes.contains_key(name)).await?;
    let mut tasks = Vec::new();
    for name in agents.nodes.keys() {
        agents.lost.add(name.clone());
    }
    let own = agents.clone();
    tasks.extend(agents.queue.run(WORKERS, &stop, move |key| {
        let agents = own.clone();
        async move { agents.advance(&key).await }
    }));
    let own = agents.clone();
    tasks.extend(agents.lost.run(WORKERS / 4, &stop, move |name| {
        let agents = own.clone();
        async move { agents.register(&name).await }
    }));
    tasks.push(kit::spawn("simulated-watch-pods", agents.clone().follow_pods()));
    tasks.push(kit::spawn("simulated-watch-nodes", agents.clone().follow_nodes()));
    tasks.push(kit::spawn("simulated-leases", agents.clone().keep_leases()));
    stop.cancelled().await;
    tasks.iter().for_each(kit::Task::abort);
    Ok(())
}

/// Deletes simulated nodes with what is on them: nobody will.
///
/// # Errors
/// When the API server refuses.
pub async fn remove(client: &Client, which: impl Fn(&str) -> bool) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let ours = ListParams::default().labels(&format!("{LABEL}={SIMULATED}"));
    let known = nodes.list_metadata(&ours).await.map_err(Error::api("list simulated nodes"))?;
    for name in known.iter().map(ResourceExt::name_any).filter(|name| which(name)) {
        absent(nodes.delete(&name, &DeleteParams::default()).await).map_err(Error::api("delete simulated node"))?;
        let here = ListParams::default().fields(&format!("spec.nodeName={name}"));
        let pods = Api::<Pod>::all(client.clone()).list_metadata(&here).await.map_err(Error::api("list pods"))?;
        for pod in pods {
            let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
            let now = DeleteParams::default().grace_period(0);
            absent(api.delete(&pod.name_any(), &now).await).map_err(Error::api("delete pod"))?;
        }
    }
    Ok(())
}

/// Who is not there any more needs no deletion.
fn absent<T>(deleted: kube::Result<T>) -> kube::Result<()> {
    match deleted {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

impl Agents {
    async fn follow_pods(self: Arc<Self>) {
        let api: Api<Pod> = Api::all(self.client.clone());
        // One watch for all: one for each node would have the API server look at each change so many times.
        let placed = watcher::Config::default().fields("spec.nodeName!=");
        let mut events = std::pin::pin!(watcher(api, placed).default_backoff());
        let mut listed: Option<HashMap<Key, Arc<Pod>>> = None;
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init) => listed = Some(HashMap::new()),
                Ok(watcher::Event::InitApply(pod)) => {
                    if let (Some(listed), Some((key, pod))) = (&mut listed, self.own(pod)) {
                        listed.insert(key, pod);
                    }
                }
                Ok(watcher::Event::InitDone) => {
                    let Some(listed) = listed.take() else { continue };
                    let keys: Vec<Key> = listed.keys().cloned().collect();
                    let before = std::mem::replace(&mut *lock(&self.pods), listed);
                    before.into_values().for_each(|pod| self.free(&pod));
                    lock(&self.pods).values().for_each(|pod| self.occupy(pod));
                    keys.into_iter().for_each(|key| self.queue.add(key));
                }
                Ok(watcher::Event::Apply(pod)) => {
                    if let Some((key, pod)) = self.own(pod) {
                        self.occupy(&pod);
                        lock(&self.pods).insert(key.clone(), pod);
                        self.queue.add(key);
                    }
                }
                Ok(watcher::Event::Delete(pod)) => {
                    if let Some((key, pod)) = self.own(pod) {
                        self.free(&pod);
                        lock(&self.pods).remove(&key);
                    }
                }
                Err(error) => tracing::warn!(error = %kit::Chain(&error), "the watch on pods broke"),
            }
        }
    }

    /// A pod on one of the nodes, without what nothing here reads.
    fn own(&self, mut pod: Pod) -> Option<(Key, Arc<Pod>)> {
        let node = pod.spec.as_ref()?.node_name.as_ref()?;
        if !self.nodes.contains_key(node) {
            return None;
        }
        pod.metadata.managed_fields = None;
        let key = (pod.namespace().unwrap_or_default(), pod.name_any());
        Some((key, Arc::new(pod)))
    }

    fn occupy(&self, pod: &Pod) {
        if let (Some(address), Some(uid)) = (pod::address(pod), pod.uid()) {
            lock(&self.addresses).insert(address, uid);
        }
    }

    fn free(&self, pod: &Pod) {
        if let Some(address) = pod::address(pod) {
            let mut addresses = lock(&self.addresses);
            if addresses.get(&address) == pod.metadata.uid.as_ref() {
                addresses.remove(&address);
            }
        }
    }

    /// The address the pod has or gets.
    fn assign(&self, pod: &Pod, place: &node::Place) -> Option<Ipv4Addr> {
        if let Some(address) = pod::address(pod) {
            return Some(address);
        }
        let uid = pod.uid()?;
        let mut addresses = lock(&self.addresses);
        let free = |address: &Ipv4Addr| addresses.get(address).is_none_or(|owner| *owner == uid);
        let found = place.pod_addresses().find(free)?;
        addresses.insert(found, uid);
        Some(found)
    }

    async fn advance(&self, key: &Key) -> Next {
        self.step(key).await.unwrap_or_else(|error| {
            tracing::debug!(pod = ?key, error = %kit::Chain(&error), "will be tried again");
            Next::Retry
        })
    }

    async fn step(&self, key: &Key) -> Result<Next> {
        let Some(pod) = lock(&self.pods).get(key).cloned() else { return Ok(Next::Wait) };
        let name = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        let Some(place) = self.nodes.get(&name) else { return Ok(Next::Wait) };
        let Some(address) = self.assign(&pod, place) else { return Ok(Next::Retry) };
        match pod::step(&pod, place.address, address, kit::clock::now()) {
            pod::Step::Wait => Ok(Next::Wait),
            pod::Step::After(delay) => Ok(Next::After(delay)),
            pod::Step::Write(status) => {
                let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": status});
                // The watch brings the pod; of the answer only the metadata is read.
                let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(self.client.clone(), &key.0);
                match api.patch_status(&key.1, &PatchParams::default(), &Patch::Strategic(patch)).await {
                    Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Next::Wait),
                    other => other.map(|_| Next::Wait).map_err(Error::api("write pod status")),
                }
            }
            pod::Step::Delete => {
                let this = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
                let now = DeleteParams::default().grace_period(0).preconditions(this);
                let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.0);
                match api.delete(&key.1, &now).await {
                    Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Next::Wait),
                    other => other.map(|_| Next::Wait).map_err(Error::api("delete pod")),
                }
            }
        }
    }
}
