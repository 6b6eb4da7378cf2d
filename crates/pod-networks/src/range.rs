//! Pure: the ranges of an `ipam` section, and the first address of one that is free.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde_json::Value;

/// A range of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    net: IpNet,
    first: u128,
    last: u128,
    excluded: Vec<IpNet>,
}

/// The ranges that an `ipam` section names. The error is a sentence for its author.
pub(crate) fn of(ipam: &Value) -> Result<Vec<Range>, String> {
    let several = ipam["ipRanges"].as_array().cloned().unwrap_or_default();
    let one = ipam["range"].is_string().then(|| ipam.clone());
    let ranges: Vec<Range> = one.iter().chain(&several).map(read).collect::<Result<_, _>>()?;
    if ranges.is_empty() {
        return Err("ipam: range is missing: write it like \"range\": \"10.200.5.0/24\"".to_owned());
    }
    Ok(ranges)
}

fn read(section: &Value) -> Result<Range, String> {
    let text = section["range"].as_str().unwrap_or_default();
    let wrong = || format!("ipam: range {text:?} is not a range of addresses: write it like 10.200.5.0/24");
    // `first-last/prefix` is the other form.
    let (from, rest) = text.split_once('-').map_or((None, text), |(from, rest)| (Some(from), rest));
    let net: IpNet = rest.parse().map_err(|_| wrong())?;
    let till = from.map(|_| net.addr());
    let net = net.trunc();
    let (low, high) = (number(net.network()), number(net.broadcast()));
    // The first address of a network is nobody's, nor is IPv4's last, unless there are no others.
    let small = high - low < 2;
    let edge = u128::from(net.addr().is_ipv4() && !small);
    let (mut first, mut last) = (low + u128::from(!small), high - edge);
    let mut bound = |name: &str, given: Option<IpAddr>, text: Option<&str>| -> Result<(), String> {
        let parsed =
            text.map(|text| text.parse::<IpAddr>().map_err(|_| format!("ipam: {name} {text:?} is not an address")));
        let Some(address) = parsed.transpose()?.or(given) else { return Ok(()) };
        if !net.contains(&address) {
            return Err(format!("ipam: {name} {address} is not in {net}"));
        }
        if name == "range_start" {
            first = first.max(number(address));
        } else {
            last = last.min(number(address));
        }
        Ok(())
    };
    let from = from.map(|from| from.trim().parse::<IpAddr>().map_err(|_| wrong())).transpose()?;
    bound("range_start", from, section["range_start"].as_str())?;
    bound("range_end", till, section["range_end"].as_str())?;
    let mut excluded = Vec::new();
    for text in section["exclude"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let single = || text.parse::<IpAddr>().map(IpNet::from).ok();
        let parsed = text.parse().ok().or_else(single);
        excluded.push(parsed.ok_or_else(|| format!("ipam: exclude: {text:?} is not a range of addresses"))?);
    }
    Ok(Range { net, first, last, excluded })
}

impl Range {
    /// The range as pools name it.
    pub(crate) fn text(&self) -> String {
        self.net.to_string()
    }

    /// The name of its pool.
    pub(crate) fn pool(&self) -> String {
        self.text().replace([':', '/'], "-")
    }

    /// The place of `address` in the range; none when it is not one that the range gives.
    pub(super) fn place(&self, address: IpAddr) -> Option<u128> {
        let given = self.net.contains(&address) && (self.first..=self.last).contains(&number(address));
        given.then(|| number(address) - number(self.net.network()))
    }

    /// Whether `address` is of the network that the range is a part of.
    pub(super) fn is_near(&self, address: IpAddr) -> bool {
        self.net.contains(&address)
    }

    /// The address at a place, with its prefix length; none when the range does not give it.
    pub(super) fn at(&self, place: u128) -> Option<String> {
        let at = number(self.net.network()).checked_add(place)?;
        let text = || format!("{}/{}", address(at, self.net.addr().is_ipv4()), self.net.prefix_len());
        (self.first..=self.last).contains(&at).then(text)
    }

