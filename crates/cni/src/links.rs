//! What `net` does not say of links: their kind, their flags, and what a bridge does at a port.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use futures::TryStreamExt as _;
use net::link::{self, Netlink};
use rtnetlink::packet_route::link::{
    InfoBridge, InfoBridgePort, InfoData, InfoKind, InfoPortData, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rtnetlink::{LinkMessageBuilder, LinkUnspec};

use crate::error::Error;

/// A link as the kernel describes it.
#[derive(Clone, Debug)]
pub(crate) struct Described(LinkMessage);

/// The link of that name, if any.
pub(crate) async fn find(netlink: &Netlink, name: &str) -> Result<Option<Described>, Error> {
    // The kernel says by an error that there is none, which `net` knows to tell from others.
    if !netlink.has(name).await? {
        return Ok(None);
    }
    let mut found = netlink.handle().link().get().match_name(name).execute();
    found
        .try_next()
        .await
        .map(|message| message.map(Described))
        .map_err(refused(format!("look up network interface {name}")))
}

/// The link of that name, which must exist.
pub(crate) async fn get(netlink: &Netlink, name: &str) -> Result<Described, Error> {
    find(netlink, name).await?.ok_or_else(|| link::Error::NoLink(name.to_owned()).into())
}

/// All links.
pub(crate) async fn all(netlink: &Netlink) -> Result<Vec<Described>, Error> {
    let all = netlink.handle().link().get().execute().try_collect::<Vec<_>>().await;
    Ok(all.map_err(refused("list network interfaces".to_owned()))?.into_iter().map(Described).collect())
}

/// The kernel's refusal of `op`.
pub(crate) fn refused(op: String) -> impl FnOnce(rtnetlink::Error) -> Error {
    move |source| link::Error::Request { op, source }.into()
}

/// Applies a change to the link of that name.
pub(crate) async fn change(
    netlink: &Netlink,
    name: &str,
    op: &str,
    change: LinkMessageBuilder<LinkUnspec>,
) -> Result<(), Error> {
    netlink.change(name, op, change).await.map_err(Error::from)
}

/// What a change begins with.
pub(crate) fn no_change() -> LinkMessageBuilder<LinkUnspec> {
    LinkMessageBuilder::<LinkUnspec>::new()
}

/// The container's network namespace, which is never the node's own.
pub(crate) fn open_netns(path: &Path) -> Result<OwnedFd, Error> {
    let of = |source| Error::Namespace { path: path.display().to_string(), source };
    let netns = sys::namespace::open_netns(path).map_err(of)?;
    let own = sys::namespace::current_netns().map_err(of)?;
    let identity = |fd: &OwnedFd| {
        let stat =
            rustix::fs::fstat(fd).map_err(|errno| Error::io(format!("look at {}", path.display()))(errno.into()))?;
        Ok::<_, Error>((stat.st_dev, stat.st_ino))
    };
    if identity(&netns)? == identity(&own)? {
        let why = format!("is {}, the node's own network namespace: name the container's", path.display());
        return Err(Error::Environment { variable: "CNI_NETNS", why });
    }
    Ok(netns)
}

/// What is talked to in the container; none when its namespace is gone, as with its node's life.
pub(crate) fn container_if_there(path: Option<&Path>) -> Result<Option<Netlink>, Error> {
    let Some(path) = path.filter(|path| path.try_exists().unwrap_or(false)) else { return Ok(None) };
    let netns = match open_netns(path) {
        Ok(netns) => netns,
        // Gone in the meantime.
        Err(Error::Namespace { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    match Netlink::open_in(netns.as_fd()) {
        Ok(container) => Ok(Some(container)),
        // The path of a namespace that is gone is a plain file.
        Err(link::Error::Enter(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Described {
    pub(crate) fn index(&self) -> u32 {
        self.0.header.index
    }

    fn attribute<T>(&self, of: impl Fn(&LinkAttribute) -> Option<T>) -> Option<T> {
        self.0.attributes.iter().find_map(of)
    }

    fn info<T>(&self, of: impl Fn(&LinkInfo) -> Option<T>) -> Option<T> {
        self.attribute(|attribute| match attribute {
            LinkAttribute::LinkInfo(infos) => infos.iter().find_map(&of),
            _ => None,
        })
    }

    pub(crate) fn name(&self) -> String {
        self.attribute(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        })
        .unwrap_or_default()
    }

    /// What an administrator, or this program, has noted at it.
    pub(crate) fn alias(&self) -> Option<String> {
        self.attribute(|attribute| match attribute {
            LinkAttribute::IfAlias(alias) => Some(alias.clone()),
            _ => None,
        })
    }

    pub(crate) fn mac(&self) -> Vec<u8> {
        self.attribute(|attribute| match attribute {
            LinkAttribute::Address(mac) => Some(mac.clone()),
            _ => None,
        })
        .unwrap_or_default()
    }

    pub(crate) fn mtu(&self) -> u32 {
        self.attribute(|attribute| match attribute {
            LinkAttribute::Mtu(mtu) => Some(*mtu),
            _ => None,
        })
        .unwrap_or_default()
    }

    pub(crate) fn queue_length(&self) -> u32 {
        self.attribute(|attribute| match attribute {
            LinkAttribute::TxQueueLen(length) => Some(*length),
            _ => None,
        })
        .unwrap_or_default()
    }

    /// Index of the bridge it is a port of.
    pub(crate) fn controller(&self) -> Option<u32> {
        self.attribute(|attribute| match attribute {
            LinkAttribute::Controller(index) => Some(*index),
            _ => None,
        })
    }

    pub(crate) fn is_up(&self) -> bool {
        self.0.header.flags.contains(LinkFlags::Up)
    }

    pub(crate) fn is_promiscuous(&self) -> bool {
        self.0.header.flags.contains(LinkFlags::Promisc)
    }

    pub(crate) fn hears_all_multicast(&self) -> bool {
        self.0.header.flags.contains(LinkFlags::Allmulti)
    }

    pub(crate) fn kind(&self) -> Option<InfoKind> {
        self.info(|info| match info {
            LinkInfo::Kind(kind) => Some(kind.clone()),
            _ => None,
        })
    }

    /// Whether the bridge filters VLANs; none where the kernel cannot.
    pub(crate) fn filters_vlans(&self) -> Option<bool> {
        self.info(|info| match info {
            LinkInfo::Data(InfoData::Bridge(all)) => {
                // Every kernel says that it does not; one that could also says by which protocol.
                all.iter().find(|one| matches!(one, InfoBridge::VlanProtocol(_)))?;
                all.iter().find_map(|one| match one {
                    InfoBridge::VlanFiltering(on) => Some(*on),
                    _ => None,
                })
            }
            _ => None,
        })
    }

    /// What its bridge has at this port.
    pub(crate) fn port<T>(&self, of: impl Fn(&InfoBridgePort) -> Option<T>) -> Option<T> {
        self.info(|info| match info {
            LinkInfo::PortData(InfoPortData::BridgePort(all)) => all.iter().find_map(&of),
            _ => None,
        })
    }
}
