//! DEL and GC: what is there is taken back, and what is not there is no failure.

use net::link::Netlink;
use serde_json::Value;

use super::config::Config;
use super::{port, rules};
use crate::call::{self, Call, Command};
use crate::error::Error;
use crate::{ipam, links};

/// Takes the interface back.
pub(super) async fn del(call: &Call) -> Result<Value, Error> {
    let config = Config::parse(call)?;
    let node = Netlink::open()?;
    let container = links::container_if_there(call.netns.as_deref())?;
    take_back(call, &node, container.as_ref(), &config).await?;
    Ok(Value::Null)
}

/// Everything of one interface; goes on whatever fails, and says what failed first.
pub(super) async fn take_back(
    call: &Call,
    node: &Netlink,
    container: Option<&Netlink>,
    config: &Config,
) -> Result<(), Error> {
    let name = call.handle();
    let mut done = Ok(());
    if let Some(kind) = &config.ipam {
        done = done.and(ipam::delegate(call, kind, Command::Del).await.map(drop));
    }
    // Its other end goes with it.
    done = done.and(node.remove_link(&name).await.map_err(Error::from));
    if let Some(container) = container {
        done = done.and(container.remove_link(&call.interface).await.map_err(Error::from));
    }
    if config.check_sender {
        done = done.and(rules::uncheck_sender(&name));
    }
    if config.masquerade {
        done = done.and(rules::unmasquerade(&name));
    }
    done
}

/// Takes back what is left of this network's interfaces that the runtime knows nothing of any more.
pub(super) async fn collect(call: &Call) -> Result<Value, Error> {
    let config = Config::parse(call)?;
    let listed = &call.config["cni.dev/valid-attachments"];
    let Some(valid) = listed.as_array() else {
        return Err(Error::field("cni.dev/valid-attachments", listed, "list what is in use, however little"));
    };
    let text = |one: &Value, name: &str| one[name].as_str().unwrap_or_default().to_owned();
    let used: Vec<String> =
        valid.iter().map(|one| call::handle(&text(one, "containerID"), &text(one, "ifname"))).collect();
    let node = Netlink::open()?;
    let own = port::alias(&call.network);
    for link in links::all(&node).await? {
        if link.alias().as_deref() == Some(&own) && !used.contains(&link.name()) {
            node.remove_link(&link.name()).await?;
        }
    }
    if config.check_sender || config.masquerade {
        // Rules are made after the interface they are about, so those without one are nobody's.
        let chains = rules::chains()?;
        let there: Vec<String> = links::all(&node).await?.iter().map(links::Described::name).collect();
        for (family, port) in chains.iter().filter(|(_, port)| !there.contains(port)) {
            if *family == "bridge" { rules::uncheck_sender(port)? } else { rules::unmasquerade(port)? }
        }
    }
    if let Some(kind) = &config.ipam {
        ipam::delegate(call, kind, Command::Gc).await?;
    }
    Ok(Value::Null)
}
