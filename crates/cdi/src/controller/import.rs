//! Fills claims that say from where: a pod for each, and on the claim how it fares.
//!
//! ```text
//!  claim (storage.import.source) ──▶ pod "importer-CLAIM" ──▶ storage.pod.phase, storage.condition.running, … on the claim
//! ```
//!
//! Nothing here asks whose claim it is: the user's, a DataVolume's, or one that stands in for another until it is filled.

pub mod pod;
pub mod status;

use api::cdi::constants::{annotation, label, source};
use disk::Checksum;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod};
use kit::queue::Next;
use kit::store::Key;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::Error;
use crate::controller::context::{Context, annotation_of, owner_index, reference};
use crate::controller::populator::forklift;
use crate::controller::worker::{self, Environment};
use crate::controller::write::{self, Changes};
use crate::controller::{insecure, names, settings};

/// Why an import from vSphere does not begin.
pub const AWAITING_VDDK: &str = "AwaitingVDDK";
const VDDK_MAP: &str = "v2v-vmware";
const VDDK_KEY: &str = "vddk-init-image";

/// What is to be done for a claim now. Pure.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// Nothing, until something changes.
    Wait,
    /// Make the pod.
    Start,
    /// Say what the pod says.
    Follow,
    /// The pod has nothing left to do.
    Discard,
}

/// What is to be done for `claim`, whose volume is `reachable` or not.
pub fn step(claim: &PersistentVolumeClaim, pod: Option<&Pod>, reachable: bool) -> Step {
    let phase = annotation_of(claim, annotation::POD_PHASE);
    let over = phase == Some("Succeeded") || annotation_of(claim, annotation::FATAL_ERROR) == Some("true");
    let retained = annotation_of(claim, annotation::POD_RETAIN) == Some("true");
    match pod {
        // The volume of a claim cannot go while a pod uses it.
        Some(_) if claim.metadata.deletion_timestamp.is_some() => Step::Discard,
        Some(_) if over && !retained => Step::Discard,
        Some(_) if over => Step::Wait,
        Some(pod) if pod.metadata.deletion_timestamp.is_some() => Step::Wait,
        Some(_) => Step::Follow,
        None if claim.metadata.deletion_timestamp.is_some() || over || !reachable => Step::Wait,
        None => Step::Start,
    }
}

/// True when a pod of `claim` can run: its volume is there, or is made for the pod.
pub fn reachable(claim: &PersistentVolumeClaim, waits: bool, honored: bool) -> bool {
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let immediate = claim.annotations().contains_key(annotation::IMMEDIATE_BINDING) || !honored;
    phase == Some("Bound") || (phase != Some("Lost") && waits && immediate)
}

/// True while a pod of somebody else has `claim`, over whose head nothing is written: it is told by an event of this reason.
pub fn is_occupied(context: &Context, claim: &PersistentVolumeClaim, reason: &str) -> bool {
    let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
    let users = context.users(&namespace, &name);
    let found = users.iter().find(|pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
        let ours = pod.labels().get(label::APP).map(String::as_str) == Some(label::APP_VALUE);
        !ours && !matches!(phase, "Succeeded" | "Failed")
    });
    if let Some(user) = found {
        let told = format!("pod {namespace}/{} using PersistentVolumeClaim {name}", user.name_any());
        context.recorder.warning(&reference(claim), reason, told);
    }
    found.is_some()
}

