//! Waiting for the cluster to attach a volume to this node.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::runtime::wait::await_condition;

use crate::context::Context;
use crate::drivers::request::Volume;
use crate::error::{Error, Result};

/// How long one try waits; the pod can be deleted in between, and is told what it waits for.
const PATIENCE: Duration = Duration::from_secs(8);

/// What the attachment tells the driver on the node.
pub(crate) async fn wait(context: &Context, volume: &Volume) -> Result<HashMap<String, String>> {
    let name = volume.attachment(&context.config.node_name);
    let api: Api<VolumeAttachment> = Api::all(context.client.clone());
    let waiting = tokio::time::timeout(PATIENCE, await_condition(api.clone(), &name, is_attached)).await;
    let last = match waiting {
        Ok(Ok(attachment)) => attachment,
        Ok(Err(error)) => return Err(Error::Invalid(format!("volumeattachment {name:?}: {}", kit::Chain(&error)))),
        Err(_) => api.get_opt(&name).await.map_err(Error::api(format!("get volumeattachment {name:?}")))?,
    };
    let status = last.as_ref().and_then(|attachment| attachment.status.as_ref());
    if last.as_ref().is_some_and(|attachment| is_attached(Some(attachment))) {
        return Ok(status.and_then(|s| s.attachment_metadata.clone()).into_iter().flatten().collect());
    }
    let refusal = status.and_then(|status| status.attach_error.as_ref()?.message.clone());
    Err(Error::Invalid(match (refusal, &last) {
        (Some(refusal), _) => refusal,
        (None, None) => format!("volume attachment {name} is not there yet"),
        (None, Some(_)) => format!(
            "timed out waiting for external-attacher of {} CSI driver to attach volume {}",
            volume.driver, volume.handle
        ),
    }))
}

/// One that is being deleted is as good as detached.
fn is_attached(attachment: Option<&VolumeAttachment>) -> bool {
    attachment.is_some_and(|attachment| {
        attachment.metadata.deletion_timestamp.is_none()
            && attachment.status.as_ref().is_some_and(|status| status.attached)
    })
}
