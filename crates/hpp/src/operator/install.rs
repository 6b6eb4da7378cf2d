//! What users apply: the operator itself, and what asks it for volumes. Generated from the code, so that the operator's
//! rights are always those it needs.

use api::hpp::SHARED;
use kit::operator::manifests::{APPLY, Documents, Program, account, binding, pod, role, rule};
use kit::workload;
use serde_json::{Value, json};

use super::monitoring::{self, PORT, SCRAPED};
pub use super::settings::CLASS;
use super::settings::{Controllers, Settings, labels};
use super::sidecar;
use super::{MANAGER, manifests, pools};
use crate::{csi, legacy};

/// Default image of everything that is deployed.
pub const IMAGE: &str = concat!("ferrovirt.local/component:v", env!("CARGO_PKG_VERSION"));
/// Default namespace.
pub const NAMESPACE: &str = "hostpath-provisioner";
/// The pool behind the classes of volumes and of snapshots.
const POOL: &str = "local";
/// The class of volumes that are on all nodes, and the pool behind it: a directory that all nodes of one machine share.
const SHARED_CLASS: &str = "hostpath-shared";
const SHARED_POOL: &str = "shared";
const DEFINITION: &str =
    include_str!("../../../../deploy/crds/hostpathprovisioners.hostpathprovisioner.kubevirt.io.yaml");

/// `hostpath-operator.yaml`: namespace, CRD, rights and Deployment of the operator, for a cluster on which
/// `controllers` call
/// its driver.
///
/// # Errors
/// When a manifest has no YAML form.
pub fn operator(controllers: Controllers) -> Result<String, serde_saphyr::ser_error::Error> {
    let mut out = Documents::new();
    out.add(&namespace())?;
    out.add_definition(DEFINITION);
    for manifest in rights().iter().chain([&deployment(controllers)]) {
        out.add(manifest)?;
    }
    Ok(out.into_text())
}

/// `hostpath-cr.yaml`: the object that asks for a pool on each node, and the class of its volumes, which is the default one.
/// The class of snapshots is made by the operator, where snapshots are known. Where the cluster calls the driver, all nodes
/// are of one machine: there is a directory that all of them have, and a pool in it.
///
/// # Errors
/// When a manifest has no YAML form.
pub fn object(controllers: Controllers) -> Result<String, serde_saphyr::ser_error::Error> {
    let one_machine = controllers == Controllers::Cluster;
    let mut object = json!({
        "apiVersion": "hostpathprovisioner.kubevirt.io/v1beta1", "kind": "HostPathProvisioner",
        "metadata": { "name": NAMESPACE },
        "spec": {
            "imagePullPolicy": "IfNotPresent",
            "storagePools": [{ "name": POOL, "path": "/var/hpvolumes" }],
            "workload": { "nodeSelector": { "kubernetes.io/os": "linux" } },
        },
    });
    if one_machine {
        object["metadata"]["annotations"] = json!({ SHARED: SHARED_POOL });
        object["spec"]["storagePools"] = json!([
            { "name": POOL, "path": "/var/hpvolumes" }, { "name": SHARED_POOL, "path": "/srv/shared/hpvolumes" },
        ]);
        // A node that only says that it runs pods has no directories.
        object["spec"]["workload"]["affinity"] = json!({
            "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{
                "matchExpressions": [
                    { "key": "node.kubernetes.io/instance-type", "operator": "NotIn", "values": ["simulated"] },
                ],
            }] } },
        });
    }
    let class = |name: &str, pool: &str, default: bool, mode: &str| {
        let default = default.to_string();
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            // The driver copies a volume at once. By a snapshot, as CDI would for a driver of this name, there were two copies.
            "metadata": { "name": name, "annotations": {
                "storageclass.kubernetes.io/is-default-class": default, "cdi.kubevirt.io/clone-strategy": "csi-clone",
            } },
            "provisioner": csi::NAME,
            "parameters": { "storagePool": pool },
            "reclaimPolicy": "Delete", "volumeBindingMode": mode, "allowVolumeExpansion": true,
        })
    };
    let mut out = Documents::new();
    out.add(&object)?;
    out.add(&class(CLASS, POOL, true, "WaitForFirstConsumer"))?;
    if one_machine {
        out.add(&class(SHARED_CLASS, SHARED_POOL, false, "Immediate"))?;
    }
    Ok(out.into_text())
}

