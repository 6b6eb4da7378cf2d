//! Who may do what: roles for users, and for each component no more than it uses.

use api::kubevirt::constants::label;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Input;

const USER_ROLES: &str = include_str!("user-roles.yaml");

#[derive(Deserialize)]
struct UserRole {
    name: String,
    labels: Value,
    #[serde(default)]
    annotations: Value,
    rules: Value,
}

/// By what an API server that narrows roles to a node tells the objects of the node that an agent's token is bound to. To others this says nothing:
/// their RBAC knows no selectors.
const OWN_NODE: &str = "rbac.ferrovirt.io/own-node";

/// Service accounts, roles and bindings.
pub fn render(input: &Input) -> Vec<Value> {
    let mut out = user_roles();
    let agent = json!([{ "kind": "ServiceAccount", "namespace": input.namespace, "name": "kubevirt-handler" }]);
    let machine = format!("{},{}", label::NODE_NAME, label::MIGRATION_TARGET_NODE);
    for (name, by, rules) in [
        ("kubevirt-handler-own-machines", machine.as_str(), handler_machines()),
        ("kubevirt-handler-own-node", "metadata.name", handler_node()),
    ] {
        out.push(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": { "name": name, "annotations": { OWN_NODE: by } }, "rules": rules,
        }));
        out.push(binding(name, name, &agent));
    }
    out.push(binding("kubevirt.io:default", "kubevirt.io:default", &everyone()));
    out.push(binding("instancetype.kubevirt.io:view", "instancetype.kubevirt.io:view", &everyone()));
    for (name, cluster, own) in [
        ("kubevirt-apiserver", api_cluster(), api_own()),
        ("kubevirt-controller", controller_cluster(), controller_own()),
        ("kubevirt-handler", handler_cluster(), handler_own()),
        ("kubevirt-exportproxy", proxy_cluster(), json!([])),
    ] {
        let namespace = &input.namespace;
        let subject = json!([{ "kind": "ServiceAccount", "namespace": namespace, "name": name }]);
        out.push(json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name, "namespace": namespace },
        }));
        out.push(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": { "name": name }, "rules": cluster,
        }));
        out.push(binding(name, name, &subject));
        if own.as_array().is_some_and(|rules| !rules.is_empty()) {
            out.push(json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
                "metadata": { "name": name, "namespace": namespace }, "rules": own,
            }));
            out.push(own_binding(name, namespace, "Role", name, &subject));
        }
        if name == "kubevirt-apiserver" {
            out.push(binding("kubevirt-apiserver-auth-delegator", "system:auth-delegator", &subject));
            let reader = "extension-apiserver-authentication-reader";
            out.push(own_binding("kubevirt-apiserver-auth-reader", "kube-system", "Role", reader, &subject));
        }
    }
    out
}

fn everyone() -> Value {
    json!([{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated" }])
}

fn binding(name: &str, role: &str, subjects: &Value) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": subjects,
    })
}

fn own_binding(name: &str, namespace: &str, kind: &str, role: &str, subjects: &Value) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": name, "namespace": namespace },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role },
        "subjects": subjects,
    })
}

fn user_roles() -> Vec<Value> {
    // The file is compiled in and read by a test; unreadable it would grant nothing.
    let roles: Vec<UserRole> = serde_saphyr::from_str(USER_ROLES).unwrap_or_default();
    roles
        .into_iter()
        .map(|role| {
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": { "name": role.name, "labels": role.labels, "annotations": role.annotations },
                "rules": role.rules,
            })
        })
        .collect()
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": resources, "verbs": verbs })
}

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["get", "list", "watch", "create", "update", "patch", "delete"];

fn api_cluster() -> Value {
    json!([
        rule(
            "kubevirt.io",
            &["virtualmachines", "virtualmachineinstances"],
            &["get", "list", "watch", "patch", "update"]
        ),
        rule("kubevirt.io", &["virtualmachines/status"], &["patch"]),
        rule("kubevirt.io", &["virtualmachineinstancemigrations"], &["create", "get", "list", "watch", "patch"]),
        rule("kubevirt.io", &["kubevirts"], READ),
        // What new guests are given.
        rule("kubevirt.io", &["virtualmachineinstancepresets"], &["list"]),
        // What was stored while nobody judged it.
        json!({
            "apiGroups": ["admissionregistration.k8s.io"], "resources": ["mutatingwebhookconfigurations"], "verbs": ["get"],
            "resourceNames": [super::admission::MUTATORS_NAME],
        }),
        rule("snapshot.kubevirt.io", &["virtualmachinerestores"], &["list"]),
        // Whether what was kept of a machine can be brought to another.
        rule("snapshot.kubevirt.io", &["virtualmachinesnapshots", "virtualmachinesnapshotcontents"], &["get"]),
        rule("", &["nodes"], &["get"]),
        // At which address a guest is reached.
        rule("", &["pods"], &["get", "list"]),
        // Whether a guest's memory fits onto a claim.
        rule("", &["persistentvolumeclaims"], &["get"]),
        rule("cdi.kubevirt.io", &["cdiconfigs"], &["get"]),
        // What the disks of machines are copied from.
        rule("cdi.kubevirt.io", &["datasources"], &["get"]),
        // Of which machines are told and made, for whoever may have them.
        rule("kubevirt.io", &["virtualmachines"], &["create"]),
        rule("template.kubevirt.io", &["virtualmachinetemplates"], &["get"]),
        // What machines name, and what has labels that name it.
        chosen(),
        rule("apps", &["controllerrevisions"], &["get"]),
        rule("cdi.kubevirt.io", &["datavolumes"], &["get"]),
        rule("snapshot.storage.k8s.io", &["volumesnapshots"], &["get"]),
    ])
}

