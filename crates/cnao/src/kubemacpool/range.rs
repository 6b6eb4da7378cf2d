//! The range that addresses are given from.

use std::collections::BTreeMap;
use std::fmt;

use super::mac::Mac;

/// The ConfigMap that says it.
pub const CONFIG: &str = "kubemacpool-mac-range-config";
/// Its key of the first address.
pub const START: &str = "RANGE_START";
/// Its key of the last.
pub const END: &str = "RANGE_END";

/// All addresses from one to another, both included, but those of groups. There is one at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    start: Mac,
    end: Mac,
}

/// What is wrong with a range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// One of the ends is not said.
    #[error("{0} is missing: set both {START} and {END}")]
    Missing(&'static str),
    /// One of the ends is no address.
    #[error("{0} is {1:?}, which is not a MAC address: write six bytes in hexadecimal, as in 02:00:00:00:00:00")]
    Malformed(&'static str, String),
    /// One of the ends cannot be an interface's.
    #[error("{0} is {1}, which no interface can have: the first byte has to be even, and not all bytes zero")]
    NotUnicast(&'static str, Mac),
    /// The ends are in the wrong order.
    #[error("{START} is {0}, which is above {END}, {1}: exchange them")]
    Inverted(Mac, Mac),
}

/// Why the network addons refuse a range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// One end without the other.
    #[error("both or none of the KubeMacPool ranges needs to be configured")]
    Half,
    /// One of the ends is no address.
    #[error("failed to parse {0} because the mac address is invalid")]
    Malformed(&'static str),
    /// One of the ends cannot be an interface's.
    #[error("failed to set {0}: {1} is a multicast address, or zero: the first byte has to be even")]
    NotUnicast(&'static str, Mac),
    /// The ends are in the wrong order.
    #[error("failed to set the range: rangeStart {0} is above rangeEnd {1}: exchange them")]
    Inverted(Mac, Mac),
}

impl Range {
    /// The range from `start` to `end`.
    ///
    /// # Errors
    /// When there is no address in it that an interface can have, or one of its ends is none.
    pub fn new(start: Mac, end: Mac) -> Result<Self, Invalid> {
        for (key, mac) in [(START, start), (END, end)] {
            if mac.is_multicast() || mac == Mac::ZERO {
                return Err(Invalid::NotUnicast(key, mac));
            }
        }
        if start > end {
            return Err(Invalid::Inverted(start, end));
        }
        Ok(Range { start, end })
    }

    /// As the data of the ConfigMap say it.
    ///
    /// # Errors
    /// With a sentence for whoever wrote it.
    pub fn parse(data: &BTreeMap<String, String>) -> Result<Self, Invalid> {
        let read = |key: &'static str| {
            let text = data.get(key).map(|text| text.trim()).filter(|text| !text.is_empty());
            let text = text.ok_or(Invalid::Missing(key))?;
            text.parse::<Mac>().map_err(|_| Invalid::Malformed(key, meta::text::brief(text, 64).into_owned()))
        };
        Range::new(read(START)?, read(END)?)
    }

    /// As `rangeStart` and `rangeEnd` of the network addons say it; none where they leave it to the operator.
    ///
    /// # Errors
    /// With the sentence that clients of the network addons know.
    pub fn asked(start: &str, end: &str) -> Result<Option<Self>, Refused> {
        if start.is_empty() && end.is_empty() {
            return Ok(None);
        }
        if start.is_empty() || end.is_empty() {
            return Err(Refused::Half);
        }
        let read = |field, text: &str| text.parse::<Mac>().map_err(|_| Refused::Malformed(field));
        let (start, end) = (read("rangeStart", start)?, read("rangeEnd", end)?);
        match Range::new(start, end) {
            Ok(range) => Ok(Some(range)),
            Err(Invalid::NotUnicast(END, mac)) => Err(Refused::NotUnicast("RangeEnd", mac)),
            Err(Invalid::NotUnicast(_, mac)) => Err(Refused::NotUnicast("RangeStart", mac)),
            Err(_) => Err(Refused::Inverted(start, end)),
        }
    }

    /// The addresses that begin with 02 and these two bytes: what a cluster takes by chance has a good chance to differ from
    /// that of its neighbours.
    pub fn prefixed(second: u8, third: u8) -> Self {
        Range { start: Mac::local(second, third, 0), end: Mac::local(second, third, 0xff) }
    }

    /// True when `mac` is one of the range.
    pub fn contains(&self, mac: Mac) -> bool {
        (self.start..=self.end).contains(&mac) && !mac.is_multicast()
    }

    /// The first address.
    pub fn start(&self) -> Mac {
        self.start
    }

    /// The last address.
    pub fn end(&self) -> Mac {
        self.end
    }

    /// The address after `mac`, and after the last one the first.
    pub fn after(&self, mac: Mac) -> Mac {
        let next = mac.next_unicast().filter(|next| self.contains(*next));
        next.unwrap_or(self.start)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(start: &str, end: &str, expect: Result<&str, &str>) {
        let data = [(START, start), (END, end)].map(|(key, text)| (key.to_owned(), text.to_owned()));
        let found = Range::parse(&data.into()).map(|range| range.to_string()).map_err(|error| error.to_string());
        assert_eq!(found.as_deref().map_err(String::as_str), expect);
    }

    #[test]
    fn a_range_is_unicast_and_in_order() {
        check("02:00:00:00:00:00", "02:FF:FF:FF:FF:FF", Ok("02:00:00:00:00:00-02:ff:ff:ff:ff:ff"));
        check("02:00:00:00:00:01", " 02-00-00-00-00-01\n", Ok("02:00:00:00:00:01-02:00:00:00:00:01"));
        check("", "02:00:00:00:00:01", Err("RANGE_START is missing: set both RANGE_START and RANGE_END"));
        check("02:00:00:00:00:01", "", Err("RANGE_END is missing: set both RANGE_START and RANGE_END"));
        let malformed =
            "RANGE_END is \"x\", which is not a MAC address: write six bytes in hexadecimal, as in 02:00:00:00:00:00";
        check("02:00:00:00:00:01", "x", Err(malformed));
        let group = "RANGE_START is 03:00:00:00:00:01, which no interface can have: the first byte has to be even, and not all bytes zero";
        check("03:00:00:00:00:01", "04:00:00:00:00:01", Err(group));
        let zero = "RANGE_START is 00:00:00:00:00:00, which no interface can have: the first byte has to be even, and not all bytes zero";
        check("00:00:00:00:00:00", "04:00:00:00:00:01", Err(zero));
        // One byte of the start is lower than the end's, and the whole is higher.
        let inverted = "RANGE_START is 02:10:00:00:00:00, which is above RANGE_END, 02:00:ff:00:00:00: exchange them";
        check("02:10:00:00:00:00", "02:00:FF:00:00:00", Err(inverted));
    }

    #[track_caller]
    fn asked(start: &str, end: &str, expect: Result<Option<&str>, &str>) {
        let found = Range::asked(start, end).map(|range| range.map(|range| range.to_string()));
        let found = found.map_err(|refused| refused.to_string());
        assert_eq!(found.as_ref().map(Option::as_deref).map_err(String::as_str), expect);
    }

    #[test]
    fn a_range_that_is_asked_for_is_whole_or_left_out() {
        asked("", "", Ok(None));
        asked("02:00:00:00:00:01", "02:00:00:00:00:02", Ok(Some("02:00:00:00:00:01-02:00:00:00:00:02")));
        asked("02:00:00:00:00:01", "", Err("both or none of the KubeMacPool ranges needs to be configured"));
        asked("x", "02:00:00:00:00:01", Err("failed to parse rangeStart because the mac address is invalid"));
        asked("02:00:00:00:00:01", "x", Err("failed to parse rangeEnd because the mac address is invalid"));
        let multicast =
            "failed to set RangeEnd: 03:00:00:00:00:01 is a multicast address, or zero: the first byte has to be even";
        asked("02:00:00:00:00:01", "03:00:00:00:00:01", Err(multicast));
        let inverted =
            "failed to set the range: rangeStart 02:10:00:00:00:00 is above rangeEnd 02:00:ff:00:00:00: exchange them";
        asked("02:10:00:00:00:00", "02:00:ff:00:00:00", Err(inverted));
        assert_eq!(Range::prefixed(0xab, 1).to_string(), "02:ab:01:00:00:00-02:ab:01:ff:ff:ff");
    }

    #[test]
    fn after_the_last_address_comes_the_first() {
        let mac = |text: &str| text.parse::<Mac>().unwrap();
        let range = Range::new(mac("02:ff:ff:ff:ff:ff"), mac("04:00:00:00:00:01")).unwrap();
        let mut at = range.start();
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(at.to_string());
            at = range.after(at);
        }
        assert_eq!(seen, ["02:ff:ff:ff:ff:ff", "04:00:00:00:00:00", "04:00:00:00:00:01", "02:ff:ff:ff:ff:ff"]);
        assert_eq!(range.after(mac("06:00:00:00:00:00")), range.start());
        assert_eq!(range.after(mac("00:00:00:00:00:09")), range.start());
        assert!(!range.contains(mac("03:00:00:00:00:00")));
    }
}
