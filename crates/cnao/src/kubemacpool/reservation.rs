//! An address that is taken, as a Lease named after it: whoever creates the Lease has the address. Pure.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::core::ObjectMeta;

use super::mac::Mac;

/// The label of every reservation; its value is where the address comes from. Who removes the pool deletes by it.
pub const LABEL: &str = "kubemacpool.io/reservation";
/// Its value where the pool chose the address.
const CHOSEN: &str = "chosen";
/// Its value where a request named it.
const GIVEN: &str = "given";
const PREFIX: &str = "kubemacpool-";

/// Kinds of objects whose interfaces have addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A virtual machine.
    VirtualMachine,
    /// A virtual machine that runs.
    VirtualMachineInstance,
    /// A pod.
    Pod,
}

/// The kinds, by their names in the API.
const KINDS: [(Kind, &str); 3] = [
    (Kind::VirtualMachine, "VirtualMachine"),
    (Kind::VirtualMachineInstance, "VirtualMachineInstance"),
    (Kind::Pod, "Pod"),
];

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        KINDS.iter().filter(|(kind, _)| kind == self).try_for_each(|(_, name)| f.write_str(name))
    }
}

/// An object whose interfaces have addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Object {
    /// Its namespace.
    pub namespace: String,
    /// Its kind.
    pub kind: Kind,
    /// Its name; empty when the API server makes one up after admission.
    pub name: String,
}

impl Object {
    /// True when `holder` may be this object: it is, or this one's name is not known yet.
    pub fn may_be(&self, holder: &Object) -> bool {
        (self.kind, &self.namespace) == (holder.kind, &holder.namespace)
            && (self.name.is_empty() || self.name == holder.name)
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// An address that is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The address.
    pub mac: Mac,
    /// For which object.
    pub owner: Object,
    /// For which of its interfaces.
    pub interface: String,
    /// Whether the pool chose it for each request that has it; else a request named it.
    pub chosen: bool,
    /// Whether more than one request had it: that one was stored says nothing of the others then.
    pub contested: bool,
    /// When a request had it last.
    pub renewed: Timestamp,
    /// UID and resource version of the Lease; empty before it is created.
    pub version: (String, String),
}

impl Reservation {
    /// For the first request that has the address.
    pub fn new(mac: Mac, owner: &Object, interface: &str, chosen: bool, now: Timestamp) -> Self {
        Reservation {
            mac,
            owner: owner.clone(),
            interface: interface.to_owned(),
            chosen,
            contested: false,
            renewed: now,
            version: Default::default(),
        }
    }

    /// As it is once another request has the address, too: `chosen` by the pool, which gives it again to the same interface
    /// only, or named by the request. What was named may be anybody's, and is not given again.
    #[must_use]
    pub fn touched(mut self, chosen: bool, now: Timestamp) -> Self {
        self.contested = true;
        self.chosen &= chosen;
        self.renewed = self.renewed.max(now);
        self
    }

    /// The Lease. `wait` is how long it counts after the last request, should none be stored.
    pub fn lease(&self, wait: Duration) -> Lease {
        let Object { namespace, kind, name } = &self.owner;
        let origin = if self.chosen { CHOSEN } else { GIVEN };
        let (uid, version) = self.version.clone();
        let known = |text: String| Some(text).filter(|text| !text.is_empty());
        Lease {
            metadata: ObjectMeta {
                name: Some(lease_name(self.mac)),
                labels: Some([(LABEL.to_owned(), origin.to_owned())].into()),
                uid: known(uid),
                resource_version: known(version),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(format!("{kind}/{namespace}/{name}/{}", self.interface)),
                lease_duration_seconds: Some(i32::try_from(wait.as_secs()).unwrap_or(i32::MAX).max(1)),
                lease_transitions: Some(i32::from(self.contested)),
                renew_time: Some(MicroTime(self.renewed)),
                ..LeaseSpec::default()
            }),
        }
    }

    /// What a Lease says; none when it is not a reservation.
    pub fn read(lease: &Lease) -> Option<Self> {
        let spec = lease.spec.as_ref()?;
        let mut holder = spec.holder_identity.as_deref()?.splitn(4, '/');
        let mut next = || holder.next().map(str::to_owned);
        let (kind, namespace, name, interface) = (next()?, next()?, next()?, next()?);
        let kind = KINDS.iter().find(|(_, text)| *text == kind)?.0;
        let meta = &lease.metadata;
        Some(Reservation {
            mac: reserved_by(meta.name.as_deref()?)?,
            owner: Object { namespace, kind, name },
            interface,
            chosen: meta.labels.as_ref()?.get(LABEL)? == CHOSEN,
            contested: spec.lease_transitions.is_some_and(|transitions| transitions > 0),
            renewed: spec.renew_time.as_ref().map(|MicroTime(at)| *at)?,
            version: (meta.uid.clone().unwrap_or_default(), meta.resource_version.clone().unwrap_or_default()),
        })
    }
}

/// The Lease of an address.
pub fn lease_name(mac: Mac) -> String {
    format!("{PREFIX}{}", mac.dashed())
}

/// The address of a Lease.
pub fn reserved_by(lease: &str) -> Option<Mac> {
    lease.strip_prefix(PREFIX)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reservation() -> Reservation {
        let owner = Object { namespace: "ns".into(), kind: Kind::VirtualMachine, name: "vm".into() };
        let now = "2026-01-02T03:04:05.000006Z".parse().unwrap();
        Reservation::new("02:00:00:00:00:0a".parse().unwrap(), &owner, "net/1", true, now)
    }

    #[test]
    fn a_lease_says_all_of_a_reservation() {
        let mut reservation = reservation();
        let wait = Duration::from_secs(600);
        let lease = reservation.lease(wait);
        assert_eq!(lease.metadata.name.as_deref(), Some("kubemacpool-02-00-00-00-00-0a"));
        assert_eq!(lease.spec.as_ref().unwrap().holder_identity.as_deref(), Some("VirtualMachine/ns/vm/net/1"));
        assert_eq!(Reservation::read(&lease).as_ref(), Some(&reservation));
        reservation.version = ("uid".into(), "7".into());
        reservation.owner.name.clear();
        let later = reservation.renewed + wait;
        let again = reservation.clone().touched(true, later);
        assert_eq!((again.contested, again.chosen, again.renewed), (true, true, later));
        let touched = reservation.touched(false, later);
        assert!(touched.contested && !touched.chosen);
        assert_eq!(Reservation::read(&touched.lease(wait)), Some(touched));
    }

    #[test]
    fn other_leases_are_no_reservations() {
        let mut lease = reservation().lease(Duration::from_secs(1));
        lease.metadata.name = Some("kubemacpool-election".into());
        assert_eq!(Reservation::read(&lease), None);
        let mut lease = reservation().lease(Duration::from_secs(1));
        lease.spec.as_mut().unwrap().holder_identity = Some("kubemacpool-7".into());
        assert_eq!(Reservation::read(&lease), None);
        assert_eq!(Reservation::read(&Lease::default()), None);
    }
}