/// Instance types and preferences.
fn chosen() -> Value {
    let resources = [
        "virtualmachineinstancetypes",
        "virtualmachineclusterinstancetypes",
        "virtualmachinepreferences",
        "virtualmachineclusterpreferences",
    ];
    rule("instancetype.kubevirt.io", &resources, &["get"])
}

fn api_own() -> Value {
    json!([rule("", &["pods"], READ), rule("", &["configmaps"], READ)])
}

fn controller_cluster() -> Value {
    json!([
        rule("kubevirt.io", &["*"], &["*"]),
        rule("migrations.kubevirt.io", &["migrationpolicies"], READ),
        rule("", &["pods"], &["get", "list", "watch", "create", "delete", "patch"]),
        rule("", &["pods/status"], &["patch"]),
        rule("", &["pods/finalizers"], &["update"]),
        rule("", &["pods/eviction"], &["create"]),
        // Guests that are to have other CPUs or other memory.
        rule("", &["pods/resize"], &["patch"]),
        rule("policy", &["poddisruptionbudgets"], &["get", "list", "watch", "create", "delete", "patch"]),
        rule("", &["events"], &["create", "patch"]),
        rule("", &["nodes"], &["get", "list", "watch", "patch"]),
        rule("", &["namespaces"], READ),
        // Which limits the pods of guests need.
        rule("", &["resourcequotas"], &["list"]),
        // Disks that move with their guests: into claims of their own, and back under their claims' names.
        rule("", &["persistentvolumeclaims"], &["get", "list", "watch", "create", "delete", "patch"]),
        rule("", &["persistentvolumes"], &["get", "list", "watch", "patch"]),
        rule("storage.k8s.io", &["storageclasses"], READ),
        // Which kinds of others there are: DataVolumes, snapshots of volumes, routes.
        rule("apiextensions.k8s.io", &["customresourcedefinitions"], READ),
        rule("apiregistration.k8s.io", &["apiservices"], READ),
        // Disks that machines are made with; what other namespaces have is copied for whoever may: the user, or the
        // machine's own account.
        rule("cdi.kubevirt.io", &["datavolumes"], &["get", "list", "watch", "create", "delete", "patch"]),
        rule("cdi.kubevirt.io", &["datavolumes/source"], &["create"]),
        rule("cdi.kubevirt.io", &["datasources"], &["get"]),
        rule("cdi.kubevirt.io", &["storageprofiles"], &["get"]),
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
        // Since when notes on machines are the webhooks' own.
        json!({
            "apiGroups": ["admissionregistration.k8s.io"], "resources": ["mutatingwebhookconfigurations"], "verbs": ["get"],
            "resourceNames": [super::admission::MUTATORS_NAME],
        }),
        // Snapshots of machines: of their volumes, while their file systems are frozen.
        rule("snapshot.kubevirt.io", &["*"], WRITE),
        rule("snapshot.storage.k8s.io", &["volumesnapshots"], &["get", "list", "watch", "create", "delete"]),
        rule("snapshot.storage.k8s.io", &["volumesnapshotclasses"], READ),
        rule("pool.kubevirt.io", &["virtualmachinepools"], READ),
        rule("pool.kubevirt.io", &["virtualmachinepools/status"], &["patch"]),
        rule("pool.kubevirt.io", &["virtualmachinepools/finalizers"], &["update"]),
        rule("clone.kubevirt.io", &["virtualmachineclones"], &["get", "list", "watch", "delete"]),
        rule("clone.kubevirt.io", &["virtualmachineclones/status"], &["patch"]),
        rule("clone.kubevirt.io", &["virtualmachineclones/finalizers"], &["update"]),
        rule(
            "subresources.kubevirt.io",
            &["virtualmachineinstances/freeze", "virtualmachineinstances/unfreeze"],
            &["update"]
        ),
        // Backups of machines: they are written by the launchers.
        rule("backup.kubevirt.io", &["*"], WRITE),
        rule(
            "subresources.kubevirt.io",
            &["virtualmachineinstances/backup", "virtualmachineinstances/redefine-checkpoint"],
            &["update"]
        ),
        // Exports: what is made for one goes with it, and tokens and certificates are made without ever being read.
        rule("export.kubevirt.io", &["virtualmachineexports"], &["get", "list", "watch", "create", "delete", "patch"]),
        rule("export.kubevirt.io", &["virtualmachineexports/status"], &["patch"]),
        rule("export.kubevirt.io", &["virtualmachineexports/finalizers"], &["update"]),
        rule("template.kubevirt.io", &["virtualmachinetemplates"], &["get", "list", "watch", "create"]),
        rule("template.kubevirt.io", &["virtualmachinetemplaterequests"], &["get", "list", "watch", "patch", "delete"]),
        rule("template.kubevirt.io", &["virtualmachinetemplaterequests/status"], &["patch"]),
        // Owners whose end an object's end waits for: it takes the right to finish them.
        rule(
            "template.kubevirt.io",
            &["virtualmachinetemplates/finalizers", "virtualmachinetemplaterequests/finalizers"],
            &["update"]
        ),
        rule("template.kubevirt.io", &["virtualmachinetemplates/status"], &["patch"]),
        rule("", &["services"], &["get", "create"]),
        rule("", &["secrets"], &["create"]),
        rule("", &["configmaps"], &["create", "patch"]),
        // Whether a lost node's volumes are free, and whose leases are renewed.
        rule("storage.k8s.io", &["csidrivers"], &["get"]),
        rule("storage.k8s.io", &["volumeattachments"], &["list"]),
        rule("coordination.k8s.io", &["leases"], READ),
        rule("apps", &["controllerrevisions"], &["get", "list", "watch", "create", "patch", "delete"]),
        // What machines name.
        chosen(),
    ])
}

