//! What a cron's source is now: an image in a registry or a stream of OpenShift's, or a claim.

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kit::{Chain, admission::UserInfo, store::Key};
use kube::{
    Api, ResourceExt,
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::Value;

use api::cdi::v1beta1::{DataImportCron, DataVolumeSourcePVC, DataVolumeSourceRegistry};

use crate::{
    apiserver::clone::{self, Source},
    controller::{context::Context, cron::poll::Image, insecure::is_insecure},
};

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Names what the source is: two that are the same have the same.
    pub digest: String,
    /// Where a stream's image is.
    pub reference: Option<String>,
}

/// Why it is not known: reason and message of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// `NoDigest` or `NotAuthorized`.
    pub reason: &'static str,
    /// In words.
    pub message: String,
}

/// Reason of a source that nobody may have.
pub const NOT_AUTHORIZED: &str = "NotAuthorized";

fn unknown(message: impl Into<String>) -> Unknown {
    Unknown { reason: "NoDigest", message: message.into() }
}

/// Asks.
pub async fn source(context: &Context, cron: &DataImportCron) -> Result<Found, Unknown> {
    let namespace = cron.namespace().unwrap_or_default();
    let source = cron.spec.template.spec.source.clone().unwrap_or_default();
    if let Some(from) = &source.pvc {
        return claim(context, cron, from, &namespace).await;
    }
    let Some(registry) = &source.registry else {
        return Err(unknown("spec.template.spec.source is neither registry nor pvc: nothing else says what is new"));
    };
    if let Some(name) = registry.image_stream.as_deref().filter(|name| !name.is_empty()) {
        return stream(context, name, &namespace).await;
    }
    let digest = image(context, registry, &namespace).await.map_err(unknown)?;
    Ok(Found { digest, reference: None })
}

/// A claim is what its UID says. One of another namespace is for whom its namespace lets have it: the account of the cron.
async fn claim(
    context: &Context,
    cron: &DataImportCron,
    from: &DataVolumeSourcePVC,
    here: &str,
) -> Result<Found, Unknown> {
    let at = if from.namespace.is_empty() { here } else { &from.namespace };
    if at != here {
        let account = cron.spec.service_account_name.as_deref().filter(|name| !name.is_empty()).unwrap_or("default");
        let user = account_user(here, account);
        let wanted = Source { snapshot: false, namespace: at.to_owned(), name: from.name.clone() };
        let hindered = clone::hindrance(&context.client, &user, &wanted, here).await;
        if let Some(why) = hindered.map_err(|error| unknown(Chain(&error).to_string()))? {
            let message = format!(
                "{why}: let it create datavolumes/source there, or name another account in spec.serviceAccountName"
            );
            return Err(Unknown { reason: NOT_AUTHORIZED, message });
        }
    }
    let key = Key::new(at, from.name.as_str());
    let uid = context.claims.get(&key).and_then(|claim| claim.uid());
    let uid = uid.ok_or_else(|| unknown(format!("source PVC {key} does not exist")))?;
    Ok(Found { digest: format!("uid:{uid}"), reference: None })
}

fn account_user(namespace: &str, name: &str) -> UserInfo {
    UserInfo {
        username: format!("system:serviceaccount:{namespace}:{name}"),
        groups: vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
            "system:authenticated".to_owned(),
        ],
        ..UserInfo::default()
    }
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

async fn image(context: &Context, registry: &DataVolumeSourceRegistry, namespace: &str) -> Result<String, String> {
    let Some(url) = registry.url.clone().filter(|url| !url.is_empty()) else {
        return Err("spec.template.spec.source.registry has neither url nor imageStream".to_owned());
    };
    let mut login = None;
    if let Some(name) = registry.secret_ref.as_deref().filter(|name| !name.is_empty()) {
        let api: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
        let secret = api.get(name).await.map_err(|error| format!("Secret {namespace}/{name}: {error}"))?;
        let text = |key: &str| {
            let found = secret.data.as_ref().and_then(|data| data.get(key));
            found.map(|ByteString(bytes)| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
        };
        login = Some((text("accessKeyId"), text("secretKey")));
    }
    let mut certificates = Vec::new();
    if let Some(name) = registry.cert_config_map.as_deref().filter(|name| !name.is_empty()) {
        let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), namespace);
        let map = api.get(name).await.map_err(|error| format!("ConfigMap {namespace}/{name}: {error}"))?;
        certificates.extend(map.data.unwrap_or_default().into_values());
    }
    let insecure = is_insecure(context, &url).await.map_err(|error| Chain(&error).to_string())?;
    let proxy = context.settings().proxy.unwrap_or_default();
    let proxies = [proxy.http_proxy, proxy.https_proxy, proxy.no_proxy];
    let proxies = proxies.map(|proxy| proxy.filter(|text| !text.is_empty()));
    context.digests.of(Image { url, login, certificates, insecure, proxies }).await
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
