//! What goes into configMap, secret, downwardAPI and projected volumes.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, DownwardAPIVolumeFile, KeyToPath, Pod, PodSpec, Secret, ServiceAccount,
    ServiceAccountTokenProjection, Volume,
};
use kube::Api;
use kube::api::PostParams;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::fields;
use crate::volumes::files::{self, Entry, Payload};

/// Data of a ConfigMap or Secret.
type Data = BTreeMap<String, Vec<u8>>;

/// Everything the volume shall hold. Missing required sources are errors.
pub(crate) async fn gather(
    context: &Context,
    pod: &Pod,
    volume: &Volume,
    place: &Path,
    ips: &[String],
) -> Result<Payload> {
    let mut payload = Payload::new();
    if let Some(source) = &volume.config_map {
        let data = config_map(context, pod, &source.name, source.optional).await?;
        let mode = source.default_mode;
        select(&mut payload, &data, &source.items, mode, source.optional, &format!("configmap {:?}", source.name))?;
    } else if let Some(source) = &volume.secret {
        let name = source.secret_name.as_deref().unwrap_or_default();
        let data = secret(context, pod, name, source.optional).await?;
        select(&mut payload, &data, &source.items, source.default_mode, source.optional, &format!("secret {name:?}"))?;
    } else if let Some(source) = &volume.downward_api {
        downward(context, &mut payload, pod, source.items.as_deref().unwrap_or_default(), source.default_mode, ips)?;
    } else if let Some(source) = &volume.projected {
        for part in source.sources.iter().flatten() {
            if let Some(part) = &part.config_map {
                let data = config_map(context, pod, &part.name, part.optional).await?;
                let mode = source.default_mode;
                select(&mut payload, &data, &part.items, mode, part.optional, &format!("configmap {:?}", part.name))?;
            } else if let Some(part) = &part.secret {
                let data = secret(context, pod, &part.name, part.optional).await?;
                let mode = source.default_mode;
                select(&mut payload, &data, &part.items, mode, part.optional, &format!("secret {:?}", part.name))?;
            } else if let Some(part) = &part.downward_api {
                downward(
                    context,
                    &mut payload,
                    pod,
                    part.items.as_deref().unwrap_or_default(),
                    source.default_mode,
                    ips,
                )?;
            } else if let Some(part) = &part.service_account_token {
                let entry = token(context, pod, part, place, source.default_mode).await?;
                payload.insert(part.path.clone(), entry);
            } else {
                return Err(Error::Invalid("a projected source is not supported on this node".to_owned()));
            }
        }
    }
    Ok(payload)
}

async fn config_map(context: &Context, pod: &Pod, name: &str, optional: Option<bool>) -> Result<Data> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), namespace);
    match api.get_opt(name).await.map_err(Error::api(format!("get configmap {name:?}")))? {
        Some(found) => {
            let text = found.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.into_bytes()));
            Ok(text
                .chain(found.binary_data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)))
                .collect())
        }
        None if optional == Some(true) => Ok(Data::new()),
        None => Err(Error::Invalid(format!("configmap {name:?} not found"))),
    }
}

async fn secret(context: &Context, pod: &Pod, name: &str, optional: Option<bool>) -> Result<Data> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let api: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    match api.get_opt(name).await.map_err(Error::api(format!("get secret {name:?}")))? {
        Some(found) => Ok(found.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect()),
        None if optional == Some(true) => Ok(Data::new()),
        None => Err(Error::Invalid(format!("secret {name:?} not found"))),
    }
}

fn select(
    payload: &mut Payload,
    data: &Data,
    items: &Option<Vec<KeyToPath>>,
    default_mode: Option<i32>,
    optional: Option<bool>,
    what: &str,
) -> Result<()> {
    let Some(items) = items.as_ref().filter(|items| !items.is_empty()) else {
        let all = data.iter().map(|(key, data)| (key.clone(), entry(data.clone(), default_mode)));
        payload.extend(all);
        return Ok(());
    };
    for item in items {
        match data.get(&item.key) {
            Some(found) => {
                payload.insert(item.path.clone(), entry(found.clone(), item.mode.or(default_mode)));
            }
            None if optional == Some(true) => {}
            None => return Err(Error::Invalid(format!("{what} references non-existent key: {}", item.key))),
        }
    }
    Ok(())
}

fn entry(data: Vec<u8>, mode: Option<i32>) -> Entry {
    Entry { data, mode: mode.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(0o644), owner: None }
}

fn downward(
    context: &Context,
    payload: &mut Payload,
    pod: &Pod,
    items: &[DownwardAPIVolumeFile],
    default_mode: Option<i32>,
    ips: &[String],
) -> Result<()> {
    for item in items {
        let text = if let Some(field) = &item.field_ref {
            fields::field(pod, &field.field_path, ips, &context.node_ips())
                .ok_or_else(|| Error::Invalid(format!("unsupported fieldPath: {}", field.field_path)))?
        } else if let Some(resource) = &item.resource_field_ref {
            let divisor =
                resource.divisor.as_ref().and_then(crate::resources::milli).filter(|d| *d > 0).unwrap_or(1000);
            let wanted = resource.container_name.as_deref().unwrap_or_default();
            let spec = pod.spec.as_ref();
            let all = spec.into_iter().flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
            let container = all.into_iter().find(|c| c.name == wanted);
            container
                .and_then(|container| fields::resource(container, &resource.resource, divisor, &context.amounts))
                .ok_or_else(|| Error::Invalid(format!("container {wanted:?}: no resource {}", resource.resource)))?
        } else {
            String::new()
        };
        payload.insert(item.path.clone(), entry(text.into_bytes(), item.mode.or(default_mode)));
    }
    Ok(())
}

