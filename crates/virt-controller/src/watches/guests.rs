//! Machines, their instances, what they run in and what their disks lie on.

use api::kubevirt::{constants::eviction_strategy, v1::VirtualMachineInstance};
use kit::store::Key;
use kube::ResourceExt;

use crate::{
    Context, backup, clone,
    facts::{copies, index},
    stand_in,
    stores::Changes,
};

pub(super) fn subscribe(context: &Context, changes: &mut Changes) {
    machines(context, changes);
    instances(context, changes);
    launchers(context, changes);
    attachments(context, changes);
    claims(context, changes);
    data_volumes(context, changes);
    put_backs(context, changes);
}

fn machines(context: &Context, changes: &mut Changes) {
    let queues = context.clone();
    changes.vms.subscribe(move |change| {
        queues.vm_queue.add(change.key.clone());
        keepers(&queues, change.key);
    });
}

fn instances(context: &Context, changes: &mut Changes) {
    let queues = context.clone();
    changes.vmis.subscribe(move |change| {
        queues.vmi_queue.add(change.key.clone());
        queues.migration_queue.add_all(queues.stores.migrations.keys_by_index(&index::migration_index(change.key)));
        stand_in::wake::guest(&queues, change.was.iter().chain(change.is));
        keepers(&queues, change.key);
        // A VM and its instance share their name.
        if queues.stores.vms.contains(change.key) {
            queues.vm_queue.add(change.key.clone());
        }
        if let Some(vmi) = change.new {
            concerns_eviction(&queues, change.key, vmi);
        }
    });
}

fn launchers(context: &Context, changes: &mut Changes) {
    let queues = context.clone();
    changes.pods.subscribe(move |change| {
        for word in change.was.iter().chain(change.is) {
            let guarded = !queues.budgets.keys_by_index(word).is_empty();
            for key in queues.stores.vmis.keys_by_index(word) {
                // A pod that ended may be what a migration of its guest waits for.
                queues.migration_queue.add_all(queues.stores.migrations.keys_by_index(&index::migration_index(&key)));
                if guarded {
                    queues.budget_queue.add(key.clone());
                }
                queues.vmi_queue.add(key);
            }
        }
    });
}

fn attachments(context: &Context, changes: &mut Changes) {
    let queues = context.clone();
    changes.attachments.subscribe(move |change| {
        for word in change.was.iter().chain(change.is) {
            queues.vmi_queue.add_all(queues.stores.vmis.keys_by_index(word));
        }
    });
}

fn claims(context: &Context, changes: &mut Changes) {
    let queues = context.clone();
    changes.claims.subscribe(move |change| {
        stand_in::wake::claim(&queues, change.key, change.was.iter().chain(change.is).cloned());
        let word = index::claim_index(&change.key.namespace, &change.key.name);
        queues.vmi_queue.add_all(queues.stores.vmis.keys_by_index(&word));
        queues.vm_queue.add_all(queues.stores.vms.keys_by_index(&word));
        for key in queues.stores.restores.keys_by_index(&word) {
            // A copy is whole once its claims are bound.
            clone::wake(&queues, &clone::restore_index(&key));
            queues.restore_queue.add(key);
        }
        queues.backup_queue.add_all(queues.stores.backups.keys_by_index(&word));
        queues.export_queue.add_all(queues.stores.exports.keys_by_index(&word));
    });
}

/// Where there is no such kind, nobody waits for one.
fn data_volumes(context: &Context, changes: &mut Changes) {
    let queues = context.clone();
    changes.data_volumes.subscribe(move |change| {
        let (namespace, name) = (&change.key.namespace, &change.key.name);
        queues.vm_queue.add_all(queues.stores.vms.keys_by_index(&index::data_index(namespace, name)));
        queues.vmi_queue.add_all(queues.stores.vmis.keys_by_index(&index::claim_index(namespace, name)));
    });
}

fn put_backs(context: &Context, changes: &mut Changes) {
    let queues = context.clone();
    changes.put_backs.subscribe(move |change| {
        stand_in::wake::volume(&queues, change.was.iter().chain(change.is));
    });
}

/// Snapshots, restores, copies, backups and exports of the machine called so may wait for what has changed of it.
fn keepers(context: &Context, vm: &Key) {
    let word = copies::source_index(vm);
    context.snapshot_queue.add_all(context.stores.snapshots.keys_by_index(&word));
    context.restore_queue.add_all(context.stores.restores.keys_by_index(&word));
    clone::wake(context, &copies::machine_index(vm));
    backup::wake(context, vm);
    context.export_queue.add_all(context.stores.exports.keys_by_index(&word));
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
