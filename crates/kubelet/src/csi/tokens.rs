//! Tokens of the pod's service account for drivers that act in its name.

use std::collections::BTreeMap;

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::api::storage::v1::TokenRequest as Wanted;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use crate::context::Context;
use crate::error::{Error, Result};

/// The attribute that holds them.
pub(crate) const ATTRIBUTE: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// One token for each audience, as the JSON that drivers read.
pub(crate) async fn request(context: &Context, pod: &Pod, wanted: &[Wanted]) -> Result<String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref()).unwrap_or("default");
    let api: Api<ServiceAccount> = Api::namespaced(context.client.clone(), namespace);
    let mut tokens = BTreeMap::new();
    for one in wanted {
        let spec = TokenRequestSpec {
            audiences: Some(one.audience.clone()).filter(|audience| !audience.is_empty()).into_iter().collect(),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Pod".into()),
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
            }),
            expiration_seconds: one.expiration_seconds,
        };
        let request = TokenRequest { spec, ..Default::default() };
        let issued = api.create_token_request(account, &PostParams::default(), &request).await;
        let issued = issued.map_err(Error::api(format!("request a token of serviceaccount {account:?}")))?;
        let none = || Error::Invalid(format!("the API server issued no token of serviceaccount {account:?}"));
        let status = issued.status.ok_or_else(none)?;
        let token = json!({"token": status.token, "expirationTimestamp": status.expiration_timestamp});
        tokens.insert(one.audience.clone(), token);
    }
    serde_json::to_string(&tokens).map_err(|error| Error::Invalid(error.to_string()))
}
