//! ADD.

use std::os::fd::{AsFd as _, OwnedFd};

use net::link::Netlink;
use serde_json::Value;

use super::config::Config;
use super::{del, gateway, network, port, rules};
use crate::addressing::Inside;
use crate::call::{Call, Command, mac_text};
use crate::error::Error;
use crate::ipam;
use crate::links::{self, Described};
use crate::result::{Answer, Interface};

/// Makes the interface. What was made is taken back when something fails.
pub(super) async fn add(call: &Call) -> Result<Value, Error> {
    let config = Config::parse(call)?;
    let path = call.netns.clone().unwrap_or_default();
    let netns = links::open_netns(&path)?;
    let (node, container) = (Netlink::open()?, Netlink::open_in(netns.as_fd())?);
    let bridge = network::ensure(&node, &config).await?;
    let name = call.handle();
    if container.has(&call.interface).await? {
        return Err(Error::Node(format!(
            "the container {} already has an interface {}: DEL takes it back",
            call.container, call.interface
        )));
    }
    if node.has(&name).await? {
        return Err(Error::Node(format!(
            "the node still has {name}, the other end of {}: DEL takes it back",
            call.interface
        )));
    }
    let making = Making {
        call,
        config: &config,
        netns: &netns,
        node: &node,
        container: &container,
        bridge: &bridge,
        name: &name,
    };
    match making.make().await {
        Ok(answer) => Ok(answer.write(&call.asked)),
        Err(error) => {
            // The error counts that came first.
            let _ = del::take_back(call, &node, Some(&container), &config).await;
            Err(error)
        }
    }
}

struct Making<'a> {
    call: &'a Call,
    config: &'a Config,
    netns: &'a OwnedFd,
    node: &'a Netlink,
    container: &'a Netlink,
    bridge: &'a Described,
    /// The node's end.
    name: &'a str,
}

impl Making<'_> {
    async fn make(&self) -> Result<Answer, Error> {
        let (node, name, config) = (self.node, self.name, self.config);
        self.pair().await?;
        let mac = links::get(self.container, &self.call.interface).await?.mac();
        // Before the first frame can pass.
        if config.check_sender {
            rules::check_sender(name, &mac)?;
        }
        node.set_bridge(name, &config.bridge).await?;
        port::set(node, name, config).await?;
        node.set_up(name).await?;
        let mut answer = Answer::default();
        if let Some(kind) = &config.ipam {
            answer = Answer::read(&ipam::delegate(self.call, kind, Command::Add).await?)?;
            if answer.ips.is_empty() {
                return Err(Error::Node(format!("the plugin {kind:?} for addresses gave none")));
            }
            gateway::complete(&mut answer, config);
        }
        self.bring_up(&answer).await?;
        if config.gateway {
            gateway::serve(node, config, &answer.ips).await?;
        }
        if config.masquerade {
            let addresses: Vec<_> = answer.ips.iter().map(|ip| ip.address).collect();
            rules::masquerade(name, &addresses)?;
        }
        if config.detect && !config.disable {
            self.inside().settle().await?;
        }
        self.describe(&mut answer).await?;
        Ok(answer)
    }

    fn inside(&self) -> Inside<'_> {
        Inside {
            netns: self.netns.as_fd(),
            netlink: self.container,
            name: &self.call.interface,
            detect: self.config.detect,
        }
    }

    /// The two ends, both down.
    async fn pair(&self) -> Result<(), Error> {
        let (node, name, inside) = (self.node, self.name, &self.call.interface);
        node.add_veth(name, inside, self.netns.as_fd()).await?;
        links::change(node, name, "note the network at", links::no_change().alias(port::alias(&self.call.network)))
            .await?;
        if let Some(mac) = self.config.mac {
            self.container.set_mac(inside, mac).await?;
        }
        if let Some(mtu) = self.config.mtu {
            node.set_mtu(name, mtu).await?;
            self.container.set_mtu(inside, mtu).await?;
        }
        Ok(())
    }

    async fn bring_up(&self, answer: &Answer) -> Result<(), Error> {
        if self.config.disable {
            return Ok(());
        }
        let inside = self.inside();
        if !answer.ips.is_empty() {
            inside.prepare(&answer.ips)?;
            inside.address(&answer.ips).await?;
        }
        self.container.set_up(&self.call.interface).await?;
        port::forwards(self.node, self.name).await?;
        inside.route(&answer.routes, &answer.ips).await
    }

    async fn describe(&self, answer: &mut Answer) -> Result<(), Error> {
        let port = links::get(self.node, self.name).await?;
        let inside = links::get(self.container, &self.call.interface).await?;
        // Its address may have changed with its first port.
        let bridge = links::find(self.node, &self.config.bridge).await?.unwrap_or_else(|| self.bridge.clone());
        let one = |link: &Described, sandbox: &str| Interface {
            name: link.name(),
            mac: mac_text(&link.mac()),
            mtu: Some(link.mtu()),
            sandbox: sandbox.to_owned(),
        };
        let sandbox = self.call.netns.as_deref().map(|path| path.display().to_string()).unwrap_or_default();
        answer.interfaces = vec![one(&bridge, ""), one(&port, ""), one(&inside, &sandbox)];
        for ip in &mut answer.ips {
            ip.interface = Some(2);
        }
        Ok(())
    }
}
