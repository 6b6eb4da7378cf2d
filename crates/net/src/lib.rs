//! Networking without Kubernetes: links, addresses and routes over netlink, nftables, the list of connections, CNI plugins.

pub mod announce;
pub mod cni;
pub mod conntrack;
pub mod dhcp4;
pub mod dhcp6;
pub mod link;
pub mod macvtap;
pub mod nft;
pub mod router;
pub mod vxlan;
