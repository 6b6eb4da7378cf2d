//! The cluster's own CNI configuration, and ours, which comes before it. Pure.

use std::collections::BTreeSet;

use net::cni::Network;
use pod_networks::definition;
use serde_json::{Map, Value, json};

/// Our configuration's file: the container runtime takes the first by name.
pub(super) const OWN: &str = "00-multus.conf";
/// Our plugin.
pub(super) const SHIM: &str = "multus-shim";

/// The configuration by which the pods of a node have their own network, of `files`: names and texts.
///
/// # Errors
/// Why none of them is one.
pub(super) fn choose(files: &[(String, String)]) -> Result<Network, String> {
    let mut sorted: Vec<_> = files.iter().filter(|(name, _)| is_configuration(name) && name != OWN).collect();
    sorted.sort();
    let mut why = Vec::new();
    for (name, text) in sorted {
        match definition::chain(text, name) {
            // One of another Multus, or of an earlier life of ours by another name, would call us again.
            Ok(network) if network.plugins.iter().any(is_meta) => {
                why.push(format!("{name} is of a Multus itself"));
            }
            Ok(network) => return Ok(network),
            Err(error) => why.push(format!("{name}{error}")),
        }
    }
    let found = if why.is_empty() { "there is none".to_owned() } else { why.join("; ") };
    Err(format!("no CNI configuration of the cluster's own network is on the node: {found}"))
}

fn is_configuration(name: &str) -> bool {
    [".conf", ".conflist", ".json"].iter().any(|ending| name.ends_with(ending)) && !name.starts_with('.')
}

fn is_meta(plugin: &Value) -> bool {
    matches!(plugin["type"].as_str(), Some("multus" | SHIM))
}

/// Our configuration, which stands for `network`.
pub(super) fn own(network: &Network, socket: &str) -> String {
    let capabilities: BTreeSet<&String> = network
        .plugins
        .iter()
        .filter_map(|plugin| plugin["capabilities"].as_object())
        .flat_map(|all| all.iter().filter(|(_, on)| **on == true).map(|(name, _)| name))
        .collect();
    let capabilities: Map<String, Value> = capabilities.into_iter().map(|name| (name.clone(), json!(true))).collect();
    let version = if network.version.is_empty() { "0.3.1" } else { &network.version };
    let mut own = json!({ "cniVersion": version, "name": "multus-cni-network", "type": SHIM, "socket": socket });
    if !capabilities.is_empty() {
        own["capabilities"] = Value::Object(capabilities);
    }
    format!("{own:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> (String, String) {
        (name.to_owned(), text.to_owned())
    }

    #[test]
    fn the_first_configuration_that_is_not_ours_counts() {
        let files = [
            file("20-b.conf", r#"{"type": "ptp"}"#),
            file("00-multus.conf", r#"{"type": "multus-shim"}"#),
            file("10-a.conflist", r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}]}"#),
            file("05-old.conf", r#"{"type": "multus"}"#),
            file("01-broken.conf", "{"),
            file("00-note.txt", "{}"),
        ];
        let network = choose(&files).unwrap();
        assert_eq!((network.name.as_str(), network.version.as_str()), ("pods", "1.0.0"));
        let why = choose(&files[3..]).unwrap_err();
        assert!(why.contains("05-old.conf is of a Multus") && why.contains("01-broken.conf is not JSON"), "{why}");
        assert!(choose(&[]).unwrap_err().ends_with("there is none"));
    }

    #[test]
    fn our_configuration_has_what_the_clusters_can() {
        let text = r#"{"cniVersion": "0.4.0", "plugins": [{"type": "a", "capabilities": {"portMappings": true, "mac": false}},
            {"type": "b", "capabilities": {"bandwidth": true}}]}"#;
        let own: Value = serde_json::from_str(&own(&choose(&[file("1.conf", text)]).unwrap(), "/run/s")).unwrap();
        assert_eq!(own["capabilities"], json!({ "portMappings": true, "bandwidth": true }));
        assert_eq!(
            (&own["cniVersion"], &own["type"], &own["socket"]),
            (&json!("0.4.0"), &json!(SHIM), &json!("/run/s"))
        );
    }
}
