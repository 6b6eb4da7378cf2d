//! Brings running guests to the newest launcher: by moving them, or by ending them so that they start anew, as
//! `KubeVirt.spec.workloadUpdateStrategy` says.

pub mod plan;

use std::sync::{Arc, Mutex, PoisonError};

use api::kubevirt::constants::{annotation, label};
use api::kubevirt::identity::instance_id;
use api::kubevirt::v1::{KubeVirt, VirtualMachineInstance, VirtualMachineInstanceMigration};
use jiff::Timestamp;
use kit::queue::{Next, Queue};
use kit::store::Key;
use kit::{Chain, clock};
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt};
use plan::{Plan, Seen};
use serde_json::json;

use crate::context::{Context, reference};
use crate::error::Error;
use crate::evacuation::create_migration;
use crate::facts::index::owner_index;
use crate::facts::volumes_change;
use crate::setup::Setup;
use crate::stores::Changes;

const PURPOSE: &str = " for automated workload update";

/// When the last batch of guests was ended; a new leader begins anew, which ends one batch early at worst.
#[derive(Default)]
struct LastBatch(Mutex<Option<Timestamp>>);

/// Has the guests under the KubeVirt object looked at.
pub(crate) fn register(setup: &mut Setup) {
    let (context, queue) = (setup.context.clone(), Queue::default());
    wakes(&mut setup.changes, &queue);
    let stores = context.stores.clone();
    let known = async move {
        tokio::join!(stores.vmis.synced(), stores.pods.synced(), stores.migrations.synced(), stores.kubevirts.synced());
    };
    let last = Arc::<LastBatch>::default();
    setup.work(queue, 1, known, move |key| reconcile(context.clone(), Arc::clone(&last), key));
}

fn wakes(changes: &mut Changes, queue: &Queue<Key>) {
    changes.kubevirts.wake(queue, |_, change| [change.key.clone()]);
    // A place in the limits may have become free.
    changes.migrations.wake(queue, |stores, _| stores.kubevirts.keys());
    changes.outgrown.wake(queue, |stores, _| stores.kubevirts.keys());
    // Who is to have disks copied is moved at once.
    changes.copying.wake(queue, |stores, _| stores.kubevirts.keys());
}

/// Looks at all guests under one KubeVirt object.
async fn reconcile(context: Context, last: Arc<LastBatch>, key: Key) -> Next {
    match sync(&context, &last, &key).await {
        Ok(next) => next,
        Err(error) => {
            tracing::warn!(kubevirt = %key, error = %Chain(&error), "workloads not updated");
            Next::Retry
        }
    }
}

async fn sync(context: &Context, last_batch: &LastBatch, key: &Key) -> Result<Next, Error> {
    let Some(kubevirt) = context.stores.kubevirts.get(key) else { return Ok(Next::Wait) };
    // While the components themselves are being exchanged, which launcher is the newest is not settled.
    if !plan::is_settled(&kubevirt) {
        return Ok(Next::Wait);
    }
    let (vmis, migrations) = (context.stores.vmis.list(), context.stores.migrations.list());
    let settings = context.settings();
    let last = *last_batch.0.lock().unwrap_or_else(PoisonError::into_inner);
    let now = clock::now();
    let seen =
        Seen { kubevirt: &kubevirt, vmis: &vmis, migrations: &migrations, settings: &settings, last_batch: last };
    let Plan { outdated, labels, migrate, evict, abort, again } = plan::plan(&seen, now);
    count(context, &kubevirt, outdated).await?;
    for (vmi, outdated) in labels {
        mark(context, vmi, outdated).await?;
    }
    for migration in abort {
        give_up(context, &vmis, migration).await?;
    }
    if !evict.is_empty() {
        *last_batch.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }
    let mut failure = None;
    for vmi in evict {
        failure = failure.or(end(context, vmi).await.err());
    }
    for vmi in migrate {
        // Who has disks copied finds the migration by this.
        let labels = if volumes_change::is_wanted(vmi) {
            json!({ label::VOLUME_UPDATE_MIGRATION: instance_id(&vmi.name_any()) })
        } else {
            json!({})
        };
        let wanted = json!({
            "metadata": {
                "generateName": "kubevirt-workload-update-",
                "labels": labels,
                "annotations": { (annotation::WORKLOAD_UPDATE_MIGRATION): "" },
            },
            "spec": { "vmiName": vmi.name_any(), "priority": "system-critical" },
        });
        let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
        let created = create_migration(context, vmi, wanted, PURPOSE).await;
        failure = failure.or(created.map_err(Error::api("move", "virtualmachineinstance", &namespace, &name)).err());
    }
    match failure {
        Some(error) => Err(error),
        None => Ok(again.map_or(Next::Wait, Next::After)),
    }
}

