//! Writes what the scheduler decided about a claim: its devices, and that the pod may use them.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kit::controller::{During, Result};
use kit::store::Key;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::FINALIZER;
use super::claims::{consumers, is_used_by_others};
use super::kinds::{Allocation, Consumer, ResourceClaim};
use crate::context::Context;

/// So many pods may use one claim.
pub(crate) const CONSUMERS: usize = 256;
/// Others may write the claim meanwhile; then it is read again, so often.
const TRIES: usize = 5;
/// Between tries of a server that does not answer.
const PAUSE: Duration = Duration::from_millis(500);

/// What was decided about one claim.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    pub(crate) claim: Arc<ResourceClaim>,
    /// The devices it is to get; none when it has them.
    pub(crate) allocation: Option<Allocation>,
}

impl Share {
    /// The devices that were decided upon: those it is to get, or those it had then.
    fn decided(&self) -> Option<&Allocation> {
        self.allocation.as_ref().or_else(|| self.claim.status.as_ref()?.allocation.as_ref())
    }
}

/// Writes the shares. The error is the reason to place the pod anew. Guarantee: the store then holds what the server does.
pub(crate) async fn write(ctx: &Context, shares: &[Share], pod: &Pod) -> Result<(), String> {
    for share in shares {
        if let Err(why) = write_one(ctx, share, pod).await {
            read_anew(ctx, share).await;
            return Err(format!("resourceclaim {:?}: {why}", share.claim.name_any()));
        }
    }
    Ok(())
}

fn consumer(pod: &Pod) -> Consumer {
    Consumer { api_group: None, resource: "pods".into(), name: pod.name_any(), uid: pod.uid().unwrap_or_default() }
}

