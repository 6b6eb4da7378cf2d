//! Addresses of network interfaces, as one number.

use std::fmt;
use std::str::FromStr;

/// An address of six bytes. Ordered as a whole: the first byte counts most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(u64);

/// The text is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a MAC address: write six bytes in hexadecimal, as in 02:00:00:00:00:01")]
pub struct Malformed;

impl Mac {
    /// The lowest of all addresses, which no interface can have.
    pub const ZERO: Mac = Mac(0);
    /// The highest.
    const LAST: u64 = 0xffff_ffff_ffff;
    /// How many addresses have the same first byte.
    const FIRST_BYTE: u64 = 1 << 40;

    /// 02 and these two bytes, and then one byte three times.
    pub fn local(second: u8, third: u8, rest: u8) -> Mac {
        Mac(u64::from_be_bytes([0, 0, 2, second, third, rest, rest, rest]))
    }

    /// True for addresses of groups, which no interface can have as its own.
    pub fn is_multicast(self) -> bool {
        self.0 & Self::FIRST_BYTE != 0
    }

    /// The next higher address that is not one of a group; none after the highest.
    pub fn next_unicast(self) -> Option<Mac> {
        let next = self.0 + 1;
        // All addresses with the same first byte are of groups together, and those of the next first byte are not.
        let next = if Mac(next).is_multicast() { (next / Self::FIRST_BYTE + 1) * Self::FIRST_BYTE } else { next };
        (next <= Self::LAST).then_some(Mac(next))
    }

    /// As part of an object's name.
    pub fn dashed(self) -> String {
        self.joined('-')
    }

    fn joined(self, separator: char) -> String {
        let mut text = String::with_capacity(17);
        for (at, byte) in self.0.to_be_bytes()[2..].iter().enumerate() {
            if at > 0 {
                text.push(separator);
            }
            text.push_str(&format!("{byte:02x}"));
        }
        text
    }
}

impl fmt::Display for Mac {
    /// In lower case with colons: addresses are equal exactly when their texts are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.joined(':'))
    }
}

impl FromStr for Mac {
    type Err = Malformed;

    /// Reads the notations that KubeVirt takes: `02:00:5e:10:00:01`, `02-00-5E-10-00-01` and `0200.5e10.0001`.
    fn from_str(text: &str) -> Result<Self, Malformed> {
        let bytes = text.as_bytes();
        let (separator, every) = match (bytes.len(), bytes.get(2), bytes.get(4)) {
            (17, Some(separator @ (b':' | b'-')), _) => (*separator, 3),
            (14, _, Some(b'.')) => (b'.', 5),
            _ => return Err(Malformed),
        };
        let mut value = 0;
        for (at, byte) in bytes.iter().enumerate() {
            if at % every == every - 1 {
                if *byte != separator {
                    return Err(Malformed);
                }
                continue;
            }
            let digit = char::from(*byte).to_digit(16).ok_or(Malformed)?;
            value = value << 4 | u64::from(digit);
        }
        Ok(Mac(value))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Option<&str>) {
        assert_eq!(text.parse::<Mac>().ok().map(|mac| mac.to_string()).as_deref(), expect, "{text}");
    }

    #[test]
    fn addresses_are_read_in_every_notation() {
        check("02:00:00:aB:00:01", Some("02:00:00:ab:00:01"));
        check("02-00-00-AB-00-01", Some("02:00:00:ab:00:01"));
        check("0200.00ab.0001", Some("02:00:00:ab:00:01"));
        let wrong = [
            "",
            "02",
            "02:00:00:ab:00",
            "02:00:00:ab:00:1",
            "02:00:00:ab:00:0g",
            "02:00-00:ab:00:01",
            "0200.00ab:0001",
            " 2:00:00:ab:00:01",
            "+2:00:00:ab:00:01",
            "02:00:00:ab:00:01:02:03",
            "020000ab0001",
            "0200:00ab:0001",
            "02:00:00:ab:00:ä",
            "ää:00:00:ab:00:",
        ];
        wrong.into_iter().for_each(|text| check(text, None));
    }

    #[track_caller]
    fn next(mac: &str, expect: Option<&str>) {
        let next = mac.parse::<Mac>().unwrap().next_unicast().map(|mac| mac.to_string());
        assert_eq!(next.as_deref(), expect);
    }

    #[test]
    fn addresses_of_groups_are_passed_over() {
        next("02:00:00:00:00:ff", Some("02:00:00:00:01:00"));
        next("02:ff:ff:ff:ff:ff", Some("04:00:00:00:00:00"));
        next("03:00:00:00:00:07", Some("04:00:00:00:00:00"));
        next("fe:ff:ff:ff:ff:ff", None);
        next("ff:ff:ff:ff:ff:ff", None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(value in 0..=Mac::LAST) {
            let mac = Mac(value);
            prop_assert_eq!(mac.to_string().parse(), Ok(mac));
            prop_assert_eq!(mac.dashed().parse(), Ok(mac));
            prop_assert_eq!(mac.to_string().to_uppercase().parse(), Ok(mac));
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,20}") {
            let _ = text.parse::<Mac>();
        }
    }
}
