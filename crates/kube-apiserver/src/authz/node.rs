//! Node identities (`system:node:<name>` in group `system:nodes`): each reaches its own Node, lease and pods, and only the
//! secrets, config maps, claims and service accounts that pods bound to it refer to.

use std::sync::Arc;

use serde_json::Value;

use apimachinery::pointer::{items, text};
use apimachinery::request::{RequestInfo, User};

use crate::view::View;

/// The node rules.
pub struct NodeAuthorizer {
    view: Arc<dyn View>,
}

/// The node a user is, if it is one.
#[must_use]
pub fn node_of(user: &User) -> Option<&str> {
    if !user.groups.iter().any(|g| g == "system:nodes") {
        return None;
    }
    user.name.strip_prefix("system:node:").filter(|n| !n.is_empty())
}

/// Why a node was refused, for the resources whose rule is not obvious.
#[must_use]
pub fn explain(info: &RequestInfo) -> Option<String> {
    match (info.group.as_str(), info.resource.as_str()) {
        ("", "secrets" | "configmaps" | "persistentvolumeclaims" | "serviceaccounts") if !info.name.is_empty() => {
            Some("no relationship found between node and this object".to_owned())
        }
        ("", "secrets" | "configmaps") => Some("can only read namespaced object of this type".to_owned()),
        ("", "pods") if matches!(info.verb.as_str(), "list" | "watch") => {
            Some("can only list/watch pods with spec.nodeName field selector".to_owned())
        }
        ("resource.k8s.io", "resourceclaims") if !info.name.is_empty() => {
            Some("no relationship found between node and this object".to_owned())
        }
        ("resource.k8s.io", "resourceslices") => {
            Some("can only access ResourceSlices with spec.nodeName field selector".to_owned())
        }
        ("", "nodes") | ("coordination.k8s.io", "leases") => {
            Some("can only access node with the same name as the requester".to_owned())
        }
        _ => None,
    }
}

impl NodeAuthorizer {
    /// Reads pods through `view`.
    #[must_use]
    pub fn new(view: Arc<dyn View>) -> Self {
        Self { view }
    }

    /// Whether the node rules allow the request; false for users that are not nodes.
    #[must_use]
    pub fn allows(&self, user: &User, info: &RequestInfo) -> bool {
        let Some(node) = node_of(user) else { return false };
        let verb = info.verb.as_str();
        let read = matches!(verb, "get" | "list" | "watch");
        let write = matches!(verb, "create" | "update" | "patch");
        let own = info.effective_name() == node;
        let sub = info.subresource.as_str();
        match (info.group.as_str(), info.resource.as_str()) {
            ("", "nodes") => match sub {
                "" => verb == "create" || (own && matches!(verb, "get" | "list" | "watch" | "update" | "patch")),
                "status" => own && matches!(verb, "update" | "patch"),
                _ => false,
            },
            ("", "pods") => match sub {
                // Which pods a node may write is decided by NodeRestriction, which sees the object.
                "" if verb == "get" => self.pod_is_on(node, info),
                "" if matches!(verb, "list" | "watch") => info.selected_node == node,
                "" => matches!(verb, "create" | "delete"),
                "status" => matches!(verb, "update" | "patch") && self.pod_is_on(node, info),
                "eviction" => verb == "create" && self.pod_is_on(node, info),
                _ => false,
            },
            ("", "secrets") => {
                read && sub.is_empty() && (self.refers(node, info, secret_names) || self.driver_needs(node, info))
            }
            ("", "configmaps") => read && sub.is_empty() && self.refers(node, info, config_map_names),
            // A node grows volumes and says so; it follows each claim it uses by name.
            ("", "persistentvolumeclaims") => match sub {
                "" => read && self.claims(node, info),
                "status" => matches!(verb, "get" | "update" | "patch") && self.claims(node, info),
                _ => false,
            },
            ("", "persistentvolumes") => verb == "get" && self.volume_is_claimed(node, &info.name),
            ("", "serviceaccounts") => match sub {
                "" => verb == "get" && self.refers(node, info, account_names),
                "token" => verb == "create" && self.refers(node, info, account_names),
                _ => false,
            },
            ("", "events") | ("events.k8s.io", "events") => write,
            ("", "services" | "endpoints") => read,
            ("discovery.k8s.io", "endpointslices") => read,
            ("coordination.k8s.io", "leases") => {
                info.namespace == "kube-node-lease"
                    && (verb == "create" || (own && matches!(verb, "get" | "update" | "patch" | "delete")))
            }
            ("storage.k8s.io", "csinodes") => {
                own && matches!(verb, "get" | "update" | "patch" | "delete") || verb == "create"
            }
            ("storage.k8s.io", "csidrivers" | "volumeattachments") => read,
            ("resource.k8s.io", "resourceclaims") => {
                verb == "get" && sub.is_empty() && self.refers(node, info, device_claim_names)
            }
            // Whose slices they are, NodeRestriction decides, which sees the object.
            ("resource.k8s.io", "resourceslices") => match verb {
                "list" | "watch" | "deletecollection" => info.selected_node == node,
                _ => write || matches!(verb, "get" | "delete"),
            },
            ("node.k8s.io", "runtimeclasses") => read,
            // The networks that pods ask for; which ones they are is in an annotation, and may change before they start.
            ("k8s.cni.cncf.io", "network-attachment-definitions") => verb == "get",
            // Their addresses, where no two pods of the cluster may have the same.
            ("whereabouts.cni.cncf.io", "ippools") => verb == "get" || write,
            // Addresses that outlive pods: what is claimed, and for the claims of its pods, which it is.
            ("k8s.cni.cncf.io", "ipamclaims") => match sub {
                "" => verb == "get",
                "status" => matches!(verb, "get" | "update" | "patch") && self.claims_addresses(node, info),
                _ => false,
            },
            // Its certificates: the client's one, which it renews, and the one it serves with.
            ("certificates.k8s.io", "certificatesigningrequests") => sub.is_empty() && (read || verb == "create"),
            ("authentication.k8s.io", "tokenreviews") => verb == "create",
            ("authorization.k8s.io", "subjectaccessreviews" | "localsubjectaccessreviews") => verb == "create",
            _ => false,
        }
    }

