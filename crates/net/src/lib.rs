//! Networking without Kubernetes: links, addresses and routes over netlink, nftables, the list of connections.

pub mod announce;
pub mod conntrack;
pub mod dhcp4;
pub mod dhcp6;
pub mod link;
pub mod nft;
pub mod router;
