//! RBAC decisions by data.

use serde_json::json;

use super::*;
use crate::view::Fixed;

fn cluster() -> Arc<dyn View> {
    Arc::new(
        Fixed::default()
            .with(
                GROUP,
                "clusterroles",
                json!({"metadata": {"name": "reader"}, "rules": [
                {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]},
                {"apiGroups": ["apps"], "resources": ["*/scale"], "verbs": ["update"]},
                {"nonResourceURLs": ["/metrics", "/api/*"], "verbs": ["get"]}]}),
            )
            .with(
                GROUP,
                "clusterroles",
                json!({"metadata": {"name": "all"}, "rules": [
                {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}),
            )
            .with(
                GROUP,
                "roles",
                json!({"metadata": {"name": "one", "namespace": "a"}, "rules": [
                {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["s1"], "verbs": ["get"]}]}),
            )
            .with(
                GROUP,
                "clusterrolebindings",
                json!({"metadata": {"name": "b"},
                "roleRef": {"kind": "ClusterRole", "name": "reader"}, "subjects": [{"kind": "User", "name": "ann"}]}),
            )
            .with(
                GROUP,
                "clusterrolebindings",
                json!({"metadata": {"name": "dangling"},
                "roleRef": {"kind": "ClusterRole", "name": "missing"}, "subjects": [{"kind": "User", "name": "bob"}]}),
            )
            .with(
                GROUP,
                "rolebindings",
                json!({"metadata": {"name": "r", "namespace": "a"},
                "roleRef": {"kind": "ClusterRole", "name": "all"}, "subjects": [{"kind": "Group", "name": "devs"}]}),
            )
            .with(
                GROUP,
                "rolebindings",
                json!({"metadata": {"name": "s", "namespace": "a"},
                "roleRef": {"kind": "Role", "name": "one"}, "subjects": [{"kind": "ServiceAccount", "name": "sa"}]}),
            ),
    )
}

/// `user[+group] verb group/resource[/sub] ns name` or `user verb /path`.
fn check(words: &str, expect: bool) {
    let parts: Vec<&str> = words.split(' ').collect();
    let (name, group) = parts[0].split_once('+').unwrap_or((parts[0], "system:authenticated"));
    let user = User { name: name.into(), groups: vec![group.into()], ..User::default() };
    let mut info = RequestInfo { verb: parts[1].into(), ..RequestInfo::default() };
    if parts[2].starts_with('/') {
        info.path = parts[2].into();
    } else {
        let (group, rest) = parts[2].split_once(':').unwrap();
        let (resource, sub) = rest.split_once('/').unwrap_or((rest, ""));
        info.group = group.into();
        info.resource = resource.into();
        info.subresource = sub.into();
        info.namespace = parts.get(3).copied().unwrap_or_default().trim_matches('-').into();
        info.name = parts.get(4).copied().unwrap_or_default().into();
    }
    assert_eq!(Rbac::new(cluster()).allows(&user, &info), expect, "{words}");
}

#[test]
fn decisions() {
    check("ann list :pods x", true);
    check("ann list :pods", true);
    check("ann get :pods/log x p", true);
    check("ann get :pods/exec x p", false);
    check("ann delete :pods x p", false);
    check("ann update apps:deployments/scale x d", true);
    check("ann update apps:deployments x d", false);
    check("ann get /metrics", true);
    check("ann get /api/v1", true);
    check("ann get /metrics/x", false);
    check("ann post /metrics", false);
    check("bob list :pods x", false);
    check("x+devs delete kubevirt.io:virtualmachines a vm", true);
    check("x+devs delete kubevirt.io:virtualmachines b vm", false);
    check("x+devs list kubevirt.io:virtualmachines", false);
    check("x+devs get /metrics", false);
    check("system:serviceaccount:a:sa get :secrets a s1", true);
    check("system:serviceaccount:a:sa get :secrets a s2", false);
    check("system:serviceaccount:a:sa list :secrets a", false);
    check("system:serviceaccount:b:sa get :secrets a s1", false);
}

#[test]
fn escalation_is_named_rule_by_rule() {
    let owned = [Rule::parse(&json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}))];
    let wanted = [Rule::parse(&json!({"apiGroups": [""], "resources": ["pods", "secrets"], "verbs": ["get"]}))];
    let missing = uncovered(&owned, &wanted);
    assert_eq!(missing.len(), 1);
    assert_eq!(compact(&missing[0]), r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}"#);
    assert!(uncovered(&wanted, &wanted).is_empty());
}
