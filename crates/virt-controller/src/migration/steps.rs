//! Doing what a plan says.

use std::collections::BTreeMap;

use api::kubevirt::constants::{annotation, finalizer, label};
use api::kubevirt::identity::instance_id;
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration as Migration};
use api::migrations::v1alpha1::MigrationPolicy;
use k8s_openapi::api::core::v1::Namespace;
use kit::store::{Key, Store};
use kit::{Chain, clock};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::plan::Step;
use super::{configuration, handover, policy, target_pod};
use crate::context::{Context, reference};
use crate::error::Error;
use crate::facts::index::migration_indexes;
use crate::facts::launcher::job;
use crate::facts::stand_ins;
use crate::facts::{active, volumes_change};
use crate::migration_cleanup::{self, Subject, amend, patch_guest};
use crate::vmi;
use crate::vmi::pod::placement;
use crate::{hotplug, limits, patch, stand_in};

/// Does `steps` in order, until one fails.
pub(super) async fn execute(
    context: &Context,
    policies: &Store<MigrationPolicy>,
    mut subject: Subject<'_>,
    steps: &[Step],
) -> Result<(), Error> {
    for step in steps {
        match step {
            Step::Adopt => adopt(context, subject.migration).await?,
            Step::Release => release(context, subject.migration).await?,
            Step::Delete => super::delete(context, subject.migration).await?,
            Step::CreatePod => create_pod(context, &subject).await?,
            Step::HandOver => hand_over(context, policies, &mut subject).await?,
            Step::Cleanup(step) => {
                migration_cleanup::execute(context, &mut subject, std::slice::from_ref(step)).await?;
            }
            Step::Finish => {
                amend(context, &mut subject, |state, _| {
                    state["completed"] = json!(true);
                    state["endTimestamp"] = json!(clock::time());
                })
                .await?;
            }
            Step::Fence => fence(context, &mut subject).await?,
        }
    }
    Ok(())
}

async fn adopt(context: &Context, migration: &Migration) -> Result<(), Error> {
    let mut finalizers = migration.finalizers().to_vec();
    finalizers.push(finalizer::MIGRATION.to_owned());
    let patch = json!({ "metadata": {
        "resourceVersion": migration.metadata.resource_version,
        "finalizers": finalizers,
        "labels": { (label::MIGRATION_SELECTOR): instance_id(migration.spec.vmi_name.as_deref().unwrap_or_default()) },
    } });
    patch_migration(context, migration, patch).await
}

async fn release(context: &Context, migration: &Migration) -> Result<(), Error> {
    let kept: Vec<&String> = migration.finalizers().iter().filter(|name| *name != finalizer::MIGRATION).collect();
    let version = &migration.metadata.resource_version;
    let patch = json!({ "metadata": { "resourceVersion": version, "finalizers": kept } });
    patch_migration(context, migration, patch).await
}

async fn patch_migration(context: &Context, migration: &Migration, patch: Value) -> Result<(), Error> {
    let (namespace, name) = (migration.namespace().unwrap_or_default(), migration.name_any());
    let api: Api<Migration> = Api::namespaced(context.client.clone(), &namespace);
    match api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(mut written) => {
            written.metadata.managed_fields = None;
            // What was let go while it was deleted is gone, though the answer shows it once more.
            let gone = written.metadata.deletion_timestamp.is_some() && written.finalizers().is_empty();
            if !gone {
                let words = migration_indexes(&written);
                context.stores.migrations.put(&written, words);
            }
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("patch", "virtualmachineinstancemigration", &namespace, &name)(error)),
    }
}

async fn create_pod(context: &Context, subject: &Subject<'_>) -> Result<(), Error> {
    let (Some(guest), migration) = (&subject.guest, subject.migration) else { return Ok(()) };
    let namespace = guest.namespace().unwrap_or_default();
    let settings = context.settings();
    let emulation = context.emulation(&settings);
    let required = required(context, subject, emulation);
    let there = stand_in::prepare::stand_ins(context, migration, guest).await?;
    if let Some(why) = stand_in::obstacle::in_use(context, guest).await? {
        return Err(Error::InUse(why));
    }
    let mut claims = context.claims_of(&there);
    vmi::state::at_target(context, &there, migration, &mut claims).await?;
    let moved = (&there, active::active(guest, subject.pods));
    let pod = target_pod::render(migration, moved, &claims, &settings, emulation, &required);
    let mut pod = pod.map_err(Error::Render)?;
    limits::meet(context, &mut pod, &namespace, limits::vcpus(&there)).await?;
    let message = format!("Created migration target pod {}", pod.name_any());
    vmi::stored(context, &pod, &namespace, &reference(guest), (&reference(migration), message)).await.map(drop)
}

