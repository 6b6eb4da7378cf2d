//! Aggregated ClusterRoles: their rules are those of the roles their selectors match.

use std::sync::Arc;

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kit::controller::owner::selects;
use kit::controller::pod::labels;
use kit::controller::{self, During, Result, gone_is_none};
use kit::queue::{self, Next};
use kit::store::Key;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::context::Context;

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let roles = ctx.store::<ClusterRole>();
    roles.on_change({
        let (queue, roles) = (queue.clone(), roles.clone());
        move |old, new| {
            if old.zip(new).is_some_and(|(old, new)| {
                old.rules == new.rules
                    && old.metadata.labels == new.metadata.labels
                    && old.aggregation_rule == new.aggregation_rule
            }) {
                return;
            }
            let touched = [old, new];
            let matched = |role: &ClusterRole| touched.into_iter().flatten().any(|changed| aggregates(role, changed));
            for role in roles.all().into_iter().filter(|role| matched(role)) {
                queue.add(role.name_any());
            }
            if let Some(role) = new.filter(|role| role.aggregation_rule.is_some()) {
                queue.add(role.name_any());
            }
        }
    });
    roles.synced().await;
    controller::work(&queue, "clusterrole-aggregation", 1, |name| reconcile(&ctx, name)).await;
}

fn aggregates(role: &ClusterRole, other: &ClusterRole) -> bool {
    let rule = role.aggregation_rule.as_ref();
    let selectors = rule.and_then(|rule| rule.cluster_role_selectors.as_deref()).unwrap_or_default();
    role.metadata.name != other.metadata.name
        && selectors.iter().any(|selector| selects(Some(selector), labels(&other.metadata)))
}

/// The rules of all matching roles by name, each rule once.
fn rules(role: &ClusterRole, roles: &[Arc<ClusterRole>]) -> Vec<PolicyRule> {
    let mut rules: Vec<PolicyRule> = Vec::new();
    for other in roles.iter().filter(|other| aggregates(role, other)) {
        for rule in other.rules.iter().flatten() {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    rules
}

async fn reconcile(ctx: &Context, name: String) -> Result<Next> {
    let roles = ctx.store::<ClusterRole>();
    let Some(role) = roles.get(&Key::new("", &name)).filter(|role| role.aggregation_rule.is_some()) else {
        return Ok(Next::Wait);
    };
    let wanted = rules(&role, &roles.all());
    if role.rules.as_deref().unwrap_or_default() == wanted {
        return Ok(Next::Wait);
    }
    let change = json!({"metadata": {"resourceVersion": role.resource_version()}, "rules": wanted});
    let api: Api<ClusterRole> = Api::all(ctx.client.clone());
    let patched = api.patch(&name, &PatchParams::default(), &Patch::Merge(&change)).await;
    if let Some(role) = gone_is_none(patched.during("write rules of clusterrole", &name))? {
        roles.observe(role);
    }
    Ok(Next::Wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(name: &str, label: &str, verbs: &[&str], selects: Option<&str>) -> Arc<ClusterRole> {
        let mut value = json!({"metadata": {"name": name, "labels": {label: "true"}},
            "rules": verbs.iter().map(|verb| json!({"verbs": [verb]})).collect::<Vec<_>>()});
        if let Some(label) = selects {
            value["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]});
        }
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn rules_are_gathered_once() {
        let admin = role("admin", "to-nobody", &[], Some("to-admin"));
        let roles = [
            admin.clone(),
            role("a", "to-admin", &["get", "list"], None),
            role("b", "to-admin", &["list"], None),
            role("c", "to-view", &["watch"], None),
        ];
        let verbs: Vec<_> = rules(&admin, &roles).into_iter().map(|rule| rule.verbs.concat()).collect();
        assert_eq!(verbs, ["get", "list"]);
    }
}