/// Brings the importer of one claim in line.
pub async fn sync(context: &Context, claim: &PersistentVolumeClaim) -> Result<Next, Error> {
    let settings = context.settings();
    let waits = settings::waits_for_consumer(context.class_of(claim).as_ref());
    let pod = current(context, claim);
    match step(claim, pod.as_ref(), reachable(claim, waits, settings.honor_first_consumer)) {
        Step::Wait => Ok(Next::Wait),
        Step::Start => start(context, claim, &settings).await,
        Step::Discard => {
            if let Some(pod) = &pod {
                write::delete(context, pod).await?;
            }
            Ok(Next::Wait)
        }
        Step::Follow => {
            let Some(pod) = pod.filter(|pod| !is_being_placed(claim, pod)) else { return Ok(Next::Wait) };
            let seen = status::seen(claim, &pod);
            write::annotate(context, claim, seen.annotations, seen.labels).await?;
            if let Some(why) = seen.failed.filter(|why| !why.is_empty()) {
                context.recorder.warning(&reference(claim), "ErrImportFailed", why);
            }
            if seen.done {
                context.recorder.normal(&reference(claim), "ImportSucceeded", "Import Successful");
            }
            if seen.discard {
                write::delete(context, &pod).await?;
            }
            Ok(Next::Wait)
        }
    }
}

fn current(context: &Context, claim: &PersistentVolumeClaim) -> Option<Pod> {
    let name = if forklift::is_prime(claim) { forklift::pod_name(claim) } else { pod::name(claim) };
    let owned = context.pods.by_index(&owner_index(&claim.uid().unwrap_or_default()));
    owned.into_iter().find(|pod| pod.name_any() == name)
}

async fn start(context: &Context, claim: &PersistentVolumeClaim, settings: &settings::Settings) -> Result<Next, Error> {
    if let Some(why) = senseless(claim) {
        return refuse(context, claim, &why).await;
    }
    if is_occupied(context, claim, "ImportTargetInUse") {
        return Ok(Next::After(worker::AGAIN));
    }
    let placement = context.placement();
    let environment =
        Environment { image: &context.image, pull_policy: &context.pull_policy, settings, placement: &placement };
    if forklift::is_prime(claim) {
        return match forklift::pod(context, claim, &environment)? {
            Some(pod) => begin(context, claim, &pod).await,
            None => Ok(Next::Wait),
        };
    }
    let mut vddk = None;
    if annotation_of(claim, annotation::SOURCE) == Some(source::VDDK) {
        vddk = vddk_image(context, claim).await?;
        if vddk.is_none() {
            return awaiting_vddk(context, claim).await;
        }
    }
    let proxy_certs = proxy_certificates(context, claim, "cdi-proxy-ca", settings).await?;
    let insecure_registry = annotation_of(claim, annotation::SOURCE) == Some(source::REGISTRY)
        && insecure::is_insecure(context, annotation_of(claim, annotation::ENDPOINT).unwrap_or_default()).await?;
    let extras = pod::Extras { vddk: vddk.as_deref(), proxy_certs: proxy_certs.as_deref(), insecure_registry };
    let pod = pod::render(claim, &extras, &environment).map_err(Error::setup("render the importer pod"))?;
    begin(context, claim, &pod).await
}

async fn begin(context: &Context, claim: &PersistentVolumeClaim, pod: &Pod) -> Result<Next, Error> {
    let name = pod.name_any();
    let mut changes: Changes = [(annotation::IMPORT_POD, name.as_str()), (annotation::POD_PHASE, "Pending")]
        .map(|(key, value)| (key.to_owned(), Some(value.to_owned())))
        .into();
    if annotation_of(claim, annotation::BOUND_REASON) == Some(AWAITING_VDDK) {
        changes.extend(
            [annotation::BOUND, annotation::BOUND_REASON, annotation::BOUND_MESSAGE].map(|key| (key.to_owned(), None)),
        );
    }
    // Before there is a pod: from then on its claim is the scheduler's, until the pod has a node.
    write::annotate(context, claim, changes, Changes::new()).await?;
    let made = write::create_worker(context, claim, pod, worker::RUNS).await?;
    Ok(if made { Next::Wait } else { Next::After(worker::AGAIN) })
}

