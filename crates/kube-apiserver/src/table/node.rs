//! The node row.

use serde_json::Value;

use super::view::{NONE, View};

const ROLE: &str = "node-role.kubernetes.io/";

pub(super) fn row(view: View<'_>) -> Vec<Value> {
    let ready = view.list("/status/conditions").iter().find(|c| c["type"] == "Ready");
    let mut status = match ready.map(|c| c["status"] == "True") {
        Some(true) => "Ready",
        Some(false) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if view.at("/spec/unschedulable") == true {
        status.push_str(",SchedulingDisabled");
    }
    let address = |type_: &str| {
        let found = view.list("/status/addresses").iter().find(|a| a["type"] == type_);
        found.map_or(NONE.into(), |a| a["address"].clone())
    };
    vec![
        view.name(),
        status.into(),
        roles(view).into(),
        view.age(),
        view.at("/status/nodeInfo/kubeletVersion").clone(),
        address("InternalIP"),
        address("ExternalIP"),
        view.or_none("/status/nodeInfo/osImage"),
        view.or_none("/status/nodeInfo/kernelVersion"),
        view.or_none("/status/nodeInfo/containerRuntimeVersion"),
    ]
}

fn roles(view: View<'_>) -> String {
    let labels = view.at("/metadata/labels").as_object();
    let mut roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| {
            let role = if key == "kubernetes.io/role" { value.as_str() } else { key.strip_prefix(ROLE) };
            role.filter(|role| !role.is_empty())
        })
        .collect();
    roles.sort_unstable();
    if roles.is_empty() { NONE.to_owned() } else { roles.join(",") }
}