fn controller_own() -> Value {
    json!([
        rule("coordination.k8s.io", &["leases"], &["get", "create", "update"]),
        // The authority of exports, and the certificates of the ways to them from outside.
        rule("", &["configmaps"], &["get"]),
        rule("", &["secrets"], &["get"]),
        rule("networking.k8s.io", &["ingresses"], &["list", "watch"]),
        rule("route.openshift.io", &["routes"], &["list", "watch"]),
    ])
}

/// The proxy finds an export's server by the export, and holds no token.
fn proxy_cluster() -> Value {
    json!([
        rule("export.kubevirt.io", &["virtualmachineexports"], &["get"]),
        // Where the server is: at the address of its Service, and nowhere else that a name may lead.
        rule("", &["services"], &["get"]),
        // What it is to offer of TLS.
        rule("kubevirt.io", &["kubevirts"], &["list", "watch"]),
    ])
}

/// What the token on each node may do with the machines of the node, and those that are moved to it. The admission policies beside this narrow the
/// writes, also where the role is not narrowed.
fn handler_machines() -> Value {
    json!([rule("kubevirt.io", &["virtualmachineinstances"], &["list", "watch", "patch"])])
}

/// What it may do with the node itself.
fn handler_node() -> Value {
    json!([rule("", &["nodes"], &["get", "list", "watch", "patch"])])
}

/// What it may do whatever the node.
fn handler_cluster() -> Value {
    json!([
        rule("kubevirt.io", &["kubevirts"], READ),
        rule("", &["events"], &["create", "patch"]),
        rule("certificates.k8s.io", &["certificatesigningrequests"], &["create", "get"]),
    ])
}

fn handler_own() -> Value {
    // The other nodes' agents, by whose addresses they are known where migrations are not encrypted.
    json!([rule("", &["configmaps"], READ), rule("", &["pods"], READ)])
}

/// Every rule this operator grants to others by roles of a `kind`: it must hold them itself, and those of a namespace only there.
pub fn granted(kind: &str) -> Vec<Value> {
    let input = Input::default();
    render(&input)
        .iter()
        .filter(|manifest| manifest["kind"] == kind)
        .filter_map(|role| role.get("rules").and_then(Value::as_array).cloned())
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_get_the_known_roles() {
        let roles = user_roles();
        let names: Vec<&str> = roles.iter().filter_map(|role| role["metadata"]["name"].as_str()).collect();
        let of_templates = names.iter().filter(|name| name.starts_with("virt-template-")).count();
        assert_eq!((names.len(), of_templates), (13, 7), "{names:?}");
    }

    #[test]
    fn the_node_agent_reads_no_secret() {
        for rules in [handler_machines(), handler_node(), handler_cluster(), handler_own()] {
            let text = rules.to_string();
            assert!(!text.contains("secrets") && !text.contains("\"*\""), "{text}");
        }
    }
}
