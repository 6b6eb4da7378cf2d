//! VirtualMachineInstance -> launcher pod, up to the hand-over to virt-handler; and the way back when it is deleted.

mod brief;
pub mod data_volumes;
pub mod lost;
pub mod plan;
pub mod pod;
pub mod resize;
pub mod state;
pub mod status;

use api::kubevirt::constants::{finalizer, label, phase};
use api::kubevirt::v1::VirtualMachineInstance;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kit::queue::{Next, Queue};
use kit::store::{Change, Key};
use kit::{Chain, clock};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use lost::fate::Fate;
use plan::{Plan, Step, View};
use serde_json::json;

use crate::context::{Context, reference};
use crate::error::{self, Error};
use crate::facts::index::{claim_index, of_put_back, of_stand_in, owner_index, pod_indexes, vmi_indexes};
use crate::facts::{active, claims, instance, trim, volume_status, workload};
use crate::setup::Setup;
use crate::stores::{Changes, Stores, index_values};
use crate::{hotplug, limits, migration_cleanup, patch, stand_in, volumes_update, write};

/// The readiness gate of launcher pods: a paused guest is not ready.
pub const UNPAUSED_GATE: &str = "kubevirt.io/virtual-machine-unpaused";

fn pod_slack() -> i64 {
    30
}

/// Workers at its queue, which everything passes.
const WORKERS: usize = 8;

/// Has instances looked after.
pub(crate) fn register(setup: &mut Setup) {
    let (context, queue) = (setup.context.clone(), Queue::default());
    wakes(&mut setup.changes, &queue);
    let stores = context.stores.clone();
    let known = async move {
        tokio::join!(
            stores.vmis.synced(),
            stores.vms.synced(),
            stores.pods.synced(),
            stores.attachments.synced(),
            stores.claims.synced(),
            stores.put_backs.synced(),
            stores.data_volumes.synced(),
            stores.nodes.synced(),
            stores.kubevirts.synced(),
            stores.migrations.synced()
        );
    };
    setup.work(queue, WORKERS, known, move |key| reconcile(context.clone(), key));
}

fn wakes(changes: &mut Changes, queue: &Queue<Key>) {
    changes.vmis.wake(queue, |_, change| [change.key.clone()]);
    changes.pods.wake(queue, of_pod);
    changes.attachments.wake(queue, of_pod);
    changes.claims.wake(queue, |stores, change| {
        // Guests that wait for a disk that moved name the claim that it is known by.
        let roots = index_values(change).filter_map(|word| of_stand_in(word));
        roots.chain([change.key.clone()]).flat_map(|claim| on_claim(stores, &claim)).collect::<Vec<_>>()
    });
    // A data volume and its claim share their name.
    changes.data_volumes.wake(queue, |stores, change| on_claim(stores, change.key));
    changes.put_backs.wake(queue, |stores, change| {
        let named = index_values(change).filter_map(|word| of_put_back(word));
        named.flat_map(|claim| on_claim(stores, &claim)).collect::<Vec<_>>()
    });
    changes.stranded.wake(queue, |_, vmi| [vmi.clone()]);
    changes.copying.wake(queue, |_, vmi| [vmi.clone()]);
}

fn of_pod(stores: &Stores, change: &Change<'_, Pod>) -> Vec<Key> {
    index_values(change).flat_map(|word| stores.vmis.keys_by_index(word)).collect()
}

fn on_claim(stores: &Stores, claim: &Key) -> Vec<Key> {
    stores.vmis.keys_by_index(&claim_index(&claim.namespace, &claim.name))
}

/// Brings one VMI a step further.
async fn reconcile(context: Context, key: Key) -> Next {
    error::settled("vmi", &key, Box::pin(sync(&context, &key)).await)
}

