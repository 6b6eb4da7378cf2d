//! What the configuration in a NetworkAttachmentDefinition says of addresses. Pure.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A network that pods can join beside their own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NetworkAttachmentDefinition {
    /// Name and the like.
    pub metadata: ObjectMeta,
    /// How it is joined.
    #[serde(default)]
    pub spec: DefinitionSpec,
}

/// How a network is joined.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefinitionSpec {
    /// A CNI configuration, in JSON.
    #[serde(default)]
    pub config: String,
}

meta::kind!(
    NetworkAttachmentDefinition,
    "k8s.cni.cncf.io",
    "v1",
    "network-attachment-definitions",
    NamespaceResourceScope
);

/// What counts of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// The network's name.
    pub name: String,
    /// Whether addresses on it may outlive pods.
    pub persists: bool,
    /// Whether it takes the place of the pod's own network.
    pub primary: bool,
    /// Its ranges, where it names any.
    pub subnets: Vec<IpNet>,
}

/// The field that says whether addresses outlive pods.
const PERSISTS: &str = "allowPersistentIPs";

impl Network {
    /// Reads a definition. One whose configuration is no JSON object is no network at all, which is for whoever attaches pods to say.
    ///
    /// # Errors
    /// A sentence for its author, when a field that counts here is not what it has to be.
    pub fn of(definition: &NetworkAttachmentDefinition) -> Result<Network, String> {
        let config: Value = serde_json::from_str(&definition.spec.config).unwrap_or_default();
        let own = definition.name_any();
        let name = config["name"].as_str().filter(|name| !name.is_empty()).unwrap_or(&own).to_owned();
        let plugins = config["plugins"].as_array().into_iter().flatten();
        let mut persists = false;
        for section in std::iter::once(&config).chain(plugins) {
            match &section[PERSISTS] {
                Value::Null => {}
                Value::Bool(said) => persists |= said,
                other => {
                    let shown = meta::text::brief(&other.to_string(), 32).into_owned();
                    let namespace = definition.namespace().unwrap_or_default();
                    return Err(format!(
                        "network-attachment-definition {namespace}/{own}: {PERSISTS} in spec.config is {shown}: write true or false"
                    ));
                }
            }
        }
        let subnets = config["subnets"].as_str().unwrap_or_default().split(',');
        // The third part of a range is the size of each node's share.
        let range = |text: &str| text.trim().splitn(3, '/').take(2).collect::<Vec<_>>().join("/").parse().ok();
        Ok(Network {
            name,
            persists,
            primary: config["role"] == "primary",
            subnets: subnets.filter_map(range).collect(),
        })
    }

    /// `text`, an address, with the length of the prefix that the network has for it.
    ///
    /// # Errors
    /// A sentence for whoever asks for it.
    pub fn prefixed(&self, text: &str) -> Result<String, String> {
        if let Ok(net) = text.parse::<IpNet>() {
            return Ok(net.to_string());
        }
        let address: IpAddr = text.parse().map_err(|_| {
            format!("{:?} is no address: write one as 192.0.2.7 or 192.0.2.7/24", meta::text::brief(text, 64))
        })?;
        let range = self.subnets.iter().find(|range| range.contains(&address));
        let range = range.ok_or_else(|| format!("{address} is in no range of the network {}", self.name))?;
        Ok(format!("{address}/{}", range.prefix_len()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(config: &str) -> Result<Network, String> {
        let definition = json!({ "metadata": { "name": "nad", "namespace": "ns" }, "spec": { "config": config } });
        Network::of(&serde_json::from_value(definition).unwrap())
    }

    #[track_caller]
    fn check(config: &str, name: &str, persists: bool, primary: bool) {
        let found = of(config).unwrap();
        assert_eq!((found.name.as_str(), found.persists, found.primary), (name, persists, primary));
    }

    #[test]
    fn addresses_persist_where_the_configuration_says_so() {
        check(r#"{"type": "bridge"}"#, "nad", false, false);
        check(r#"{"name": "net", "allowPersistentIPs": true}"#, "net", true, false);
        check(r#"{"name": "net", "allowPersistentIPs": false}"#, "net", false, false);
        check(r#"{"name": "net", "plugins": [{"type": "bridge", "allowPersistentIPs": true}]}"#, "net", true, false);
        check(r#"{"name": "net", "role": "primary", "allowPersistentIPs": true}"#, "net", true, true);
        for nothing in ["", "{", "[]", "3"] {
            check(nothing, "nad", false, false);
        }
        let refused = of(r#"{"allowPersistentIPs": "yes"}"#).unwrap_err();
        assert!(
            refused.contains("ns/nad: allowPersistentIPs in spec.config is \"yes\": write true or false"),
            "{refused}"
        );
    }

    #[test]
    fn an_address_gets_the_prefix_of_its_network() {
        let network = of(r#"{"subnets": "10.0.0.0/16, fd00::/48/64"}"#).unwrap();
        assert_eq!(network.prefixed("10.0.3.4").as_deref(), Ok("10.0.3.4/16"));
        assert_eq!(network.prefixed("fd00::4").as_deref(), Ok("fd00::4/48"));
        assert_eq!(network.prefixed("192.0.2.4/24").as_deref(), Ok("192.0.2.4/24"));
        assert!(network.prefixed("192.0.2.4").unwrap_err().contains("in no range"));
        assert!(network.prefixed("x").unwrap_err().contains("no address"));
    }
}
