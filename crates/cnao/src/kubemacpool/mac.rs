//! MAC addresses of 48 bits. Pure.

use std::fmt;

/// A MAC address; ordered as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(u64);

const LAST: u64 = (1 << 48) - 1;

impl Mac {
    /// Reads `02:00:00:00:00:01`, with colons or hyphens, or `0200.0000.0001`, in any case of letters.
    pub fn parse(text: &str) -> Option<Self> {
        let (separator, digits) = match text.as_bytes().get(2)? {
            b':' => (':', 2),
            b'-' => ('-', 2),
            _ => ('.', 4),
        };
        let parts: Vec<&str> = text.split(separator).collect();
        let good = |part: &&str| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        if parts.len() * digits != 12 || !parts.iter().all(good) {
            return None;
        }
        u64::from_str_radix(&parts.concat(), 16).ok().map(Mac)
    }

    /// True for addresses of many receivers, which no interface has.
    pub fn is_multicast(self) -> bool {
        self.0 >> 40 & 1 == 1
    }

    /// The address after this one; none after the last.
    pub fn next(self) -> Option<Self> {
        (self.0 < LAST).then(|| Mac(self.0 + 1))
    }

    /// How many addresses there are from this one to `end`, both counted.
    pub fn count_to(self, end: Mac) -> u64 {
        (end.0 + 1).saturating_sub(self.0)
    }

    /// As names and values of labels can hold it: with hyphens.
    pub fn word(self) -> String {
        self.to_string().replace(':', "-")
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [_, _, a, b, c, d, e, g] = self.0.to_be_bytes();
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Option<&str>) {
        assert_eq!(Mac::parse(text).map(|mac| mac.to_string()).as_deref(), expect, "{text}");
    }

    #[test]
    fn addresses_are_read_in_every_form_and_written_in_one() {
        check("02:00:00:AB:cd:01", Some("02:00:00:ab:cd:01"));
        check("02-00-00-00-00-01", Some("02:00:00:00:00:01"));
        check("0200.0000.0001", Some("02:00:00:00:00:01"));
        for bad in [
            "",
            "02",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "02:00:00:00:00:0g",
            "+2:00:00:00:00:01",
            "02:00-00:00:00:01",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn addresses_are_ordered_as_numbers() {
        let mac = |text: &str| Mac::parse(text).unwrap();
        assert!(mac("02:00:00:00:01:00") > mac("02:00:00:00:00:ff"));
        assert_eq!(mac("02:00:00:00:00:ff").next(), Some(mac("02:00:00:00:01:00")));
        assert_eq!(mac("ff:ff:ff:ff:ff:ff").next(), None);
        assert_eq!(mac("02:00:00:00:00:00").count_to(mac("02:00:00:00:00:ff")), 256);
        assert!(mac("01:00:00:00:00:00").is_multicast() && !mac("02:00:00:00:00:00").is_multicast());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(number in 0..=LAST, text in ".*") {
            prop_assert_eq!(Mac::parse(&Mac(number).to_string()), Some(Mac(number)));
            prop_assert_eq!(Mac::parse(&Mac(number).word()), Some(Mac(number)));
            let _ = Mac::parse(&text);
        }
    }
}
