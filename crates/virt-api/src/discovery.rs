//! Discovery documents of the group.

use serde_json::{Value, json};

use crate::path::{GROUP, VERSIONS};

/// Of machines: the subresource and its verb.
pub(crate) const MACHINE: &[(&str, &str)] = &[
    ("start", "update"),
    ("stop", "update"),
    ("restart", "update"),
    ("migrate", "update"),
    ("addvolume", "update"),
    ("removevolume", "update"),
    ("memorydump", "update"),
    ("removememorydump", "update"),
    ("evacuate/cancel", "update"),
    ("expand-spec", "get"),
    ("portforward", "get"),
];

/// Of instances.
pub(crate) const INSTANCE: &[(&str, &str)] = &[
    ("console", "get"),
    ("vnc", "get"),
    ("vnc/screenshot", "get"),
    ("portforward", "get"),
    ("pause", "update"),
    ("unpause", "update"),
    ("softreboot", "update"),
    ("reset", "update"),
    ("freeze", "update"),
    ("unfreeze", "update"),
    ("backup", "update"),
    ("redefine-checkpoint", "update"),
    ("addvolume", "update"),
    ("removevolume", "update"),
    ("evacuate/cancel", "update"),
    ("guestosinfo", "get"),
    ("userlist", "get"),
    ("filesystemlist", "get"),
];

/// `/apis/subresources.kubevirt.io`.
pub fn group() -> Value {
    let version = |version: &str| json!({ "groupVersion": format!("{GROUP}/{version}"), "version": version });
    json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": GROUP,
        "versions": VERSIONS.map(version), "preferredVersion": version(VERSIONS[0]),
    })
}

/// `/apis`.
pub fn groups() -> Value {
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [group(), crate::template::group()] })
}

/// `/apis/subresources.kubevirt.io/VERSION`.
pub fn resources(version: &str) -> Value {
    let one = |name: String, namespaced: bool, verb: &str| json!({ "name": name, "singularName": "", "namespaced": namespaced, "kind": "", "verbs": [verb] });
    let machines = MACHINE.iter().map(|(name, verb)| one(format!("virtualmachines/{name}"), true, verb));
    let instances = INSTANCE.iter().map(|(name, verb)| one(format!("virtualmachineinstances/{name}"), true, verb));
    let rest = [
        one("expand-vm-spec".to_owned(), true, "update"),
        one("version".to_owned(), false, "get"),
        one("guestfs".to_owned(), false, "get"),
        one("healthz".to_owned(), false, "get"),
    ];
    let all: Vec<Value> = machines.chain(instances).chain(rest).collect();
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/{version}"), "resources": all,
    })
}
