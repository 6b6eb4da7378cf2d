//! Addresses: which are of nobody else, and which are of one neighbour.

use std::net::{IpAddr, Ipv6Addr};

/// Whether an address means the machine that dials, or its own link: what somebody else names to be dialled is none of these.
pub fn is_special(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let on_link = match address {
        IpAddr::V4(four) => four.is_link_local() || four.is_broadcast(),
        IpAddr::V6(six) => six.is_unicast_link_local(),
    };
    on_link || address.is_loopback() || address.is_unspecified() || address.is_multicast()
}

/// An address, or the network that one host has of IPv6: what one neighbour's share is counted by.
pub fn neighbourhood(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(four) => four.to_string(),
        IpAddr::V6(six) => Ipv6Addr::from(u128::from(six) & !u128::from(u64::MAX)).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_own_machine_are_special() {
        let check = |address: &str, expect| assert_eq!(is_special(address.parse().unwrap()), expect, "{address}");
        for special in [
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "::ffff:127.0.0.1",
            "0.0.0.0",
            "::",
            "169.254.169.254",
            "fe80::1",
            "ff02::1",
        ] {
            check(special, true);
        }
        for plain in ["10.244.0.9", "fd00:10:244::9", "192.0.2.1"] {
            check(plain, false);
        }
    }

    #[test]
    fn one_host_has_one_share_however_many_addresses_it_takes() {
        let of = |address: &str| neighbourhood(address.parse().unwrap());
        assert_eq!(of("::ffff:10.0.0.1"), "10.0.0.1");
        assert_eq!(of("fd00::1:2:3:4"), of("fd00::ffff:0:0:1"));
        assert_ne!(of("fd00:0:0:1::1"), of("fd00:0:0:2::1"));
    }
}
