//! What each Task takes: an account, a role, and a binding, called NAME-task. Pure.

use kit::operator::manifests::{account, binding, role, rule};
use serde_json::{Value, json};

use super::NAMES;
use super::pipelines::PREPARE;

const READ: &[&str] = &["get", "list", "watch"];

/// Accounts, roles and bindings in `namespace`, for Tasks that take any, and for the first step of the Pipelines. A binding within another namespace lets the Task work there.
pub fn rights(namespace: &str) -> Vec<Value> {
    let mut out = Vec::new();
    for name in NAMES.into_iter().chain([PREPARE]) {
        let rules = rules(name);
        if rules.is_empty() {
            continue;
        }
        let task = format!("{name}-task");
        let here = json!({ "name": task, "namespace": namespace });
        out.push(account(&here));
        out.push(role(&json!({ "name": task }), &rules));
        // The role is of the cluster, to be bound wherever the Task is to work.
        let mut bound = binding(&here, &task, (namespace, &task));
        bound["roleRef"]["kind"] = json!("ClusterRole");
        out.push(bound);
    }
    out
}

fn rules(task: &str) -> Vec<Value> {
    let machines = ["virtualmachines", "virtualmachineinstances"];
    let power = |verbs: &[&str]| {
        let all: Vec<String> = verbs.iter().map(|verb| format!("virtualmachines/{verb}")).collect();
        rule("subresources.kubevirt.io", &all.iter().map(String::as_str).collect::<Vec<_>>(), &["update"])
    };
    let templates = |verbs: &[&str]| {
        vec![
            rule("template.openshift.io", &["templates"], verbs),
            rule("template.kubevirt.io", &["virtualmachinetemplates"], verbs),
        ]
    };
    match task {
        "create-vm-from-manifest" => {
            vec![rule("kubevirt.io", &machines, &["get", "list", "watch", "create"]), power(&["start"])]
        }
        "create-vm-from-template" => {
            let mut all = templates(&["get"]);
            all.extend([rule("kubevirt.io", &machines, &["get", "list", "watch", "create"]), power(&["start"])]);
            all
        }
        "copy-template" => templates(&["get", "list", "watch", "create", "delete"]),
        "modify-vm-template" => templates(&["get", "list", "watch", "patch", "delete"]),
        "modify-data-object" => vec![
            rule("cdi.kubevirt.io", &["datavolumes", "datasources"], &["get", "list", "watch", "create", "delete"]),
            // By which disks are copied from.
            rule("cdi.kubevirt.io", &["datavolumes/source"], &["create"]),
            rule("", &["persistentvolumeclaims"], &["get", "list", "watch", "delete"]),
        ],
        // What it has made goes again if it fails.
        "generate-ssh-keys" => vec![rule("", &["secrets"], &["get", "create", "patch", "delete"])],
        "execute-in-vm" => vec![rule("kubevirt.io", &machines, READ), power(&["start"])],
        "cleanup-vm" => vec![
            rule("kubevirt.io", &machines, READ),
            rule("kubevirt.io", &["virtualmachines"], &["delete"]),
            power(&["start", "stop"]),
        ],
        "wait-for-vmi-status" => vec![rule("kubevirt.io", &["virtualmachineinstances"], READ)],
        "disk-uploader" => vec![
            rule("export.kubevirt.io", &["virtualmachineexports"], &["get", "list", "watch", "create", "delete"]),
            rule("", &["secrets"], &["get", "create", "delete"]),
            rule("", &["persistentvolumeclaims"], &["get"]),
            rule("kubevirt.io", &["virtualmachines"], &["get"]),
            rule("snapshot.kubevirt.io", &["virtualmachinesnapshots", "virtualmachinesnapshotcontents"], &["get"]),
        ],
        PREPARE => vec![rule("", &["configmaps"], &["get", "create"])],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_task_may_do_everything() {
        for manifest in rights("ns") {
            let text = manifest.to_string();
            assert!(!text.contains("\"*\"") && !text.contains("escalate") && !text.contains("\"bind\""), "{text}");
        }
    }

    #[test]
    fn tasks_that_touch_nothing_of_the_cluster_take_nothing() {
        assert!(rules("disk-virt-customize").is_empty() && rules("modify-windows-iso-file").is_empty());
        assert_eq!(rights("ns").len(), 3 * 11);
    }
}
