//! A PodDisruptionBudget for each virtual machine instance whose pod must not be evicted under it: of one pod while it
//! runs, of two while it moves, so that neither end of a migration is taken away.

pub mod plan;

use api::kubevirt::v1::VirtualMachineInstance;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kit::{Chain, queue::Next, store::Key};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use plan::Step;

use crate::{
    context::{Context, reference},
    error::Error,
    facts::index::{budget_indexes, migration_index, owner_index},
};

/// Brings the budget of one VMI in line.
pub async fn reconcile(context: Context, key: Key) -> Next {
    match sync(&context, &key).await {
        Ok(()) => Next::Wait,
        Err(error) => {
            tracing::warn!(vmi = %key, error = %Chain(&error), "disruption budget not reconciled");
            Next::Retry
        }
    }
}

async fn sync(context: &Context, key: &Key) -> Result<(), Error> {
    // A budget goes with its owner; only one whose owner lives is our business.
    let Some(vmi) = context.stores.vmis.get(key) else { return Ok(()) };
    let uid = vmi.uid().unwrap_or_default();
    let budgets = context.budgets.by_index(&owner_index(&uid));
    let pods = context.stores.pods.by_index(&owner_index(&uid));
    let migrations = context.stores.migrations.by_index(&migration_index(key));
    let steps = plan::plan(&vmi, &budgets, &migrations, &pods, &context.settings().eviction_strategy);
    for step in &steps {
        execute(context, &vmi, step).await?;
    }
    Ok(())
}

async fn execute(context: &Context, vmi: &VirtualMachineInstance, step: &Step) -> Result<(), Error> {
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
                context.budgets.put(&budget, words);
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
