//! The account of the replicas, and what they may do: no more than they use.

use kit::operator::manifests::{account, binding, role, rule};
use kit::served;
use serde_json::{Value, json};

use crate::kubemacpool::names::ACCOUNT;
use crate::kubemacpool::range::CONFIG;

const ROLE: &str = "kubemacpool-manager-role";
const BINDING: &str = "kubemacpool-manager-rolebinding";
const READ: &[&str] = &["get", "list", "watch"];

pub(super) fn render(namespace: &str) -> Vec<Value> {
    let own = |name: &str| json!({ "name": name, "namespace": namespace });
    let mut cluster = vec![
        rule("", &["pods", "namespaces"], READ),
        rule("kubevirt.io", &["virtualmachines", "virtualmachineinstances"], READ),
        // Collisions are told to what collides.
        rule("", &["events"], &["create", "patch"]),
    ];
    // Whether the cluster has virtual machines.
    cluster.extend(served::rules());
    let mut range = rule("", &["configmaps"], READ);
    range["resourceNames"] = json!([CONFIG]);
    let leases = rule("coordination.k8s.io", &["leases"], &["get", "list", "watch", "create", "update", "delete"]);
    vec![
        account(&own(ACCOUNT)),
        role(&json!({ "name": ROLE }), &cluster),
        binding(&json!({ "name": BINDING }), ROLE, (namespace, ACCOUNT)),
        role(&own(ROLE), &[range, leases]),
        binding(&own(BINDING), ROLE, (namespace, ACCOUNT)),
    ]
}
