//! Roles of node agents: what they grant is granted for objects of the node that the user's token is bound to.
//!
//! A rule of RBAC names kinds and objects, and knows no selectors. A role that is meant for an agent on each node says in the annotation
//! `rbac.ferrovirt.io/own-node` how an object names its node: by a label whose value is the node's name, or by `metadata.name`; several are
//! separated by commas, and one of them is enough. Other API servers do not read the annotation: there the role grants what its rules say.
//!
//! | request | is of the node |
//! |---|---|
//! | list, watch | when its selector asks for that label with the node's name, or for the one object of that name |
//! | get, update, patch, delete | when the object as it is stored has the label, or is not there; or has the name |
//! | anything else | never |

use serde_json::Value;

use apimachinery::pointer::text;
use apimachinery::request::{RequestInfo, User};

use crate::view::View;

const ANNOTATION: &str = "/metadata/annotations/rbac.ferrovirt.io~1own-node";
/// The claim of a token that was made for a pod: the node the pod is on.
const NODE: &str = "authentication.kubernetes.io/node-name";
const NAME: &str = "metadata.name";

/// What names the node of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnNode(Vec<String>);

impl OwnNode {
    /// What a role says; None for a role that is not for agents of nodes.
    pub(super) fn of(role: &Value) -> Option<Self> {
        let said = role.pointer(ANNOTATION)?.as_str().unwrap_or_default();
        Some(Self(said.split(',').map(|one| one.trim().to_owned()).filter(|one| !one.is_empty()).collect()))
    }

    /// Whether the request is about objects of the node that `user` is bound to.
    pub(super) fn concerns(&self, view: &dyn View, user: &User, info: &RequestInfo) -> bool {
        let Some([node]) = user.extra.get(NODE).map(Vec::as_slice) else { return false };
        if node.is_empty() || !info.is_resource() {
            return false;
        }
        match info.verb.as_str() {
            "list" | "watch" => self.0.iter().any(|by| match by.as_str() {
                NAME => info.effective_name() == node,
                label => info.selected_labels.iter().any(|(key, value)| key == label && value == node),
            }),
            "get" | "update" | "patch" | "delete" => self.has(view, node, info),
            _ => false,
        }
    }

