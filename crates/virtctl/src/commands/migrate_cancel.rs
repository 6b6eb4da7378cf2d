//! `virtctl migrate-cancel`: the machine stays where it is, by deleting the migration that has not ended.

use api::kubevirt::constants::{label, migration_phase as phase};
use api::kubevirt::identity::instance_id;
use api::kubevirt::v1::VirtualMachineInstanceMigration as Migration;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};

use super::request::{self, DryRun};
use crate::connect::Globals;
use crate::fault::{Fault, Outcome};
use crate::target::Kind;

/// Cancel a migration.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the machine.
    #[arg(value_name = "VM")]
    name: String,
    #[command(flatten)]
    dry_run: DryRun,
}

/// The migration to cancel: the one that has not ended, and is not being cancelled already if there is a choice.
fn active(mut migrations: Vec<Migration>) -> Option<Migration> {
    migrations.retain(|migration| {
        let now = migration.status.as_ref().and_then(|status| status.phase.as_deref());
        !matches!(now, Some(phase::SUCCEEDED | phase::FAILED))
    });
    migrations.into_iter().min_by_key(|migration| migration.metadata.deletion_timestamp.is_some())
}

pub(crate) async fn run(globals: &Globals, args: Args) -> Outcome {
    let cluster = globals.cluster().await?;
    let (namespace, name) = request::named(&cluster, Kind::Vm, &args.name)?;
    let api: Api<Migration> = Api::namespaced(cluster.client.clone(), &namespace);
    let of_guest = ListParams::default().labels(&format!("{}={}", label::MIGRATION_SELECTOR, instance_id(&name)));
    let what = format!("cannot cancel the migration of VM {namespace}/{name}");
    let list = api.list(&of_guest).await.map_err(|error| Fault::api(what.clone(), &error))?;
    let Some(migration) = active(list.items) else {
        return Err(Fault::new(format!("Found no migration to cancel for {name}"))
            .hint(format!("`kubectl get vmim -n {namespace}` shows those that ended")));
    };
    let params = DeleteParams { dry_run: args.dry_run.dry_run, ..Default::default() };
    api.delete(&migration.name_any(), &params).await.map_err(|error| Fault::api(what, &error))?;
    args.dry_run.done(Kind::Vm, &name, "was scheduled to migrate-cancel")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finished_migrations_are_not_cancelled() {
        let check = |phases: &[(&str, bool)], expect: Option<&str>| {
            let all = phases.iter().map(|(phase, going)| {
                let at = going.then_some("2026-01-01T00:00:00Z");
                json!({ "metadata": { "name": phase, "deletionTimestamp": at }, "status": { "phase": phase } })
            });
            let all = all.map(|migration| serde_json::from_value(migration).unwrap()).collect();
            assert_eq!(active(all).map(|migration| migration.name_any()).as_deref(), expect);
        };
        check(&[], None);
        check(&[("Succeeded", false), ("Failed", false)], None);
        check(&[("Succeeded", false), ("Running", false)], Some("Running"));
        check(&[("Running", true), ("Pending", false)], Some("Pending"));
        check(&[("Running", true)], Some("Running"));
    }
}
