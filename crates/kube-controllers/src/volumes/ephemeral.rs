//! Generic ephemeral volumes: the claim a pod's volume asks for is made with the pod, and belongs to it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Volume};
use kit::controller::owner::{controlled_by, controller_of};
use kit::controller::{self, Error, Result, pod};
use kit::events::Severity;
use kit::queue::{self, Next};
use kit::store::Key;
use kube::ResourceExt;
use kube::api::ObjectMeta;

use crate::context::Context;

const COMPONENT: &str = "ephemeral_volume";

/// Runs until the context's shutdown.
pub(super) async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let (pods, claims) = (ctx.store::<Pod>(), ctx.store::<PersistentVolumeClaim>());
    pods.on_change({
        let queue = queue.clone();
        move |_, new| {
            if let Some(pod) = new.filter(|pod| templates(pod).next().is_some()) {
                queue.add(Key::of(pod.as_ref()));
            }
        }
    });
    claims.on_change({
        let queue = queue.clone();
        move |_, new| {
            // A claim that went away is made anew for a pod that still waits for it.
            if new.is_none() {
                for pod in pods.all().iter().filter(|pod| templates(pod).next().is_some()) {
                    queue.add(Key::of(pod.as_ref()));
                }
            }
        }
    });
    ctx.store::<Pod>().synced().await;
    claims.synced().await;
    controller::work(&queue, "ephemeral-volume", 4, |key| reconcile(&ctx, key)).await;
}

/// The pod's volumes that bring a claim's template, with the name of the claim.
fn templates(pod: &Pod) -> impl Iterator<Item = (String, &Volume)> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    volumes.filter(|v| v.ephemeral.is_some()).map(move |v| (format!("{name}-{}", v.name), v))
}

/// Whether the claim was made for this very pod; a stranger of the same name is not touched.
pub(crate) fn belongs_to(claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
    controller_of(&claim.metadata).is_some_and(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref())
}

/// What is wrong with a claim that has the right name but another owner.
pub(crate) fn stranger(claim: &PersistentVolumeClaim, pod: &Pod) -> String {
    format!("PVC {} was not created for pod {} (pod is not owner)", Key::of(claim), Key::of(pod))
}

async fn reconcile(ctx: &Context, key: Key) -> Result<Next> {
    let Some(pod) = ctx.store::<Pod>().get(&key).filter(|pod| pod::is_active(pod)) else { return Ok(Next::Wait) };
    for (name, volume) in templates(&pod) {
        let known = ctx.store::<PersistentVolumeClaim>().get(&Key::new(&key.namespace, &name));
        match known {
            Some(claim) if belongs_to(&claim, &pod) => {}
            Some(claim) => {
                let text = format!("ephemeral volume {}: {}", volume.name, stranger(&claim, &pod));
                ctx.events.record(COMPONENT, pod.as_ref(), Severity::Warning, "EphemeralVolumeConflict", text.clone());
                return Err(Error::Unfinished { object: key.to_string(), what: text });
            }
            None => create(ctx, &pod, name, volume).await?,
        }
    }
    Ok(Next::Wait)
}

async fn create(ctx: &Context, pod: &Pod, name: String, volume: &Volume) -> Result<()> {
    let template = volume.ephemeral.as_ref().and_then(|e| e.volume_claim_template.as_ref());
    let Some(template) = template else { return Ok(()) };
    let given = template.metadata.clone().unwrap_or_default();
    let claim = PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: pod.namespace(),
            labels: given.labels,
            annotations: given.annotations,
            owner_references: Some(vec![controlled_by(pod)]),
            ..ObjectMeta::default()
        },
        spec: Some(template.spec.clone()),
        status: None,
    };
    match ctx.create("create persistentvolumeclaim", &claim).await {
        Ok(_) => Ok(()),
        Err(error) if error.code() == 409 => Ok(()),
        Err(error) => {
            let text = format!("ephemeral volume {}: create PVC: {}", volume.name, error.message());
            ctx.events.record(COMPONENT, pod, Severity::Warning, "FailedCreate", text);
            Err(error)
        }
    }
}