/// Labels that the target's node must have because the guest's processor is what the source's node gave it; and a word to
/// people when no other node has them.
fn required(context: &Context, subject: &Subject<'_>, emulation: bool) -> BTreeMap<String, String> {
    let Some(guest) = &subject.guest else { return BTreeMap::new() };
    let Some(source) = active::active(guest, subject.pods).and_then(|pod| pod.spec.as_ref()) else {
        return BTreeMap::new();
    };
    let own = source.node_name.clone().unwrap_or_default();
    let Some(node) = context.stores.nodes.get(&Key::new("", own.clone())) else { return BTreeMap::new() };
    let selected = source.node_selector.clone().unwrap_or_default();
    let required = placement::migration_selector(guest, emulation, &selected, &node);
    if required.is_empty() {
        return required;
    }
    let nodes = context.stores.nodes.list();
    let others = nodes.iter().filter(|node| node.metadata.name.as_ref() != Some(&own));
    if let Some(why) = placement::unsuitable(&required, others) {
        context.recorder.warning(&reference(guest), "NoSuitableNodesForHostModelMigration", why);
    }
    required
}

async fn hand_over(
    context: &Context,
    policies: &Store<MigrationPolicy>,
    subject: &mut Subject<'_>,
) -> Result<(), Error> {
    let (Some(guest), migration) = (&subject.guest, subject.migration) else { return Ok(()) };
    let uid = migration.uid().unwrap_or_default();
    let target = subject.pods.iter().find(|pod| job(pod) == Some(uid.as_str()));
    let (Some(source), Some(target)) = (active::active(guest, subject.pods), target) else { return Ok(()) };
    let known = stand_in::prepare::claims(context, guest, &uid);
    let there = stand_ins::there(guest, &known, &uid);
    let attachment = hotplug::target_attachment(context, &there, target).await?;
    let (configuration, policy) = configuration_for(context, policies, guest).await?;
    let old = guest.status.as_deref().cloned().unwrap_or_default();
    let mut new = old.clone();
    let mut state = handover::state(migration, guest, source, target, configuration, policy);
    state.target_attachment_pod_uid = attachment;
    vmi::state::tell(context, (migration, guest), &mut state);
    let node = state.target_node.clone();
    new.migration_state = Some(Box::new(state));
    new.migrated_volumes = stand_ins::migrated(guest, &known, &uid);
    if volumes_change::is_wanted(guest)
        && let Some(unknown) = new.migrated_volumes.iter().find(|moved| !volumes_change::has_size(moved))
    {
        // The pod was faster than the watch, and the source has to know.
        return Err(Error::Unsized(volumes_change::destination(unknown).to_owned()));
    }
    // The target's virt-handler finds its pod here.
    new.active_pods = active::mapping(guest, subject.pods);
    let Some(changed) = patch::changed(&old, &new) else { return Ok(()) };
    let mut patch = patch::status(guest.metadata.resource_version.as_deref(), &changed);
    patch["metadata"]["labels"] = json!({ (label::MIGRATION_TARGET_NODE): node });
    if volumes_change::is_wanted(guest) {
        patch["metadata"]["annotations"] = json!({ (volumes_change::COPIED_BY): uid });
    }
    match patch_guest(context, subject, patch).await {
        Ok(()) => {
            let message = "Migration target pod is ready for preparation by virt-handler.";
            context.recorder.normal(&reference(migration), "SuccessfulHandOver", message);
            Ok(())
        }
        Err(error) => {
            if !error.is_conflict() {
                let message = format!("Failed to set MigrationStat in VMI status. :{}", Chain(&error));
                context.recorder.warning(&reference(migration), "FailedHandOver", message);
            }
            Err(error)
        }
    }
}

/// What holds for a migration of `guest`, and the policy that had a say in it.
async fn configuration_for(
    context: &Context,
    policies: &Store<MigrationPolicy>,
    guest: &VirtualMachineInstance,
) -> Result<(api::kubevirt::v1::VMIMConfigurationOptions, Option<String>), Error> {
    let base = configuration::current(context);
    let gates = context.settings().feature_gates;
    let policies = policies.list();
    if policies.is_empty() {
        return Ok((configuration::gated(base, &gates), None));
    }
    let name = guest.namespace().unwrap_or_default();
    let namespaces: Api<Namespace> = Api::all(context.client.clone());
    let namespace = namespaces.get_metadata(&name).await.map_err(Error::api("read", "namespace", "", &name))?;
    let (configuration, name) = match policy::matching(&policies, guest.labels(), namespace.labels()) {
        Some(policy) => (configuration::with_policy(base, &policy.spec), Some(policy.name_any())),
        None => (base, None),
    };
    Ok((configuration::gated(configuration, &gates), name))
}

/// Said against the version that was looked at: a target that answers meanwhile writes first, and this fails.
async fn fence(context: &Context, subject: &mut Subject<'_>) -> Result<(), Error> {
    let Some(guest) = &subject.guest else { return Ok(()) };
    let uid = subject.migration.uid();
    let patch = json!({ "metadata": {
        "resourceVersion": guest.metadata.resource_version, "annotations": { (annotation::MIGRATION_TARGET_FENCED): uid },
    } });
    patch_guest(context, subject, patch).await?;
    let message = "The migration's target does not answer and can do no harm: the guest goes on where it was.";
    context.recorder.normal(&reference(subject.migration), "MigrationTargetFenced", message);
    Ok(())
}
