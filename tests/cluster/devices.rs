//! Devices that a plugin offers: counted on the node, given to containers, and missed by those that come too late.

use anyhow::{Result, ensure};
use e2e::Namespace;
use meta::quantity::Amount;
use serde_json::json;

use crate::Test;
use crate::pods::{IDLE, apply, ready, sh, special};

pub(crate) const TESTS: &[Test] = &[("a_plugin_gives_devices", a_plugin_gives_devices)];

/// The virtualization components run a device plugin for this.
const DEVICE: &str = "devices.kubevirt.io/tun";

fn a_plugin_gives_devices() -> Result<()> {
    let space = Namespace::new("devices")?;
    let node = space.get("node", "node1")?;
    let count: Option<Amount> = node["status"]["allocatable"][DEVICE].as_str().and_then(|count| count.parse().ok());
    ensure!(count.is_some_and(|count| count.value() > 0), "{}", node["status"]["allocatable"]);
    apply(
        &space,
        &[
            special("with", IDLE, &json!({"resources": {"limits": {DEVICE: "1"}}}), &json!({})),
            special("without", IDLE, &json!({}), &json!({})),
            special("many", IDLE, &json!({"resources": {"limits": {DEVICE: "1000000"}}}), &json!({})),
        ],
    )?;
    ready(&space, "with")?;
    ready(&space, "without")?;
    ensure!(sh(&space, "with", "ls /dev/net/tun")? == "/dev/net/tun\n", "the device is not there");
    ensure!(sh(&space, "without", "ls /dev/net/tun").is_err(), "the device is there unasked");
    let many = space
        .wait("pod", "many", "was unschedulable", |pod| pod["status"]["conditions"][0]["reason"] == "Unschedulable")?;
    ensure!(
        many["status"]["conditions"][0]["message"].to_string().contains(&format!("Insufficient {DEVICE}")),
        "{many}"
    );
    Ok(())
}