    fn pod_is_on(&self, node: &str, info: &RequestInfo) -> bool {
        // A missing pod is answered with 404, not 403: the node learns that it may forget it.
        self.view.get("", "pods", &info.namespace, &info.name).is_none_or(|pod| text(&pod, "/spec/nodeName") == node)
    }

    fn refers(&self, node: &str, info: &RequestInfo, names: fn(&Value) -> Vec<&str>) -> bool {
        let name = info.effective_name();
        !name.is_empty()
            && !info.namespace.is_empty()
            && self
                .view
                .list("", "pods", &info.namespace)
                .iter()
                .any(|pod| text(pod, "/spec/nodeName") == node && names(pod).contains(&name))
    }

    fn volume_is_claimed(&self, node: &str, volume: &str) -> bool {
        let Some(object) = self.view.get("", "persistentvolumes", "", volume) else { return false };
        let claim = RequestInfo {
            namespace: text(&object, "/spec/claimRef/namespace").to_owned(),
            name: text(&object, "/spec/claimRef/name").to_owned(),
            ..RequestInfo::default()
        };
        self.claims(node, &claim)
    }

    /// Whether a pod of the node uses the claim, also one that was made for the pod.
    fn claims(&self, node: &str, info: &RequestInfo) -> bool {
        let name = info.effective_name();
        let own = |pod: &Value| {
            let mut made = items(pod, "/spec/volumes").iter().filter(|v| v.get("ephemeral").is_some());
            made.any(|v| format!("{}-{}", text(pod, "/metadata/name"), text(v, "/name")) == name)
        };
        self.refers(node, info, claim_names)
            || (!name.is_empty()
                && self
                    .view
                    .list("", "pods", &info.namespace)
                    .iter()
                    .any(|pod| text(pod, "/spec/nodeName") == node && own(pod)))
    }

    /// Whether a pod of the node names the claim on addresses.
    fn claims_addresses(&self, node: &str, info: &RequestInfo) -> bool {
        let name = info.effective_name();
        let names = |pod: &Value| {
            let text = text(pod, "/metadata/annotations/k8s.v1.cni.cncf.io~1networks");
            let all: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
            all.iter().any(|network| network["ipam-claim-reference"] == name)
        };
        !name.is_empty()
            && !info.namespace.is_empty()
            && self
                .view
                .list("", "pods", &info.namespace)
                .iter()
                .any(|pod| text(pod, "/spec/nodeName") == node && names(pod))
    }

    /// Whether a volume that the node uses names the secret for its driver.
    fn driver_needs(&self, node: &str, info: &RequestInfo) -> bool {
        let (namespace, name) = (info.namespace.as_str(), info.effective_name());
        let names = |volume: &Value| {
            ["nodeStageSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"].into_iter().any(|field| {
                let at = |what: &str| text(volume, &format!("/spec/csi/{field}/{what}")).to_owned();
                at("name") == name && at("namespace") == namespace
            })
        };
        !name.is_empty()
            && !namespace.is_empty()
            && self
                .view
                .list("", "persistentvolumes", "")
                .iter()
                .any(|volume| names(volume) && self.volume_is_claimed(node, text(volume, "/metadata/name")))
    }
}

