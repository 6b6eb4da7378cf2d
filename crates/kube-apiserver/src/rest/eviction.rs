//! pods/eviction: a deletion that respects disruption budgets.

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};

use apimachinery::error::{ApiError, Cause};
use apimachinery::labels::Labels;
use kube_store::WriteError;

use super::admit::{self, Operation, Write};
use super::delete::{self, Options};
use super::write::{Edit, change};
use super::{Call, decode, meta, not_allowed, read, respond};
use crate::strategy::selector_text;

const BUDGETS: &str = "poddisruptionbudgets.policy";

pub(super) async fn evict(call: &Call, body: Body) -> Result<Response, ApiError> {
    if call.info.verb != "create" {
        return Err(not_allowed());
    }
    let bytes = decode::read(call, body).await?;
    let (eviction, _) = decode::document(call, &bytes)?;
    let name = &call.info.name;
    let said = meta::text(&eviction, "name");
    if said != name {
        return Err(ApiError::bad_request(format!(
            "name in URL does not match name in Eviction object: {name} in URL, {said} in object"
        )));
    }
    let options = Options::parse(call, eviction["deleteOptions"].clone())?;
    let dry_run = options.is_dry_run();
    let write = Write { operation: Operation::Create, name, old: None, options: "CreateOptions", dry_run };
    admit::validate(call, &write, Some(&eviction)).await?;
    let pod = respond::tree(call, &*read::fetch(call)?).await?;
    if !uncounted(&pod) {
        spend(call, &pod, options.is_dry_run()).await?;
    }
    if !options.is_dry_run() && !meta::terminating(&pod) {
        mark(call).await?;
    }
    delete::remove(call, name, &options).await?;
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    respond::encode(call, StatusCode::CREATED, &status)
}

/// Pods no budget counts: finished, not started, or going already.
fn uncounted(pod: &Value) -> bool {
    meta::terminating(pod) || matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed" | "Pending"))
}

/// Says on the pod why it goes.
async fn mark(call: &Call) -> Result<(), ApiError> {
    let edit = Edit::part("status", "UpdateOptions");
    let outcome = change(call, &edit, |current| {
        let mut new = current.clone();
        let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting", "lastTransitionTime": crate::stamp::now()});
        if !new["status"]["conditions"].is_array() {
            new["status"]["conditions"] = json!([]);
        }
        if let Some(list) = new["status"]["conditions"].as_array_mut() {
            list.retain(|existing| existing["type"] != "DisruptionTarget");
            list.push(condition);
        }
        Ok(new)
    });
    outcome.await.map(|_| ())
}

/// Takes one disruption from the pod's budget, if it has one and the pod counts for it.
async fn spend(call: &Call, pod: &Value, dry_run: bool) -> Result<(), ApiError> {
    let store = call.server.store();
    for _ in 0..20 {
        let budgets = store.list(BUDGETS, Some(call.namespace())).objects;
        let mut matching =
            budgets.iter().map(|object| (object, object.value())).filter(|(_, budget)| covers(budget, pod));
        let Some((object, mut budget)) = matching.next() else { return Ok(()) };
        if matching.next().is_some() {
            let text =
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            return Err(ApiError::internal(text));
        }
        if costs_nothing(&budget, pod) {
            return Ok(());
        }
        allowed(call, &object.key.name, &budget)?;
        if dry_run {
            return Ok(());
        }
        take_one(&mut budget, &call.info.name, &crate::stamp::now());
        match store.update(object.key.clone(), budget, object.revision).await {
            Err(WriteError::Changed | WriteError::Missing) => {}
            Err(error) => return Err(call.store_error(&object.key.name, &error)),
            Ok(_) => return Ok(()),
        }
    }
    Err(too_many(0, None))
}

fn covers(budget: &Value, pod: &Value) -> bool {
    let selector = &budget["spec"]["selector"];
    let labels = &pod["metadata"]["labels"];
    selector.is_object() && Labels::parse(&selector_text(selector)).is_ok_and(|s| s.matches(|key| labels[key].as_str()))
}

fn number(budget: &Value, field: &str) -> i64 {
    budget["status"][field].as_i64().unwrap_or(0)
}

