//! Networking without Kubernetes: links, addresses and routes over netlink, nftables.

pub mod link;
pub mod nft;
