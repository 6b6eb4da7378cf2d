//! The namespace of boot sources: who may read and copy them, who may change them, and which pods talk to which.
//!
//! The namespace itself comes with the operator and stays: what is in it are images that somebody may have uploaded.

use api::cdi::constants::label;
use kit::operator::manifests::{role, rule};
use serde_json::{Value, json};

use super::network::{self, policy};
use crate::words::IMAGES;

/// What the objects are of.
pub const OPERAND: &str = "data-sources";
/// The role by which everybody reads and copies boot sources.
pub const VIEW: &str = "os-images.kubevirt.io:view";
/// The role by which those change them whom an administrator gives it.
pub const EDIT: &str = "os-images.kubevirt.io:edit";

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["get", "list", "watch", "create", "update", "patch", "delete"];
const CDI: &str = "cdi.kubevirt.io";
const SNAPSHOTS: &str = "snapshot.storage.k8s.io";

/// Roles and policies.
pub fn render() -> Vec<Value> {
    let here = json!({ "name": VIEW, "namespace": IMAGES });
    let group = |name: &str| json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name });
    let everybody = ["system:authenticated", "system:serviceaccounts"].map(group);
    let mut out = vec![
        role(&here, &view()),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": here,
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": VIEW },
            "subjects": everybody,
        }),
        role(&json!({ "name": EDIT }), &edit()),
    ];
    out.extend(policies());
    out
}

fn view() -> Vec<Value> {
    vec![
        rule("", &["persistentvolumeclaims", "persistentvolumeclaims/status", "namespaces"], READ),
        rule(SNAPSHOTS, &["volumesnapshots", "volumesnapshots/status"], READ),
        rule(CDI, &["datavolumes", "datasources", "dataimportcrons"], READ),
        // The right to copy.
        rule(CDI, &["datavolumes/source"], &["create"]),
    ]
}

fn edit() -> Vec<Value> {
    vec![
        rule("", &["persistentvolumeclaims"], WRITE),
        rule("", &["persistentvolumeclaims/status"], READ),
        // Boot sources may be kept as snapshots.
        rule(SNAPSHOTS, &["volumesnapshots"], WRITE),
        rule(CDI, &["datavolumes", "datasources", "dataimportcrons"], WRITE),
        rule(CDI, &["datavolumes/source"], &["create"]),
    ]
}

/// For clusters whose namespaces are closed unless a policy opens them.
fn policies() -> Vec<Value> {
    let pods = |name: &str| json!({ "matchLabels": { (label::COMPONENT): name } });
    let peer = |name: &str| json!({ "podSelector": pods(name), "namespaceSelector": {} });
    let served = json!([network::tcp(8443)]);
    let from = |name: &str| json!({ "ingress": [{ "from": [peer(name)], "ports": served }] });
    let fillers = json!({ "matchExpressions": [
        { "key": label::COMPONENT, "operator": "In", "values": [label::IMPORTER, label::CLONER] },
    ] });
    let pollers = json!({ "matchExpressions": [{ "key": label::POLLER, "operator": "Exists" }] });
    let uploads = json!({ "egress": [{ "to": [peer(label::UPLOAD_SERVER)], "ports": served }] });
    let anywhere = json!({ "egress": [{}] });
    [
        ("cdi-allow-egress-to-cluster-services", fillers, network::cluster_services()),
        ("cdi-allow-ingress-to-importer-metrics", pods(label::IMPORTER), from("cdi-deployment")),
        ("cdi-allow-ingress-from-clone-source-to-upload-server", pods(label::UPLOAD_SERVER), from(label::CLONER)),
        ("cdi-allow-ingress-from-uploadproxy-to-upload-server", pods(label::UPLOAD_SERVER), from("cdi-uploadproxy")),
        ("cdi-allow-egress-from-clone-source-to-upload-server", pods(label::CLONER), uploads),
        // What is imported is anywhere.
        ("cdi-allow-egress-from-importer-to-data-source", pods(label::IMPORTER), anywhere.clone()),
        ("cdi-allow-egress-from-poller", pollers, anywhere),
    ]
    .into_iter()
    .map(|(name, pods, rules)| policy(IMAGES, name, &pods, rules))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everybody reads and copies boot sources, and no more: an image that one tenant could write runs in the machines of others.
    #[test]
    fn nobody_changes_boot_sources_by_what_everybody_may() {
        for rule in view() {
            let copy = rule["resources"] == json!(["datavolumes/source"]) && rule["verbs"] == json!(["create"]);
            assert!(copy || rule["verbs"] == json!(READ), "{rule}");
        }
        let bound = render().into_iter().filter(|manifest| manifest["kind"] == "RoleBinding");
        let roles: Vec<Value> = bound.map(|binding| binding["roleRef"]["name"].clone()).collect();
        assert_eq!(roles, [VIEW]);
    }
}