async fn sync(context: &Context, key: &Key) -> Result<Next, Error> {
    let Some(vmi) = context.stores.vmis.get(key) else { return Ok(Next::Wait) };
    if volumes_update::settle(context, &vmi).await? {
        // The watch brings it back.
        return Ok(Next::Wait);
    }
    let uid = vmi.uid().unwrap_or_default();
    let mut pods = context.stores.pods.by_index(&owner_index(&uid));
    // A guest that runs on another node already is not lost with the one it left.
    let lost = lost::node(context, &vmi, &pods).filter(|_| !active::arrived(&vmi, &pods));
    let mut cut_off = None;
    if let Some((node, lost)) = &lost {
        match lost::decide(context, &vmi, &pods, node, lost).await? {
            Fate::Leave => {}
            Fate::Wait(why) => cut_off = Some(why),
            Fate::GiveUp if !instance::is_final(&vmi) => {
                // The watch brings the failed machine back here, without this pod.
                lost::give_up(context, &vmi, node).await?;
                lost::forget_pods(context, key, &mut pods, node).await?;
                return Ok(Next::Wait);
            }
            Fate::GiveUp => lost::forget_pods(context, key, &mut pods, node).await?,
        }
    }
    let settings = context.settings();
    let emulation = context.emulation(&settings);
    let (exact, mut claims) = (clock::now(), context.claims_of(&vmi));
    let now = clock::seconds(exact);
    let lacking = waits_for_claim(context, &vmi, &claims);
    let owes_disks = stand_in::is_owed(context, &vmi);
    let decide = |pods: &[Pod], claims: &claims::Claims| {
        plan::plan(View {
            vmi: &vmi,
            pods,
            lacks_claim: lacking.is_some(),
            has_sizes: claims::bound(&vmi, claims),
            owes_disks,
            is_cut_off: cut_off.is_some(),
            now: exact,
        })
    };
    let mut plan = decide(&pods, &claims);
    let mut creation_error = None;
    if plan.steps.contains(&Step::CreatePod) {
        match create_pod(context, &vmi, &mut claims, &settings, emulation).await {
            // What else there is to do depends on it.
            Ok(pod) => {
                pods.push(pod);
                plan = decide(&pods, &claims);
            }
            Err(error) => creation_error = Some(error),
        }
    }
    let pods_api: Api<Pod> = Api::namespaced(context.client.clone(), &key.namespace);
    for step in &plan.steps {
        match step {
            Step::Gate { name, open } => gate(context, &pods_api, name, *open).await?,
            Step::DeletePod { name, grace } => delete_pod(context, &pods_api, &vmi, name, *grace).await?,
            Step::Release => {
                release(context, &vmi).await?;
                return Ok(Next::Wait);
            }
            // Done, or failed.
            Step::CreatePod => {}
        }
    }
    let pod = active::active(&vmi, &pods);
    let mut wanted = status::status(&vmi, pod, &plan, &settings, emulation, now);
    status::pods(&mut wanted, &vmi, &pods);
    if instance::is_ours(&vmi) {
        wanted.volume_status = volume_status::statuses(&vmi, &claims, &wanted.volume_status);
        if plan.phase == Some(phase::SCHEDULED) {
            match stand_in::obstacle::nowhere(context, &vmi).await {
                Ok(nowhere) => volume_status::stay(&mut wanted.volume_status, &nowhere),
                // No reason not to start: a migration asks again.
                Err(error) => {
                    tracing::warn!(vmi = %key, error = %Chain(&error), "whether it can be moved is not known");
                }
            }
        }
    }
    if !instance::is_ours(&vmi) && !instance::is_final(&vmi) {
        volume_status::refresh(&vmi, &claims, &mut wanted.volume_status);
    }
    let mut attaching = None;
    if let Some(pod) = pod.filter(|_| cut_off.is_none() && hotplug::concerns(context, &vmi)) {
        let holders = match hotplug::attach(context, &vmi, pod, &claims, &settings).await {
            Ok(holders) => holders,
            Err(error) => {
                attaching = Some(error);
                hotplug::holders(context, &vmi, pod)
            }
        };
        wanted.volume_status = hotplug::status::statuses(&vmi, &claims, &holders, &wanted.volume_status);
    }
    let mut resizing = None;
    if let Some(pod) = pod.filter(|_| cut_off.is_none() && instance::phase_of(&vmi) == phase::RUNNING) {
        let with = (&claims, &settings, emulation);
        resizing = resize::follow(context, &vmi, pod, with, (&mut wanted, now)).await?;
    }
    if !instance::is_final(&vmi) {
        let data = |name: &str| context.stores.data_volumes.get(&Key::new(key.namespace.as_str(), name));
        data_volumes::tell(&mut wanted, &vmi, data, now);
    }
    if let Some(message) = &cut_off {
        status::cut_off(&mut wanted, message, now);
    }
    if let Some((reason, message)) = lacking.as_ref().filter(|_| plan.waits_for_claim) {
        let news = status::waits_for_claim(&mut wanted, reason, message, now);
        let made = |name: &str| context.stores.data_volumes.contains(&Key::new(key.namespace.as_str(), name));
        // A claim that a data volume is about to make is no trouble.
        let coming = *reason == status::NO_CLAIM && claims::absent(&vmi, &claims).is_some_and(made);
        status::unplaced(&mut wanted, Some(message).filter(|_| *reason == status::NO_CLAIM && !coming), now);
        if news && !coming {
            context.recorder.warning(&reference(&vmi), reason, message.clone());
        }
    }
    if let Some(error) = &creation_error {
        let reason = if matches!(error, Error::NoStateStorage(_)) { status::NO_STATE_STORAGE } else { "FailedCreate" };
        status::creation_failed(&mut wanted, reason, &Chain(error).to_string(), now);
    }
    let wait = brief::brief(&vmi, &wanted, exact);
    if wait.is_none() {
        write_status(context, &vmi, &plan, wanted).await?;
        // Who moves guests looks at once.
        if !workload::outgrown(&vmi) && context.stores.vmis.get(key).is_some_and(|vmi| workload::outgrown(&vmi)) {
            context.stores.outgrown.send(key.clone());
        }
    }
    if plan.phase == Some(phase::FAILED) {
        context.recorder.warning(&reference(&vmi), "Failed", plan.reason.clone().unwrap_or_default());
    }
    if let Some(error) = creation_error.or(attaching) {
        return Err(error);
    }
    if let Some(vmi) = context.stores.vmis.get(key) {
        migration_cleanup::sweep(context, &vmi, &pods).await?;
    }
    Ok(wait.into_iter().chain(plan.again).chain(resizing).min().map_or(Next::Wait, Next::After))
}

