//! Machines, their instances, what they run in and what their disks lie on.

use api::cdi::v1beta1::DataVolume;
use api::kubevirt::constants::{eviction_strategy, label};
use api::kubevirt::hotplug::APP as ATTACHMENT;
use api::kubevirt::v1::VirtualMachineInstance;
use kit::store::{self, Key, Watch};
use kit::{Task, served};
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};

use crate::facts::{index, trim};
use crate::{Context, backup, clone, hotplug, snapshot, stand_in};

pub(super) fn watches(context: &Context) -> Vec<Task<()>> {
    vec![
        machines(context),
        instances(context),
        launchers(context),
        attachments(context),
        claims(context),
        data_volumes(context),
        put_backs(context),
    ]
}

fn machines(context: &Context) -> Task<()> {
    let (api, queues) = (Api::all(context.client.clone()), context.clone());
    let how = Watch { index: index::vm_indexes, ..Watch::default() };
    store::watch(api, how, context.vms.clone(), move |change| {
        queues.vm_queue.add(change.key.clone());
        keepers(&queues, change.key);
    })
}

fn instances(context: &Context) -> Task<()> {
    let (api, queues) = (Api::all(context.client.clone()), context.clone());
    let how = Watch { index: index::vmi_indexes, ..Watch::default() };
    store::watch(api, how, context.vmis.clone(), move |change| {
        queues.vmi_queue.add(change.key.clone());
        queues.migration_queue.add_all(queues.migrations.keys_by_index(&index::migration_index(change.key)));
        stand_in::wake::guest(&queues, change.was.iter().chain(change.is));
        keepers(&queues, change.key);
        // A VM and its instance share their name.
        if queues.vms.contains(change.key) {
            queues.vm_queue.add(change.key.clone());
        }
        if let Some(vmi) = change.new {
            concerns_eviction(&queues, change.key, vmi);
        }
    })
}

fn launchers(context: &Context) -> Task<()> {
    let (api, queues) = (Api::all(context.client.clone()), context.clone());
    let how = Watch {
        config: watcher::Config::default().labels(&format!("{}={}", label::APP, label::APP_VIRT_LAUNCHER)),
        trim: trim::pod,
        index: index::pod_indexes,
    };
    store::watch(api, how, context.pods.clone(), move |change| {
        for word in change.was.iter().chain(change.is) {
            let guarded = !queues.budgets.keys_by_index(word).is_empty();
            for key in queues.vmis.keys_by_index(word) {
                // A pod that ended may be what a migration of its guest waits for.
                queues.migration_queue.add_all(queues.migrations.keys_by_index(&index::migration_index(&key)));
                if guarded {
                    queues.budget_queue.add(key.clone());
                }
                queues.vmi_queue.add(key);
            }
        }
    })
}

fn attachments(context: &Context) -> Task<()> {
    let (api, queues) = (Api::all(context.client.clone()), context.clone());
    let how = Watch {
        config: watcher::Config::default().labels(&format!("{}={ATTACHMENT}", label::APP)),
        trim: hotplug::pod::trim,
        index: hotplug::indexes,
    };
    store::watch(api, how, context.attachments.clone(), move |change| {
        for word in change.was.iter().chain(change.is) {
            queues.vmi_queue.add_all(queues.vmis.keys_by_index(word));
        }
    })
}

fn claims(context: &Context) -> Task<()> {
    let (api, queues) = (Api::all(context.client.clone()), context.clone());
    let how = Watch { trim: trim::claim, index: index::claim_indexes, ..Watch::default() };
    store::watch(api, how, context.claims.clone(), move |change| {
        stand_in::wake::claim(&queues, change.key, change.was.iter().chain(change.is).cloned());
        let word = index::claim_index(&change.key.namespace, &change.key.name);
        queues.vmi_queue.add_all(queues.vmis.keys_by_index(&word));
        queues.vm_queue.add_all(queues.vms.keys_by_index(&word));
        for key in queues.restores.keys_by_index(&word) {
            // A copy is whole once its claims are bound.
            clone::wake(&queues, &clone::restore_index(&key));
            queues.restore_queue.add(key);
        }
        queues.backup_queue.add_all(queues.backups.keys_by_index(&word));
        queues.export_queue.add_all(queues.exports.keys_by_index(&word));
    })
}

/// Where there is no such kind, nobody waits for one.
fn data_volumes(context: &Context) -> Task<()> {
    let (api, queues) = (Api::all(context.client.clone()), context.clone());
    let (how, resource) = (Watch::default(), ApiResource::erase::<DataVolume>(&()));
    served::watch(&context.client, &resource, api, how, context.data_volumes.clone(), move |change| {
        let (namespace, name) = (&change.key.namespace, &change.key.name);
        queues.vm_queue.add_all(queues.vms.keys_by_index(&index::data_index(namespace, name)));
        queues.vmi_queue.add_all(queues.vmis.keys_by_index(&index::claim_index(namespace, name)));
    })
}

fn put_backs(context: &Context) -> Task<()> {
    let (api, queues) = (Api::all(context.client.clone()), context.clone());
    let how = Watch {
        config: watcher::Config::default().labels(stand_in::PUT_BACK),
        index: stand_in::record::indexes,
        ..Watch::default()
    };
    store::watch(api, how, context.put_backs.clone(), move |change| {
        stand_in::wake::volume(&queues, change.was.iter().chain(change.is));
    })
}

/// Snapshots, restores, copies, backups and exports of the machine called so may wait for what has changed of it.
fn keepers(context: &Context, vm: &Key) {
    let word = snapshot::source_key(&vm.namespace, &vm.name);
    context.snapshot_queue.add_all(context.snapshots.keys_by_index(&word));
    context.restore_queue.add_all(context.restores.keys_by_index(&word));
    clone::wake(context, &clone::machine_index(vm));
    backup::wake(context, vm);
    context.export_queue.add_all(context.exports.keys_by_index(&word));
}

/// Most guests are never evicted, and their many changes are none of these queues' business.
fn concerns_eviction(context: &Context, key: &Key, vmi: &VirtualMachineInstance) {
    let owner = index::owner_index(&vmi.uid().unwrap_or_default());
    let unprotected = vmi.spec.eviction_strategy.as_deref() == Some(eviction_strategy::NONE);
    if !unprotected || !context.budgets.keys_by_index(&owner).is_empty() {
        context.budget_queue.add(key.clone());
    }
    let status = vmi.status.as_deref();
    if status.is_some_and(|status| status.evacuation_node_name.is_some())
        && let Some(node) = status.and_then(|status| status.node_name.clone())
    {
        context.evacuation_queue.add(Key::new("", node));
    }
}
