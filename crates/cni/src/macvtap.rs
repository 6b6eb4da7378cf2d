//! The plugin `macvtap`: moves the link that the device plugin has made for the pod into it.
//!
//! The device plugin makes the link on the node, where its character device appears, and names it as the device. Here it gets its name in
//! the container. A link of another kind is never moved, whatever the configuration names: it would be the node's own.

mod config;

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;

use config::Config;
use net::link::Netlink;
use rtnetlink::packet_route::link::InfoKind;
use serde_json::Value;

use crate::call::{Call, Command, mac_text};
use crate::error::Error;
use crate::links::{self, Described};
use crate::result::{Answer, Interface};

/// Does what is asked.
pub(crate) async fn run(call: &Call) -> Result<Value, Error> {
    match call.command {
        Command::Add => add(call).await,
        Command::Del => del(call).await,
        Command::Check => check(call).await,
        // Its links are the device plugin's on the node, and gone with the container: nothing can be left.
        Command::Gc | Command::Version => Ok(Value::Null),
        Command::Status => Ok(Value::Null),
    }
}

fn is_macvtap(link: &Described) -> bool {
    link.kind() == Some(InfoKind::MacVtap)
}

fn open(call: &Call) -> Result<OwnedFd, Error> {
    links::open_netns(call.netns.as_deref().unwrap_or(Path::new("")))
}

async fn add(call: &Call) -> Result<Value, Error> {
    let config = Config::parse(call)?;
    let netns = open(call)?;
    let (node, container) = (Netlink::open()?, Netlink::open_in(netns.as_fd())?);
    let (device, name) = (&config.device, &call.interface);
    if container.has(name).await? {
        return Err(Error::Node(format!(
            "the container {} already has an interface {name}: DEL takes it back",
            call.container
        )));
    }
    let found = links::find(&node, device).await?;
    match found {
        Some(link) if is_macvtap(&link) => {}
        Some(_) => {
            let remedy = "this interface of the node is no macvtap: leave the field to the runtime, which knows the pod's device";
            return Err(Error::field("deviceID", &Value::from(device.as_str()), remedy));
        }
        None => {
            let text = format!("the node has no link {device}, which the device plugin makes when the pod is given it");
            return Err(Error::Node(format!("{text}: see that a macvtap device plugin runs on the node")));
        }
    }
    if let Some(mtu) = config.mtu {
        node.set_mtu(device, mtu).await?;
    }
    if let Some(mac) = config.mac {
        node.set_mac(device, mac).await?;
    }
    let moved = links::no_change().setns_by_fd(netns.as_raw_fd()).name(name);
    links::change(&node, device, "move into the container", moved).await?;
    match set_up(&container, call, &config).await {
        Ok(answer) => Ok(answer.write(&call.asked)),
        Err(error) => {
            // The error counts that came first.
            let _ = container.remove_link(name).await;
            Err(error)
        }
    }
}

async fn set_up(container: &Netlink, call: &Call, config: &Config) -> Result<Answer, Error> {
    let name = &call.interface;
    if config.promiscuous {
        links::change(container, name, "have all frames taken by", links::no_change().promiscuous(true)).await?;
    }
    container.set_up(name).await?;
    let link = links::get(container, name).await?;
    let sandbox = call.netns.as_deref().map(|path| path.display().to_string()).unwrap_or_default();
    let interface = Interface { name: name.clone(), mac: mac_text(&link.mac()), mtu: Some(link.mtu()), sandbox };
    Ok(Answer { interfaces: vec![interface], ..Answer::default() })
}

async fn del(call: &Call) -> Result<Value, Error> {
    let Some(container) = links::container_if_there(call.netns.as_deref())? else { return Ok(Value::Null) };
    if links::find(&container, &call.interface).await?.is_some_and(|link| is_macvtap(&link)) {
        container.remove_link(&call.interface).await?;
    }
    Ok(Value::Null)
}

async fn check(call: &Call) -> Result<Value, Error> {
    let config = Config::parse(call)?;
    let made = Answer::read(&call.config["prevResult"])?;
    let netns = open(call)?;
    let container = Netlink::open_in(netns.as_fd())?;
    let name = &call.interface;
    let changed = |what: String| Err(Error::Changed(what));
    let Some(link) = links::find(&container, name).await?.filter(is_macvtap) else {
        return changed(format!("the container has no macvtap {name} any more"));
    };
    let mac = mac_text(&link.mac());
    if made.inside(name).is_some_and(|before| !before.mac.is_empty() && before.mac != mac) {
        return changed(format!("{name} has another hardware address, {mac}"));
    }
    if config.mtu.is_some_and(|mtu| mtu != link.mtu()) {
        return changed(format!("the MTU of {name} is {}, not that of the network", link.mtu()));
    }
    if config.promiscuous && !link.is_promiscuous() {
        return changed(format!("promiscMode of {name} is off"));
    }
    if !link.is_up() {
        return changed(format!("{name} is down"));
    }
    Ok(Value::Null)
}
