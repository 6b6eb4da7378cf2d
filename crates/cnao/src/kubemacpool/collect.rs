//! What the leader does with addresses: those in use have a Lease, and those that nothing uses are given back.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kit::queue::{Next, Queue};
use kit::shutdown::CancellationToken;
use kit::store::{self, Store, Watch};
use kit::{Chain, Task, clock, served};
use kube::core::NamespaceResourceScope;
use kube::discovery::ApiResource;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::mac::Mac;
use super::pool::{self, Pool};
use super::watched::{Addressed, Pod, VirtualMachine, index};

struct Collector {
    pool: Arc<Pool>,
    machines: Store<VirtualMachine>,
    pods: Store<Pod>,
    wait: Duration,
    /// Addresses that were seen in use, with when they had been noted last by then.
    seen: Mutex<HashMap<Mac, Timestamp>>,
}

/// What becomes of an address.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// It is in use and noted.
    Keep,
    /// It is in use, and nobody noted that.
    Note,
    /// It is not in use any more.
    GiveBack,
    /// It may yet be stored.
    Wait(Duration),
    /// It is neither in use nor noted.
    Nothing,
}

/// `noted` is when the address was noted last, if it was; `seen` when it had been when it was seen in use.
fn step(used: bool, noted: Option<Timestamp>, seen: Option<Timestamp>, wait: Duration, now: Timestamp) -> Step {
    let Some(noted) = noted else { return if used { Step::Note } else { Step::Nothing } };
    if used {
        return Step::Keep;
    }
    // What was stored and is gone is free, unless somebody asked for it since.
    if seen == Some(noted) {
        return Step::GiveBack;
    }
    let age = Duration::try_from(now.duration_since(noted)).unwrap_or_default();
    match wait.checked_sub(age) {
        Some(left) if !left.is_zero() => Step::Wait(left),
        _ => Step::GiveBack,
    }
}

/// Begins the work, which goes on while the tasks are held.
pub(super) fn start(client: &Client, pool: &Arc<Pool>, wait: Duration, stop: &CancellationToken) -> Vec<Task<()>> {
    let collector = Arc::new(Collector {
        pool: pool.clone(),
        machines: Store::default(),
        pods: Store::default(),
        wait,
        seen: Mutex::default(),
    });
    let queue: Queue<Mac> = Queue::default();
    let leases = {
        let queue = queue.clone();
        let how =
            Watch { index: |lease: &Lease| pool::address(lease).iter().map(Mac::to_string).collect(), ..pool::how() };
        store::watch(pool.leases(), how, Store::default(), move |change| wake(&queue, change.was, change.is))
    };
    let machines = follow(client, &collector.machines, &queue);
    let pods = follow(client, &collector.pods, &queue);
    let stop = stop.clone();
    let work = kit::spawn("collector", async move {
        collector.pool.synced().await;
        collector.machines.synced().await;
        collector.pods.synced().await;
        for worker in queue.run(2, &stop, move |mac| reconcile(collector.clone(), mac)) {
            if let Err(error) = worker.await {
                tracing::error!(%error, "a worker ended");
            }
        }
    });
    vec![leases, machines, pods, work]
}

fn wake(queue: &Queue<Mac>, was: &[String], is: &[String]) {
    queue.add_all(was.iter().chain(is).filter_map(|text| Mac::parse(text)));
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
        wake(&queue, change.was, change.is);
    })
}

async fn reconcile(collector: Arc<Collector>, mac: Mac) -> Next {
    let lease = collector.pool.lease(mac);
    let owner = collector.owner(mac);
    let noted = lease.as_ref().map(pool::noted);
    let seen = collector.seen(mac);
    let done = match (step(owner.is_some(), noted, seen, collector.wait, clock::now()), &lease, &owner) {
        (Step::Keep, Some(lease), _) => {
            collector.see(mac, Some(pool::noted(lease)));
            Ok(())
        }
        (Step::Note, _, Some(owner)) => collector.pool.note(mac, owner).await,
        (Step::GiveBack, Some(lease), _) => {
            collector.see(mac, None);
            collector.pool.give_back(lease).await
        }
        (Step::Wait(left), ..) => return Next::After(left),
        _ => {
            collector.see(mac, None);
            Ok(())
        }
    };
    match done {
        Ok(()) => Next::Wait,
        Err(error) => {
            tracing::debug!(%mac, error = %Chain(&error), "will look again");
            Next::Retry
        }
    }
}

impl Collector {
    /// Who has the address, for whoever reads the Lease.
    fn owner(&self, mac: Mac) -> Option<String> {
        let word = mac.to_string();
        let machine = self.machines.by_index(&word).into_iter().next();
        let machine = machine.map(|vm| owner("vm", &vm.namespace().unwrap_or_default(), &vm.name_any()));
        let pod = || self.pods.by_index(&word).into_iter().next();
        machine.or_else(|| pod().map(|pod| owner("pod", &pod.namespace().unwrap_or_default(), &pod.name_any())))
    }

    fn seen(&self, mac: Mac) -> Option<Timestamp> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).get(&mac).copied()
    }

    fn see(&self, mac: Mac, noted: Option<Timestamp>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match noted {
            Some(noted) => drop(seen.insert(mac, noted)),
            None => drop(seen.remove(&mac)),
        }
    }
}

/// Who holds an address, as its Lease names it.
pub(super) fn owner(kind: &str, namespace: &str, name: &str) -> String {
    format!("{kind}/{namespace}/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(used: bool, noted: Option<i64>, seen: Option<i64>, expect: Step) {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let now = at(1000);
        assert_eq!(step(used, noted.map(at), seen.map(at), Duration::from_secs(600), now), expect);
    }

    #[test]
    fn addresses_in_use_are_kept_and_others_given_back() {
        check(true, Some(900), None, Step::Keep);
        check(true, None, None, Step::Note);
        check(false, None, None, Step::Nothing);
        // Stored, and gone again.
        check(false, Some(900), Some(900), Step::GiveBack);
        // Asked for by another one since it was seen.
        check(false, Some(950), Some(900), Step::Wait(Duration::from_secs(550)));
        // Never stored.
        check(false, Some(900), None, Step::Wait(Duration::from_secs(500)));
        check(false, Some(400), None, Step::GiveBack);
    }
}
