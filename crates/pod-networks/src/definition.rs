//! Pure: from the configuration in a NetworkAttachmentDefinition to the chain of plugins to run.

use net::cni::Network;
use serde_json::{Map, Value, json};

/// Reads `spec.config` of `namespace/name`: one plugin, or a list of them. The error is a sentence for its author.
pub fn parse(config: &str, namespace: &str, name: &str) -> Result<Network, String> {
    let refuse = |what: String| format!("network-attachment-definition {namespace}/{name}: {what}");
    if config.trim().is_empty() {
        let what = "spec.config is empty: write a CNI configuration there, such as \
                    {\"cniVersion\": \"1.0.0\", \"type\": \"bridge\", \"bridge\": \"br1\"}";
        return Err(refuse(what.to_owned()));
    }
    chain(config, name).map_err(|what| refuse(format!("spec.config{what}")))
}

/// Reads a CNI configuration, which is called `name` where it does not say. The error continues the name of what was read.
pub fn chain(config: &str, name: &str) -> Result<Network, String> {
    let parsed: Value = serde_json::from_str(config).map_err(|error| format!(" is not JSON: {error}"))?;
    let Some(object) = parsed.as_object() else { return Err(" is not a JSON object".to_owned()) };
    let text = |key: &str| object.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let mut plugins = match object.get("plugins") {
        None => vec![parsed.clone()],
        Some(Value::Array(list)) if !list.is_empty() => list.clone(),
        Some(_) => return Err(": plugins is not a list with a plugin in it".to_owned()),
    };
    for plugin in &mut plugins {
        // The runtime's own, which says what plugins are to believe: devices, addresses, ports.
        if let Some(plugin) = plugin.as_object_mut() {
            plugin.remove("runtimeConfig");
        }
        if plugin["type"].as_str().is_none_or(str::is_empty) {
            return Err(": a plugin has no type".to_owned());
        }
    }
    Ok(Network {
        name: text("name").unwrap_or(name).to_owned(),
        version: text("cniVersion").unwrap_or_default().to_owned(),
        plugins,
    })
}

/// Whether addresses on the network of `config`, which [`parse`] has read, may outlive pods.
pub(crate) fn persists(config: &str) -> bool {
    let parsed: Value = serde_json::from_str(config).unwrap_or_default();
    let plugins = parsed["plugins"].as_array().into_iter().flatten();
    std::iter::once(&parsed).chain(plugins).any(|section| section["allowPersistentIPs"] == true)
}

/// Gives the plugins what the pod's annotation has for them (`args.cni`).
pub fn add_arguments(network: &mut Network, arguments: &Map<String, Value>) {
    for plugin in network.plugins.iter_mut().filter(|_| !arguments.is_empty()) {
        for (name, value) in arguments {
            if !plugin["args"].is_object() {
                plugin["args"] = json!({});
            }
            if !plugin["args"]["cni"].is_object() {
                plugin["args"]["cni"] = json!({});
            }
            plugin["args"]["cni"][name] = value.clone();
        }
    }
}

/// The bridge of a network that is a plain segment, the same one on every node. One with a gateway on the node itself is the
/// node's own.
pub fn open_bridge(network: &Network) -> Option<&str> {
    let plugin = network.plugins.first()?;
    if !matches!(plugin["type"].as_str(), Some("bridge" | "cnv-bridge")) {
        return None;
    }
    let own = ["isGateway", "isDefaultGateway", "ipMasq"].iter().any(|key| plugin[*key] == true);
    let bridge = plugin["bridge"].as_str().filter(|name| !name.is_empty())?;
    (!own).then_some(bridge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_plugin_or_a_list() {
        let one = parse(r#"{"cniVersion": "0.3.1", "type": "bridge", "bridge": "br1"}"#, "ns", "red").unwrap();
        assert_eq!((one.name.as_str(), one.version.as_str(), one.plugins.len()), ("red", "0.3.1", 1));
        assert_eq!(open_bridge(&one), Some("br1"));
        let list = r#"{"name": "blue", "plugins": [{"type": "cnv-bridge", "bridge": "br2"}, {"type": "tuning"}]}"#;
        let mut list = parse(list, "ns", "red").unwrap();
        assert_eq!((list.name.as_str(), list.version.as_str(), list.plugins.len()), ("blue", "", 2));
        assert_eq!(open_bridge(&list), Some("br2"));
        add_arguments(&mut list, json!({"k": "v"}).as_object().unwrap());
        assert_eq!(list.plugins[1], json!({"type": "tuning", "args": {"cni": {"k": "v"}}}));
    }

    #[test]
    fn what_is_the_runtimes_to_say_is_not_the_authors() {
        let config = r#"{"plugins": [{"type": "macvtap", "mtu": 9, "runtimeConfig": {"deviceID": "another's"}}]}"#;
        assert_eq!(parse(config, "ns", "red").unwrap().plugins, [json!({"type": "macvtap", "mtu": 9})]);
    }

    #[test]
    fn addresses_outlive_pods_where_it_is_said() {
        assert!(persists(r#"{"type": "bridge", "allowPersistentIPs": true}"#));
        assert!(persists(r#"{"plugins": [{"type": "bridge", "allowPersistentIPs": true}]}"#));
        assert!(!persists(r#"{"type": "bridge"}"#) && !persists(r#"{"allowPersistentIPs": "true"}"#) && !persists("{"));
    }

    #[test]
    fn bridges_that_stay_on_their_node() {
        let check = |more: &str| {
            let config = format!(r#"{{"type": "bridge", {more}}}"#);
            assert_eq!(open_bridge(&parse(&config, "ns", "red").unwrap()), None, "{more}");
        };
        check(r#""bridge": "br1", "isGateway": true"#);
        check(r#""bridge": "br1", "ipMasq": true"#);
        check(r#""mtu": 1500"#);
        let other = parse(r#"{"type": "macvlan", "bridge": "br1"}"#, "ns", "red").unwrap();
        assert_eq!(open_bridge(&other), None);
    }

    #[test]
    fn invalid_definitions_are_refused_by_name() {
        let check = |config: &str, words: &str| {
            let why = parse(config, "ns", "red").unwrap_err();
            assert!(why.starts_with("network-attachment-definition ns/red: ") && why.contains(words), "{why}");
        };
        check(" ", "spec.config is empty");
        check("{", "is not JSON");
        check("[]", "is not a JSON object");
        check(r#"{"plugins": []}"#, "plugins is not a list with a plugin in it");
        check(r#"{"plugins": [{}]}"#, "a plugin has no type");
    }
}
