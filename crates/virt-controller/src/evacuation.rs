//! Moves guests off a node: those whose pod somebody asked to evict, and all that can move where the node is tainted for it.

pub mod plan;

use api::kubevirt::constants::{annotation, label};
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration, VirtualMachineInstanceStatus};
use k8s_openapi::api::core::v1::Pod;
use kit::queue::{Next, Queue};
use kit::store::Key;
use kit::{Chain, clock};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use plan::{Plan, Seen};
use serde_json::json;

use crate::context::{Context, reference};
use crate::error::Error;
use crate::facts::index::{migration_indexes, node_index, of_migration, owner_index};
use crate::facts::launcher;
use crate::setup::Setup;
use crate::stores::{Changes, index_values};

/// Has nodes looked at that may have to be emptied.
pub(crate) fn register(setup: &mut Setup) {
    let (context, queue) = (setup.context.clone(), Queue::default());
    wakes(&mut setup.changes, &queue);
    let stores = context.stores.clone();
    let known = async move {
        tokio::join!(
            stores.nodes.synced(),
            stores.vmis.synced(),
            stores.pods.synced(),
            stores.migrations.synced(),
            stores.kubevirts.synced()
        );
    };
    setup.work(queue, 1, known, move |key| reconcile(context.clone(), key));
}

fn wakes(changes: &mut Changes, queue: &Queue<Key>) {
    changes.nodes.wake(queue, |_, change| [change.key.clone()]);
    // Most guests are never evicted, and their many changes are none of this queue's business.
    changes.vmis.wake(queue, |_, change| {
        let status = change.new.and_then(|vmi| vmi.status.as_deref());
        status.filter(|status| status.evacuation_node_name.is_some()).and_then(node_of)
    });
    // Where one ends, a place in a node's or in the cluster's limit may have become free.
    changes.migrations.wake(queue, |stores, change| {
        let guests = index_values(change).filter_map(|word| of_migration(word)).filter_map(|vmi| stores.vmis.get(&vmi));
        guests.filter_map(|vmi| vmi.status.as_deref().and_then(node_of)).collect::<Vec<_>>()
    });
}

fn node_of(status: &VirtualMachineInstanceStatus) -> Option<Key> {
    status.node_name.as_deref().filter(|node| !node.is_empty()).map(|node| Key::new("", node))
}

/// Looks at one node.
async fn reconcile(context: Context, key: Key) -> Next {
    match sync(&context, &key).await {
        Ok(next) => next,
        Err(error) => {
            tracing::warn!(node = %key, error = %Chain(&error), "node not evacuated");
            Next::Retry
        }
    }
}

async fn sync(context: &Context, key: &Key) -> Result<Next, Error> {
    let Some(node) = context.stores.nodes.get(key) else { return Ok(Next::Wait) };
    let vmis = context.stores.vmis.by_index(&node_index(&key.name));
    if vmis.is_empty() {
        return Ok(Next::Wait);
    }
    let migrations = context.stores.migrations.list();
    let settings = context.settings();
    let pods_of = |vmi: &VirtualMachineInstance| {
        let pods = context.stores.pods.by_index(&owner_index(&vmi.uid().unwrap_or_default()));
        pods.iter().filter(|pod| !launcher::ended(pod) && !is_left_behind(context, pod)).count()
    };
    let seen = Seen { node: &node, vmis: &vmis, migrations: &migrations, pods_of: &pods_of, settings: &settings };
    let Plan { start, stuck, arrived, again } = plan::plan(&seen, clock::now());
    for vmi in arrived {
        unmark(context, vmi).await?;
    }
    for vmi in stuck {
        context.recorder.normal(&reference(vmi), "FailedCreate", "VirtualMachineInstance is not migrateable");
    }
    for vmi in start {
        migrate(context, vmi, &key.name).await?;
    }
    Ok(again.map_or(Next::Wait, Next::After))
}

/// It was told to end on a node that is lost: nobody will say that it has, and its guest is elsewhere.
fn is_left_behind(context: &Context, pod: &Pod) -> bool {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    pod.metadata.deletion_timestamp.is_some() && node.is_some_and(|node| context.stores.lost.get(node).is_some())
}

async fn migrate(context: &Context, vmi: &VirtualMachineInstance, node: &str) -> Result<(), Error> {
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
    let wanted = json!({
        "metadata": {
            "generateName": "kubevirt-evacuation-",
            "annotations": { (annotation::EVACUATION_MIGRATION): node },
        },
        "spec": { "vmiName": name, "priority": "system-critical" },
    });
    let created = create_migration(context, vmi, wanted, "").await;
    created.map_err(Error::api("evacuate", "virtualmachineinstance", &namespace, &name))?;
    announce(context, vmi, node).await;
    Ok(())
}

/// Tells a descheduler that the pod's eviction is under way, though the pod stays until its guest has left.
async fn announce(context: &Context, vmi: &VirtualMachineInstance, node: &str) {
    let pods = context.stores.pods.by_index(&owner_index(&vmi.uid().unwrap_or_default()));
    let here = |pod: &&Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
    let Some(pod) = pods.iter().find(here) else { return };
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &vmi.namespace().unwrap_or_default());
    let patch = json!({ "metadata": { "annotations": { (annotation::EVICTION_IN_PROGRESS): "kubevirt" } } });
    // Without it a descheduler asks once more and is told the same.
    if let Err(error) = api.patch_metadata(&pod.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
        tracing::debug!(pod = pod.name_any(), error = %Chain(&error), "the eviction under way was not announced");
    }
}

/// Creates a migration of `vmi` and tells its user; `purpose` ends the sentences.
pub(crate) async fn create_migration(
    context: &Context,
    vmi: &VirtualMachineInstance,
    mut wanted: serde_json::Value,
    purpose: &str,
) -> Result<(), kube::Error> {
    let selector = api::kubevirt::identity::instance_id(&vmi.name_any());
    wanted["metadata"]["labels"][label::MIGRATION_SELECTOR] = json!(selector);
    let wanted: VirtualMachineInstanceMigration = serde_json::from_value(wanted).map_err(kube::Error::SerdeError)?;
    let api: Api<VirtualMachineInstanceMigration> =
        Api::namespaced(context.client.clone(), &vmi.namespace().unwrap_or_default());
    match api.create(&PostParams::default(), &wanted).await {
        Ok(mut created) => {
            created.metadata.managed_fields = None;
            let message = format!("Created Migration {}{purpose}", created.name_any());
            context.recorder.normal(&reference(vmi), "SuccessfulCreate", message);
            // Visible before the watch brings it, or the next look would create a second.
            let words = migration_indexes(&created);
            context.stores.migrations.put(&created, words);
            Ok(())
        }
        Err(error) => {
            let message = format!("Error creating a Migration{purpose}: {}", Chain(&error));
            context.recorder.warning(&reference(vmi), "FailedCreate", message);
            Err(error)
        }
    }
}

/// Forgets an eviction from a node that the guest has left.
async fn unmark(context: &Context, vmi: &VirtualMachineInstance) -> Result<(), Error> {
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
    let api: Api<VirtualMachineInstance> = Api::namespaced(context.client.clone(), &namespace);
    let patch = json!({
        "metadata": { "resourceVersion": vmi.metadata.resource_version }, "status": { "evacuationNodeName": null },
    });
    match api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => Ok(()),
        // Somebody wrote meanwhile, or it is gone: the watch brings it back.
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        Err(error) => Err(Error::api("patch", "virtualmachineinstance", &namespace, &name)(error)),
    }
}
