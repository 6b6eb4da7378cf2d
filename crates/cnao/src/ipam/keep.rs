//! Keeps the claims of one machine, and lets those go that nobody needs.

use std::time::Duration;

use api::kubevirt::constants::label;
use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::core::v1::Pod;
use kit::events::Severity;
use kit::queue::Next;
use kit::store::Key;
use kit::{Chain, clock};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::claim::{IPAMClaim, Unfit};
use super::ensure::{self, ensure};
use super::names::{FINALIZER, PROGRAM};
use super::release::{Fate, Users};
use super::watched::Watched;
use super::{plan, release};
use crate::Error;

/// Reason of the events about claims that cannot be kept.
const UNKEPT: &str = "AddressesNotKept";
/// When a claim is looked at again of which it is not known yet whether a pod has its addresses.
const UNSETTLED: Duration = Duration::from_secs(2);

/// Looks at one machine.
pub(super) async fn reconcile(watched: &Watched, key: &Key) -> Next {
    let kept = match watched.vmis.get(key) {
        Some(vmi) if vmi.metadata.deletion_timestamp.is_none() => keep(watched, key, &vmi).await,
        _ => Ok(()),
    };
    let released = release(watched, key).await;
    let mut next = released.as_ref().map_or(Next::Retry, |next| *next);
    for (what, failed) in [("claims are not there", kept.err()), ("claims are not let go", released.err())] {
        if let Some(failed) = failed {
            tracing::warn!(machine = %key, error = %Chain(&*failed), "{what}");
            next = Next::Retry;
        }
    }
    next
}

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Has the claims of an instance be there.
async fn keep(watched: &Watched, key: &Key, vmi: &VirtualMachineInstance) -> Result<(), Failed> {
    let (definitions, own) = watched.networks(vmi);
    let plan = plan::plan(vmi, &definitions, &own);
    let tell = |what: &str| watched.events.record(PROGRAM, vmi, Severity::Warning, UNKEPT, what);
    plan.problems.iter().chain(&plan.remarks).for_each(|what| tell(what));
    let mut failed = None;
    for wanted in plan.claims() {
        let place = (key.namespace.as_str(), key.name.as_str());
        let found = ensure(&watched.client, place, &plan.owner, wanted, false).await;
        let held = match found {
            Ok(Some(claim)) => {
                watched.claims.put(&claim, vec![key.to_string()]);
                ensure::hold(&watched.client, &claim, &key.name).await
            }
            Ok(None) => Ok(()),
            // Its end is watched.
            Err(ensure::Error::Unfit(Unfit::Leaving(_))) => Ok(()),
            Err(ensure::Error::Unfit(Unfit::Foreign(why))) => {
                tell(&why);
                Ok(())
            }
            Err(error) => Err(error),
        };
        failed = failed.or(held.err());
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Lets the claims of a machine go that nobody needs. The watches are late: whether somebody does, the API server is asked.
async fn release(watched: &Watched, key: &Key) -> Result<Next, Failed> {
    let held: Vec<IPAMClaim> = watched.claims.by_index(&key.to_string()).into_iter().filter(release::is_held).collect();
    let (vm, vmi) = (watched.vms.get(key), watched.vmis.get(key));
    let seen = Users { vm: vm.as_ref(), vmi: vmi.as_ref(), pods: &[] };
    if held.iter().all(|claim| release::fate(claim, seen, clock::now()) == Fate::Kept) {
        return Ok(Next::Wait);
    }
    let client = &watched.client;
    let vms: Api<VirtualMachine> = Api::namespaced(client.clone(), &key.namespace);
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(client.clone(), &key.namespace);
    // The machine first: one that is being deleted makes no more instances. The pods last: an instance may have got one meanwhile.
    let vm = vms.get_opt(&key.name).await.map_err(Error::api("read", "VirtualMachine", &key.name))?;
    let vmi = vmis.get_opt(&key.name).await.map_err(Error::api("read", "VirtualMachineInstance", &key.name))?;
    let now = clock::now();
    let pods = if vmi.is_some() { launchers(client, &key.namespace).await? } else { Vec::new() };
    let users = Users { vm: vm.as_ref(), vmi: vmi.as_ref(), pods: &pods };
    let mut next = Next::Wait;
    for claim in &held {
        match release::fate(claim, users, now) {
            Fate::Kept => {}
            Fate::Unsettled => next = Next::After(UNSETTLED),
            Fate::Due => let_go(client, key, claim).await?,
        }
    }
    Ok(next)
}

/// The launchers' pods of a namespace. They are listed and not watched: few claims are deleted while their machine starts.
async fn launchers(client: &Client, namespace: &str) -> Result<Vec<Pod>, Failed> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let all = ListParams::default().labels(&format!("{}={}", label::APP, label::APP_VIRT_LAUNCHER));
    Ok(pods.list(&all).await.map_err(Error::api("list", "Pods", namespace))?.items)
}

async fn let_go(client: &Client, key: &Key, claim: &IPAMClaim) -> Result<(), Failed> {
    let claims: Api<IPAMClaim> = Api::namespaced(client.clone(), &key.namespace);
    let rest: Vec<&String> = claim.finalizers().iter().filter(|one| *one != FINALIZER).collect();
    let version = &claim.metadata.resource_version;
    let change = json!({ "metadata": { "finalizers": rest, "resourceVersion": version } });
    let name = claim.name_any();
    match claims.patch(&name, &PatchParams::default(), &Patch::Merge(change)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("let go", "IPAMClaim", &name)(error).into()),
    }
}
