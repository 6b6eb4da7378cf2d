//! Which requests go together, and how many of each kind are served at once: FlowSchemas and PriorityLevelConfigurations,
//! compiled.
//!
//! ```text
//! request ──> first schema that matches ──> its level: a share of all seats, and queues of those who wait for one
//! ```
//!
//! Pure: what is stored goes in as objects, and [`Flows`] is read on the path of every request.

pub(crate) mod level;
pub(crate) mod schema;
pub(crate) mod shipped;

use http::HeaderValue;
use serde_json::Value;

use apimachinery::pointer::text;
use apimachinery::request::{RequestInfo, User};

use level::Level;
use schema::Schema;

/// The group of both kinds.
pub(crate) const GROUP: &str = "flowcontrol.apiserver.k8s.io";
/// Where FlowSchemas are stored.
pub(crate) const SCHEMAS: &str = "flowschemas.flowcontrol.apiserver.k8s.io";
/// Where PriorityLevelConfigurations are stored.
pub(crate) const LEVELS: &str = "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io";
/// The schema and the level of whatever nothing else is for.
pub(crate) const CATCH_ALL: &str = "catch-all";
/// The schema and the level of what never waits.
pub(crate) const EXEMPT: &str = "exempt";

/// What one request is a part of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flow<'a> {
    /// The schema's name.
    pub(crate) schema: &'a str,
    /// The level's name.
    pub(crate) level: &'a str,
    /// What tells the flows of one schema apart: a user, a namespace, or nothing.
    pub(crate) distinguisher: &'a str,
    /// The UIDs of schema and level, as answers carry them.
    pub(crate) uids: Option<(&'a HeaderValue, &'a HeaderValue)>,
}

/// All that is configured, in the order in which it is looked at.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    schemas: Vec<(Schema, HeaderValue)>,
    levels: Vec<Level>,
}

