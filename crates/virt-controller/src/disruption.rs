//! A PodDisruptionBudget for each virtual machine instance whose pod must not be evicted under it: of one pod while it
//! runs, of two while it moves, so that neither end of a migration is taken away.

pub mod plan;

use api::kubevirt::constants::eviction_strategy;
use api::kubevirt::v1::VirtualMachineInstance;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kit::queue::{Next, Queue};
use kit::store::{self, Key, Store, Watch};
use kit::{Chain, Task};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use plan::Step;

use crate::context::{Context, reference};
use crate::error::Error;
use crate::facts::index::{budget_indexes, migration_index, of_migration, owner_index};
use crate::facts::trim;
use crate::setup::Setup;
use crate::stores::{Changes, index_values};

/// What it works with.
#[derive(Clone)]
struct Budgets {
    context: Context,
    /// Budgets of launcher pods.
    budgets: Store<PodDisruptionBudget>,
}

/// Has the budgets of instances looked after.
pub(crate) fn register(setup: &mut Setup) {
    let own = Budgets { context: setup.context.clone(), budgets: Store::default() };
    let queue = Queue::default();
    wakes(&mut setup.changes, &own.budgets, &queue);
    setup.keep(watch(&own, &queue));
    let (stores, budgets) = (own.context.stores.clone(), own.budgets.clone());
    let known = async move {
        tokio::join!(
            stores.vmis.synced(),
            stores.pods.synced(),
            stores.migrations.synced(),
            stores.kubevirts.synced(),
            budgets.synced()
        );
    };
    setup.work(queue, 2, known, move |key| reconcile(own.clone(), key));
}

fn wakes(changes: &mut Changes, budgets: &Store<PodDisruptionBudget>, queue: &Queue<Key>) {
    let held = budgets.clone();
    changes.vmis.wake(queue, move |_, change| {
        let vmi = change.new.filter(|vmi| is_protected(vmi) || has_budget(&held, vmi));
        vmi.is_some().then(|| change.key.clone())
    });
    let held = budgets.clone();
    changes.pods.wake(queue, move |stores, change| {
        let guarded = index_values(change).filter(|word| !held.keys_by_index(word).is_empty());
        guarded.flat_map(|word| stores.vmis.keys_by_index(word)).collect::<Vec<_>>()
    });
    // A guest that has arrived has a budget that is too large.
    changes
        .migrations
        .wake(queue, |_, change| index_values(change).filter_map(|word| of_migration(word)).collect::<Vec<_>>());
}

fn watch(own: &Budgets, queue: &Queue<Key>) -> Task<()> {
    let (api, stores, queue) = (Api::all(own.context.client.clone()), own.context.stores.clone(), queue.clone());
    let how = Watch { trim: trim::budget, index: budget_indexes, ..Watch::default() };
    store::watch(api, how, own.budgets.clone(), move |change| {
        queue.add_all(index_values(&change).flat_map(|word| stores.vmis.keys_by_index(word)));
    })
}

/// Most guests are never evicted, and their many changes are none of this queue's business.
fn is_protected(vmi: &VirtualMachineInstance) -> bool {
    vmi.spec.eviction_strategy.as_deref() != Some(eviction_strategy::NONE)
}

fn has_budget(budgets: &Store<PodDisruptionBudget>, vmi: &VirtualMachineInstance) -> bool {
    !budgets.keys_by_index(&owner_index(&vmi.uid().unwrap_or_default())).is_empty()
}

/// Brings the budget of one VMI in line.
async fn reconcile(own: Budgets, key: Key) -> Next {
    match sync(&own, &key).await {
        Ok(()) => Next::Wait,
        Err(error) => {
            tracing::warn!(vmi = %key, error = %Chain(&error), "disruption budget not reconciled");
            Next::Retry
        }
    }
}

async fn sync(own: &Budgets, key: &Key) -> Result<(), Error> {
    let context = &own.context;
    // A budget goes with its owner; only one whose owner lives is our business.
    let Some(vmi) = context.stores.vmis.get(key) else { return Ok(()) };
    let uid = vmi.uid().unwrap_or_default();
    let budgets = own.budgets.by_index(&owner_index(&uid));
    let pods = context.stores.pods.by_index(&owner_index(&uid));
    let migrations = context.stores.migrations.by_index(&migration_index(key));
    let steps = plan::plan(&vmi, &budgets, &migrations, &pods, &context.settings().eviction_strategy);
    for step in &steps {
        execute(own, &vmi, step).await?;
    }
    Ok(())
}

async fn execute(own: &Budgets, vmi: &VirtualMachineInstance, step: &Step) -> Result<(), Error> {
    let context = &own.context;
    let namespace = vmi.namespace().unwrap_or_default();
    let api: Api<PodDisruptionBudget> = Api::namespaced(context.client.clone(), &namespace);
    let of = reference(vmi);
    let (verb, name, done) = match step {
        Step::Create(budget) => {
            let name = budget.name_any();
            let outcome = match api.create(&PostParams::default(), budget).await {
                Err(kube::Error::Api(status)) if status.code == 409 => return Ok(()),
                outcome => outcome.map(Some),
            };
            (("SuccessfulCreate", "FailedCreate", "Created", "Error creating"), name, outcome)
        }
        Step::Resize { name, patch } => {
            let outcome = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(Some);
            (("SuccessfulUpdate", "FailedUpdate", "resized", "Error updating"), name.clone(), outcome)
        }
        Step::Delete { name, uid } => {
            let params = DeleteParams {
                preconditions: Some(Preconditions { uid: uid.clone(), resource_version: None }),
                ..Default::default()
            };
            let outcome = api.delete(name, &params).await.map(|_| None);
            (("SuccessfulDelete", "FailedDelete", "Deleted", "Error deleting"), name.clone(), outcome)
        }
    };
    let (well, badly, past, trying) = verb;
    match done {
        Ok(written) => {
            if let Some(mut budget) = written {
                budget.metadata.managed_fields = None;
                let words = budget_indexes(&budget);
                own.budgets.put(&budget, words);
            }
            context.recorder.normal(&of, well, format!("{past} PodDisruptionBudget {name}"));
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => {
            let error = Error::api("write", "poddisruptionbudget", &namespace, &name)(error);
            context.recorder.warning(&of, badly, format!("{trying} the PodDisruptionBudget {name}: {}", Chain(&error)));
            Err(error)
        }
    }
}
