//! The account of the replicas, and what they may do: no more than they use.

use kit::operator::manifests::{account, binding, role, rule};
use kit::served;
use serde_json::{Value, json};

use crate::ipam::names::ACCOUNT;

const ROLE: &str = "kubevirt-ipam-controller-manager-role";
const BINDING: &str = "kubevirt-ipam-controller-manager-rolebinding";
const READ: &[&str] = &["get", "list", "watch"];

pub(super) fn render(namespace: &str) -> Vec<Value> {
    let own = |name: &str| json!({ "name": name, "namespace": namespace });
    let mut cluster = vec![
        rule("kubevirt.io", &["virtualmachines", "virtualmachineinstances"], READ),
        // Claims hold up the deletion of their owner, which has to be allowed where owners are checked.
        rule("kubevirt.io", &["virtualmachines/finalizers", "virtualmachineinstances/finalizers"], &["update"]),
        rule("k8s.cni.cncf.io", &["network-attachment-definitions"], READ),
        rule("k8s.cni.cncf.io", &["ipamclaims"], &["get", "list", "watch", "create", "update", "patch"]),
        // Whether whoever makes a pod may have the addresses of its machine.
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
        // Whether a pod has the addresses of a claim that is deleted while its machine starts.
        rule("", &["pods"], &["list"]),
        rule("", &["events"], &["create", "patch"]),
    ];
    // Whether the cluster has virtual machines.
    cluster.extend(served::rules());
    let leases = rule("coordination.k8s.io", &["leases"], &["get", "create", "update"]);
    vec![
        account(&own(ACCOUNT)),
        role(&json!({ "name": ROLE }), &cluster),
        binding(&json!({ "name": BINDING }), ROLE, (namespace, ACCOUNT)),
        role(&own(ROLE), &[leases]),
        binding(&own(BINDING), ROLE, (namespace, ACCOUNT)),
    ]
}