    /// The first address that is free, with its prefix length, and its place in the range.
    pub(crate) fn free(&self, taken: &[u128]) -> Option<(String, String)> {
        let base = number(self.net.network());
        let mut at = self.first;
        while at <= self.last {
            let address = address(at, self.net.addr().is_ipv4());
            if let Some(net) = self.excluded.iter().find(|net| net.contains(&address)) {
                at = number(net.broadcast()) + 1;
            } else if taken.contains(&(at - base)) {
                at += 1;
            } else {
                return Some(((at - base).to_string(), format!("{address}/{}", self.net.prefix_len())));
            }
        }
        None
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

fn address(number: u128, v4: bool) -> IpAddr {
    match u32::try_from(number) {
        Ok(number) if v4 => Ipv4Addr::from(number).into(),
        _ => Ipv6Addr::from(number).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(ipam: Value, taken: &[u128], expect: Option<(&str, &str)>) {
        let ranges = of(&ipam).unwrap();
        let found = ranges[0].free(taken);
        assert_eq!(found.as_ref().map(|(offset, address)| (offset.as_str(), address.as_str())), expect);
    }

    #[test]
    fn the_first_that_is_free() {
        check(json!({"range": "10.200.5.0/24"}), &[], Some(("1", "10.200.5.1/24")));
        check(json!({"range": "10.200.5.0/24"}), &[1, 2], Some(("3", "10.200.5.3/24")));
        check(json!({"range": "10.0.0.0/30"}), &[1, 2], None);
        check(json!({"range": "10.0.0.4/31"}), &[0], Some(("1", "10.0.0.5/31")));
        check(json!({"range": "10.0.0.10-10.0.0.11/24"}), &[], Some(("10", "10.0.0.10/24")));
        check(json!({"range": "10.0.0.10-10.0.0.11/24"}), &[10, 11], None);
        check(json!({"range": "10.0.0.0/24", "range_start": "10.0.0.9", "range_end": "10.0.0.9"}), &[9], None);
        check(json!({"range": "10.0.0.0/24", "exclude": ["10.0.0.0/29", "10.0.0.8"]}), &[], Some(("9", "10.0.0.9/24")));
        check(json!({"ipRanges": [{"range": "fd00:5::/64"}]}), &[1], Some(("2", "fd00:5::2/64")));
    }

    #[test]
    fn addresses_have_places() {
        let range = &of(&json!({"range": "10.0.0.10-10.0.0.20/24"})).unwrap()[0];
        assert_eq!(
            (range.place("10.0.0.12".parse().unwrap()), range.at(12).as_deref()),
            (Some(12), Some("10.0.0.12/24"))
        );
        assert_eq!((range.place("10.0.0.9".parse().unwrap()), range.at(9), range.at(u128::MAX)), (None, None, None));
        assert!(range.is_near("10.0.0.9".parse().unwrap()) && !range.is_near("10.0.1.9".parse().unwrap()));
        assert_eq!(range.place("fd00::c".parse().unwrap()), None);
    }

    #[test]
    fn pools_are_named_by_their_range() {
        assert_eq!(of(&json!({"range": "10.200.5.7/24"})).unwrap()[0].pool(), "10.200.5.0-24");
        assert_eq!(of(&json!({"range": "fd00:5::/64"})).unwrap()[0].pool(), "fd00-5---64");
    }

    #[test]
    fn invalid_ranges_are_refused_by_field() {
        let check = |ipam: Value, words: &str| {
            let why = of(&ipam).unwrap_err();
            assert!(why.starts_with("ipam: ") && why.contains(words), "{why}");
        };
        check(json!({}), "range is missing");
        check(json!({"range": "10.0.0"}), "is not a range of addresses");
        check(json!({"range": "10.0.0.0/24", "range_start": "10.0.1.1"}), "range_start 10.0.1.1 is not in 10.0.0.0/24");
        check(json!({"range": "10.0.0.0/24", "range_end": "x"}), "range_end \"x\" is not an address");
        check(json!({"range": "10.0.0.0/24", "exclude": ["x"]}), "exclude: \"x\"");
    }
}