/// True while the scheduler finds a node for `pod` and a volume for `claim`: it writes to the claim, and whoever writes between fails it.
fn is_being_placed(claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
    let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    let placed = pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_ref().is_some_and(|node| !node.is_empty()));
    let status = pod.status.as_ref();
    let told = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let refused = told.into_iter().any(|one| one.type_ == "PodScheduled" && one.status == "False");
    let begun = status.and_then(|status| status.phase.as_deref()).is_some_and(|phase| phase != "Pending");
    !(bound || placed || refused || begun)
}

/// What no importer could ever do, and a webhook would have refused.
fn senseless(claim: &PersistentVolumeClaim) -> Option<String> {
    let sum = annotation_of(claim, annotation::CHECKSUM).filter(|sum| !sum.is_empty())?;
    sum.parse::<Checksum>().err().map(|wrong| wrong.to_string())
}

/// Says why the claim will never be filled.
async fn refuse(context: &Context, claim: &PersistentVolumeClaim, why: &str) -> Result<Next, Error> {
    context.recorder.warning(&reference(claim), status::CHECKSUM_ERROR, why);
    let said = [
        (annotation::FATAL_ERROR, "true"),
        (annotation::POD_PHASE, "Failed"),
        (annotation::RUNNING, "false"),
        (annotation::RUNNING_REASON, status::CHECKSUM_ERROR),
        (annotation::RUNNING_MESSAGE, why),
    ];
    let changes = said.map(|(key, value)| (key.to_owned(), Some(value.to_owned()))).into();
    write::annotate(context, claim, changes, Changes::new()).await?;
    Ok(Next::Wait)
}

async fn vddk_image(context: &Context, claim: &PersistentVolumeClaim) -> Result<Option<String>, Error> {
    if let Some(image) = annotation_of(claim, annotation::VDDK_INIT_IMAGE).filter(|image| !image.is_empty()) {
        return Ok(Some(image.to_owned()));
    }
    let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), &context.namespace);
    let map = api.get_opt(VDDK_MAP).await.map_err(Error::api("read", "ConfigMap", VDDK_MAP))?;
    Ok(map.and_then(|map| map.data?.remove(VDDK_KEY)))
}

async fn awaiting_vddk(context: &Context, claim: &PersistentVolumeClaim) -> Result<Next, Error> {
    let message = format!(
        "waiting for {VDDK_MAP} configmap or {} annotation for VDDK image: make ConfigMap {}/{VDDK_MAP} with key {VDDK_KEY}, or name the image in spec.source.vddk.initImageURL",
        annotation::VDDK_INIT_IMAGE,
        context.namespace
    );
    let said = [
        (annotation::BOUND, "false"),
        (annotation::BOUND_REASON, AWAITING_VDDK),
        (annotation::BOUND_MESSAGE, &message),
    ];
    let changes = said.map(|(key, value)| (key.to_owned(), Some(value.to_owned()))).into();
    write::annotate(context, claim, changes, Changes::new()).await?;
    Ok(Next::After(std::time::Duration::from_secs(10)))
}

/// The certificates of the proxy, brought to where a pod of `owner` can mount them: the ConfigMap of this name and the owner's.
pub async fn proxy_certificates<K: write::Kind>(
    context: &Context,
    owner: &K,
    base: &str,
    settings: &settings::Settings,
) -> Result<Option<String>, Error> {
    let Some(wanted) =
        settings.proxy.as_ref().and_then(|proxy| proxy.trusted_ca_proxy.as_deref()).filter(|name| !name.is_empty())
    else {
        return Ok(None);
    };
    let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), &context.namespace);
    let Some(map) = api.get_opt(wanted).await.map_err(Error::api("read", "ConfigMap", wanted))? else {
        tracing::warn!(
            configmap = wanted,
            "the certificates of the import proxy are not there: imports trust the system's"
        );
        return Ok(None);
    };
    let name = names::joined(base, &owner.name_any());
    let copy: Value = json!({
        "metadata": { "name": name, "namespace": owner.namespace(), "ownerReferences": worker::owned_by(owner) },
        "data": map.data,
    });
    let copy: ConfigMap = serde_json::from_value(copy).map_err(Error::setup("render the proxy's certificates"))?;
    if !write::create(context, &copy).await? {
        renew(context, &name, &copy).await?;
    }
    Ok(Some(name))
}

