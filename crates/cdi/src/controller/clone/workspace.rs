//! What is made on the way to a clone: a snapshot of the source, a pod that uses the new volume, and the end of both.

use std::time::Duration;

use api::cdi::constants::{annotation, finalizer};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kit::clock;
use kit::queue::Next;
use kit::store::Key;
use kube::api::{DynamicObject, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::Error;
use crate::controller::clone::plan::Source;
use crate::controller::clone::source::driver_of;
use crate::controller::clone::{copy, plan, restore, waiting};
use crate::controller::context::{Context, annotation_of, reference, uid_index};
use crate::controller::worker::{self, Environment, confined};
use crate::controller::{names, snapshot_api_in, write};

/// How often what nobody tells is looked at.
const AGAIN: Duration = Duration::from_secs(5);

/// A snapshot of `source` on the way to `target`.
pub async fn take_snapshot(context: &Context, target: &PersistentVolumeClaim, source: &Source) -> Result<Next, Error> {
    let driver = driver_of(context, source);
    let Some(class) = context.snapshot_class(&driver, None) else {
        let why = format!(
            "no VolumeSnapshotClass is of driver {driver:?} any more: make one, so that PVC {} can be cloned",
            source.name()
        );
        return waiting(context, target, "CloneSnapshotFailed", &why).await;
    };
    let snapshot: DynamicObject =
        serde_json::from_value(plan::snapshot(target, source, &class)).map_err(Error::setup("render a snapshot"))?;
    let api: Api<DynamicObject> = snapshot_api_in(&context.client, "VolumeSnapshot", &source.namespace());
    match api.create(&PostParams::default(), &snapshot).await {
        Ok(_) => Ok(Next::After(AGAIN)),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(Next::After(AGAIN)),
        Err(error) => {
            let why = format!("cannot snapshot PVC {}/{}: {}", source.namespace(), source.name(), kit::Chain(&error));
            waiting(context, target, write::quota_or(&error, "CloneSnapshotFailed"), &why).await
        }
    }
}

fn use_name(target: &PersistentVolumeClaim) -> String {
    names::joined("prep", &target.uid().unwrap_or_default())
}

/// A pod that uses the claim and ends: its volume is made where the pod runs, and its file system grows.
pub async fn use_claim(
    context: &Context,
    target: &PersistentVolumeClaim,
    claim: &PersistentVolumeClaim,
) -> Result<Next, Error> {
    let name = use_name(target);
    let found = context
        .pods
        .by_index(&uid_index(&target.uid().unwrap_or_default()))
        .into_iter()
        .find(|pod| pod.name_any() == name);
    if let Some(pod) = found {
        let ended = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref())
            .is_some_and(|phase| phase == "Succeeded" || phase == "Failed");
        if ended {
            write::delete(context, &pod).await?;
        }
        return Ok(Next::After(AGAIN));
    }
    let settings = context.settings();
    let placement = context.placement();
    let environment = Environment {
        image: &context.image,
        pull_policy: &context.pull_policy,
        settings: &settings,
        placement: &placement,
    };
    let mut container = json!({
        "name": "prep", "image": context.image, "imagePullPolicy": context.pull_policy, "command": ["cdi-importer", "--help"],
        "resources": settings.resources, "securityContext": confined(),
    });
    worker::attach(&mut container, claim);
    let mut pod: Value = worker::shell(claim, &name, "prep", &environment);
    pod["metadata"]["annotations"][annotation::OWNER_UID] = json!(target.uid());
    pod["spec"]["containers"] = json!([container]);
    pod["spec"]["restartPolicy"] = json!("OnFailure");
    let pod: Pod = serde_json::from_value(pod).map_err(Error::setup("render a pod"))?;
    write::create(context, &pod).await?;
    Ok(Next::After(AGAIN))
}

/// That pod is of no further use.
pub async fn unuse(context: &Context, target: &PersistentVolumeClaim, namespace: &str) -> Result<(), Error> {
    let pods = context.pods.by_index(&uid_index(&target.uid().unwrap_or_default()));
    for pod in
        pods.iter().filter(|pod| pod.name_any() == use_name(target) && pod.namespace().as_deref() == Some(namespace))
    {
        write::delete(context, pod).await?;
    }
    Ok(())
}

/// What was made on the way goes, and then the target may, too.
pub async fn finish(context: &Context, target: &PersistentVolumeClaim, source: &str) -> Result<Next, Error> {
    let here = target.namespace().unwrap_or_default();
    // What was left for whoever looks after a mistake is left, unless the clone goes.
    let retained =
        target.metadata.deletion_timestamp.is_none() && annotation_of(target, annotation::POD_RETAIN) == Some("true");
    for namespace in [here.as_str(), source] {
        unuse(context, target, namespace).await?;
        if let Some(claim) = context.claims.get(&Key::new(namespace, plan::claim_name(target))) {
            if retained && annotation_of(&claim, annotation::CLONE_REQUEST).is_some() {
                let told = "PVC Prime retained in Lost state for debugging purposes";
                context.recorder.warning(&reference(target), "RetainedPVCPrime", told);
                continue;
            }
            // A copy that is not over has a server, which goes with its claim, and a sender, which does not.
            if let Some(from) = annotation_of(&claim, annotation::CLONE_REQUEST) {
                let mut ending = claim.clone();
                ending.annotations_mut().insert(annotation::POD_PHASE.to_owned(), "Succeeded".to_owned());
                copy::sync(context, &ending, from).await?;
            }
            write::delete(context, &claim).await?;
        }
    }
    if let Some(restored) = context.claims.get(&Key::new(source, restore::name(target))) {
        write::delete(context, &restored).await?;
    }
    let snapshot = plan::snapshot_name(target);
    if context.snapshots.contains(&Key::new(source, snapshot.as_str())) {
        let api: Api<DynamicObject> = snapshot_api_in(&context.client, "VolumeSnapshot", source);
        match api.delete(&snapshot, &kube::api::DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            outcome => drop(outcome.map_err(Error::api("delete", "VolumeSnapshot", &snapshot))?),
        }
    }
    let finalizers: Vec<&String> = target.finalizers().iter().filter(|one| *one != finalizer::POPULATOR).collect();
    let patch = json!({ "metadata": {
        "uid": target.uid(), "resourceVersion": target.resource_version(), "finalizers": finalizers,
        "annotations": { annotation::CLONE_PHASE: "Succeeded" },
    } });
    let done = write::patch(context, target, &patch).await?;
    tracing::info!(claim = %Key::of(target), at = %clock::now(), "cloned");
    write::remember(&context.claims, done, crate::controller::context::claim_indexes);
    Ok(Next::Wait)
}