/// A token of the pod's service account; the one in place is kept until four fifths of its life are over.
async fn token(
    context: &Context,
    pod: &Pod,
    source: &ServiceAccountTokenProjection,
    place: &Path,
    default_mode: Option<i32>,
) -> Result<Entry> {
    let empty = Default::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    // Readable by the one user, or by the group, else by all.
    let user = only_user(spec).and_then(|uid| u32::try_from(uid).ok());
    let restricted = user.is_some() || spec.security_context.as_ref().is_some_and(|s| s.fs_group.is_some());
    let mode = if restricted { 0o600 } else { default_mode.and_then(|m| u32::try_from(m).ok()).unwrap_or(0o644) };
    let finish = |data: Vec<u8>| Entry { data, mode, owner: user };
    let now = kit::clock::now().as_second();
    if let Some(current) = files::read(place).and_then(|mut all| all.remove(&source.path))
        && is_fresh(&current, now)
    {
        return Ok(finish(current));
    }
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let account = spec.service_account_name.as_deref().filter(|name| !name.is_empty()).unwrap_or("default");
    let request = TokenRequest {
        spec: TokenRequestSpec {
            audiences: source.audience.clone().into_iter().collect(),
            expiration_seconds: Some(source.expiration_seconds.unwrap_or(3600)),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Pod".into()),
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
            }),
        },
        ..Default::default()
    };
    let api: Api<ServiceAccount> = Api::namespaced(context.client.clone(), namespace);
    let reply: TokenRequest = api
        .create_subresource("token", account, &PostParams::default(), &request)
        .await
        .map_err(Error::api(format!("request a token of service account {account:?}")))?;
    Ok(finish(reply.status.map(|status| status.token).unwrap_or_default().into_bytes()))
}

/// The user that every container of the pod is to run as, when it is one and the same.
fn only_user(spec: &PodSpec) -> Option<i64> {
    let common = spec.security_context.as_ref().and_then(|context| context.run_as_user);
    let own = |c: &Container| c.security_context.as_ref().and_then(|context| context.run_as_user).or(common);
    let mut users = spec.init_containers.iter().flatten().chain(&spec.containers).map(own);
    let first = users.next()??;
    users.all(|user| user == Some(first)).then_some(first)
}

/// True while less than four fifths of the token's life, and less than a day, are over.
fn is_fresh(token: &[u8], now: i64) -> bool {
    #[derive(serde::Deserialize)]
    struct Claims {
        exp: i64,
        iat: i64,
    }
    let claims = token.split(|byte| *byte == b'.').nth(1);
    let decoded = claims.and_then(|part| base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(part).ok());
    let Some(Claims { exp, iat }) = decoded.and_then(|json| serde_json::from_slice(&json).ok()) else { return false };
    now < iat + (exp - iat) / 5 * 4 && now < iat + 86_400
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_belongs_to_the_only_user() {
        let check = |security: serde_json::Value, containers: serde_json::Value, expect| {
            let spec: PodSpec =
                serde_json::from_value(json!({"securityContext": security, "containers": containers})).unwrap();
            assert_eq!(only_user(&spec), expect);
        };
        let as_user = |user: i64| json!({"name": "c", "securityContext": {"runAsUser": user}});
        check(json!({}), json!([{"name": "c"}]), None);
        check(json!({"runAsUser": 1}), json!([{"name": "c"}]), Some(1));
        check(json!({}), json!([as_user(2), as_user(2)]), Some(2));
        check(json!({"runAsUser": 1}), json!([as_user(2), {"name": "d"}]), None);
        check(json!({}), json!([as_user(2), {"name": "d"}]), None);
    }

    #[test]
    fn tokens_age() {
        let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(r#"{"iat":1000,"exp":2000}"#);
        let token = format!("h.{claims}.s");
        assert!(is_fresh(token.as_bytes(), 1700));
        assert!(!is_fresh(token.as_bytes(), 1800));
        assert!(!is_fresh(b"rubbish", 0));
    }

    #[test]
    fn keys_and_modes() {
        let data = Data::from([("a".to_owned(), b"1".to_vec()), ("b".to_owned(), b"2".to_vec())]);
        let mut payload = Payload::new();
        select(&mut payload, &data, &None, Some(0o400), None, "x").unwrap();
        assert_eq!(payload.len(), 2);
        assert_eq!(payload["a"].mode, 0o400);
        let items = Some(vec![KeyToPath { key: "c".into(), path: "p".into(), mode: None }]);
        let error = select(&mut payload, &data, &items, None, None, "secret \"s\"").unwrap_err();
        assert_eq!(error.to_string(), "secret \"s\" references non-existent key: c");
        select(&mut payload, &data, &items, None, Some(true), "x").unwrap();
    }
}
