//! The network namespace of a sandbox, as the runtime tells it.

use std::path::{Path, PathBuf};

use rpc::cri::PodSandboxState;

use crate::error::{Error, Result};
use crate::runtime::Runtime;

/// That of the pod's running sandbox.
pub(crate) async fn of_pod(runtime: &Runtime, uid: &str) -> Result<PathBuf> {
    let sandboxes = runtime.sandboxes(Some(uid)).await?;
    let ready = sandboxes.into_iter().find(|sandbox| sandbox.state == PodSandboxState::SandboxReady as i32);
    let Some(sandbox) = ready else { return Err(Error::Invalid("the pod has no running sandbox".into())) };
    of_sandbox(runtime, &sandbox.id).await
}

/// That of the sandbox with this id.
pub(crate) async fn of_sandbox(runtime: &Runtime, id: &str) -> Result<PathBuf> {
    let info = runtime.sandbox_status(id, true).await?.info.remove("info").unwrap_or_default();
    parse(&info).ok_or_else(|| Error::Invalid("the runtime does not tell the pod's network namespace".into()))
}

fn parse(info: &str) -> Option<PathBuf> {
    let info: serde_json::Value = serde_json::from_str(info).ok()?;
    let namespaces = info.pointer("/runtimeSpec/linux/namespaces")?.as_array()?;
    let network = namespaces.iter().find(|namespace| namespace["type"] == "network")?;
    match network["path"].as_str() {
        Some(path) if !path.is_empty() => Some(Path::new(path).to_path_buf()),
        _ => Some(format!("/proc/{}/ns/net", info["pid"].as_u64()?).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_namespaces() {
        let info = r#"{"pid":7,"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/var/run/netns/cni-1"}]}}}"#;
        assert_eq!(parse(info), Some("/var/run/netns/cni-1".into()));
        let info = r#"{"pid":7,"runtimeSpec":{"linux":{"namespaces":[{"type":"network"}]}}}"#;
        assert_eq!(parse(info), Some("/proc/7/ns/net".into()));
        assert_eq!(parse("{}"), None);
    }
}