fn account_names(pod: &Value) -> Vec<&str> {
    vec![text(pod, "/spec/serviceAccountName")]
}

pub(crate) fn claim_names(pod: &Value) -> Vec<&str> {
    items(pod, "/spec/volumes").iter().map(|v| text(v, "/persistentVolumeClaim/claimName")).collect()
}

/// The claims on devices that a pod names, and those that were made for it.
fn device_claim_names(pod: &Value) -> Vec<&str> {
    let lists = ["/spec/resourceClaims", "/status/resourceClaimStatuses"].into_iter().flat_map(|list| items(pod, list));
    lists.map(|claim| text(claim, "/resourceClaimName")).collect()
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["/spec/initContainers", "/spec/containers", "/spec/ephemeralContainers"].into_iter().flat_map(|p| items(pod, p))
}

pub(crate) fn secret_names(pod: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = items(pod, "/spec/imagePullSecrets").iter().map(|s| text(s, "/name")).collect();
    for volume in items(pod, "/spec/volumes") {
        names.push(text(volume, "/secret/secretName"));
        names.push(text(volume, "/csi/nodePublishSecretRef/name"));
        names.extend(items(volume, "/projected/sources").iter().map(|s| text(s, "/secret/name")));
    }
    for container in containers(pod) {
        names.extend(items(container, "/env").iter().map(|e| text(e, "/valueFrom/secretKeyRef/name")));
        names.extend(items(container, "/envFrom").iter().map(|e| text(e, "/secretRef/name")));
    }
    names
}

