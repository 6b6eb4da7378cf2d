//! What an older release or an administrator left out of the shipped roles and bindings is put back at each start.
//!
//! Guarantees: nothing that was added to them is taken away, and what is annotated with `autoupdate: "false"` is left
//! as it is. A binding that leads to another role leads to its own again, for nothing else can mend it.

use serde_json::{Value, json};

use apimachinery::error::ApiError;
use apimachinery::pointer::{items, text};
use kube_store::{Key, WriteError};

use crate::ApiServer;
use crate::authz::rbac::{Rule, uncovered};

/// Set to `false` by whoever wants to keep a role as he made it.
pub(super) const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
/// Tries to write what somebody else writes as well.
const TRIES: usize = 3;

/// Brings one stored role or binding up to `wanted`.
pub(super) async fn run(server: &ApiServer, resource: &str, namespace: &str, wanted: &Value) -> Result<(), ApiError> {
    let name = text(wanted, "/metadata/name");
    for _ in 0..TRIES {
        let Some(stored) = server.store().get(resource, namespace, name) else { return Ok(()) };
        let Some(whole) = completed(&stored.value(), wanted) else { return Ok(()) };
        match server.store().update(Key::new(resource, namespace, name), whole, stored.revision).await {
            Ok(_) => {
                tracing::info!(resource, namespace, name, "added what was missing of a shipped role or binding");
                return Ok(());
            }
            Err(WriteError::Changed) => {}
            Err(error) => return Err(ApiError::internal(format!("{resource} {name}: {error}"))),
        }
    }
    Ok(())
}

/// The object with all it has and all that is wanted; None when nothing is missing.
fn completed(stored: &Value, wanted: &Value) -> Option<Value> {
    if stored.pointer("/metadata/annotations").and_then(|all| all.get(AUTOUPDATE)) == Some(&json!("false")) {
        return None;
    }
    let mut whole = stored.clone();
    for field in ["annotations", "labels"] {
        for (key, value) in wanted["metadata"][field].as_object().into_iter().flatten() {
            if whole["metadata"][field].get(key).is_none() {
                whole["metadata"][field][key] = value.clone();
            }
        }
    }
    if wanted.get("roleRef").is_some() {
        bind(&mut whole, wanted);
    } else {
        allow(&mut whole, wanted);
    }
    (whole != *stored).then_some(whole)
}

fn allow(role: &mut Value, wanted: &Value) {
    if wanted.get("aggregationRule").is_some() {
        // The rules of an aggregated role are its controller's, by these selectors.
        let missing = absent(role, wanted, "/aggregationRule/clusterRoleSelectors", |one, other| one == other);
        if !missing.is_empty() {
            append(&mut role["aggregationRule"]["clusterRoleSelectors"], missing);
        }
        return;
    }
    let rules: Vec<Rule> = items(role, "/rules").iter().map(Rule::parse).collect();
    let missing = items(wanted, "/rules").iter().filter(|rule| !uncovered(&rules, &[Rule::parse(rule)]).is_empty());
    let missing: Vec<Value> = missing.cloned().collect();
    if !missing.is_empty() {
        append(&mut role["rules"], missing);
    }
}

fn bind(binding: &mut Value, wanted: &Value) {
    let same_role = ["kind", "name"].iter().all(|part| binding["roleRef"][part] == wanted["roleRef"][part]);
    if !same_role {
        binding["roleRef"] = wanted["roleRef"].clone();
        binding["subjects"] = wanted.get("subjects").cloned().unwrap_or_else(|| json!([]));
        return;
    }
    let same = |one: &Value, other: &Value| {
        ["/kind", "/name", "/namespace"].iter().all(|part| text(one, part) == text(other, part))
    };
    let missing = absent(binding, wanted, "/subjects", same);
    if !missing.is_empty() {
        append(&mut binding["subjects"], missing);
    }
}

/// Entries of the wanted list that the stored one lacks.
fn absent(stored: &Value, wanted: &Value, list: &str, same: impl Fn(&Value, &Value) -> bool) -> Vec<Value> {
    let has = |entry: &&Value| items(stored, list).iter().any(|other| same(other, entry));
    items(wanted, list).iter().filter(|entry| !has(entry)).cloned().collect()
}

fn append(list: &mut Value, more: Vec<Value>) {
    match list {
        Value::Array(list) => list.extend(more),
        other => *other = Value::Array(more),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `expect` is what is merged into the stored object, or null when it stays.
    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(stored: Value, wanted: Value, expect: Value) {
        let changed = completed(&stored, &wanted);
        let expect = (!expect.is_null()).then(|| {
            let mut whole = stored;
            json_patch::merge(&mut whole, &expect);
            whole
        });
        assert_eq!(changed, expect);
    }

    #[test]
    fn missing_rules_are_added_and_additional_ones_kept() {
        let rule = |resource: &str, verbs: &[&str]| json!({"apiGroups": [""], "resources": [resource], "verbs": verbs});
        let role =
            |rules: Value| json!({"metadata": {"name": "r", "annotations": {AUTOUPDATE: "true"}}, "rules": rules});
        let (pods, secrets) = (rule("pods", &["get", "list"]), rule("secrets", &["get"]));
        check(role(json!([pods])), role(json!([pods])), json!(null));
        check(role(json!([])), role(json!([pods])), json!({"rules": [pods]}));
        check(role(json!([secrets])), role(json!([pods])), json!({"rules": [secrets, pods]}));
        check(role(json!([rule("*", &["*"])])), role(json!([pods])), json!(null));
        let kept = json!({"metadata": {"name": "r", "annotations": {AUTOUPDATE: "false"}}, "rules": []});
        check(kept, role(json!([pods])), json!(null));
        let bare = json!({"metadata": {"name": "r"}, "rules": [pods]});
        check(bare, role(json!([pods])), json!({"metadata": {"annotations": {AUTOUPDATE: "true"}}}));
    }

    #[test]
    fn bindings_lead_to_their_role_and_have_their_subjects() {
        let user = |name: &str| json!({"kind": "User", "name": name});
        let binding = |role: &str, subjects: &[&str]| {
            json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": role},
                "subjects": subjects.iter().map(|name| user(name)).collect::<Vec<_>>()})
        };
        check(binding("r", &["a", "b"]), binding("r", &["a"]), json!(null));
        check(binding("r", &["b"]), binding("r", &["a"]), json!({"subjects": [user("b"), user("a")]}));
        let mended = json!({"roleRef": {"name": "r"}, "subjects": [user("a")]});
        check(binding("other", &["b"]), binding("r", &["a"]), mended);
    }

    #[test]
    fn aggregated_roles_get_their_selectors_and_keep_their_rules() {
        let role = |selectors: Value, rules: Value| json!({"metadata": {"name": "admin"}, "aggregationRule": {"clusterRoleSelectors": selectors}, "rules": rules});
        let (ours, theirs) = (json!({"matchLabels": {"to-admin": "true"}}), json!({"matchLabels": {"x": "y"}}));
        let stored = role(json!([theirs]), json!([{"verbs": ["get"]}]));
        let all = json!({"aggregationRule": {"clusterRoleSelectors": [theirs, ours]}});
        check(stored, role(json!([ours]), json!([])), all);
    }
}
