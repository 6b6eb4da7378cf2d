//! Has the agent of a guest's node lend the guest's disks to the server of a backup.

use api::backup::v1alpha1::BackupOptions;
use k8s_openapi::api::core::v1::Pod;
use kit::store::Key;
use kube::ResourceExt;
use serde_json::json;

use super::source::Pulled;
use crate::backup::plan::PULL;
use crate::backup::subresource;
use crate::context::Context;
use crate::error::Error;

/// Asks for it. What was lent before, the server lets go of; what is not this server's, it refuses.
pub(super) async fn lend(context: &Context, pulled: &Pulled, pod: &Pod) -> Result<(), Error> {
    let namespace = pod.namespace().unwrap_or_default();
    let Some(vmi) = context.stores.vmis.get(&Key::new(namespace.as_str(), pulled.machine.as_str())) else {
        return Ok(());
    };
    let options = BackupOptions {
        cmd: Some("Export".to_owned()),
        mode: Some(PULL.to_owned()),
        backup_name: Some(pulled.backup.clone()),
        backup_start_time: Some(pulled.started.clone()),
        // The way is a socket in the pod: an address it has not.
        export_server_addr: pod.uid(),
        ..BackupOptions::default()
    };
    subresource(context, &vmi, "backup", &json!(options)).await
}
