//! The zone: addresses by name, and the serial number of what it holds. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use hickory_proto::ProtoError;
use hickory_proto::rr::Name;

/// First label of the zone.
const LABEL: &str = "vm";

/// Addresses by name below the zone, in lower case and without a final dot: `INTERFACE.VM.NAMESPACE`.
pub type Records = BTreeMap<String, Vec<IpAddr>>;

/// What the server answers from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    origin: Name,
    name_server: Option<Ipv4Addr>,
    serial: u32,
    records: Records,
}

/// The name of the zone whose domain is `domain`.
///
/// # Errors
/// When that is no domain.
pub fn origin(domain: &str) -> Result<Name, ProtoError> {
    let domain = domain.trim().trim_matches('.');
    let text = if domain.is_empty() { format!("{LABEL}.") } else { format!("{LABEL}.{domain}.") };
    Name::from_ascii(text).map(|name| name.to_lowercase())
}

impl Zone {
    /// An empty zone. `name_server` is the address of its name server `ns`, if others may ask that.
    pub fn new(origin: Name, name_server: Option<Ipv4Addr>) -> Self {
        Self { origin, name_server, serial: 0, records: Records::new() }
    }

    /// Holds `records` from now on. The serial number grows if they are others: from `now`, in seconds, so that it grows over restarts.
    pub fn replace(&mut self, records: Records, now: u32) {
        if self.serial == 0 || self.records != records {
            self.serial = self.serial.saturating_add(1).max(now);
            self.records = records;
        }
    }

    /// Its name.
    pub fn origin(&self) -> &Name {
        &self.origin
    }

    /// Its serial number.
    pub fn serial(&self) -> u32 {
        self.serial
    }

    /// The address of its name server, if it names one.
    pub fn name_server(&self) -> Option<Ipv4Addr> {
        self.name_server
    }

    /// The addresses of a name below it, none where there is no such name; a name that others lie below is there, and has none.
    pub fn find(&self, below: &str) -> Option<&[IpAddr]> {
        if let Some(found) = self.records.get(below) {
            return Some(found);
        }
        let suffix = format!(".{below}");
        self.records.keys().any(|name| name.ends_with(&suffix)).then_some(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_serial_number_grows_with_what_is_held_and_over_restarts() {
        let of = |name: &str| Records::from([(name.to_owned(), vec![IpAddr::from([10, 0, 0, 1])])]);
        let mut zone = Zone::new(origin("").unwrap(), None);
        zone.replace(of("a.b.c"), 100);
        assert_eq!(zone.serial(), 100);
        zone.replace(of("a.b.c"), 200);
        assert_eq!(zone.serial(), 100, "nothing has changed");
        zone.replace(of("d.b.c"), 50);
        assert_eq!(zone.serial(), 101, "though the clock went back");
        zone.replace(of("a.b.c"), 300);
        assert_eq!(zone.serial(), 300);
    }

    #[test]
    fn names_above_others_are_there() {
        let mut zone = Zone::new(origin("example.org").unwrap(), None);
        zone.replace(Records::from([("a.b.c".to_owned(), vec![IpAddr::from([10, 0, 0, 1])])]), 1);
        assert_eq!(zone.find("a.b.c").map(<[_]>::len), Some(1));
        assert_eq!((zone.find("b.c"), zone.find("c")), (Some(&[][..]), Some(&[][..])));
        assert_eq!((zone.find("x.c"), zone.find("bb.c")), (None, None));
    }

    #[test]
    fn a_domain_follows_the_zones_label() {
        let name = |domain: &str| origin(domain).map(|name| name.to_string()).ok();
        assert_eq!(name("").as_deref(), Some("vm."));
        assert_eq!(name("Secondary.Example.").as_deref(), Some("vm.secondary.example."));
        assert_eq!(name(&"a".repeat(70)), None);
    }
}