/// `hostpath-legacy-cr.yaml`: the object in its older form, and the classes of both provisioners that it asks for.
///
/// # Errors
/// When a manifest has no YAML form.
pub fn legacy_object() -> Result<String, serde_saphyr::ser_error::Error> {
    let mut out = Documents::new();
    out.add(&json!({
        "apiVersion": "hostpathprovisioner.kubevirt.io/v1beta1", "kind": "HostPathProvisioner",
        "metadata": { "name": NAMESPACE },
        "spec": {
            "imagePullPolicy": "IfNotPresent",
            "pathConfig": { "path": "/var/hpvolumes", "useNamingPrefix": false },
            "workload": { "nodeSelector": { "kubernetes.io/os": "linux" } },
        },
    }))?;
    let class = |name: &str, provisioner: &str| {
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": name },
            "provisioner": provisioner, "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer",
        })
    };
    out.add(&class("hostpath-provisioner", legacy::NAME))?;
    let mut later = class(CLASS, csi::NAME);
    later["parameters"] = json!({ "storagePool": pools::LEGACY });
    out.add(&later)?;
    Ok(out.into_text())
}

/// What the operator deploys when all is asked for, for who looks at the rights of it.
pub fn operands() -> Vec<Value> {
    let settings = Settings { namespace: NAMESPACE.to_owned(), ..Settings::default() };
    manifests::every_kind(&settings)
}

fn namespace() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": NAMESPACE, "labels": { "pod-security.kubernetes.io/enforce": "privileged" } },
    })
}

fn rights() -> Vec<Value> {
    let mut rules = vec![
        rule(
            "hostpathprovisioner.kubevirt.io",
            &["hostpathprovisioners", "hostpathprovisioners/status", "hostpathprovisioners/finalizers"],
            &["get", "list", "watch", "patch", "update"],
        ),
        rule("storage.k8s.io", &["csidrivers"], APPLY),
        rule("rbac.authorization.k8s.io", &["clusterroles", "clusterrolebindings"], APPLY),
        rule("security.openshift.io", &["securitycontextconstraints"], APPLY),
    ];
    // Who gives rights away must have them.
    rules.extend(manifests::legacy_rules());
    rules.extend(sidecar::rules());
    rules.push(rule("snapshot.storage.k8s.io", &["volumesnapshotclasses"], APPLY));
    let own = [
        rule("", &["serviceaccounts", "persistentvolumeclaims", "services"], APPLY),
        rule("rbac.authorization.k8s.io", &["roles", "rolebindings"], APPLY),
        rule("monitoring.coreos.com", &["servicemonitors", "prometheusrules"], APPLY),
        monitoring::finding(),
        rule("apps", &["daemonsets", "deployments"], APPLY),
        rule("coordination.k8s.io", &["leases"], &["get", "create", "update"]),
    ];
    let everywhere = json!({ "name": MANAGER, "labels": labels(MANAGER) });
    let here = json!({ "name": MANAGER, "namespace": NAMESPACE, "labels": labels(MANAGER) });
    let of = (NAMESPACE, MANAGER);
    vec![
        account(&here),
        role(&everywhere, &rules),
        binding(&everywhere, MANAGER, of),
        role(&here, &own),
        binding(&here, MANAGER, of),
    ]
}

fn deployment(controllers: Controllers) -> Value {
    let called_by = if controllers == Controllers::Driver { "driver" } else { "cluster" };
    let program = Program {
        name: MANAGER,
        account: MANAGER,
        image: IMAGE,
        args: &[format!("--metrics-port={}", PORT.1)],
        env: &[("PROVISIONER_IMAGE", IMAGE), ("CSI_CONTROLLERS", called_by)],
        ports: &[PORT],
        memory: "16Mi",
    };
    let metadata = json!({ "name": MANAGER, "namespace": NAMESPACE, "labels": labels(MANAGER) });
    let mut scraped = labels(MANAGER);
    scraped[SCRAPED] = json!("true");
    workload::deployment(&metadata, 1, &json!({ "k8s-app": MANAGER }), &scraped, &pod(&program))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Compares with what is committed; `UPDATE_EXPECT=1` writes it.
    #[track_caller]
    fn check(name: &str, text: &str) {
        let path = Path::new("../../deploy").join(name);
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(&path, text).unwrap();
        }
        let held = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(held == text, "{name} is out of date: run `cargo xtask codegen manifests`");
    }

    #[test]
    fn committed_manifests_are_current() {
        check("hostpath-operator.yaml", &super::operator(super::Controllers::Driver).unwrap());
        check("hostpath-cr.yaml", &super::object(super::Controllers::Driver).unwrap());
        check("hostpath-legacy-cr.yaml", &super::legacy_object().unwrap());
    }
}
