//! Who may do what: roles for users, and for each component no more than it uses.

use serde_json::{Value, json};

const GROUP: &str = "cdi.kubevirt.io";
const FORKLIFT: &str = "forklift.cdi.kubevirt.io";
const POPULATORS: &[&str] = &["ovirtvolumepopulators", "openstackvolumepopulators"];
const READ: &[&str] = &["get", "list", "watch"];
const RBAC: &str = "rbac.authorization.k8s.io";

/// Account of cdi-deployment.
pub const CONTROLLER: &str = "cdi-sa";
/// Account of cdi-apiserver.
pub const APISERVER: &str = "cdi-apiserver";
/// Account of cdi-uploadproxy.
pub const UPLOADPROXY: &str = "cdi-uploadproxy";
/// Account of the jobs that look for new images.
pub const CRONJOB: &str = "cdi-cronjob";

/// Service accounts, roles and bindings.
pub fn render(namespace: &str) -> Vec<Value> {
    let mut out = user_roles();
    for (account, role, cluster, own) in [
        (CONTROLLER, "cdi", controller_cluster(), controller_own()),
        (APISERVER, "cdi-apiserver", apiserver_cluster(), apiserver_own()),
        (UPLOADPROXY, "cdi-uploadproxy", uploadproxy_cluster(), json!([])),
        (CRONJOB, "cdi-cronjob", cronjob_cluster(), json!([])),
    ] {
        let subject = json!([{ "kind": "ServiceAccount", "namespace": namespace, "name": account }]);
        out.push(json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": account, "namespace": namespace },
        }));
        out.push(cluster_role(role, &json!({}), &cluster));
        out.push(binding(role, None, ("ClusterRole", role), &subject));
        if own.as_array().is_some_and(|rules| !rules.is_empty()) {
            out.push(json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
                "metadata": { "name": role, "namespace": namespace }, "rules": own,
            }));
            out.push(binding(role, Some(namespace), ("Role", role), &subject));
        }
        if account == APISERVER {
            out.push(binding("cdi-apiserver-auth-delegator", None, ("ClusterRole", "system:auth-delegator"), &subject));
            let reader = ("Role", "extension-apiserver-authentication-reader");
            out.push(binding("cdi-apiserver-auth-reader", Some("kube-system"), reader, &subject));
        }
    }
    out
}

fn cluster_role(name: &str, labels: &Value, rules: &Value) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": name, "labels": labels }, "rules": rules,
    })
}

fn binding(name: &str, namespace: Option<&str>, (kind, role): (&str, &str), subjects: &Value) -> Value {
    let mut metadata = json!({ "name": name });
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": metadata,
        "kind": if namespace.is_some() { "RoleBinding" } else { "ClusterRoleBinding" },
        "roleRef": { "apiGroup": RBAC, "kind": kind, "name": role }, "subjects": subjects,
    })
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": resources, "verbs": verbs })
}

fn user_roles() -> Vec<Value> {
    const MADE: &[&str] = &[
        "datavolumes",
        "dataimportcrons",
        "datasources",
        "volumeimportsources",
        "volumeuploadsources",
        "volumeclonesources",
    ];
    let edit = json!([
        rule(GROUP, MADE, &["*"]),
        rule(GROUP, &["datavolumes/source"], &["create"]),
        rule("upload.cdi.kubevirt.io", &["uploadtokenrequests"], &["*"]),
        rule(FORKLIFT, POPULATORS, &["*"]),
    ]);
    let mut seen = MADE.to_vec();
    seen.extend(["cdiconfigs", "objecttransfers", "storageprofiles"]);
    let view = json!([
        rule(GROUP, &seen, READ),
        rule(GROUP, &["datavolumes/source"], &["create"]),
        rule(FORKLIFT, POPULATORS, READ),
    ]);
    let aggregated = |name: &str, rules: &Value| {
        let label = format!("rbac.authorization.k8s.io/aggregate-to-{name}");
        cluster_role(&format!("cdi.kubevirt.io:{name}"), &json!({ (label): "true" }), rules)
    };
    let reader = "cdi.kubevirt.io:config-reader";
    let everyone = ["system:authenticated", "system:serviceaccount"]
        .map(|group| json!({ "apiGroup": RBAC, "kind": "Group", "name": group }));
    vec![
        aggregated("admin", &edit),
        aggregated("edit", &edit),
        aggregated("view", &view),
        cluster_role(reader, &json!({}), &json!([rule(GROUP, &["cdiconfigs", "storageprofiles"], READ)])),
        binding(reader, None, ("ClusterRole", reader), &json!(everyone)),
    ]
}

