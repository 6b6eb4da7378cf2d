//! What would hand the cluster to whoever gets hold of an account, and who has it all the same. These lists are short, and no update of the
//! files makes them longer.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::matrix::matrix;
use super::objects::{Cluster, components};
use super::table::{EVERYWHERE, Table};

/// The table of everybody on a cluster that has everything.
static ALL: LazyLock<(Cluster, Table)> = LazyLock::new(|| {
    let manifests: Vec<_> = components().into_iter().flat_map(|(_, manifests)| manifests).collect();
    let cluster = Cluster::new(&manifests);
    let table = matrix(&cluster);
    (cluster, table)
});

/// Accounts, and nobody else, that have one of `verbs` on `of` in all namespaces. What is limited to named objects does not count.
#[track_caller]
fn check(table: &Table, of: &str, verbs: &[&str], expect: &[&str]) {
    let has = |line: &super::table::Line| line.of == of && line.verbs.iter().any(|verb| verbs.contains(&verb.as_str()));
    let found = table.0.iter().filter(|((_, place), lines)| place == EVERYWHERE && lines.iter().any(has));
    let found: BTreeSet<&str> = found.map(|((who, _), _)| who.as_str()).collect();
    assert_eq!(found, expect.iter().copied().collect(), "{verbs:?} of {of}");
}

const READ: &[&str] = &["get", "list", "watch"];

#[test]
fn nobody_gets_the_cluster_by_its_secrets_or_its_pods() {
    let (_, table) = &*ALL;
    // Imports name the secrets of their claims' namespaces, by name: nobody lists any.
    check(table, "secrets", &["list", "watch"], &[]);
    check(
        table,
        "secrets",
        &["get"],
        &["cdi/cdi-operator", "cdi/cdi-sa", "disk-uploader-task", "generate-ssh-keys-task"],
    );
    for inside in [
        "pods/exec",
        "pods/attach",
        "pods/portforward",
        "pods/ephemeralcontainers",
        "pods/proxy",
        "nodes/proxy",
        "services/proxy",
    ] {
        check(table, inside, &["get", "create", "patch", "update"], &[]);
    }
    // Machines and volumes are pods; an operator has what it gives away.
    let makers = ["cdi/cdi-operator", "cdi/cdi-sa", "kubevirt/kubevirt-controller", "kubevirt/kubevirt-operator"];
    check(table, "pods", &["create"], &makers);
    // A console is asked for with the token of an account that has this one machine.
    check(table, "serviceaccounts/token", &["create"], &["kubevirt-hyperconverged/vm-console-proxy"]);
    for somebody in ["users", "groups", "serviceaccounts"] {
        check(table, somebody, &["impersonate"], &[]);
    }
}

#[test]
fn nobody_gives_away_what_he_does_not_have() {
    let (_, table) = &*ALL;
    for roles in ["clusterroles", "roles"].map(|of| format!("{of}.rbac.authorization.k8s.io")) {
        check(table, &roles, &["bind", "escalate"], &[]);
    }
    // Roles of the cluster are written by operators, and by nobody whom they deploy; ssp-operator writes those of its names alone.
    let operators = [
        "cdi/cdi-operator",
        "cluster-network-addons/cluster-network-addons-operator",
        "hostpath-provisioner/hostpath-provisioner-operator",
        "kubevirt-hyperconverged/hyperconverged-cluster-operator",
        "kubevirt/kubevirt-operator",
    ];
    for of in ["clusterroles", "clusterrolebindings"] {
        check(table, &format!("{of}.rbac.authorization.k8s.io"), &["create", "delete", "patch", "update"], &operators);
    }
    let signed = "certificatesigningrequests.certificates.k8s.io/approval";
    check(table, signed, &["patch", "update"], &["kubevirt/kubevirt-operator"]);
}

/// An agent is on every node, beside guests that may break out.
#[test]
fn agents_of_nodes_have_what_is_of_their_node() {
    let (_, table) = &*ALL;
    let agents = [
        ("kubevirt/kubevirt-handler", &["virtualmachineinstances", "nodes"][..]),
        ("cluster-network-addons/bridge-marker", &["nodes"]),
        ("cluster-network-addons/linux-bridge", &[]),
        ("cluster-network-addons/macvtap-cni", &[]),
    ];
    for (agent, written) in agents {
        for ((_, place), lines) in table.0.iter().filter(|((who, _), _)| who == agent) {
            for line in lines {
                let writes = line.verbs.iter().any(|verb| !READ.contains(&verb.as_str()) && verb != "use");
                let kind = line.of.split(['.', '/', '[']).next().unwrap();
                let harmless = ["events", "certificatesigningrequests"].contains(&kind) || written.contains(&kind);
                assert!(!writes || harmless, "{agent} {place}: {line:?}");
                assert!(!["secrets", "pods/exec"].contains(&line.of.as_str()), "{agent} {place}: {line:?}");
            }
        }
    }
    // Of machines it has those of its node, where the API server knows such roles.
    let everywhere = table.of("kubevirt/kubevirt-handler", EVERYWHERE);
    assert!(everywhere.iter().all(|line| !line.of.starts_with("virtualmachineinstances")), "{everywhere:?}");
}

/// A word for everything is for kinds of the product alone.
#[test]
fn nobody_has_all_of_what_is_not_the_products() {
    let (cluster, _) = &*ALL;
    for role in &cluster.roles {
        for rule in crate::cluster::items(role, "/rules") {
            let words = |what: &str| -> Vec<&str> {
                crate::cluster::items(rule, what).filter_map(|word| word.as_str()).collect()
            };
            let all: Vec<&str> =
                ["/verbs", "/resources", "/nonResourceURLs"].iter().flat_map(|what| words(what)).collect();
            let groups = words("/apiGroups");
            assert!(!groups.contains(&"*"), "{}: {rule}", role["metadata"]["name"]);
            let is_wide = all.iter().any(|word| word.contains('*'));
            let are_ours = !groups.is_empty() && groups.iter().all(|group| group.ends_with("kubevirt.io"));
            assert!(!is_wide || are_ours, "{}: {rule}", role["metadata"]["name"]);
        }
    }
}

#[test]
fn who_is_only_known_to_the_cluster_writes_nothing() {
    let (_, table) = &*ALL;
    let kept = ["create datavolumes.cdi.kubevirt.io/source"];
    for who in ["system:authenticated", "system:serviceaccounts", "system:serviceaccount"] {
        for ((_, place), lines) in table.0.iter().filter(|((name, _), _)| name == who) {
            for line in lines {
                for verb in line.verbs.iter().filter(|verb| !READ.contains(&verb.as_str())) {
                    let what = format!("{verb} {}", line.of);
                    assert!(kept.contains(&what.as_str()), "{who} {place}: {what}");
                }
                assert!(!line.of.starts_with("secrets"), "{who} {place}: {line:?}");
            }
        }
    }
}
