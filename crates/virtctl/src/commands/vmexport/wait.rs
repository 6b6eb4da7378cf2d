//! Waiting for the export to be served.

use std::time::Duration;

use api::export::constants::phase;
use api::export::v1::VirtualMachineExport;
use kube::Api;
use tokio::time::Instant;

use super::Args;
use crate::connect::Cluster;
use crate::fault::Fault;

const INTERVAL: Duration = Duration::from_millis(500);

/// The export, once it is served.
pub(super) async fn ready(cluster: &Cluster, args: &Args, patience: Duration) -> Result<VirtualMachineExport, Fault> {
    let (namespace, name) = (&cluster.namespace, &args.name);
    let what = format!("VirtualMachineExport {namespace}/{name} is not ready");
    let api: Api<VirtualMachineExport> = Api::namespaced(cluster.client.clone(), namespace);
    let deadline = Instant::now() + patience;
    let mut told = String::new();
    loop {
        let found = api.get_opt(name).await.map_err(|error| Fault::api(&what, &error))?;
        if let Some(export) = found.clone().filter(is_ready) {
            return Ok(export);
        }
        let state = state(found.as_ref(), name);
        if Instant::now() >= deadline {
            return Err(Fault::new(what).because(state).hint(format!(
                "kubectl -n {namespace} describe vmexport {name} says more; --readiness-timeout waits longer"
            )));
        }
        if state != told {
            args.say(&state);
            told = state;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

fn is_ready(export: &VirtualMachineExport) -> bool {
    let status = export.status.as_deref();
    let linked = status.and_then(|status| status.links.as_ref()).is_some_and(|links| links.internal.is_some());
    linked && status.and_then(|status| status.phase.as_deref()) == Some(phase::READY)
}

/// What it stands at, for people.
fn state(export: Option<&VirtualMachineExport>, name: &str) -> String {
    let Some(export) = export else {
        return format!("couldn't get VM Export {name}, waiting for it to be created...");
    };
    let conditions = export.status.iter().flat_map(|status| &status.conditions);
    let mut said = conditions.into_iter().filter(|condition| condition.status != "True");
    let why = said.find_map(|condition| condition.message.clone().filter(|message| !message.is_empty()));
    let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
    format!("waiting for VM Export {name} status to be ready...{why}")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_export_is_ready_with_its_links() {
        #[track_caller]
        #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
        fn check(status: Value, ready: bool, text: &str) {
            let export =
                json!({ "metadata": {}, "spec": { "source": { "kind": "a", "name": "b" } }, "status": status });
            let export: VirtualMachineExport = serde_json::from_value(export).unwrap();
            assert_eq!(is_ready(&export), ready);
            assert!(state(Some(&export), "e").ends_with(text), "{}", state(Some(&export), "e"));
        }
        let waits = json!({ "type": "Ready", "status": "False", "message": "PVC is in use" });
        check(json!({ "phase": "Pending", "conditions": [waits] }), false, "ready... (PVC is in use)");
        check(json!({ "phase": "Ready", "links": {} }), false, "ready...");
        check(json!({ "phase": "Ready", "links": { "internal": { "cert": "" } } }), true, "ready...");
        assert!(state(None, "e").contains("waiting for it to be created"));
    }
}
