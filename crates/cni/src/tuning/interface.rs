//! Settings of an interface.

use net::link::Netlink;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::links::{self, Described};

/// What is to be of an interface; what is not said stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Wanted {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mac: Option<[u8; 6]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) promiscuous: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) all_multicast: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) queue_length: Option<u32>,
}

impl Wanted {
    pub(super) fn is_some(&self) -> bool {
        *self != Wanted::default()
    }

    /// What puts back what this changes of the interface.
    pub(super) fn before(&self, link: &Described) -> Wanted {
        Wanted {
            mac: self.mac.and_then(|_| link.mac().try_into().ok()),
            mtu: self.mtu.map(|_| link.mtu()),
            promiscuous: self.promiscuous.map(|_| link.is_promiscuous()),
            all_multicast: self.all_multicast.map(|_| link.hears_all_multicast()),
            queue_length: self.queue_length.map(|_| link.queue_length()),
        }
    }

    /// The first field that the interface has otherwise.
    pub(super) fn differs(&self, link: &Described) -> Option<&'static str> {
        let found = self.before(link);
        [
            ("mac", self.mac == found.mac),
            ("mtu", self.mtu == found.mtu),
            ("promisc", self.promiscuous == found.promiscuous),
            ("allmulti", self.all_multicast == found.all_multicast),
            ("txQLen", self.queue_length == found.queue_length),
        ]
        .into_iter()
        .find_map(|(field, same)| (!same).then_some(field))
    }
}

/// Sets all of it.
pub(super) async fn apply(container: &Netlink, name: &str, wanted: &Wanted) -> Result<(), Error> {
    if let Some(mac) = wanted.mac {
        container.set_mac(name, mac).await?;
    }
    if let Some(mtu) = wanted.mtu {
        container.set_mtu(name, mtu).await?;
    }
    if let Some(on) = wanted.promiscuous {
        links::change(container, name, "set promisc of", links::no_change().promiscuous(on)).await?;
    }
    if let Some(on) = wanted.all_multicast {
        links::change(container, name, "set allmulti of", links::no_change().allmulticast(on)).await?;
    }
    if let Some(length) = wanted.queue_length {
        links::change(container, name, "set txQLen of", links::no_change().txqueuelen(length)).await?;
    }
    Ok(())
}
