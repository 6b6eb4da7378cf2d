//! The Node as the owner of what goes with it.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;

use crate::context::Context;
use crate::error::{Error, Result};

/// What goes with the Node object names it as its owner.
pub(crate) async fn owner(context: &Context) -> Result<OwnerReference> {
    let api: Api<Node> = Api::all(context.client.clone());
    let node = api.get(&context.config.node_name).await.map_err(Error::api("get node"))?;
    Ok(owned_by(&context.config.node_name, node.metadata.uid))
}

/// The Node of that name as an owner.
pub(crate) fn owned_by(node: &str, uid: Option<String>) -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.to_owned(),
        uid: uid.unwrap_or_default(),
        ..Default::default()
    }
}