impl Flows {
    /// Compiles what is stored, for a server of `total` seats. A schema whose level is not there matches nothing.
    pub(crate) fn compile<'a>(
        schemas: impl Iterator<Item = &'a Value>,
        levels: impl Iterator<Item = &'a Value>,
        total: usize,
    ) -> Self {
        let levels: Vec<&Value> = levels.collect();
        let uid = |object: &Value| {
            HeaderValue::from_str(text(object, "/metadata/uid")).unwrap_or_else(|_| HeaderValue::from_static(""))
        };
        let mut compiled: Vec<(Schema, HeaderValue)> = schemas
            .filter_map(|object| {
                let schema = Schema::read(object, uid(object));
                let level = levels.iter().find(|level| text(level, "/metadata/name") == schema.level)?;
                Some((schema, uid(level)))
            })
            .collect();
        // The catch-all is asked last, whatever others say of themselves.
        compiled.sort_by(|(one, _), (other, _)| one.order().cmp(&other.order()));
        Self { schemas: compiled, levels: level::share(&levels, total) }
    }

    /// The levels and what they have of the seats.
    pub(crate) fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// What a request is a part of.
    pub(crate) fn classify<'a>(&'a self, user: &'a User, info: &'a RequestInfo) -> Flow<'a> {
        let matching = self.schemas.iter().find(|(schema, _)| schema.matches(user, info));
        // Who is in no group at all, as no user from the network is, is caught as well: the last schema is the catch-all.
        match matching.or_else(|| self.schemas.last().filter(|(schema, _)| schema.name == CATCH_ALL)) {
            Some((schema, level)) => Flow {
                schema: &schema.name,
                level: &schema.level,
                distinguisher: schema.distinguish(user, info),
                uids: Some((&schema.uid, level)),
            },
            None => Flow { schema: CATCH_ALL, level: CATCH_ALL, distinguisher: &user.name, uids: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(flows: &Flows, user: &str, groups: &[&str], request: &str, expect: &str) {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        let user = User { name: user.into(), groups, ..User::default() };
        let (method, uri) = request.split_once(' ').unwrap();
        let (path, query) = uri.split_once('?').map_or((uri, None), |(path, query)| (path, Some(query)));
        let info = RequestInfo::parse(&method.parse().unwrap(), path, query).unwrap();
        let flow = flows.classify(&user, &info);
        assert_eq!(format!("{} {} {}", flow.schema, flow.level, flow.distinguisher), expect, "{request}");
    }

    fn shipped_with(more: &[Value]) -> Flows {
        let schemas = shipped::schemas();
        Flows::compile(schemas.iter().chain(more), shipped::levels().iter(), 400)
    }

    const SOMEBODY: &[&str] = &["system:authenticated"];
    const NODE: &[&str] = &["system:nodes", "system:authenticated"];
    const ACCOUNT: &[&str] = &["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"];

    #[test]
    fn the_shipped_schemas_know_who_asks_for_what() {
        let flows = shipped_with(&[]);
        let master = &["system:masters", "system:authenticated"];
        check(&flows, "admin", master, "GET /api/v1/pods", "exempt exempt ");
        check(&flows, "system:anonymous", &["system:unauthenticated"], "GET /livez", "probes exempt ");
        check(
            &flows,
            "system:anonymous",
            &["system:unauthenticated"],
            "GET /version",
            "global-default global-default system:anonymous",
        );
        check(&flows, "ann", SOMEBODY, "GET /api/v1/pods", "global-default global-default ann");
        let node = "system:node:a";
        check(&flows, node, NODE, "PATCH /api/v1/nodes/a/status", "system-node-high node-high system:node:a");
        check(&flows, node, NODE, "GET /api/v1/nodes/a/proxy", "system-nodes system system:node:a");
        check(&flows, node, NODE, "GET /api/v1/pods", "system-nodes system system:node:a");
        let lease = "PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a";
        check(&flows, node, NODE, lease, "system-node-high node-high system:node:a");
        let account = "system:serviceaccount:kube-system:x";
        let lease = "PUT /apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x";
        check(&flows, account, ACCOUNT, lease, &format!("system-leader-election leader-election {account}"));
        let pods = "GET /api/v1/namespaces/shop/pods";
        check(&flows, account, ACCOUNT, pods, "kube-system-service-accounts workload-high shop");
        let other = "system:serviceaccount:shop:x";
        check(&flows, other, ACCOUNT, pods, "service-accounts workload-low system:serviceaccount:shop:x");
        check(&flows, "system:kube-scheduler", SOMEBODY, pods, "kube-scheduler workload-high shop");
        check(&flows, "nobody", &[], pods, "catch-all catch-all nobody");
    }

    #[test]
    fn the_smaller_precedence_is_asked_first_and_of_equals_the_smaller_name() {
        let schema = |name: &str, precedence: i64, level: &str, rules: Value| {
            json!({"metadata": {"name": name}, "spec": {"matchingPrecedence": precedence, "rules": [rules],
                "priorityLevelConfiguration": {"name": level}}})
        };
        let all = json!({"subjects": [{"kind": "User", "user": {"name": "*"}}],
            "resourceRules": [{"verbs": ["list"], "apiGroups": [""], "resources": ["pods"], "namespaces": ["shop"]}],
            "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/debug/*"]}]});
        let flows = shipped_with(&[
            schema("late", 8000, "system", all.clone()),
            schema("b", 700, "workload-low", all.clone()),
            schema("a", 700, "workload-high", all.clone()),
            schema("gone", 3, "no-such-level", all),
        ]);
        let default = "global-default global-default ann";
        check(&flows, "ann", SOMEBODY, "GET /api/v1/namespaces/shop/pods", "a workload-high ");
        check(&flows, "ann", SOMEBODY, "GET /api/v1/namespaces/other/pods", default);
        check(&flows, "ann", SOMEBODY, "GET /api/v1/pods", default);
        check(&flows, "ann", SOMEBODY, "GET /api/v1/namespaces/shop/pods?watch=1", default);
        check(&flows, "ann", SOMEBODY, "GET /api/v1/namespaces/shop/pods/p/log", default);
        check(&flows, "ann", SOMEBODY, "GET /debug/x/y", "a workload-high ");
        check(&flows, "ann", SOMEBODY, "POST /debug/x", default);
        check(&flows, "ann", SOMEBODY, "GET /debugger", default);
    }

    #[test]
    fn without_any_schema_all_is_caught() {
        check(&Flows::default(), "ann", SOMEBODY, "GET /api/v1/pods", "catch-all catch-all ann");
    }
}
