//! Nobody grants what he does not have: writes of roles need their rules (or the verb `escalate`), writes of bindings need
//! the rules of the bound role (or the verb `bind`).

use serde_json::Value;

use apimachinery::error::ApiError;
use apimachinery::pointer::text;
use apimachinery::request::{RequestInfo, User};

use super::Authorizer;
use super::rbac::{Rule, compact, uncovered};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Checks a write of one of the four RBAC resources; other resources pass.
///
/// # Errors
/// 403 naming the rules that the user would grant without holding them.
pub fn check(
    authorizer: &Authorizer,
    user: &User,
    info: &RequestInfo,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    if info.group != GROUP || !info.subresource.is_empty() || user.groups.iter().any(|g| g == "system:masters") {
        return Ok(());
    }
    let name = text(object, "/metadata/name");
    match info.resource.as_str() {
        "roles" | "clusterroles" => {
            let rules = Rule::all_of(object);
            gathers(authorizer, user, info, object, old)?;
            let unchanged = old.is_some_and(|old| Rule::all_of(old) == rules);
            if unchanged || may(authorizer, user, info, "escalate", &info.resource, name) {
                return Ok(());
            }
            held(authorizer, user, info, name, &rules)
        }
        "rolebindings" | "clusterrolebindings" => {
            let unchanged = old.is_some_and(|old| {
                old.get("subjects") == object.get("subjects") && old.get("roleRef") == object.get("roleRef")
            });
            let (kind, role) = (text(object, "/roleRef/kind"), text(object, "/roleRef/name"));
            let resource = if kind == "ClusterRole" { "clusterroles" } else { "roles" };
            if unchanged || may(authorizer, user, info, "bind", resource, role) {
                return Ok(());
            }
            let Some(rules) = authorizer.rbac.rules_of_role(kind, &info.namespace, role) else {
                return Err(ApiError::not_found(GROUP, resource, role));
            };
            held(authorizer, user, info, name, &rules)
        }
        _ => Ok(()),
    }
}

/// The rules that a selector will gather are not known yet, so only those who hold everything may write one.
fn gathers(
    authorizer: &Authorizer,
    user: &User,
    info: &RequestInfo,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    let field = "aggregationRule";
    let wanted = object.get(field).filter(|rule| !rule.is_null());
    if wanted.is_none() || old.is_some_and(|old| old.get(field) == wanted) {
        return Ok(());
    }
    let all = || vec!["*".to_owned()];
    let everything = [
        Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() },
        Rule { verbs: all(), non_resource_urls: all(), ..Rule::default() },
    ];
    let name = text(object, "/metadata/name");
    if may(authorizer, user, info, "escalate", &info.resource, name)
        || uncovered(&authorizer.rbac.rules_of(user, ""), &everything).is_empty()
    {
        return Ok(());
    }
    let why = "must have cluster-admin privileges to use an aggregationRule";
    Err(ApiError::forbidden(GROUP, &info.resource, name, why))
}

fn may(authorizer: &Authorizer, user: &User, info: &RequestInfo, verb: &str, resource: &str, name: &str) -> bool {
    let wanted = RequestInfo {
        verb: verb.to_owned(),
        resource: resource.to_owned(),
        name: name.to_owned(),
        subresource: String::new(),
        ..info.clone()
    };
    authorizer.allows(user, &wanted)
}

fn held(authorizer: &Authorizer, user: &User, info: &RequestInfo, name: &str, wanted: &[Rule]) -> Result<(), ApiError> {
    let owned = authorizer.rbac.rules_of(user, &info.namespace);
    let missing = uncovered(&owned, wanted);
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.iter().map(compact).collect::<Vec<_>>().join("\n");
    let groups = user.groups.iter().map(|g| format!("{g:?}")).collect::<Vec<_>>().join(" ");
    let why = format!(
        "user {:?} (groups=[{groups}]) is attempting to grant RBAC permissions not currently held:\n{list}",
        user.name
    );
    Err(ApiError::forbidden(GROUP, &info.resource, name, &why))
}
