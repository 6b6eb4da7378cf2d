//! Tekton's tasks and pipelines for virtual machines, in the operator's namespace, from where a resolver gives them to others; and the
//! roles that they take, which whoever runs them binds. Pure.

use serde_json::Value;
use tekton_tasks::manifests;

/// What the objects are of.
pub const OPERAND: &str = "tekton-tasks";
/// The group and version of the kinds.
pub const VERSION: &str = "tekton.dev/v1";
/// The kinds that a cluster with Tekton knows.
pub const KINDS: [&str; 2] = ["Task", "Pipeline"];

/// All of it; `emulated` where no node has KVM.
pub fn render(namespace: &str, [steps, guestfs]: &[String; 2], emulated: bool, version: &str) -> Vec<Value> {
    let mut out = manifests::tasks(steps, guestfs, version);
    if emulated {
        manifests::without_kvm(&mut out);
    }
    out.extend(manifests::pipelines(namespace, steps, version));
    out.extend(manifests::config_maps());
    for manifest in &mut out {
        manifest["metadata"]["namespace"] = namespace.into();
    }
    out.extend(cluster_roles(namespace));
    out
}

/// The names of the roles.
pub fn roles() -> Vec<String> {
    let all = cluster_roles("any");
    all.iter().filter_map(|role| role["metadata"]["name"].as_str().map(str::to_owned)).collect()
}

fn cluster_roles(namespace: &str) -> Vec<Value> {
    manifests::rights(namespace).into_iter().filter(|manifest| manifest["kind"] == "ClusterRole").collect()
}