pub(crate) fn config_map_names(pod: &Value) -> Vec<&str> {
    let mut names = Vec::new();
    for volume in items(pod, "/spec/volumes") {
        names.push(text(volume, "/configMap/name"));
        names.extend(items(volume, "/projected/sources").iter().map(|s| text(s, "/configMap/name")));
    }
    for container in containers(pod) {
        names.extend(items(container, "/env").iter().map(|e| text(e, "/valueFrom/configMapKeyRef/name")));
        names.extend(items(container, "/envFrom").iter().map(|e| text(e, "/configMapRef/name")));
    }
    names
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::Fixed;

    #[test]
    fn a_node_reaches_what_its_volumes_need() {
        let pod = |name: &str, node: &str, volumes: Value| json!({"metadata": {"namespace": "ns", "name": name}, "spec": {"nodeName": node, "volumes": volumes}});
        let volume = |name: &str, claim: &str| {
            json!({"metadata": {"name": name}, "spec": {"claimRef": {"namespace": "ns", "name": claim},
                "csi": {"nodeStageSecretRef": {"namespace": "store", "name": format!("stage-{name}")}}}})
        };
        let view = Fixed::default()
            .with(
                "",
                "pods",
                pod(
                    "p",
                    "n1",
                    json!([{"name": "own", "ephemeral": {}}, {"persistentVolumeClaim": {"claimName": "c"}}]),
                ),
            )
            .with("", "pods", pod("q", "n2", json!([{"persistentVolumeClaim": {"claimName": "other"}}])))
            .with("", "persistentvolumes", volume("pv", "c"))
            .with("", "persistentvolumes", volume("theirs", "other"));
        let authorizer = NodeAuthorizer::new(Arc::new(view));
        let user = User { name: "system:node:n1".into(), groups: vec!["system:nodes".into()], ..User::default() };
        let check = |verb: &str, what: &str, namespace: &str, name: &str, expect: bool| {
            let (resource, subresource) = what.split_once('/').unwrap_or((what, ""));
            let info = RequestInfo {
                verb: verb.into(),
                resource: resource.into(),
                subresource: subresource.into(),
                namespace: namespace.into(),
                name: name.into(),
                ..RequestInfo::default()
            };
            assert_eq!(authorizer.allows(&user, &info), expect, "{verb} {what} {namespace}/{name}");
        };
        check("get", "persistentvolumeclaims", "ns", "c", true);
        check("watch", "persistentvolumeclaims", "ns", "p-own", true);
        check("patch", "persistentvolumeclaims/status", "ns", "c", true);
        check("patch", "persistentvolumeclaims", "ns", "c", false);
        check("get", "persistentvolumeclaims", "ns", "other", false);
        check("get", "persistentvolumes", "", "pv", true);
        check("get", "persistentvolumes", "", "theirs", false);
        check("get", "secrets", "store", "stage-pv", true);
        check("get", "secrets", "store", "stage-theirs", false);
        check("get", "secrets", "ns", "stage-pv", false);
    }

    #[test]
    fn a_node_reaches_the_devices_of_its_pods() {
        let pod = |name: &str, node: &str, claim: &str, made: &str| {
            json!({"metadata": {"namespace": "ns", "name": name}, "spec": {"nodeName": node,
                "resourceClaims": [{"name": "a", "resourceClaimName": claim}]},
                "status": {"resourceClaimStatuses": [{"name": "b", "resourceClaimName": made}]}})
        };
        let view = Fixed::default().with("", "pods", pod("p", "n1", "shared", "p-b-1")).with(
            "",
            "pods",
            pod("q", "n2", "theirs", "q-b-1"),
        );
        let authorizer = NodeAuthorizer::new(Arc::new(view));
        let user = User { name: "system:node:n1".into(), groups: vec!["system:nodes".into()], ..User::default() };
        let check = |verb: &str, resource: &str, name: &str, selected: &str, expect: bool| {
            let info = RequestInfo {
                verb: verb.into(),
                group: "resource.k8s.io".into(),
                resource: resource.into(),
                namespace: if resource == "resourceclaims" { "ns".into() } else { String::new() },
                name: name.into(),
                selected_node: selected.into(),
                ..RequestInfo::default()
            };
            assert_eq!(authorizer.allows(&user, &info), expect, "{verb} {resource} {name} {selected}");
        };
        check("get", "resourceclaims", "shared", "", true);
        check("get", "resourceclaims", "p-b-1", "", true);
        check("get", "resourceclaims", "theirs", "", false);
        check("get", "resourceclaims", "q-b-1", "", false);
        check("list", "resourceclaims", "", "", false);
        check("update", "resourceclaims", "shared", "", false);
        check("list", "resourceslices", "", "", false);
        check("list", "resourceslices", "", "n2", false);
        check("deletecollection", "resourceslices", "", "n1", true);
        check("create", "resourceslices", "", "", true);
        check("get", "resourceclaimtemplates", "t", "", false);
        check("get", "deviceclasses", "c", "", false);
    }

    #[test]
    fn a_node_writes_the_addresses_of_claims_that_its_pods_name() {
        let pod = |name: &str, node: &str, claim: &str| {
            let networks = json!([{ "name": "nad", "ipam-claim-reference": claim }]).to_string();
            let annotations = json!({ "k8s.v1.cni.cncf.io/networks": networks });
            json!({ "metadata": { "namespace": "ns", "name": name, "annotations": annotations }, "spec": { "nodeName": node } })
        };
        let view = Fixed::default().with("", "pods", pod("p", "n1", "vm.blue")).with(
            "",
            "pods",
            pod("q", "n2", "theirs.blue"),
        );
        let authorizer = NodeAuthorizer::new(Arc::new(view));
        let user = User { name: "system:node:n1".into(), groups: vec!["system:nodes".into()], ..User::default() };
        let check = |verb: &str, subresource: &str, namespace: &str, name: &str, expect: bool| {
            let info = RequestInfo {
                verb: verb.into(),
                group: "k8s.cni.cncf.io".into(),
                resource: "ipamclaims".into(),
                subresource: subresource.into(),
                namespace: namespace.into(),
                name: name.into(),
                ..RequestInfo::default()
            };
            assert_eq!(authorizer.allows(&user, &info), expect, "{verb} {subresource} {namespace}/{name}");
        };
        check("patch", "status", "ns", "vm.blue", true);
        check("patch", "status", "ns", "theirs.blue", false);
        check("patch", "status", "other", "vm.blue", false);
        check("patch", "", "ns", "vm.blue", false);
        check("get", "", "ns", "theirs.blue", true);
        check("list", "", "ns", "", false);
        check("delete", "", "ns", "vm.blue", false);
    }

    #[test]
    fn a_node_reads_networks_and_keeps_their_addresses() {
        let authorizer = NodeAuthorizer::new(Arc::new(Fixed::default()));
        let user = User { name: "system:node:n1".into(), groups: vec!["system:nodes".into()], ..User::default() };
        let check = |verb: &str, group: &str, resource: &str, expect: bool| {
            let (group, resource) = (group.into(), resource.into());
            let info = RequestInfo { verb: verb.into(), group, resource, ..RequestInfo::default() };
            assert_eq!(authorizer.allows(&user, &info), expect, "{verb} {info:?}");
        };
        check("get", "k8s.cni.cncf.io", "network-attachment-definitions", true);
        check("list", "k8s.cni.cncf.io", "network-attachment-definitions", false);
        check("update", "k8s.cni.cncf.io", "network-attachment-definitions", false);
        check("update", "whereabouts.cni.cncf.io", "ippools", true);
        check("delete", "whereabouts.cni.cncf.io", "ippools", false);
    }
}