/// Says in the KubeVirt object's status how many guests are left.
async fn count(context: &Context, kubevirt: &KubeVirt, outdated: usize) -> Result<(), Error> {
    let outdated = i32::try_from(outdated).unwrap_or(i32::MAX);
    if kubevirt.status.as_ref().and_then(|status| status.outdated_virtual_machine_instance_workloads) == Some(outdated)
    {
        return Ok(());
    }
    let (namespace, name) = (kubevirt.namespace().unwrap_or_default(), kubevirt.name_any());
    let api: Api<KubeVirt> = Api::namespaced(context.client.clone(), &namespace);
    let patch = Patch::Merge(json!({ "status": { "outdatedVirtualMachineInstanceWorkloads": outdated } }));
    let written = api.patch_status(&name, &PatchParams::default(), &patch).await;
    written.map(drop).map_err(Error::api("patch", "kubevirt", &namespace, &name))
}

/// Sets or removes the label of guests whose launcher is of another build.
async fn mark(context: &Context, vmi: &VirtualMachineInstance, outdated: bool) -> Result<(), Error> {
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
    let api: Api<VirtualMachineInstance> = Api::namespaced(context.client.clone(), &namespace);
    let value = outdated.then_some("");
    let patch =
        Patch::Merge(json!({ "metadata": { "uid": vmi.uid(), "labels": { (label::OUTDATED_LAUNCHER): value } } }));
    match api.patch(&name, &PatchParams::default(), &patch).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        Err(error) => Err(Error::api("label", "virtualmachineinstance", &namespace, &name)(error)),
    }
}

/// Evicts the guest's pod; what becomes of the guest then is its run strategy's.
async fn end(context: &Context, vmi: &VirtualMachineInstance) -> Result<(), Error> {
    let namespace = vmi.namespace().unwrap_or_default();
    let active = vmi.status.as_ref().map(|status| &status.active_pods);
    let pods = context.stores.pods.by_index(&owner_index(&vmi.uid().unwrap_or_default()));
    let ours = |uid: Option<String>| active.is_some_and(|active| uid.is_some_and(|uid| active.contains_key(&uid)));
    let Some(pod) = pods.into_iter().find(|pod| ours(pod.uid()) && pod.metadata.deletion_timestamp.is_none()) else {
        return Ok(());
    };
    let name = pod.name_any();
    let api: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(context.client.clone(), &namespace);
    match api.evict(&name, &EvictParams::default()).await {
        Ok(_) => {
            let message = "Initiated eviction of VMI as part of automated workload update";
            context.recorder.normal(&reference(vmi), "SuccessfulEvict", message);
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => {
            let error = Error::api("evict", "pod", &namespace, &name)(error);
            let message = format!("Error deleting VMI during automated workload update: {}", Chain(&error));
            context.recorder.warning(&reference(vmi), "FailedEvict", message);
            Err(error)
        }
    }
}

/// Ends a migration whose reason is gone: the launcher that was old is the newest again.
async fn give_up(
    context: &Context,
    vmis: &[VirtualMachineInstance],
    migration: &VirtualMachineInstanceMigration,
) -> Result<(), Error> {
    let (namespace, name) = (migration.namespace().unwrap_or_default(), migration.name_any());
    let api: Api<VirtualMachineInstanceMigration> = Api::namespaced(context.client.clone(), &namespace);
    let preconditions = Some(Preconditions { uid: migration.uid(), resource_version: None });
    let outcome = api.delete(&name, &DeleteParams { preconditions, ..Default::default() }).await;
    let of = vmis.iter().find(|vmi| {
        vmi.metadata.namespace == migration.metadata.namespace && vmi.metadata.name == migration.spec.vmi_name
    });
    match outcome {
        Ok(_) => {
            if let Some(vmi) = of {
                let message = format!("Aborted change for vmi: {}", vmi.name_any());
                context.recorder.normal(&reference(vmi), "SuccessfulChangeAbortion", message);
            }
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        Err(error) => {
            let error = Error::api("delete", "virtualmachineinstancemigration", &namespace, &name)(error);
            if let Some(vmi) = of {
                let message = format!("Failed to abort change for vmi: {}: {}", vmi.name_any(), Chain(&error));
                context.recorder.normal(&reference(vmi), "FailedChangeAbortion", message);
            }
            Err(error)
        }
    }
}