/// Whether a pod that is not ready may go without the budget's leave: always if it says so, else while enough are well.
fn costs_nothing(budget: &Value, pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let ready = conditions.is_some_and(|list| list.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"));
    let enough = number(budget, "currentHealthy") >= number(budget, "desiredHealthy");
    let always = budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow";
    !ready && (always || (enough && number(budget, "desiredHealthy") > 0))
}

/// Counts the pod as gone until the controller has seen it go.
fn take_one(budget: &mut Value, pod: &str, now: &str) {
    let left = number(budget, "disruptionsAllowed") - 1;
    budget["status"]["disruptionsAllowed"] = left.into();
    budget["status"]["disruptedPods"][pod] = now.into();
    if left > 0 {
        return;
    }
    let conditions = budget["status"]["conditions"].as_array_mut();
    for condition in conditions.into_iter().flatten().filter(|c| c["type"] == ALLOWED && c["status"] != "False") {
        condition["status"] = "False".into();
        condition["reason"] = "InsufficientPods".into();
        condition["lastTransitionTime"] = now.into();
    }
}

const ALLOWED: &str = "DisruptionAllowed";
/// More evictions than these are not granted before the controller has confirmed some.
const UNCONFIRMED: usize = 2000;
/// When to ask again about a budget that the controller is about to look at.
const SOON: u32 = 10;

fn allowed(call: &Call, name: &str, budget: &Value) -> Result<(), ApiError> {
    let forbidden = |why: &str| Err(ApiError::forbidden("policy", "poddisruptionbudgets", name, why));
    if number(budget, "observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or(0) {
        return Err(too_many(
            SOON,
            Some(format!("The disruption budget {name} is still being processed by the server.")),
        ));
    }
    if number(budget, "disruptionsAllowed") < 0 {
        return forbidden("pdb disruptions allowed is negative");
    }
    let waiting = budget["status"]["disruptedPods"].as_object();
    if waiting.is_some_and(|waiting| waiting.len() > UNCONFIRMED && !waiting.contains_key(&call.info.name)) {
        return forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller");
    }
    if number(budget, "disruptionsAllowed") > 0 {
        return Ok(());
    }
    let conditions = budget["status"]["conditions"].as_array().into_iter().flatten();
    let failed = conditions.into_iter().find(|c| c["type"] == ALLOWED && c["reason"] == "SyncFailed");
    Err(too_many(
        0,
        Some(match failed {
            Some(condition) => format!(
                "The disruption budget {name} does not allow evicting pods currently because it failed sync: {}",
                condition["message"].as_str().unwrap_or_default()
            ),
            None => format!(
                "The disruption budget {name} needs {} healthy pods and has {} currently",
                number(budget, "desiredHealthy"),
                number(budget, "currentHealthy")
            ),
        }),
    ))
}

fn too_many(retry_after: u32, why: Option<String>) -> ApiError {
    let text = "Cannot evict pod as it would violate the pod's disruption budget.";
    let mut error = ApiError::new(429, "TooManyRequests", text);
    error.details = (retry_after > 0).then(|| json!({"retryAfterSeconds": retry_after}));
    let causes = why.into_iter();
    error.causes =
        causes.map(|message| Cause { reason: "DisruptionBudget".into(), message, field: String::new() }).collect();
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unhealthy_pods_are_evicted_by_the_policy_of_the_budget() {
        let budget = |policy: &str, healthy: i64| json!({"spec": {"unhealthyPodEvictionPolicy": policy}, "status": {"currentHealthy": healthy, "desiredHealthy": 2}});
        let pod = |ready: &str| json!({"status": {"conditions": [{"type": "Ready", "status": ready}]}});
        let check = |policy: &str, healthy: i64, ready: &str, expect: bool| {
            assert_eq!(costs_nothing(&budget(policy, healthy), &pod(ready)), expect, "{policy} {healthy} {ready}");
        };
        check("IfHealthyBudget", 2, "False", true);
        check("IfHealthyBudget", 1, "False", false);
        check("IfHealthyBudget", 2, "True", false);
        check("AlwaysAllow", 0, "False", true);
        check("AlwaysAllow", 5, "True", false);
    }

    #[test]
    fn the_last_one_taken_shows_in_the_condition() {
        let mut budget = json!({"status": {"disruptionsAllowed": 1,
            "conditions": [{"type": ALLOWED, "status": "True", "reason": "SufficientPods"}]}});
        take_one(&mut budget, "p", "2026-01-01T00:00:00Z");
        assert_eq!(budget["status"]["disruptionsAllowed"], 0);
        assert_eq!(budget["status"]["conditions"][0]["reason"], "InsufficientPods");
        assert_eq!(budget["status"]["disruptedPods"]["p"], "2026-01-01T00:00:00Z");
    }
}
