//! Macvtap links: a guest's own address at a link of the node, with a character device that QEMU opens.

use futures::TryStreamExt as _;
use rtnetlink::LinkMacVtap;
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, MacVtapMode};

use crate::link::{Error, Netlink, Result, refused};

/// What the guests of one link hear of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Everything, without leaving the node.
    Bridge,
    /// Nothing.
    Private,
    /// What the switch beyond the link sends back.
    Vepa,
    /// There is one guest, who has the link for itself.
    Passthrough,
}

/// The links of the node that macvtap links can be made at without anything else: physical ones and bonds that nothing uses as a port.
///
/// # Errors
/// When the kernel refuses.
pub async fn lower_links(netlink: &Netlink) -> Result<Vec<String>> {
    let all = netlink.handle().link().get().execute().try_collect::<Vec<_>>().await;
    let all = all.map_err(refused("list network interfaces".into()))?;
    let mut names: Vec<String> = all.iter().filter(|message| is_lower(message)).filter_map(name).collect();
    names.sort_unstable();
    Ok(names)
}

fn name(message: &LinkMessage) -> Option<String> {
    message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    })
}

fn is_lower(message: &LinkMessage) -> bool {
    let kind = message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => infos.iter().find_map(|info| match info {
            LinkInfo::Kind(kind) => Some(kind),
            _ => None,
        }),
        _ => None,
    });
    let port = message.attributes.iter().any(|attribute| matches!(attribute, LinkAttribute::Controller(_)));
    // What the kernel has made of no kind is a device of the machine.
    matches!(kind, None | Some(InfoKind::Bond)) && !port && !message.header.flags.contains(LinkFlags::Loopback)
}

/// Makes the link `name` at `lower` and returns its index, which its character device is named after. One that is there of this name and
/// kind was left by somebody who did not use it, and makes room.
///
/// # Errors
/// When there is no link `lower`, or the kernel refuses.
pub async fn make(netlink: &Netlink, name: &str, lower: &str, mode: Mode) -> Result<u32> {
    let lower = netlink.get(lower).await?;
    if netlink.has(name).await? {
        let mut found = netlink.handle().link().get().match_name(name).execute();
        let held = found.try_next().await.map_err(refused(format!("look up network interface {name}")))?;
        let own = held.is_some_and(|message| is_macvtap(&message));
        if !own {
            return Err(Error::Taken(name.to_owned()));
        }
        netlink.remove_link(name).await?;
    }
    let mode = match mode {
        Mode::Bridge => MacVtapMode::Bridge,
        Mode::Private => MacVtapMode::Private,
        Mode::Vepa => MacVtapMode::Vepa,
        Mode::Passthrough => MacVtapMode::Passthrough,
    };
    let message = LinkMacVtap::new(name, lower.index, mode).build();
    let made = netlink.handle().link().add(message).execute().await;
    made.map_err(refused(format!("create {name}, a macvtap at {}", lower.name)))?;
    Ok(netlink.get(name).await?.index)
}

fn is_macvtap(message: &LinkMessage) -> bool {
    let infos = message.attributes.iter().filter_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => Some(infos),
        _ => None,
    });
    infos.flatten().any(|info| matches!(info, LinkInfo::Kind(InfoKind::MacVtap)))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use sys::namespace::{Namespace, current_netns, unshare};

    use super::*;

    #[tokio::test]
    async fn a_macvtap_makes_room_for_the_next_and_other_links_do_not() {
        let fresh = || std::thread::spawn(|| unshare(&[Namespace::Net]).and_then(|()| current_netns())).join().unwrap();
        let (Ok(one), Ok(two)) = (fresh(), fresh()) else { return };
        let node = Netlink::open_in(one.as_fd()).unwrap();
        node.add_veth("eth7", "far", two.as_fd()).await.unwrap();
        let first = make(&node, "aMvp0", "eth7", Mode::Bridge).await.unwrap();
        let second = make(&node, "aMvp0", "eth7", Mode::Bridge).await.unwrap();
        assert_ne!(first, second);
        assert!(matches!(make(&node, "eth7", "aMvp0", Mode::Bridge).await, Err(Error::Taken(name)) if name == "eth7"));
        assert!(matches!(make(&node, "aMvp1", "eth8", Mode::Bridge).await, Err(Error::NoLink(name)) if name == "eth8"));
        // Neither a pair's end nor a macvtap is a device of the machine.
        assert_eq!(lower_links(&node).await.unwrap(), Vec::<String>::new());
    }
}