/// What comes next for a claim as it is now.
#[derive(Debug, PartialEq)]
enum Step {
    Done,
    /// Devices that nobody uses go first.
    Clear,
    Protect,
    Write(Value),
    Fail(&'static str),
}

fn step(current: &ResourceClaim, share: &Share, pod: &Pod) -> Step {
    if current.metadata.uid != share.claim.metadata.uid || current.metadata.deletion_timestamp.is_some() {
        return Step::Fail("it is being deleted");
    }
    let allocated = current.status.as_ref().and_then(|status| status.allocation.as_ref());
    let reserved = consumers(current).iter().any(|known| Some(&known.uid) == pod.metadata.uid.as_ref());
    let with = |extra: Option<&Allocation>| {
        if consumers(current).len() >= CONSUMERS {
            return Step::Fail("too many pods use it");
        }
        let mut status = json!({"reservedFor": consumers(current).iter().chain([&consumer(pod)]).collect::<Vec<_>>()});
        if let Some(allocation) = extra {
            status["allocation"] = json!(allocation);
        }
        Step::Write(status)
    };
    match (allocated, &share.allocation) {
        (None, None) => Step::Fail("its devices were given back"),
        (None, Some(_)) if !current.finalizers().iter().any(|known| known == FINALIZER) => Step::Protect,
        (None, Some(own)) => with(Some(own)),
        (Some(known), Some(own)) if known.devices.results != own.devices.results => {
            if is_used_by_others(current, pod) {
                Step::Fail("another pod got other devices for it")
            } else {
                Step::Clear
            }
        }
        // The pod's node was chosen for the devices that it had then.
        (Some(known), None) if share.decided().is_none_or(|own| known.devices.results != own.devices.results) => {
            Step::Fail("it has got other devices")
        }
        (Some(_), _) if reserved => Step::Done,
        (Some(_), _) => with(None),
    }
}

async fn write_one(ctx: &Context, share: &Share, pod: &Pod) -> Result<(), String> {
    let key = Key::of(share.claim.as_ref());
    let api: Api<ResourceClaim> = ctx.api(&key.namespace);
    for _ in 0..TRIES {
        // Only the server knows who else has written it by now.
        let current = api.get(&key.name).await.during("read resourceclaim", &key).map_err(|error| error.message())?;
        let version = current.resource_version();
        let outcome = match step(&current, share, pod) {
            Step::Done => {
                ctx.store::<ResourceClaim>().observe(current);
                return Ok(());
            }
            Step::Fail(why) => return Err(why.to_owned()),
            Step::Protect => {
                let finalizers: Vec<&str> =
                    current.finalizers().iter().map(String::as_str).chain([FINALIZER]).collect();
                let change = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
                ctx.merge::<ResourceClaim>("protect resourceclaim", &key, &change).await.map(drop)
            }
            Step::Clear => {
                status(ctx, &key, version, json!({"allocation": null, "reservedFor": null, "devices": null})).await
            }
            Step::Write(change) => {
                let written = status(ctx, &key, version, change).await;
                if written.is_ok() {
                    return Ok(());
                }
                written
            }
        };
        if let Err(error) = outcome
            && error.code() != 409
        {
            return Err(error.message());
        }
    }
    Err("others kept writing it".to_owned())
}

async fn status(ctx: &Context, key: &Key, version: Option<String>, status: Value) -> Result<()> {
    let change = json!({"metadata": {"resourceVersion": version}, "status": status});
    ctx.merge_status::<ResourceClaim>("write status of resourceclaim", key, &change).await
}

/// Brings the store what the server has: an answer that was lost may have told of a write.
async fn read_anew(ctx: &Context, share: &Share) {
    let (key, store) = (Key::of(share.claim.as_ref()), ctx.store::<ResourceClaim>());
    let api: Api<ResourceClaim> = ctx.api(&key.namespace);
    for _ in 0..TRIES {
        match api.get_opt(&key.name).await.during("read resourceclaim", &key) {
            Ok(Some(current)) => return store.observe(current),
            Ok(None) => return store.forget(&key, &share.claim.uid().unwrap_or_default()),
            Err(error) => tracing::warn!(error = error.chain(), "will be read again"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A claim with devices of this name, reserved for these.
    fn claim(device: &str, reserved: &[&str], finalizers: &[&str]) -> ResourceClaim {
        let reserved: Vec<_> =
            reserved.iter().map(|uid| json!({"resource": "pods", "name": "p", "uid": uid})).collect();
        let metadata = json!({"name": "c", "uid": "c", "finalizers": finalizers});
        let mut claim = json!({"metadata": metadata, "status": {"reservedFor": reserved}});
        if !device.is_empty() {
            claim["status"]["allocation"] = json!(allocation(device));
        }
        serde_json::from_value(claim).unwrap()
    }

    fn allocation(device: &str) -> Allocation {
        let result = json!({"request": "r", "driver": "d", "pool": "p", "device": device});
        serde_json::from_value(json!({"devices": {"results": [result]}})).unwrap()
    }

    /// `was`: the devices that it had when the pod was placed.
    #[track_caller]
    fn check(current: &ResourceClaim, was: &str, own: Option<&str>, expect: &str) {
        let pod = serde_json::from_value(json!({"metadata": {"name": "p", "uid": "me"}})).unwrap();
        let share = Share { claim: Arc::new(claim(was, &[], &[])), allocation: own.map(allocation) };
        let got = match step(current, &share, &pod) {
            Step::Write(status) => {
                let users: Vec<_> =
                    status["reservedFor"].as_array().unwrap().iter().map(|c| c["uid"].as_str().unwrap()).collect();
                format!("{} {}", users.join(","), status["allocation"]["devices"]["results"][0]["device"])
            }
            other => format!("{other:?}"),
        };
        assert_eq!(got, expect);
    }

    #[test]
    fn steps() {
        let protected = &[FINALIZER];
        check(&claim("", &[], &[]), "", Some("a"), "Protect");
        check(&claim("", &[], protected), "", Some("a"), "me \"a\"");
        check(&claim("a", &["me"], protected), "", Some("a"), "Done");
        check(&claim("b", &["me"], protected), "b", Some("a"), "Clear");
        check(&claim("b", &[], protected), "b", Some("a"), "Clear");
        check(&claim("b", &["other"], protected), "", Some("a"), "Fail(\"another pod got other devices for it\")");
        check(&claim("b", &["other"], protected), "b", None, "other,me null");
        check(&claim("b", &["other"], protected), "a", None, "Fail(\"it has got other devices\")");
        check(&claim("", &[], protected), "b", None, "Fail(\"its devices were given back\")");
    }
}
