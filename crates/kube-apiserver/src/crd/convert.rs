//! Between the version an object is stored in and the version it is served in.
//!
//! Guarantees: an object leaves the server in the version asked for, with the fields and defaults the definition has now,
//! whatever the definition was when the object was written; a conversion webhook changes nothing of an object's metadata
//! but labels and annotations.

mod autoscaler;
mod event;
mod review;

use std::time::Duration;

use serde_json::Value;

use apimachinery::error::ApiError;
use apimachinery::schema::{defaults, prune};

use crate::registry::{ConversionWebhook, Registry, Resource};
use crate::view::View;

/// How long a conversion webhook may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Objects of one review at most; a longer list is converted in several.
const BATCH: usize = 500;

/// Stored objects in the version of `resource`, each with whether it was written before the definition's last change.
pub(crate) async fn from_storage(
    view: &dyn View,
    resource: &Resource,
    stored: Vec<(Value, bool)>,
) -> Result<Vec<Value>, ApiError> {
    if resource.group == "events.k8s.io" {
        return Ok(stored.into_iter().map(|(object, _)| event::from_core(object)).collect());
    }
    if resource.group == "autoscaling" && resource.version == "v1" {
        return Ok(stored.into_iter().map(|(object, _)| autoscaler::to_v1(object)).collect());
    }
    let wanted = resource.api_version();
    let (objects, mut old): (Vec<Value>, Vec<bool>) = stored.into_iter().unzip();
    for (object, old) in objects.iter().zip(&mut old) {
        *old |= resource.conversion_webhook.is_some() && object["apiVersion"] != *wanted;
    }
    let mut objects = convert(view, resource, objects, &wanted).await?;
    for (object, _) in objects.iter_mut().zip(old).filter(|(_, old)| *old && resource.crd.is_some()) {
        shape(resource, object);
    }
    Ok(objects)
}

/// An object of the version of `resource` as it is stored.
pub(crate) async fn to_storage(
    view: &dyn View,
    registry: &Registry,
    resource: &Resource,
    object: Value,
) -> Result<Value, ApiError> {
    if resource.group == "events.k8s.io" {
        return Ok(event::to_core(object));
    }
    if resource.group == "autoscaling" && resource.version == "v1" {
        return Ok(autoscaler::to_v2(object));
    }
    if resource.crd.is_none() || resource.version == resource.storage_version {
        return Ok(object);
    }
    let mut object = between(view, registry, resource, object, &resource.storage_version).await?;
    object["apiVersion"] = format!("{}/{}", resource.group, resource.storage_version).into();
    Ok(object)
}

/// An object of the version of `resource` in another version of it, for webhooks that ask for that one.
pub(crate) async fn between(
    view: &dyn View,
    registry: &Registry,
    resource: &Resource,
    object: Value,
    version: &str,
) -> Result<Value, ApiError> {
    if !object.is_object() || version == resource.version {
        return Ok(object);
    }
    let wanted = if resource.group.is_empty() { version.to_owned() } else { format!("{}/{version}", resource.group) };
    let converted = convert(view, resource, vec![object], &wanted).await?;
    let mut object = converted.into_iter().next().unwrap_or_default();
    let target = registry.find(&resource.group, version, &resource.plural);
    if let Some(target) = target.filter(|_| resource.conversion_webhook.is_some()) {
        shape(target, &mut object);
    }
    Ok(object)
}

/// Gives an object the fields and defaults of a version.
fn shape(resource: &Resource, object: &mut Value) {
    prune::unknown(&resource.schema, object);
    prune::unset(&resource.schema, object);
    defaults::apply(&resource.schema, object);
}

/// Objects of any versions of `resource` in `wanted` (`group/version`), as the webhook gives them.
pub(crate) async fn convert(
    view: &dyn View,
    resource: &Resource,
    mut objects: Vec<Value>,
    wanted: &str,
) -> Result<Vec<Value>, ApiError> {
    let Some(webhook) = &resource.conversion_webhook else {
        for object in &mut objects {
            object["apiVersion"] = wanted.into();
        }
        return Ok(objects);
    };
    let strangers: Vec<usize> =
        objects.iter().enumerate().filter(|(_, object)| object["apiVersion"] != wanted).map(|(at, _)| at).collect();
    for places in strangers.chunks(BATCH) {
        let originals: Vec<&Value> = places.iter().map(|at| &objects[*at]).collect();
        let converted = call(view, webhook, &originals, wanted)
            .await
            .map_err(|why| failure(originals.first().copied().unwrap_or(&Value::Null), &why))?;
        for (at, object) in places.iter().zip(converted) {
            objects[*at] = object;
        }
    }
    Ok(objects)
}

async fn call(
    view: &dyn View,
    webhook: &ConversionWebhook,
    originals: &[&Value],
    wanted: &str,
) -> Result<Vec<Value>, String> {
    let uid = uuid::Uuid::new_v4().to_string();
    let body = review::request(&uid, &webhook.review_version, originals, wanted).to_string();
    let answer = webhook.client.post(view, body, TIMEOUT).await.map_err(|why| format!(" failed: {why}"))?;
    review::converted(&uid, &webhook.review_version, originals, wanted, answer)
}

fn failure(object: &Value, why: &str) -> ApiError {
    let text = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
    ApiError::internal(format!("conversion webhook for {}, Kind={}{why}", text("apiVersion"), text("kind")))
}