/// Why no pod can be made on the guest's claims: a reason and a sentence.
fn waits_for_claim(
    context: &Context,
    vmi: &VirtualMachineInstance,
    claims: &claims::Claims,
) -> Option<(&'static str, String)> {
    let away = stand_in::away(context, vmi, claims).map(|why| (status::DISK_AWAY, why));
    away.or_else(|| claims::missing(vmi, claims).map(|why| (status::NO_CLAIM, why)))
}

async fn create_pod(
    context: &Context,
    vmi: &VirtualMachineInstance,
    claims: &mut claims::Claims,
    settings: &crate::settings::Settings,
    emulation: bool,
) -> Result<Pod, Error> {
    let namespace = vmi.namespace().unwrap_or_default();
    state::ensure(context, vmi, claims).await?;
    let mut pod = pod::render(vmi, claims, settings, emulation).map_err(Error::Render)?;
    limits::meet(context, &mut pod, &namespace, limits::vcpus(vmi)).await?;
    let message = format!("Created virtual machine pod {}", pod.name_any());
    stored(context, &pod, &namespace, &reference(vmi), (&reference(vmi), message)).await
}

/// Creates a launcher `pod`, or takes the one that is there under its name, and knows it from then on. `success` is who is
/// told of it, and what; `guest` is told of a failure.
pub(crate) async fn stored(
    context: &Context,
    pod: &Pod,
    namespace: &str,
    guest: &ObjectReference,
    success: (&ObjectReference, String),
) -> Result<Pod, Error> {
    let name = pod.name_any();
    let api: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let mut created = match api.create(&PostParams::default(), pod).await {
        Ok(created) => {
            context.recorder.normal(success.0, "SuccessfulCreate", success.1);
            created
        }
        // Made by an earlier look whose result the watch has not brought yet.
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {
            api.get(&name).await.map_err(Error::api("read", "pod", namespace, &name))?
        }
        Err(error) => {
            let error = Error::api("create", "pod", namespace, &name)(error);
            let message = format!("Error creating pod: {}", Chain(&error));
            context.recorder.warning(guest, "FailedCreate", message);
            return Err(error);
        }
    };
    created.metadata.managed_fields = None;
    let words = pod_indexes(&created);
    trim::pod(&mut created);
    context.stores.pods.put(&created, words);
    Ok(created)
}

