//! The configuration of the plugin `macvtap`. Pure.

use serde_json::Value;

use crate::call::{self, Call};
use crate::error::Error;
use crate::fields::Fields;
use crate::ipam;

/// What a network asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Config {
    /// The device that the pod was given, and the name of its link on the node.
    pub(super) device: String,
    pub(super) mac: Option<[u8; 6]>,
    pub(super) mtu: Option<u32>,
    pub(super) promiscuous: bool,
}

impl Config {
    /// Reads the configuration of a call.
    pub(super) fn parse(call: &Call) -> Result<Self, Error> {
        let fields = Fields(&call.config);
        let own = fields.text("mac")?.map(|text| call::hardware_address("mac", text)).transpose()?;
        // Runtimes write it to either place.
        let given = call.config["runtimeConfig"]["deviceID"].as_str().filter(|text| !text.is_empty());
        let Some(device) = given.or(fields.text("deviceID")?) else {
            let remedy = "name the resource of a macvtap device plugin in the definition's annotation k8s.v1.cni.cncf.io/resourceName";
            return Err(Error::field("deviceID", &call.config["deviceID"], remedy));
        };
        if !call::is_interface(device) {
            return Err(Error::field(
                "deviceID",
                &Value::from(device),
                "it is the name of a link of up to 15 characters",
            ));
        }
        if ipam::kind(&call.config)?.is_some() {
            let remedy = "the guest behind a macvtap has its addresses from its network: leave the field out";
            return Err(Error::field("ipam", &call.config["ipam"], remedy));
        }
        Ok(Config {
            device: device.to_owned(),
            mac: call.mac()?.or(own),
            mtu: fields.mtu()?,
            promiscuous: fields.flag("promiscMode", false)?,
        })
    }
}