fn controller_cluster() -> Value {
    const WRITE: &[&str] = &["get", "list", "watch", "create", "update", "patch", "delete"];
    json!([
        rule(GROUP, &["*"], &["*"]),
        rule(FORKLIFT, POPULATORS, READ),
        // What is told of what works for a claim is told of the claim.
        rule("", &["events"], &["get", "list", "watch", "create", "patch"]),
        rule("", &["persistentvolumeclaims"], WRITE),
        rule("", &["persistentvolumeclaims/finalizers", "pods/finalizers"], &["update"]),
        rule("", &["persistentvolumeclaims/status"], &["patch"]),
        rule("", &["persistentvolumes"], &["get", "list", "watch", "update", "patch"]),
        rule("", &["pods", "services"], WRITE),
        // Credentials and authorities of imports are named by their claims, and handed to the pods beside them.
        rule("", &["secrets"], &["get", "create", "patch", "delete"]),
        rule("", &["configmaps"], &["get", "list", "watch", "create", "patch", "delete"]),
        rule("", &["namespaces", "resourcequotas"], READ),
        rule("storage.k8s.io", &["storageclasses", "csidrivers", "volumeattributesclasses"], READ),
        rule("snapshot.storage.k8s.io", &["volumesnapshots"], WRITE),
        rule("snapshot.storage.k8s.io", &["volumesnapshotclasses", "volumesnapshotcontents"], READ),
        // Which kinds of others there are.
        rule("apiextensions.k8s.io", &["customresourcedefinitions"], READ),
        rule("apiregistration.k8s.io", &["apiservices"], READ),
        rule("networking.k8s.io", &["ingresses"], READ),
        rule("route.openshift.io", &["routes"], READ),
        rule("image.openshift.io", &["imagestreams"], READ),
        rule("config.openshift.io", &["proxies", "apiservers"], READ),
        rule("scheduling.k8s.io", &["priorityclasses"], &["get"]),
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
        rule("kubevirt.io", &["virtualmachines/finalizers"], &["update"]),
    ])
}

fn controller_own() -> Value {
    json!([
        rule("coordination.k8s.io", &["leases"], &["get", "create", "update"]),
        rule("batch", &["cronjobs", "jobs"], &["get", "list", "watch", "create", "update", "patch", "delete"]),
    ])
}

/// What admission and the tokens need to know of the cluster.
fn apiserver_cluster() -> Value {
    json!([
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
        rule("", &["persistentvolumeclaims", "namespaces"], &["get"]),
        rule("snapshot.storage.k8s.io", &["volumesnapshots"], &["get"]),
        rule(GROUP, &["datavolumes"], &["get", "list"]),
        rule(GROUP, &["datasources", "cdiconfigs", "volumeimportsources"], &["get"]),
        rule(GROUP, &["storageprofiles"], &["get", "list"]),
        rule("storage.k8s.io", &["storageclasses"], &["get", "list"]),
        rule(GROUP, &["cdis"], &["get", "list"]),
    ])
}

fn apiserver_own() -> Value {
    json!([rule("", &["configmaps"], READ)])
}

fn uploadproxy_cluster() -> Value {
    json!([rule("", &["persistentvolumeclaims"], &["get"])])
}

fn cronjob_cluster() -> Value {
    json!([rule(GROUP, &["dataimportcrons"], &["get", "list", "update", "patch"])])
}

/// Every rule this operator grants to others by roles of a `kind`: it must hold them itself, and those of a namespace only there.
pub fn granted(kind: &str) -> Vec<Value> {
    let roles = render("");
    let of_kind = roles.iter().filter(|manifest| manifest["kind"] == kind);
    of_kind.filter_map(|role| role.get("rules").and_then(Value::as_array).cloned()).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transfer moves a claim between namespaces and asks nobody: it is the administrator's.
    #[test]
    fn no_tenant_makes_a_transfer() {
        let reaches = |rule: &Value, field: &str, what: &str| {
            rule[field].as_array().into_iter().flatten().any(|one| one == "*" || one == what)
        };
        let mut readers = 0;
        for role in user_roles().iter().filter(|role| role["kind"] == "ClusterRole") {
            let rules = role["rules"].as_array().unwrap().iter();
            for rule in
                rules.filter(|rule| reaches(rule, "apiGroups", GROUP) && reaches(rule, "resources", "objecttransfers"))
            {
                assert!(
                    rule["verbs"].as_array().unwrap().iter().all(|verb| READ.iter().any(|read| verb == read)),
                    "{rule}"
                );
                readers += 1;
            }
        }
        assert_eq!(readers, 1);
        let crds = super::super::crds::ALL.iter();
        let mut yaml = crds.filter(|(name, _)| *name == "objecttransfers.cdi.kubevirt.io").map(|(_, yaml)| *yaml);
        let crd: Value = serde_saphyr::from_str(yaml.next_back().unwrap()).unwrap();
        assert_eq!(crd["spec"]["scope"], "Cluster");
    }

    #[test]
    fn roles_of_user_facing_components_read_no_secrets() {
        for rules in [apiserver_cluster(), apiserver_own(), uploadproxy_cluster(), cronjob_cluster()] {
            let text = rules.to_string();
            assert!(!text.contains("secrets") && !text.contains("\"*\""), "{text}");
        }
    }
}