    fn has(&self, view: &dyn View, node: &str, info: &RequestInfo) -> bool {
        if info.name.is_empty() {
            return false;
        }
        if self.0.iter().any(|by| by == NAME) && info.name == *node {
            return true;
        }
        let mut labels = self.0.iter().filter(|by| *by != NAME).peekable();
        if labels.peek().is_none() {
            return false;
        }
        let Some(object) = view.get(&info.group, &info.resource, &info.namespace, &info.name) else {
            // A missing object is answered with 404, not 403: the agent learns that it may forget it. Making one is another verb. Of a kind
            // that is kept elsewhere, behind an aggregated API, all are missing here, and may be anybody's.
            return view.count(&info.group, &info.resource, "") > 0;
        };
        labels.any(|label| text(&object, &format!("/metadata/labels/{}", label.replace('/', "~1"))) == node)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::Method;
    use serde_json::json;

    use apimachinery::request::{RequestInfo, User};

    use crate::authz::rbac::{GROUP, Rbac, Rule, uncovered};
    use crate::view::Fixed;

    const BY: &str = "x.io/node,x.io/next";

    fn cluster() -> Rbac {
        let role = |name: &str, by: &str, resource: &str| {
            json!({"metadata": {"name": name, "annotations": {"rbac.ferrovirt.io/own-node": by}}, "rules": [
                {"apiGroups": ["", "x.io"], "resources": [resource], "verbs": ["*"]}]})
        };
        let binding = |role: &str| {
            json!({"metadata": {"name": role}, "roleRef": {"kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "User", "name": "agent"}]})
        };
        let thing = |name: &str, labels: &serde_json::Value| json!({"metadata": {"namespace": "ns", "name": name, "labels": labels}});
        let view = Fixed::default()
            .with(GROUP, "clusterroles", role("things", BY, "things"))
            .with(GROUP, "clusterroles", role("nodes", "metadata.name", "nodes"))
            .with(GROUP, "clusterroles", role("nothing", "", "*"))
            .with(GROUP, "clusterrolebindings", binding("things"))
            .with(GROUP, "clusterrolebindings", binding("nodes"))
            .with(GROUP, "clusterrolebindings", binding("nothing"))
            .with("x.io", "things", thing("mine", &json!({"x.io/node": "n1"})))
            .with("x.io", "things", thing("coming", &json!({"x.io/node": "n2", "x.io/next": "n1"})))
            .with("x.io", "things", thing("theirs", &json!({"x.io/node": "n2"})))
            .with("x.io", "things", thing("waiting", &json!({})));
        Rbac::new(Arc::new(view))
    }

    fn agent(nodes: &[&str]) -> User {
        let claim = nodes.iter().map(|node| (*node).to_owned()).collect();
        let extra = [("authentication.kubernetes.io/node-name".to_owned(), claim)].into();
        User { name: "agent".into(), extra, ..User::default() }
    }

    #[track_caller]
    fn check(user: &User, method: &Method, uri: &str, expect: bool) {
        let (path, query) = uri.split_once('?').map_or((uri, None), |(path, query)| (path, Some(query)));
        let info = RequestInfo::parse(method, path, query).unwrap();
        assert_eq!(cluster().allows(user, &info), expect, "{method} {uri}");
    }

    #[test]
    fn an_agent_reaches_what_is_of_its_node() {
        let all = "/apis/x.io/v1/things";
        for (query, expect) in [
            ("labelSelector=x.io/node%3Dn1", true),
            ("labelSelector=x.io/next%3Dn1&watch=true", true),
            ("labelSelector=x.io/node%3Dn1,app%3Dweb", true),
            ("labelSelector=x.io/node%3Dn2", false),
            ("labelSelector=x.io/node", false),
            ("labelSelector=x.io/node!%3Dn2", false),
            ("labelSelector=x.io/node+in+(n1,n2)", false),
            ("labelSelector=app+in+(x.io/node%3Dn1)", false),
            ("labelSelector=other%3Dn1", false),
            ("labelSelector=&labelSelector=x.io/node%3Dn1", false),
            ("fieldSelector=metadata.name%3Dmine", false),
            ("watch=true", false),
            ("", false),
        ] {
            check(&agent(&["n1"]), &Method::GET, &format!("{all}?{query}"), expect);
        }
        let one = |name: &str| format!("/apis/x.io/v1/namespaces/ns/things/{name}");
        for (name, expect) in [("mine", true), ("coming", true), ("theirs", false), ("waiting", false), ("gone", true)]
        {
            for method in [Method::GET, Method::PUT, Method::PATCH, Method::DELETE] {
                check(&agent(&["n1"]), &method, &one(name), expect);
            }
            // A selector is nothing to a request that names its object.
            check(&agent(&["n1"]), &Method::GET, &format!("{}?labelSelector=x.io/node%3Dn1", one(name)), expect);
            check(&agent(&["n1"]), &Method::POST, &one(name), false);
        }
        check(&agent(&["n1"]), &Method::POST, "/apis/x.io/v1/namespaces/ns/things", false);
        check(&agent(&["n1"]), &Method::DELETE, &format!("{all}?labelSelector=x.io/node%3Dn1"), false);
    }

    #[test]
    fn an_agent_without_a_node_or_with_two_reaches_nothing() {
        for nodes in [&[] as &[&str], &[""], &["n1", "n2"]] {
            check(&agent(nodes), &Method::GET, "/apis/x.io/v1/things?labelSelector=x.io/node%3Dn1", false);
            check(&agent(nodes), &Method::GET, "/apis/x.io/v1/namespaces/ns/things/mine", false);
            check(&agent(nodes), &Method::GET, "/api/v1/nodes/n1", false);
        }
    }

    #[test]
    fn the_object_of_the_nodes_own_name() {
        let user = agent(&["n1"]);
        check(&user, &Method::GET, "/api/v1/nodes/n1", true);
        check(&user, &Method::PATCH, "/api/v1/nodes/n1", true);
        check(&user, &Method::GET, "/api/v1/nodes/n2", false);
        check(&user, &Method::PATCH, "/api/v1/nodes/n3", false);
        check(&user, &Method::GET, "/api/v1/nodes?watch=1&fieldSelector=metadata.name%3Dn1", true);
        check(&user, &Method::GET, "/api/v1/nodes?fieldSelector=metadata.name%3Dn2", false);
        check(&user, &Method::GET, "/api/v1/nodes", false);
    }

    #[test]
    fn rights_to_the_own_node_cover_no_grant() {
        let rule = json!({"apiGroups": [""], "resources": ["things"], "verbs": ["get"]});
        let role = json!({"metadata": {"annotations": {"rbac.ferrovirt.io/own-node": BY}}, "rules": [rule]});
        let (own, all) = (Rule::all_of(&role), Rule::all_of(&json!({"rules": [rule]})));
        assert_eq!(uncovered(&own, &all).len(), 1);
        assert_eq!(uncovered(&own, &own).len(), 1);
        assert!(uncovered(&all, &own).is_empty());
    }
}
