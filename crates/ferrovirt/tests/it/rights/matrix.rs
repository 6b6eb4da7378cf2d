//! What everybody may do, by asking about everything.

use std::collections::{BTreeMap, BTreeSet};

use kube_apiserver::request::{RequestInfo, User};
use serde_json::Value;

use super::objects::{Cluster, user};
use super::table::{EVERYWHERE, Line, Table, kind};
use crate::cluster::items;

const VERBS: [&str; 13] = [
    "approve",
    "bind",
    "create",
    "delete",
    "deletecollection",
    "escalate",
    "get",
    "impersonate",
    "list",
    "patch",
    "update",
    "use",
    "watch",
];
/// Asked about whether anybody names them or not.
const ALWAYS: [(&str, &str); 16] = [
    ("", "secrets"),
    ("", "pods"),
    ("", "pods/exec"),
    ("", "pods/attach"),
    ("", "pods/portforward"),
    ("", "pods/ephemeralcontainers"),
    ("", "pods/proxy"),
    ("", "nodes/proxy"),
    ("", "services/proxy"),
    ("", "serviceaccounts/token"),
    ("", "users"),
    ("", "groups"),
    ("", "serviceaccounts"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "roles"),
    ("certificates.k8s.io", "certificatesigningrequests/approval"),
];
/// An object that no rule names.
const ANY: &str = "any";
const NODE: &str = "node1";
/// Where an account on a node has what it has of that node only.
pub(super) const OWN_NODE: &str = "of its own node";

/// A kind by group and name, with the names of objects that rules know; or a path.
type Asked = BTreeMap<(String, String), BTreeSet<String>>;

fn kinds(roles: &[Value]) -> (Asked, BTreeSet<String>) {
    let always =
        ALWAYS.iter().map(|(group, resource)| (((*group).to_owned(), (*resource).to_owned()), BTreeSet::new()));
    let (mut asked, mut paths): (Asked, BTreeSet<String>) = (always.collect(), BTreeSet::new());
    let words = |rule: &Value, what: &str| -> Vec<String> {
        items(rule, what).filter_map(Value::as_str).filter(|word| *word != "*").map(str::to_owned).collect()
    };
    for rule in roles.iter().flat_map(|role| items(role, "/rules")) {
        paths.extend(words(rule, "/nonResourceURLs"));
        for group in words(rule, "/apiGroups") {
            for resource in words(rule, "/resources") {
                asked.entry((group.clone(), resource)).or_default().extend(words(rule, "/resourceNames"));
            }
        }
    }
    (asked, paths)
}

/// The matrix of everybody on `cluster`.
pub(super) fn matrix(cluster: &Cluster) -> Table {
    let (kinds, paths) = kinds(&cluster.roles);
    let mut table = Table::default();
    for who in &cluster.everybody {
        let user = user(who);
        let on_node = User {
            extra: [("authentication.kubernetes.io/node-name".to_owned(), vec![NODE.to_owned()])].into(),
            ..user.clone()
        };
        let mut add = |place: &str, lines: Vec<Line>| {
            if !lines.is_empty() {
                table.0.insert((who.clone(), place.to_owned()), lines);
            }
        };
        let may = |user: &User, info: &RequestInfo| cluster.rbac.allows(user, info);
        let everywhere = |info: &RequestInfo| may(&user, &RequestInfo { namespace: String::new(), ..info.clone() });
        let get = |path: &&String| {
            may(&user, &RequestInfo { verb: "get".into(), path: (*path).clone(), ..Default::default() })
        };
        let mut lines: Vec<Line> = paths.iter().filter(get).map(|path| Line::new(path, ["get".to_owned()])).collect();
        lines.extend(ask(&kinds, &everywhere));
        add(EVERYWHERE, lines);
        let own = |info: &RequestInfo| !everywhere(info) && of_node(info).iter().any(|info| may(&on_node, info));
        if cluster.rbac.rules_of(&user, "").iter().any(|rule| rule.own_node.is_some()) {
            add(OWN_NODE, ask(&kinds, &own));
        }
        let rules = cluster.rbac.rules_of(&user, "").len();
        for namespace in cluster.namespaces.iter().filter(|name| cluster.rbac.rules_of(&user, name).len() > rules) {
            let within = |info: &RequestInfo| {
                !everywhere(info) && may(&user, &RequestInfo { namespace: namespace.clone(), ..info.clone() })
            };
            add(&format!("in {namespace}"), ask(&kinds, &within));
        }
    }
    table
}

/// The same request, of what may be of the node.
fn of_node(info: &RequestInfo) -> Vec<RequestInfo> {
    let labels =
        ["kubevirt.io/nodeName", "kubevirt.io/migrationTargetNodeName"].map(|key| (key.to_owned(), NODE.to_owned()));
    match info.verb.as_str() {
        "list" | "watch" => vec![
            RequestInfo { selected_name: NODE.into(), ..info.clone() },
            RequestInfo { selected_labels: labels.into(), ..info.clone() },
        ],
        _ => vec![RequestInfo { name: NODE.into(), ..info.clone() }],
    }
}

fn ask(kinds: &Asked, may: &dyn Fn(&RequestInfo) -> bool) -> Vec<Line> {
    let mut lines = Vec::new();
    for ((group, resource), names) in kinds {
        let (of, sub) = resource.split_once('/').unwrap_or((resource, ""));
        let info = |verb: &str, name: &str| RequestInfo {
            verb: verb.to_owned(),
            group: group.clone(),
            resource: of.to_owned(),
            subresource: sub.to_owned(),
            name: name.to_owned(),
            ..RequestInfo::default()
        };
        let allowed = |name: &str| -> Vec<String> {
            VERBS.iter().filter(|verb| may(&info(verb, name))).map(|verb| (*verb).to_owned()).collect()
        };
        let general = allowed(ANY);
        let label = kind(group, resource);
        // Objects of which the same is allowed are one line.
        let mut named: BTreeMap<Vec<String>, Vec<&str>> = BTreeMap::new();
        for name in names {
            let more: Vec<String> = allowed(name).into_iter().filter(|verb| !general.contains(verb)).collect();
            if !more.is_empty() {
                named.entry(more).or_default().push(name);
            }
        }
        if !general.is_empty() {
            lines.push(Line::new(&label, general));
        }
        lines
            .extend(named.into_iter().map(|(verbs, names)| Line::new(&format!("{label}[{}]", names.join(" ")), verbs)));
    }
    lines
}