async fn gate(context: &Context, api: &Api<Pod>, name: &str, open: bool) -> Result<(), Error> {
    let (status, reason, message) = match open {
        true => ("True", "NotPaused", "the virtual machine is not paused"),
        false => ("False", "Paused", "the virtual machine is paused"),
    };
    let condition = json!({
        "type": UNPAUSED_GATE, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": clock::time(),
    });
    let patch = json!({ "status": { "conditions": [condition] } });
    let result = api.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await;
    match result {
        Ok(mut pod) => {
            pod.metadata.managed_fields = None;
            let words = pod_indexes(&pod);
            trim::pod(&mut pod);
            context.stores.pods.put(&pod, words);
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("patch", "pod", "", name)(error)),
    }
}

async fn delete_pod(
    context: &Context,
    api: &Api<Pod>,
    vmi: &VirtualMachineInstance,
    name: &str,
    grace: Option<i64>,
) -> Result<(), Error> {
    let grace_period_seconds = grace.and_then(|seconds| u32::try_from(seconds).ok());
    let params = DeleteParams { grace_period_seconds, ..Default::default() };
    match api.delete(name, &params).await {
        Ok(_) => {
            let message = format!("Deleted virtual machine pod {name}");
            context.recorder.normal(&reference(vmi), "SuccessfulDelete", message);
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("delete", "pod", "", name)(error)),
    }
}

async fn write_status(
    context: &Context,
    vmi: &VirtualMachineInstance,
    plan: &Plan,
    wanted: api::kubevirt::v1::VirtualMachineInstanceStatus,
) -> Result<(), Error> {
    let old = vmi.status.as_deref().cloned().unwrap_or_default();
    let Some(changed) = patch::changed(&old, &wanted) else { return Ok(()) };
    let mut patch = patch::status(vmi.metadata.resource_version.as_deref(), &changed);
    if plan.phase == Some(phase::SCHEDULED) {
        // The label is what virt-handler's watch selects by: it hands the VMI over.
        let node = wanted.node_name.clone().unwrap_or_default();
        patch["metadata"]["labels"] = json!({ (label::NODE_NAME): node });
    }
    let namespace = vmi.namespace().unwrap_or_default();
    let name = vmi.name_any();
    let api: Api<VirtualMachineInstance> = Api::namespaced(context.client.clone(), &namespace);
    let answer = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    write::accept(answer, &context.stores.vmis, vmi_indexes, ("virtualmachineinstance", vmi)).map(drop)
}

async fn release(context: &Context, vmi: &VirtualMachineInstance) -> Result<(), Error> {
    let namespace = vmi.namespace().unwrap_or_default();
    let name = vmi.name_any();
    let kept: Vec<&String> = vmi.finalizers().iter().filter(|name| *name != finalizer::VMI).collect();
    let patch = json!({ "metadata": { "resourceVersion": vmi.metadata.resource_version, "finalizers": kept } });
    let api: Api<VirtualMachineInstance> = Api::namespaced(context.client.clone(), &namespace);
    match api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("release", "virtualmachineinstance", &namespace, &name)(error)),
    }
}
