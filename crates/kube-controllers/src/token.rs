//! Secrets of type kubernetes.io/service-account-token: filled with a token, gone with their account.

use std::sync::Arc;

use base64::Engine as _;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kit::controller::{self, During, Result};
use kit::queue::{self, Next};
use kit::store::Key;
use kube::api::{DeleteParams, PostParams};
use kube::{Resource, ResourceExt};
use serde_json::json;

use crate::context::Context;

const ACCOUNT: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
/// These tokens are for programs nobody renews them for: ten years, ended by deleting the secret.
const LIFETIME: i64 = 10 * 365 * 24 * 3600;

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let (secrets, accounts) = (ctx.store::<Secret>(), ctx.store::<ServiceAccount>());
    secrets.on_change({
        let queue = queue.clone();
        move |_, new| {
            if let Some(secret) = new {
                queue.add(Key::of(secret.as_ref()));
            }
        }
    });
    accounts.on_change({
        let (queue, secrets) = (queue.clone(), secrets.clone());
        move |old, new| {
            let Some(account) = new.or(old) else { return };
            for secret in secrets.in_namespace(&account.namespace().unwrap_or_default()) {
                if secret.annotations().get(ACCOUNT) == Some(&account.name_any()) {
                    queue.add(Key::of(secret.as_ref()));
                }
            }
        }
    });
    secrets.synced().await;
    accounts.synced().await;
    controller::work(&queue, "serviceaccount-token", 2, |key| reconcile(&ctx, key)).await;
}

async fn reconcile(ctx: &Context, key: Key) -> Result<Next> {
    let Some(secret) = ctx.store::<Secret>().get(&key).filter(|s| s.meta().deletion_timestamp.is_none()) else {
        return Ok(Next::Wait);
    };
    let Some(name) = secret.annotations().get(ACCOUNT) else { return Ok(Next::Wait) };
    let account = ctx.store::<ServiceAccount>().get(&Key::new(&key.namespace, name));
    let named = secret.annotations().get(ACCOUNT_UID);
    let Some(account) = account.filter(|account| named.is_none_or(|uid| Some(uid) == account.meta().uid.as_ref()))
    else {
        // A secret may be made a moment before its account; only one that had an account goes with it.
        if named.is_some() {
            ctx.delete("delete secret", secret.as_ref(), DeleteParams::default()).await?;
        }
        return Ok(Next::Wait);
    };
    let has =
        |field: &str| secret.data.as_ref().is_some_and(|data| data.get(field).is_some_and(|value| !value.0.is_empty()));
    if has("token") && has("ca.crt") && has("namespace") && named.is_some() {
        return Ok(Next::Wait);
    }
    let request = TokenRequest {
        spec: TokenRequestSpec {
            audiences: Vec::new(),
            expiration_seconds: Some(LIFETIME),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Secret".into()),
                name: secret.meta().name.clone(),
                uid: secret.meta().uid.clone(),
            }),
        },
        ..TokenRequest::default()
    };
    let api: kube::Api<ServiceAccount> = ctx.api(&key.namespace);
    let granted = api.create_token_request(&account.name_any(), &PostParams::default(), &request).await;
    let token = granted.during("request a token for serviceaccount", &key)?.status.map(|s| s.token).unwrap_or_default();
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let change = json!({
        "metadata": {"uid": secret.uid(), "annotations": {ACCOUNT_UID: account.uid()}},
        "data": {"token": encode(&token), "ca.crt": encode(&ctx.options.root_ca), "namespace": encode(&key.namespace)},
    });
    ctx.merge::<Secret>("fill secret", &key, &change).await?;
    Ok(Next::Wait)
}
