//! Interfaces of pods that run follow their annotation.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use kit::backoff::Backoff;
use kit::queue::{Next, Queue};
use kit::shutdown::CancellationToken;
use kit::store::{self, Key, Store, Watch};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use pod_networks::{Interface, annotation};

use super::serve::Daemon;

/// Attempts at one text of the annotation: an event has told the pod's owner each time.
const TRIES: u32 = 3;

/// Follows the pods of `node` until `stop`.
pub(super) async fn follow(client: Client, daemon: Arc<Daemon>, node: String, stop: CancellationToken) {
    let pods: Store<Pod> = Store::default();
    let queue: Queue<Key> = Queue::new(Backoff::QUEUE);
    let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
    let how = Watch { config, trim, ..Watch::default() };
    let (wake, known) = (queue.clone(), Arc::new(Known::default()));
    let seen = known.clone();
    let _watch = store::watch(Api::all(client), how, pods.clone(), move |change| {
        if seen.is_news(change.key, change.new) {
            wake.add(change.key.clone());
        }
    });
    let work = queue.work(4, |key| {
        let (daemon, pods, known) = (daemon.clone(), pods.clone(), known.clone());
        async move {
            let Some(pod) = pods.get(&key) else { return Next::Wait };
            match change(&daemon, &pod).await {
                Ok(()) => Next::Wait,
                Err(error) if known.may_try_again(&key) => {
                    tracing::warn!(pod = %key, error = %kit::Chain(&error), "networks of a pod are not changed yet");
                    Next::Retry
                }
                Err(_) => Next::Wait,
            }
        }
    });
    tokio::select! {
        () = work => {}
        () = stop.cancelled() => {}
    }
}

async fn change(daemon: &Daemon, pod: &Pod) -> pod_networks::Result<()> {
    let uid = pod.uid().unwrap_or_default();
    // One without sandbox is given its networks with it.
    let Some(found) = daemon.networks.sandbox_of(&uid)? else { return Ok(()) };
    let _alone = daemon.alone_with(&found.id).await;
    // It may have ended while it was waited for.
    let Some(sandbox) = daemon.networks.sandbox_of(&uid)?.filter(|still| still.id == found.id) else { return Ok(()) };
    let own = daemon.networks.own(&sandbox.id)?.unwrap_or_default();
    let own = async || -> Interface { own };
    daemon.networks.change(pod, &sandbox, own).await.map(drop)
}

/// The annotation of each pod as it was seen last, and how often it was tried.
#[derive(Default)]
struct Known(Mutex<HashMap<Key, (String, u32)>>);

impl Known {
    /// Whether the pod's annotation is another one `now`.
    fn is_news(&self, key: &Key, now: Option<&Pod>) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match now.map(|pod| annotation(pod).to_owned()) {
            None => known.remove(key).is_some_and(|_| false),
            Some(now) if known.get(key).is_some_and(|(was, _)| *was == now) => false,
            Some(now) => {
                known.insert(key.clone(), (now, 0));
                true
            }
        }
    }

    fn may_try_again(&self, key: &Key) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get_mut(key).is_some_and(|(_, tries)| {
            *tries += 1;
            *tries < TRIES
        })
    }
}

/// Keeps whose it is and the annotations.
fn trim(pod: &mut Pod) {
    store::trim(pod);
    pod.metadata.labels = None;
    pod.status = None;
    let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network);
    pod.spec = Some(k8s_openapi::api::core::v1::PodSpec { host_network, ..Default::default() });
}
