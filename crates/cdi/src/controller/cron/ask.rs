//! What a cron's source is now: an image in a registry or a stream of OpenShift's, or a claim.

use std::convert::Infallible;

use kit::Chain;
use kit::store::Key;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, ResourceExt};
use origin::{follow, leave};
use serde_json::Value;

use api::cdi::v1beta1::{DataImportCron, DataVolumeSourcePVC};

use super::answer::{Asked, Found, NOT_AUTHORIZED, Unknown, unknown};
use super::poll;
use crate::Error;
use crate::controller::context::Context;

/// Asks.
pub async fn source(context: &Context, cron: &DataImportCron) -> Result<Asked, Error> {
    let namespace = cron.namespace().unwrap_or_default();
    let source = cron.spec.template.spec.source.clone().unwrap_or_default();
    let found = if let Some(from) = &source.pvc {
        claim(context, cron, from, &namespace).await
    } else if let Some(registry) = &source.registry {
        let Some(name) = registry.image_stream.as_deref().filter(|name| !name.is_empty()) else {
            return poll::ask(context, cron, registry).await;
        };
        stream(context, name, &namespace).await
    } else {
        Err(unknown("spec.template.spec.source is neither registry nor pvc: nothing else says what is new"))
    };
    Ok(found.map_or_else(Asked::Unknown, Asked::Found))
}

/// A claim is what its UID says. One of another namespace is for whom its namespace lets have it: the account of the cron.
async fn claim(
    context: &Context,
    cron: &DataImportCron,
    from: &DataVolumeSourcePVC,
    here: &str,
) -> Result<Found, Unknown> {
    permitted(context, cron).await?;
    let at = if from.namespace.is_empty() { here } else { &from.namespace };
    let key = Key::new(at, from.name.as_str());
    let uid = context.claims.get(&key).and_then(|claim| claim.uid());
    let uid = uid.ok_or_else(|| unknown(format!("source PVC {key} does not exist")))?;
    Ok(Found { digest: format!("uid:{uid}"), reference: None })
}

/// Whether the account of `cron` may have what is imported: asked whenever something is imported, whatever the cron's annotations say of
/// what was found before.
pub async fn permitted(context: &Context, cron: &DataImportCron) -> Result<(), Unknown> {
    let here = cron.namespace().unwrap_or_default();
    let find = |namespace: String, name: String| {
        std::future::ready(Ok::<_, Infallible>(context.sources.get(&Key::new(namespace, name))))
    };
    let Ok(found) = follow::follow(&cron.spec.template.spec, &here, find).await;
    let Some(end) = found.transpose().map_err(|dead| unknown(dead.to_string()))? else { return Ok(()) };
    let account = cron.spec.service_account_name.as_deref().filter(|name| !name.is_empty()).unwrap_or("default");
    let user = leave::account(&here, account);
    let hindered = leave::refusal(&context.client, &user, &end.source, &here).await;
    if let Some(why) = hindered.map_err(|error| unknown(Chain(&error).to_string()))? {
        let message = format!(
            "{why}: let it create datavolumes/source there, or name another account in spec.serviceAccountName"
        );
        return Err(Unknown { reason: NOT_AUTHORIZED, message });
    }
    Ok(())
}

/// The image that a stream's tag, `NAME` or `NAME:TAG`, is now.
async fn stream(context: &Context, name: &str, namespace: &str) -> Result<Found, Unknown> {
    let (name, tag) = name.split_once(':').map_or((name, None), |(name, tag)| (name, Some(tag)));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("image.openshift.io", "v1", "ImageStream"));
    let api: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), namespace, &resource);
    match api.get(name).await {
        Ok(found) => newest(&found.data, name, tag).map_err(unknown),
        Err(kube::Error::Api(status)) if status.code == 404 => Err(unknown(format!(
            "ImageStream {namespace}/{name} does not exist; streams are OpenShift's: elsewhere give spec.template.spec.source.registry.url"
        ))),
        Err(error) => Err(unknown(format!("ImageStream {namespace}/{name}: {}", Chain(&error)))),
    }
}

fn newest(stream: &Value, name: &str, tag: Option<&str>) -> Result<Found, String> {
    let tags = stream["status"]["tags"].as_array().filter(|tags| !tags.is_empty());
    let tags = tags.ok_or_else(|| format!("ImageStream {name} has no tags"))?;
    let found = match tag {
        Some(tag) => {
            tags.iter().find(|one| one["tag"] == tag).ok_or_else(|| format!("ImageStream {name} has no tag {tag}"))?
        }
        None => &tags[0],
    };
    let item = &found["items"][0];
    let text = |field: &str| item[field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let none = || format!("ImageStream {name} tag {} has no items", found["tag"].as_str().unwrap_or_default());
    Ok(Found { digest: text("image").ok_or_else(none)?, reference: text("dockerImageReference") })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_item_of_a_tag_is_its_newest() {
        let stream = json!({ "status": { "tags": [
            { "tag": "latest", "items": [{ "image": "sha256:b", "dockerImageReference": "r/i@sha256:b" }, { "image": "sha256:a" }] },
            { "tag": "empty", "items": [] },
        ] } });
        let found = Found { digest: "sha256:b".into(), reference: Some("r/i@sha256:b".into()) };
        assert_eq!(newest(&stream, "s", None), Ok(found.clone()));
        assert_eq!(newest(&stream, "s", Some("latest")), Ok(found));
        assert_eq!(newest(&stream, "s", Some("gone")), Err("ImageStream s has no tag gone".into()));
        assert_eq!(newest(&stream, "s", Some("empty")), Err("ImageStream s tag empty has no items".into()));
        assert_eq!(newest(&json!({}), "s", None), Err("ImageStream s has no tags".into()));
    }
}
