//! pods/eviction: a deletion that respects disruption budgets.

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};

use super::admit::{self, Operation, Write};
use super::delete::{self, Options};
use super::selector::Labels;
use super::write::{Edit, change};
use super::{Call, decode, meta, not_allowed, read, respond};
use crate::error::{ApiError, Cause};
use crate::registry::strategy::selector_text;
use crate::store::{Object, WriteError};

const BUDGETS: &str = "poddisruptionbudgets.policy";

pub(super) async fn evict(call: &Call, body: Body) -> Result<Response, ApiError> {
    if call.info.verb != "create" {
        return Err(not_allowed());
    }
    let bytes = decode::read(call, body).await?;
    let (mut eviction, _) = decode::document(call, &bytes)?;
    let name = &call.info.name;
    let said = meta::text(&eviction, "name");
    if !said.is_empty() && said != name {
        return Err(ApiError::bad_request(format!(
            "name in URL does not match name in Eviction object: {name} in URL, {said} in object"
        )));
    }
    let write = Write { operation: Operation::Create, name, old: None, options: "CreateOptions" };
    admit::validate(call, &write, Some(&eviction)).await?;
    let options = Options::parse(call, &eviction["deleteOptions"].take())?;
    let pod = respond::tree(call, &*read::fetch(call)?).await?;
    if !unneeded(&pod) {
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
fn unneeded(pod: &Value) -> bool {
    meta::terminating(pod) || matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed" | "Pending"))
}

/// Says on the pod why it goes.
async fn mark(call: &Call) -> Result<(), ApiError> {
    let edit = Edit::part("status", "UpdateOptions");
    let outcome = change(call, &edit, |current| {
        let mut new = current.clone();
        let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting", "lastTransitionTime": meta::now()});
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

/// Takes one disruption from the pod's budget, if it has one.
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
        allowed(object, &budget)?;
        if dry_run {
            return Ok(());
        }
        let left = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0) - 1;
        budget["status"]["disruptionsAllowed"] = left.into();
        budget["status"]["disruptedPods"][call.info.name.as_str()] = meta::now().into();
        match store.update(object.key.clone(), budget, object.revision).await {
            Err(WriteError::Changed | WriteError::Missing) => {}
            Err(error) => return Err(call.store_error(&object.key.name, &error)),
            Ok(_) => return Ok(()),
        }
    }
    Err(too_many("the disruption budget changes too fast", None))
}

fn covers(budget: &Value, pod: &Value) -> bool {
    let selector = &budget["spec"]["selector"];
    let labels = &pod["metadata"]["labels"];
    selector.is_object() && Labels::parse(&selector_text(selector)).is_ok_and(|s| s.matches(|key| labels[key].as_str()))
}

fn allowed(object: &Object, budget: &Value) -> Result<(), ApiError> {
    let name = &object.key.name;
    let number = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
    if number("observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or(0) {
        return Err(too_many(
            "Cannot evict pod as it would violate the pod's disruption budget.",
            Some(format!("The disruption budget {name} is still being processed by the server.")),
        ));
    }
    if number("disruptionsAllowed") <= 0 {
        return Err(too_many(
            "Cannot evict pod as it would violate the pod's disruption budget.",
            Some(format!(
                "The disruption budget {name} needs {} healthy pods and has {} currently",
                number("desiredHealthy"),
                number("currentHealthy")
            )),
        ));
    }
    Ok(())
}

fn too_many(text: &str, why: Option<String>) -> ApiError {
    let mut error = ApiError::new(429, "TooManyRequests", text);
    error.causes = why
        .into_iter()
        .map(|message| Cause { reason: "DisruptionBudget".into(), message, field: String::new() })
        .collect();
    error
}
