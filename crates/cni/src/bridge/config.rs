//! The configuration of a network on a bridge. Pure.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::call::{self, Call};
use crate::error::Error;
use crate::fields::Fields;
use crate::ipam;

/// The largest id that IEEE 802.1Q has for a VLAN.
const LAST_VLAN: u32 = 4094;

/// What a network asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) bridge: String,
    /// The bridge has an address, which is the gateway of the network.
    pub(crate) gateway: bool,
    /// It is the container's default gateway.
    pub(crate) default_gateway: bool,
    /// Another address of the bridge makes room for that of the network.
    pub(crate) force_address: bool,
    /// What leaves the network has the node's address.
    pub(crate) masquerade: bool,
    pub(crate) mtu: Option<u32>,
    /// Frames may leave by the port they came by.
    pub(crate) hairpin: bool,
    /// The bridge takes every frame.
    pub(crate) promiscuous: bool,
    /// The VLAN of frames without a tag.
    pub(crate) vlan: Option<u16>,
    /// VLANs whose frames have a tag.
    pub(crate) trunk: BTreeSet<u16>,
    /// The port stays in the VLAN that bridges give each port.
    pub(crate) default_vlan: bool,
    /// Frames with another sender than the container's address are dropped.
    pub(crate) check_sender: bool,
    /// IPv6 addresses are looked for at others before they are used.
    pub(crate) detect: bool,
    /// The container's interface stays down.
    pub(crate) disable: bool,
    /// Ports of such networks do not reach each other.
    pub(crate) isolate: bool,
    /// The hardware address of the container's interface.
    pub(crate) mac: Option<[u8; 6]>,
    /// The plugin for addresses.
    pub(crate) ipam: Option<String>,
}

impl Config {
    /// Reads the configuration of a call.
    pub(crate) fn parse(call: &Call) -> Result<Self, Error> {
        let (value, fields) = (&call.config, Fields(&call.config));
        let default_gateway = fields.flag("isDefaultGateway", false)?;
        let vlan = fields.number("vlan", 0, LAST_VLAN)?.filter(|id| *id > 0);
        let config = Config {
            bridge: fields.text("bridge")?.unwrap_or("cni0").to_owned(),
            gateway: fields.flag("isGateway", false)? || default_gateway,
            default_gateway,
            force_address: fields.flag("forceAddress", false)?,
            masquerade: fields.flag("ipMasq", false)?,
            mtu: fields.mtu()?,
            hairpin: fields.flag("hairpinMode", false)?,
            promiscuous: fields.flag("promiscMode", false)?,
            vlan: vlan.and_then(|id| u16::try_from(id).ok()),
            trunk: trunk(&value["vlanTrunk"])?,
            default_vlan: fields.flag("preserveDefaultVlan", true)?,
            check_sender: fields.flag("macspoofchk", false)?,
            detect: fields.flag("enabledad", false)?,
            disable: fields.flag("disableContainerInterface", false)?,
            isolate: fields.flag("portIsolation", false)?,
            mac: call.mac()?,
            ipam: ipam::kind(value)?.map(str::to_owned),
        };
        let backend = fields.text("ipMasqBackend")?;
        if let Some(other) = backend.filter(|backend| *backend != "nftables") {
            let remedy = "this plugin masquerades by nftables alone: set nftables, or leave the field out";
            return Err(Error::field("ipMasqBackend", &Value::from(other), remedy));
        }
        config.agrees(value)?;
        Ok(config)
    }

    /// Refuses what contradicts itself.
    fn agrees(&self, value: &Value) -> Result<(), Error> {
        if !call::is_interface(&self.bridge) {
            let remedy = "a bridge's name has up to 15 characters, no / : or space";
            return Err(Error::field("bridge", &value["bridge"], remedy));
        }
        if self.hairpin && self.promiscuous {
            let remedy = "frames would come twice together with hairpinMode: set one of the two";
            return Err(Error::field("promiscMode", &value["promiscMode"], remedy));
        }
        let with_addresses = [("isGateway", self.gateway), ("ipMasq", self.masquerade)];
        if let Some((field, _)) = with_addresses.iter().find(|(_, asked)| *asked && self.ipam.is_none()) {
            let remedy = "a network without ipam has no addresses: name a plugin in ipam.type, or leave the field out";
            return Err(Error::field(*field, &Value::from(true), remedy));
        }
        if self.disable && self.ipam.is_some() {
            let remedy = "an interface that stays down takes no addresses: leave the field or ipam out";
            return Err(Error::field("disableContainerInterface", &value["disableContainerInterface"], remedy));
        }
        Ok(())
    }