/// A copy that was made before, for the same owner, is what the original is now.
async fn renew(context: &Context, name: &str, copy: &ConfigMap) -> Result<(), Error> {
    let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), &copy.namespace().unwrap_or_default());
    let Some(found) = api.get_opt(name).await.map_err(Error::api("read", "ConfigMap", name))? else { return Ok(()) };
    if found.owner_references() == copy.owner_references() && found.data != copy.data {
        let data = write::replacing(&found.data, &copy.data);
        write::patch(context, &found, &json!({ "metadata": { "uid": found.uid() }, "data": data })).await?;
    }
    Ok(())
}

/// The keys of the claims to look at when `pod` changes.
pub fn claims_of(context: &Context, words: &[String]) -> Vec<Key> {
    let owned = words.iter().filter_map(|word| word.strip_prefix("owner:"));
    owned.flat_map(|uid| context.claims.keys_by_index(&crate::controller::context::uid_index(uid))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn claim(annotations: Value, phase: &str, deleted: bool) -> PersistentVolumeClaim {
        let at = deleted.then_some("2026-01-01T00:00:00Z");
        let claim = json!({ "metadata": { "annotations": annotations, "deletionTimestamp": at }, "status": { "phase": phase } });
        serde_json::from_value(claim).unwrap()
    }

    #[test]
    fn a_pod_is_made_once_its_volume_can_be() {
        let check = |annotations: Value, phase: &str, waits: bool, honored: bool, expect: bool| {
            assert_eq!(reachable(&claim(annotations, phase, false), waits, honored), expect);
        };
        check(json!({}), "Bound", true, true, true);
        check(json!({}), "Pending", true, true, false);
        check(json!({}), "Pending", true, false, true);
        check(json!({ annotation::IMMEDIATE_BINDING: "" }), "Pending", true, true, true);
        check(json!({}), "Pending", false, false, false);
        check(json!({ annotation::IMMEDIATE_BINDING: "" }), "Lost", true, false, false);
    }

    #[test]
    fn a_claim_is_left_to_the_scheduler_while_its_pod_has_no_node() {
        let check = |phase: &str, pod: Value, expect: bool| {
            let pod = serde_json::from_value(pod).unwrap();
            assert_eq!(is_being_placed(&claim(json!({}), phase, false), &pod), expect, "{phase}");
        };
        let on =
            |node: &str| json!({ "spec": { "nodeName": node, "containers": [] }, "status": { "phase": "Pending" } });
        check("Pending", on(""), true);
        check("Pending", json!({}), true);
        check("Bound", on(""), false);
        check("Pending", on("n"), false);
        let refused = json!({ "status": { "conditions": [{ "type": "PodScheduled", "status": "False" }] } });
        check("Pending", refused, false);
        check("Pending", json!({ "status": { "phase": "Running" } }), false);
    }

    #[test]
    fn a_finished_import_is_not_started_again() {
        let pod = Pod::default();
        let (done, fatal) = (json!({ annotation::POD_PHASE: "Succeeded" }), json!({ annotation::FATAL_ERROR: "true" }));
        let kept = json!({ annotation::POD_PHASE: "Succeeded", annotation::POD_RETAIN: "true" });
        for (annotations, deleted, with_pod, expect) in [
            (json!({}), false, false, Step::Start),
            (json!({}), false, true, Step::Follow),
            (json!({}), true, true, Step::Discard),
            (json!({}), true, false, Step::Wait),
            (done.clone(), false, false, Step::Wait),
            (done, false, true, Step::Discard),
            (kept, false, true, Step::Wait),
            (fatal, false, false, Step::Wait),
        ] {
            let claim = claim(annotations, "Bound", deleted);
            assert_eq!(step(&claim, with_pod.then_some(&pod), true), expect);
        }
    }
}
