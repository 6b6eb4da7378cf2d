//! The conditions that a kubelet reports of its node. Pure.

use k8s_openapi::api::core::v1::Node;

/// The state of a condition, `Unknown` when it was never reported.
pub(crate) fn state<'a>(node: &'a Node, type_: &str) -> &'a str {
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.into_iter().find(|c| c.type_ == type_).map_or("Unknown", |c| &c.status)
}
