//! CHECK: whether everything is as ADD has made it.

use std::os::fd::AsFd as _;

use net::link::Netlink;
use rtnetlink::packet_route::link::InfoKind;
use serde_json::Value;

use super::config::Config;
use super::{port, rules};
use crate::addressing::Inside;
use crate::call::{Call, Command, mac_text};
use crate::error::Error;
use crate::result::{Address, Answer};
use crate::{ipam, links};

/// Succeeds when nothing has changed; the error names what has.
pub(super) async fn check(call: &Call) -> Result<Value, Error> {
    let config = Config::parse(call)?;
    let made = &call.config["prevResult"];
    if made.is_null() {
        return Err(Error::field("prevResult", made, "CHECK needs the result of ADD"));
    }
    let made = Answer::read(made)?;
    if let Some(kind) = &config.ipam {
        ipam::delegate(call, kind, Command::Check).await?;
    }
    let netns = links::open_netns(call.netns.as_deref().unwrap_or(std::path::Path::new("")))?;
    let (node, container) = (Netlink::open()?, Netlink::open_in(netns.as_fd())?);
    check_node(call, &config, &node).await?;
    let name = &call.interface;
    let changed = |what: String| Err(Error::Changed(what));
    let Some(inside) = links::find(&container, name).await? else {
        return changed(format!("the container has no interface {name} any more"));
    };
    let Some(before) = made.inside(name) else { return changed(format!("the result of ADD has no interface {name}")) };
    if !before.mac.is_empty() && !before.mac.eq_ignore_ascii_case(&mac_text(&inside.mac())) {
        return changed(format!("{name} has the hardware address {}, not {}", mac_text(&inside.mac()), before.mac));
    }
    if config.mtu.is_some_and(|mtu| mtu != inside.mtu()) {
        return changed(format!("the MTU of {name} is {}, not that of the network", inside.mtu()));
    }
    if inside.is_up() == config.disable {
        return changed(format!("{name} is {}", if config.disable { "up" } else { "down" }));
    }
    let index = made.interfaces.iter().position(|one| one == before);
    let own: Vec<&Address> = made.ips.iter().filter(|ip| ip.interface.is_none() || ip.interface == index).collect();
    let inside = Inside { netns: netns.as_fd(), netlink: &container, name, detect: config.detect };
    inside.check(&own, &made.routes, &made.ips).await?;
    Ok(Value::Null)
}

async fn check_node(call: &Call, config: &Config, node: &Netlink) -> Result<(), Error> {
    let (name, bridge) = (call.handle(), &config.bridge);
    let changed = |what: String| Err(Error::Changed(what));
    let found = links::find(node, bridge).await?.filter(|found| found.kind() == Some(InfoKind::Bridge));
    let Some(held) = found else { return changed(format!("the bridge {bridge} is gone")) };
    if config.promiscuous && !held.is_promiscuous() {
        return changed(format!("promiscMode of the bridge {bridge} is off"));
    }
    let Some(port) = links::find(node, &name).await? else {
        return changed(format!("{name}, the node's end, is gone"));
    };
    if port.controller() != Some(held.index()) {
        return changed(format!("{name} is no port of {bridge} any more"));
    }
    if !port.is_up() {
        return changed(format!("{name}, the node's end, is down"));
    }
    port::check(node, &name, config).await?;
    if config.check_sender || config.masquerade {
        let chains = rules::chains()?;
        for (field, asked, family) in
            [("macspoofchk", config.check_sender, "bridge"), ("ipMasq", config.masquerade, "inet")]
        {
            if asked && !chains.iter().any(|(of, port)| *of == family && *port == name) {
                return changed(format!("the rules of {field} for {name} are gone"));
            }
        }
    }
    Ok(())
}
