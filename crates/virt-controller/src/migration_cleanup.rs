//! What is left to do once a migration is over, or its object gone. Migrations do it for themselves; for those whose objects went
//! without having been let go, whoever looks at their guest does.

pub(crate) mod plan;

use api::kubevirt::constants::{abort_status, label};
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration as Migration};
use k8s_openapi::api::core::v1::Pod;
use kit::clock;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use plan::Step;
use serde_json::{Value, json};

use crate::context::{Context, reference};
use crate::error::Error;
use crate::facts::index::{job_index, vmi_indexes};
use crate::facts::{active, launcher, migration_state};

/// What the steps are about.
pub(crate) struct Subject<'a> {
    /// The migration; of one that is gone, only what is known of it.
    pub(crate) migration: &'a Migration,
    /// Its guest, as it was last read or written.
    pub(crate) guest: Option<VirtualMachineInstance>,
    /// The guest's pods.
    pub(crate) pods: &'a [Pod],
}

/// Does `steps` in order, until one fails.
pub(crate) async fn execute(context: &Context, subject: &mut Subject<'_>, steps: &[Step]) -> Result<(), Error> {
    for step in steps {
        match step {
            Step::Abort => amend(context, subject, |state, _| state["abortRequested"] = json!(true)).await?,
            Step::Conclude { reason } => {
                amend(context, subject, |state, labels| conclude(state, labels, reason)).await?;
            }
            Step::Unlabel => amend(context, subject, |_, labels| *labels = Value::Null).await?,
            Step::DeletePod { name, why } => delete_pod(context, subject, name, why).await?,
        }
    }
    Ok(())
}

/// No handler had begun: the migration is over before it began, and the target's virt-handler is not called any more.
fn conclude(state: &mut Value, label: &mut Value, reason: &str) {
    let now = json!(clock::time());
    if state["abortRequested"] == true || reason.contains("cancel") {
        state["abortRequested"] = json!(true);
        state["abortStatus"] = json!(abort_status::SUCCEEDED);
    }
    if state["failureReason"].is_null() {
        state["failureReason"] = json!(reason);
    }
    state["startTimestamp"] = now.clone();
    state["endTimestamp"] = now;
    state["completed"] = json!(true);
    state["failed"] = json!(true);
    *label = Value::Null;
}

async fn delete_pod(context: &Context, subject: &Subject<'_>, name: &str, why: &str) -> Result<(), Error> {
    let Some(guest) = &subject.guest else { return Ok(()) };
    let namespace = guest.namespace().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => {
            // An event of a migration that is gone is one of its guest.
            let about = match subject.migration.metadata.uid {
                Some(_) => reference(subject.migration),
                None => reference(guest),
            };
            context.recorder.normal(&about, "SuccessfulDelete", why);
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("delete", "pod", &namespace, name)(error)),
    }
}

/// Changes the migration state of the guest, and with it the label that calls the target's virt-handler, as they were
/// when this was decided.
pub(crate) async fn amend(
    context: &Context,
    subject: &mut Subject<'_>,
    change: impl FnOnce(&mut Value, &mut Value),
) -> Result<(), Error> {
    let Some(guest) = &subject.guest else { return Ok(()) };
    let held = guest.status.as_ref().and_then(|status| status.migration_state.as_deref());
    let mut state = json!(held);
    let mut called = json!(guest.labels().get(label::MIGRATION_TARGET_NODE));
    change(&mut state, &mut called);
    let mut patch = json!({ "metadata": {
        "resourceVersion": guest.metadata.resource_version, "labels": { (label::MIGRATION_TARGET_NODE): called },
    } });
    if !state.is_null() {
        patch["status"] = json!({ "migrationState": state });
    }
    patch_guest(context, subject, patch).await
}

/// Changes the guest, and keeps what was written.
pub(crate) async fn patch_guest(context: &Context, subject: &mut Subject<'_>, patch: Value) -> Result<(), Error> {
    let Some(guest) = &subject.guest else { return Ok(()) };
    let (namespace, name) = (guest.namespace().unwrap_or_default(), guest.name_any());
    let api: Api<VirtualMachineInstance> = Api::namespaced(context.client.clone(), &namespace);
    match api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(mut written) => {
            written.metadata.managed_fields = None;
            let words = vmi_indexes(&written);
            context.stores.vmis.put(&written, words);
            subject.guest = Some(written);
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("patch", "virtualmachineinstance", &namespace, &name)(error)),
    }
}

/// Clears up after migrations of `guest` whose objects went without having been let go: somebody took their finalizer.
pub(crate) async fn sweep(context: &Context, guest: &VirtualMachineInstance, pods: &[Pod]) -> Result<(), Error> {
    let active = active::active(guest, pods).and_then(|pod| pod.uid());
    let mut jobs: Vec<&str> = pods.iter().filter(|pod| pod.uid() != active).filter_map(launcher::job).collect();
    let called = guest.labels().contains_key(label::MIGRATION_TARGET_NODE);
    let unsettled = migration_state::of(guest).filter(|state| called || !migration_state::over(state));
    jobs.extend(unsettled.and_then(|state| state.migration_uid.as_deref()));
    jobs.retain(|uid| context.stores.migrations.keys_by_index(&job_index(uid)).is_empty());
    if jobs.is_empty() {
        return Ok(());
    }
    // The store may lag behind the pods; this is rare enough to ask.
    let namespace = guest.namespace().unwrap_or_default();
    let api: Api<Migration> = Api::namespaced(context.client.clone(), &namespace);
    let list = api.list_metadata(&ListParams::default()).await;
    let alive = list.map_err(Error::api("list", "virtualmachineinstancemigrations", &namespace, ""))?.items;
    for uid in jobs.into_iter().filter(|uid| alive.iter().all(|one| one.metadata.uid.as_deref() != Some(uid))) {
        let settled = plan::settle(uid, guest, pods);
        let mut subject = Subject { migration: &Migration::default(), guest: Some(guest.clone()), pods };
        execute(context, &mut subject, &settled.steps).await?;
    }
    Ok(())
}
