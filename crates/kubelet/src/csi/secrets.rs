//! Secrets that a PersistentVolume or a pod names for its driver.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use crate::context::Context;
use crate::drivers::request::SecretName;
use crate::error::{Error, Result};

/// The secret's data; none when none is named.
pub(crate) async fn read(context: &Context, secret: Option<&SecretName>) -> Result<HashMap<String, String>> {
    let Some((namespace, name)) = secret else { return Ok(HashMap::new()) };
    let api: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    let found = api.get(name).await.map_err(Error::api(format!("get secret {namespace}/{name}")))?;
    let mut data = HashMap::new();
    for (key, value) in found.data.unwrap_or_default() {
        let text = String::from_utf8(value.0)
            .map_err(|_| Error::Invalid(format!("secret {namespace}/{name}: {key} is not text, as CSI wants it")))?;
        data.insert(key, text);
    }
    Ok(data)
}
