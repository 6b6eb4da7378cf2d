//! Nodes and their leases, the KubeVirt object, and what moves guests between nodes or forbids it.

use k8s_openapi::api::coordination::v1::Lease;
use kit::{
    Task,
    store::{self, Key, Store, Watch},
};
use kube::Api;

use crate::migration;
use crate::{
    Context, export,
    facts::{index, migrations, trim},
    stand_in,
    stores::Changes,
};

/// Where kubelets renew their leases.
const NODE_LEASES: &str = "kube-node-lease";

pub(super) fn watches(context: &Context, changes: &mut Changes) -> Vec<Task<()>> {
    nodes(context, changes);
    kubevirts(context, changes);
    migrations(context, changes);
    vec![leases(context), budgets(context), policies(context)]
}

fn nodes(context: &Context, changes: &mut Changes) {
    let queues = context.clone();
    changes.nodes.subscribe(move |change| {
        queues.node_queue.add(change.key.clone());
        queues.evacuation_queue.add(change.key.clone());
    });
}

/// Leases are not kept: only that one was renewed matters.
fn leases(context: &Context) -> Task<()> {
    let api = Api::<Lease>::namespaced(context.client.clone(), NODE_LEASES);
    let queues = context.clone();
    store::watch(api, Watch::default(), Store::default(), move |change| {
        let node = &change.key.name;
        let renewal = change.new.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref());
        let Some(renewal) = renewal else { return queues.renewals().forget(node) };
        let renewal = renewal.0.to_string();
        let news = queues.renewals().hear(node, &renewal, tokio::time::Instant::now());
        if news && queues.stores.lost.get(node).is_some() {
            queues.node_queue.add(Key::new("", node.as_str()));
        }
    })
}

fn kubevirts(context: &Context, changes: &mut Changes) {
    let queues = context.clone();
    changes.kubevirts.subscribe(move |change| {
        queues.update_queue.add(change.key.clone());
        // Other machines may be selected now.
        if change.was != change.is {
            queues.vm_queue.add_all(queues.stores.vms.keys());
        }
        // Its limits may have grown.
        migration::wake_waiting(&queues);
        // Servers of exports offer what it says of TLS.
        export::all_changed(&queues);
    });
}

fn migrations(context: &Context, changes: &mut Changes) {
    let queues = context.clone();
    changes.migrations.subscribe(move |change| {
        for word in change.was.iter().chain(change.is) {
            may_make_room(&queues, word);
            stand_in::wake::by_index(&queues, word);
        }
        queues.migration_queue.add(change.key.clone());
        // Where one ends, another begins.
        if change.new.is_none_or(migrations::is_final) {
            migration::wake_waiting(&queues);
        }
    });
}

fn budgets(context: &Context) -> Task<()> {
    let (api, queues) = (Api::all(context.client.clone()), context.clone());
    let how = Watch { trim: trim::budget, index: index::budget_indexes, ..Watch::default() };
    store::watch(api, how, context.budgets.clone(), move |change| {
        for word in change.was.iter().chain(change.is) {
            queues.budget_queue.add_all(queues.stores.vmis.keys_by_index(word));
        }
    })
}

fn policies(context: &Context) -> Task<()> {
    let how = Watch {
        trim: |policy: &mut api::migrations::v1alpha1::MigrationPolicy| policy.status = None,
        ..Watch::default()
    };
    store::watch(Api::all(context.client.clone()), how, context.policies.clone(), |_| {})
}

/// A place in a node's or in the cluster's limit may have become free, and a budget too large.
fn may_make_room(context: &Context, word: &str) {
    let Some((namespace, name)) = word.strip_prefix("moves:").and_then(|vmi| vmi.split_once('/')) else { return };
    let vmi = Key::new(namespace, name);
    let found = context.stores.vmis.get(&vmi).and_then(|vmi| vmi.status);
    if let Some(node) = found.and_then(|status| status.node_name.clone()).filter(|node| !node.is_empty()) {
        context.evacuation_queue.add(Key::new("", node));
    }
    context.budget_queue.add(vmi);
    context.update_queue.add_all(context.stores.kubevirts.keys());
}