    /// Whether the bridge has to tell VLANs apart.
    pub(crate) fn has_vlans(&self) -> bool {
        self.vlan.is_some() || !self.trunk.is_empty()
    }
}

/// `[{"minID": 100, "maxID": 110}, {"id": 7}]`
fn trunk(value: &Value) -> Result<BTreeSet<u16>, Error> {
    let mut all = BTreeSet::new();
    let list = match value {
        Value::Null => return Ok(all),
        Value::Array(list) => list,
        other => {
            return Err(Error::field(
                "vlanTrunk",
                other,
                "write a list of {\"id\": ID} and {\"minID\": ID, \"maxID\": ID}",
            ));
        }
    };
    for entry in list {
        let refused = |remedy: &str| Error::field("vlanTrunk", entry, remedy);
        let id = |name: &str| {
            let Some(value) = entry.get(name).filter(|value| !value.is_null()) else { return Ok(None) };
            let id = value.as_u64().filter(|id| (1..=u64::from(LAST_VLAN)).contains(id));
            let id = id.and_then(|id| u16::try_from(id).ok());
            id.map(Some).ok_or_else(|| refused(&format!("{name} is a number from 1 to {LAST_VLAN}")))
        };
        match (id("id")?, id("minID")?, id("maxID")?) {
            (Some(one), None, None) => all.extend([one]),
            (one, Some(least), Some(most)) if least <= most => {
                all.extend(least..=most);
                all.extend(one);
            }
            (_, Some(_), Some(_)) => return Err(refused("minID is not above maxID")),
            _ => return Err(refused("write id, or both minID and maxID")),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::call::Command;

    fn of(more: Value) -> Result<Config, String> {
        let call = Call {
            command: Command::Add,
            container: "c".into(),
            netns: None,
            interface: "net1".into(),
            args: Vec::new(),
            path: Vec::new(),
            network: "red".into(),
            asked: "1.0.0".into(),
            config: more,
        };
        Config::parse(&call).map_err(|error| error.to_string())
    }

    #[test]
    fn a_network_says_what_differs_from_a_plain_port() {
        let plain = of(json!({})).unwrap();
        assert_eq!((plain.bridge.as_str(), plain.default_vlan, plain.has_vlans()), ("cni0", true, false));
        assert!(!of(json!({ "vlan": 0 })).unwrap().has_vlans());
        let trunk = of(json!({ "vlan": 5, "vlanTrunk": [{ "minID": 100, "maxID": 102 }, { "id": 7 }] })).unwrap();
        assert_eq!((trunk.vlan, trunk.trunk), (Some(5), BTreeSet::from([7, 100, 101, 102])));
        let routed = of(json!({ "isDefaultGateway": true, "ipam": { "type": "static" } })).unwrap();
        assert!(routed.gateway && routed.default_gateway);
        assert!(of(json!({ "ipMasqBackend": "nftables", "ipam": {}, "mtu": 0, "unknown": 1 })).is_ok());
    }

    #[test]
    fn what_cannot_act_is_refused_by_name() {
        let check = |config: Value, words: &str| {
            let why = of(config.clone()).unwrap_err();
            assert!(why.contains(words), "{config}: {why}");
        };
        check(json!({ "bridge": "../etc" }), "bridge is \"../etc\"");
        check(json!({ "bridge": 7 }), "bridge is 7: write a text");
        check(json!({ "isGateway": true }), "isGateway is true: a network without ipam");
        check(json!({ "ipMasq": true }), "ipMasq");
        check(json!({ "ipMasq": "yes" }), "ipMasq is \"yes\": set true or false");
        check(
            json!({ "ipMasqBackend": "iptables" }),
            "ipMasqBackend is \"iptables\": this plugin masquerades by nftables",
        );
        check(json!({ "hairpinMode": true, "promiscMode": true }), "promiscMode");
        check(json!({ "vlan": 4095 }), "vlan is 4095: set a number from 0 to 4094");
        check(json!({ "vlanTrunk": [{}] }), "vlanTrunk is {}: write id");
        check(json!({ "vlanTrunk": [{ "id": 0 }] }), "id is a number from 1");
        check(json!({ "vlanTrunk": [{ "minID": 9, "maxID": 3 }] }), "minID is not above maxID");
        check(json!({ "vlanTrunk": [{ "minID": 9 }] }), "both minID and maxID");
        check(json!({ "vlanTrunk": 7 }), "vlanTrunk is 7: write a list");
        check(json!({ "disableContainerInterface": true, "ipam": { "type": "static" } }), "disableContainerInterface");
        check(json!({ "mtu": -1 }), "mtu is -1");
        check(json!({ "ipam": "static" }), "ipam is \"static\": write an object");
    }
}
