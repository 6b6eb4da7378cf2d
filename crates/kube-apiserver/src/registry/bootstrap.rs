//! The objects every cluster has from its first second.

use serde_json::{Value, json};

use super::strategy;
use crate::ApiServer;
use crate::error::ApiError;
use crate::store::{Key, WriteError};

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Creates what is missing.
pub(crate) async fn run(server: &ApiServer) -> Result<(), ApiError> {
    for name in NAMESPACES {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}});
        ensure(server, "", "namespaces", "", namespace).await?;
    }
    Ok(())
}

/// Creates an object unless it exists, as the server itself: no admission.
pub(crate) async fn ensure(server: &ApiServer, group: &str, plural: &str, namespace: &str, mut object: Value) -> Result<(), ApiError> {
    let registry = server.registry();
    let Some(resource) = registry.resources.iter().find(|r| r.group == group && r.plural == plural) else {
        return Err(ApiError::internal(format!("{plural} is not served")));
    };
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if server.store().get(&resource.storage_key(), namespace, &name).is_some() {
        return Ok(());
    }
    crate::rest::stamp_new(resource, &mut object, namespace);
    crate::schema::defaults::apply(&resource.schema, &mut object);
    strategy::defaults(resource, &mut object);
    strategy::prepare_create(server, resource, &mut object)?;
    match server.store().create(Key::new(&resource.storage_key(), namespace, &name), object).await {
        Ok(_) | Err(WriteError::Exists) => Ok(()),
        Err(error) => Err(ApiError::internal(format!("{plural} {name}: {error}"))),
    }
}
