//! What this node says about itself: labels that VMIs select by, and a heartbeat by which virt-controller knows that
//! virt-handler lives.

use std::collections::BTreeMap;
use std::time::Duration;

use api::kubevirt::words::{annotation, label};
use k8s_openapi::api::core::v1::Node;
use kit::shutdown::CancellationToken;
use kit::{Chain, clock};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

/// Half of what virt-controller waits before it gives a node up would do; this leaves room for several lost beats.
const HEARTBEAT: Duration = Duration::from_secs(60);

/// Machine types of the QEMU in our launcher image.
const MACHINES: [&str; 5] = ["q35", "pc", "pc-q35-10.0", "pc-i440fx-10.0", "microvm"];

/// Labels of a node with these CPU flags. Pure.
pub(crate) fn labels(flags: &[String], vendor: &str, kvm: bool) -> BTreeMap<String, String> {
    let mut out = BTreeMap::from([(label::SCHEDULABLE.to_owned(), "true".to_owned())]);
    for machine in MACHINES {
        out.insert(format!("{}{machine}", label::MACHINE_TYPE_PREFIX), "true".to_owned());
    }
    let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    for flag in flags.iter().filter(|flag| !flag.is_empty() && flag.len() < 64 && flag.chars().all(name)) {
        let flag = flag.trim_matches(|c| c == '_' || c == '.' || c == '-');
        out.insert(format!("{}{flag}", label::CPU_FEATURE_PREFIX), "true".to_owned());
    }
    if !vendor.is_empty() {
        out.insert(format!("cpu-vendor.node.kubevirt.io/{vendor}"), "true".to_owned());
    }
    if kvm {
        // What libvirt can name only as the host's own model is still a model to ask for.
        out.insert(format!("{}host-passthrough", label::CPU_MODEL_PREFIX), "true".to_owned());
    }
    out
}

/// The `vendor_id` of /proc/cpuinfo as libvirt shortens it.
pub(crate) fn vendor(cpuinfo: &str) -> &'static str {
    let id = cpuinfo.lines().find_map(|line| line.strip_prefix("vendor_id")).unwrap_or_default();
    match id.trim_start_matches([' ', '\t', ':']).trim() {
        "GenuineIntel" => "Intel",
        "AuthenticAMD" => "AMD",
        _ => "",
    }
}

/// Labels the node and beats until `stop`; a clean end says that the node takes no more VMIs.
pub(crate) async fn keep(client: Client, node: String, labels: BTreeMap<String, String>, stop: CancellationToken) {
    let api: Api<Node> = Api::all(client);
    let mut first = true;
    let mut delay = Duration::ZERO;
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(delay) => {}
        }
        // Later beats repeat the one label that virt-controller takes away from a silent node.
        let said = if first { json!(labels) } else { json!({ label::SCHEDULABLE: "true" }) };
        let patch =
            json!({"metadata": {"labels": said, "annotations": {annotation::HEARTBEAT: clock::now().to_string()}}});
        match api.patch_metadata(&node, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(_) => (first, delay) = (false, HEARTBEAT),
            Err(error) => {
                tracing::info!(node, error = %Chain(&error), "the heartbeat was not written");
                delay = Duration::from_secs(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_valid_keys() {
        let flags = ["vmx", "sse4_1", "", "bad flag", "arch_perfmon"].map(str::to_owned);
        let labels = labels(&flags, "Intel", true);
        assert_eq!(labels.get("cpu-feature.node.kubevirt.io/sse4_1").map(String::as_str), Some("true"));
        assert!(labels.contains_key("machine-type.node.kubevirt.io/q35"));
        assert!(labels.contains_key("kubevirt.io/schedulable"));
        assert!(labels.keys().all(|key| !key.contains(' ')));
    }

    #[test]
    fn vendors() {
        assert_eq!(vendor("processor\t: 0\nvendor_id\t: GenuineIntel\n"), "Intel");
        assert_eq!(vendor("vendor_id\t: AuthenticAMD"), "AMD");
        assert_eq!(vendor(""), "");
    }
}
