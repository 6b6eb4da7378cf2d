//! The addresses that the pool gives out. Pure.

use std::collections::BTreeMap;
use std::fmt;

use super::mac::Mac;

/// The ConfigMap with the range.
pub const CONFIG: &str = "kubemacpool-mac-range-config";
/// Its keys.
pub const START: &str = "RANGE_START";
pub const END: &str = "RANGE_END";
const DEFAULT: (&str, &str) = ("02:00:00:00:00:00", "02:ff:ff:ff:ff:ff");

/// From the first address to the last, both counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    start: Mac,
    end: Mac,
}

/// Why two addresses are no range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// One of the two is missing.
    #[error("both or none of the KubeMacPool ranges needs to be configured")]
    Half,
    /// One of them is no address.
    #[error("failed to parse {0} because the mac address is invalid: {1:?} is not of the form 02:00:00:00:00:00")]
    NoAddress(&'static str, String),
    /// One of them is an address of many receivers.
    #[error("failed to set {0}: {1} is a multicast address: its first byte is odd")]
    Multicast(&'static str, Mac),
    /// The last comes before the first.
    #[error("failed to set rangeEnd: {1} comes before rangeStart {0}")]
    Order(Mac, Mac),
}

impl Range {
    /// Of its two ends; empty texts are the default.
    ///
    /// # Errors
    /// When they are no range.
    pub fn parse(start: &str, end: &str) -> Result<Self, Invalid> {
        let (start, end) = match (start.trim(), end.trim()) {
            ("", "") => DEFAULT,
            ("", _) | (_, "") => return Err(Invalid::Half),
            both => both,
        };
        let read = |name: &'static str, text: &str| {
            let mac = Mac::parse(text).ok_or_else(|| Invalid::NoAddress(name, text.to_owned()))?;
            if mac.is_multicast() { Err(Invalid::Multicast(name, mac)) } else { Ok(mac) }
        };
        let (start, end) = (read("rangeStart", start)?, read("rangeEnd", end)?);
        if end < start {
            return Err(Invalid::Order(start, end));
        }
        Ok(Range { start, end })
    }

    /// As the ConfigMap has it.
    ///
    /// # Errors
    /// When it holds no range.
    pub fn of_config(data: &BTreeMap<String, String>) -> Result<Self, Invalid> {
        let text = |key: &str| data.get(key).map(String::as_str).unwrap_or_default();
        Range::parse(text(START), text(END))
    }

    /// The first address after `last`, round the end, that is not `taken`; none when all are.
    pub fn next(&self, last: Option<Mac>, taken: impl Fn(Mac) -> bool) -> Option<Mac> {
        let inside = |mac: &Mac| *mac >= self.start && *mac <= self.end;
        let mut at = last.and_then(Mac::next).filter(inside).unwrap_or(self.start);
        for _ in 0..self.start.count_to(self.end) {
            // Multicast addresses may lie between two that are none.
            if !at.is_multicast() && !taken(at) {
                return Some(at);
            }
            at = at.next().filter(inside).unwrap_or(self.start);
        }
        None
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} - {}", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(text: &str) -> Mac {
        Mac::parse(text).unwrap()
    }

    #[track_caller]
    fn check(start: &str, end: &str, expect: Result<&str, &str>) {
        match (Range::parse(start, end), expect) {
            (Ok(range), Ok(expect)) => assert_eq!(range.to_string(), expect),
            (Err(error), Err(expect)) => assert!(error.to_string().contains(expect), "{error}"),
            (found, _) => panic!("{found:?}"),
        }
    }

    #[test]
    fn ranges_are_ordered_and_of_single_receivers() {
        check("", "", Ok("02:00:00:00:00:00 - 02:ff:ff:ff:ff:ff"));
        check("02:00:00:00:00:0A", "02-00-00-00-00-0f", Ok("02:00:00:00:00:0a - 02:00:00:00:00:0f"));
        check("02:00:00:00:00:00", "", Err("both or none"));
        check("x", "02:00:00:00:00:00", Err("failed to parse rangeStart"));
        check(
            "02:00:00:00:00:00",
            "03:00:00:00:00:00",
            Err("failed to set rangeEnd: 03:00:00:00:00:00 is a multicast"),
        );
        // The whole address counts, and not whether some byte is lower.
        check("02:00:00:00:01:00", "02:00:00:00:00:ff", Err("comes before rangeStart"));
    }

    #[test]
    fn addresses_are_given_in_turn_round_the_end() {
        let range = Range::parse("02:00:00:00:00:00", "02:00:00:00:00:02").unwrap();
        let none = |_: Mac| false;
        assert_eq!(range.next(None, none), Some(mac("02:00:00:00:00:00")));
        assert_eq!(range.next(Some(mac("02:00:00:00:00:01")), none), Some(mac("02:00:00:00:00:02")));
        assert_eq!(range.next(Some(mac("02:00:00:00:00:02")), none), Some(mac("02:00:00:00:00:00")));
        // The range was another one meanwhile.
        assert_eq!(range.next(Some(mac("0a:00:00:00:00:00")), none), Some(mac("02:00:00:00:00:00")));
        let taken = |at: Mac| at != mac("02:00:00:00:00:01");
        assert_eq!(range.next(Some(mac("02:00:00:00:00:01")), taken), Some(mac("02:00:00:00:00:01")));
        assert_eq!(range.next(None, |_| true), None);
        let odd = Range::parse("02:ff:ff:ff:ff:ff", "04:00:00:00:00:00").unwrap();
        assert_eq!(odd.next(None, none), Some(mac("02:ff:ff:ff:ff:ff")));
    }
}
