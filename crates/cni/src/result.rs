//! Results of plugins, in every version of the specification. Pure.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::Error;

/// The versions that are spoken, oldest first.
pub(crate) const SUPPORTED: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// What was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Answer {
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) ips: Vec<Address>,
    pub(crate) routes: Vec<Route>,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub(crate) dns: Value,
}

/// An interface: with a sandbox it is the container's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Interface {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) mac: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mtu: Option<u32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) sandbox: String,
}

/// An address with the length of its network's prefix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Address {
    pub(crate) address: IpNet,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gateway: Option<IpAddr>,
    /// Index of its interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) interface: Option<usize>,
}

/// A route of the container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Route {
    pub(crate) dst: IpNet,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gw: Option<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mtu: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) advmss: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) priority: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) table: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) scope: Option<u8>,
}

impl Route {
    /// To `dst` by `gw`.
    pub(crate) fn new(dst: IpNet, gw: Option<IpAddr>) -> Self {
        Route { dst, gw, mtu: None, advmss: None, priority: None, table: None, scope: None }
    }
}

impl Answer {
    /// Reads a result of any version.
    pub(crate) fn read(value: &Value) -> Result<Self, Error> {
        if value.get("ip4").is_none() && value.get("ip6").is_none() {
            return serde_json::from_value(value.clone()).map_err(Error::Decode);
        }
        let mut answer = Answer { dns: value["dns"].clone(), ..Answer::default() };
        for family in ["ip4", "ip6"].into_iter().filter_map(|family| value.get(family)) {
            let address = json!({ "address": family["ip"], "gateway": family["gateway"] });
            answer.ips.push(serde_json::from_value(address).map_err(Error::Decode)?);
            if let Some(routes) = family.get("routes").filter(|routes| !routes.is_null()) {
                answer.routes.extend(serde_json::from_value::<Vec<Route>>(routes.clone()).map_err(Error::Decode)?);
            }
        }
        Ok(answer)
    }

    /// As `version` writes it.
    pub(crate) fn write(&self, version: &str) -> Value {
        if matches!(version, "0.1.0" | "0.2.0") {
            return self.write_first(version);
        }
        let mut out = serde_json::to_value(self).unwrap_or_default();
        out["cniVersion"] = json!(version);
        if out["dns"].is_null() {
            out["dns"] = json!({});
        }
        let old = version.starts_with("0.");
        for (written, address) in out["ips"].as_array_mut().into_iter().flatten().zip(&self.ips).filter(|_| old) {
            written["version"] = json!(if address.address.addr().is_ipv4() { "4" } else { "6" });
        }
        if version != "1.1.0" {
            for interface in out["interfaces"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
                interface.remove("mtu");
            }
            for route in out["routes"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
                route.retain(|name, _| name == "dst" || name == "gw");
            }
        }
        out
    }

    /// The first versions know one address of each family, and no interfaces.
    fn write_first(&self, version: &str) -> Value {
        let mut out =
            json!({ "cniVersion": version, "dns": if self.dns.is_null() { json!({}) } else { self.dns.clone() } });
        for (name, v4) in [("ip4", true), ("ip6", false)] {
            let Some(address) = self.ips.iter().find(|ip| ip.address.addr().is_ipv4() == v4) else { continue };
            let routes = self.routes.iter().filter(|route| route.dst.addr().is_ipv4() == v4);
            let routes: Vec<_> = routes.map(|route| json!({ "dst": route.dst, "gw": route.gw })).collect();
            out[name] = json!({ "ip": address.address, "routes": routes });
            if let Some(gateway) = address.gateway {
                out[name]["gateway"] = json!(gateway);
            }
        }
        out
    }

    /// The container's interface of this name.
    pub(crate) fn inside(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|one| one.name == name && !one.sandbox.is_empty())
    }
}

/// The answer to VERSION.
pub(crate) fn versions(asked: &str) -> Value {
    json!({ "cniVersion": asked, "supportedVersions": SUPPORTED })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Answer {
        let address = |text: &str| Address { address: text.parse().unwrap(), gateway: None, interface: Some(2) };
        let mut first = address("10.1.0.2/24");
        first.gateway = Some("10.1.0.1".parse().unwrap());
        let mut route = Route::new("0.0.0.0/0".parse().unwrap(), first.gateway);
        route.mtu = Some(1400);
        Answer {
            interfaces: vec![Interface {
                name: "net1".into(),
                mac: "02:00:00:00:00:01".into(),
                mtu: Some(1500),
                sandbox: "/run/netns/x".into(),
            }],
            ips: vec![first, address("fd00:1::2/64")],
            routes: vec![route],
            dns: Value::Null,
        }
    }

    #[test]
    fn each_version_has_what_it_knows() {
        for version in SUPPORTED {
            let written = answer().write(version);
            assert_eq!(written["cniVersion"], version);
            let read = Answer::read(&written).unwrap();
            assert_eq!(read.ips.len(), 2, "{version}: {written}");
            assert_eq!(read.routes[0].dst, answer().routes[0].dst);
        }
        let first = answer().write("0.2.0");
        assert_eq!((&first["ip4"]["ip"], &first["ip4"]["gateway"]), (&json!("10.1.0.2/24"), &json!("10.1.0.1")));
        assert_eq!((&first["ip6"]["ip"], first.get("interfaces")), (&json!("fd00:1::2/64"), None));
        assert_eq!(answer().write("0.4.0")["ips"][1]["version"], "6");
        assert_eq!(answer().write("1.0.0")["interfaces"][0].get("mtu"), None);
        assert_eq!(answer().write("1.0.0")["routes"][0], json!({ "dst": "0.0.0.0/0", "gw": "10.1.0.1" }));
        assert_eq!(Answer::read(&answer().write("1.1.0")).unwrap().routes, answer().routes);
        assert!(Answer::read(&Value::Null).is_err());
        assert!(Answer::read(&json!({ "ips": [{ "address": "10.1.0.2" }] })).is_err());
    }
}
