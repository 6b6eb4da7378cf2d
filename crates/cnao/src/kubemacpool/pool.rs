//! Which addresses are taken, which is given next, and which are given back. Pure: it is told what the API server holds.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::mac::Mac;
use super::range::Range;
use super::reservation::{Kind, Object, Reservation};

/// What this replica knows. It may be behind the API server; a choice made of it counts once its Lease is created.
#[derive(Debug, Default)]
pub(super) struct Pool {
    range: Option<Range>,
    /// The address that was chosen last, by any replica, and when.
    last: Option<(Timestamp, Mac)>,
    reservations: HashMap<Mac, Entry>,
    /// Who has an address, as the objects themselves say.
    holders: HashMap<Mac, BTreeSet<Object>>,
    /// Reservations of requests of which it is not known that they were stored.
    open: BTreeSet<Open>,
    /// Addresses that requests of this replica are about to reserve.
    trying: HashSet<Mac>,
}

#[derive(Debug)]
struct Entry {
    reservation: Reservation,
    /// The name of its owner, once that was seen with the address.
    stored: Option<String>,
}

/// In the order of namespaces, so that those of one namespace are counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Open {
    owner: Object,
    interface: String,
    mac: Mac,
}

/// The address for an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// One that nobody has. To be reserved by creating its Lease; the pool is to be told by [`Pool::tried`] how that ended.
    New(Mac),
    /// One that was reserved for the same interface before, by a request that was not stored. To be touched.
    Again(Reservation),
}

/// Why no address can be given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Exhausted {
    /// There is no range.
    #[error("there is no range to take an address from")]
    NoRange,
    /// Every address is taken.
    #[error("the range is full: every address of {0} is taken")]
    Full(Range),
}

/// What becomes of a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// It is used, or there is none.
    Kept,
    /// A request that has the address may yet be stored; look again then.
    In(Duration),
    /// It can be given back if the API server says that its owner, who is named if anybody knows the name, does not have the
    /// address.
    Now(Reservation),
}

impl Pool {
    /// Where addresses are taken from now on; those that were given stay.
    pub(super) fn set_range(&mut self, range: Range) {
        self.range = Some(range);
    }

    /// The range.
    pub(super) fn range(&self) -> Option<Range> {
        self.range
    }

    /// The API server holds this reservation.
    pub(super) fn reserved(&mut self, reservation: Reservation) {
        let mac = reservation.mac;
        let known = self.reservations.get(&mac).is_some_and(|entry| entry.reservation.version == reservation.version);
        if known {
            return;
        }
        self.forget(mac);
        self.trying.remove(&mac);
        let of_range = self.range.is_none_or(|range| range.contains(mac));
        let newest = self.last.is_none_or(|(at, _)| at < reservation.renewed);
        if reservation.chosen && !reservation.contested && of_range && newest {
            self.last = Some((reservation.renewed, mac));
        }
        let mut holders = self.holders.get(&mac).into_iter().flatten();
        let stored = holders.find(|one| reservation.owner.may_be(one)).map(|one| one.name.clone());
        if stored.is_none() {
            self.open.insert(open(&reservation));
        }
        self.reservations.insert(mac, Entry { reservation, stored });
    }

    /// The API server holds no reservation of `mac` any more.
    pub(super) fn forget(&mut self, mac: Mac) {
        if let Some(entry) = self.reservations.remove(&mac) {
            self.open.remove(&open(&entry.reservation));
        }
    }

    /// The addresses of `object` were `was` and are `is`.
    pub(super) fn held(&mut self, object: &Object, was: &[Mac], is: &[Mac]) {
        for mac in was {
            if let Some(holders) = self.holders.get_mut(mac) {
                holders.remove(object);
                if holders.is_empty() {
                    self.holders.remove(mac);
                }
            }
        }
        for mac in is {
            self.holders.entry(*mac).or_default().insert(object.clone());
            if let Some(entry) = self.reservations.get_mut(mac)
                && entry.reservation.owner.may_be(object)
            {
                entry.stored = Some(object.name.clone());
                self.open.remove(&open(&entry.reservation));
            }
        }
    }

    /// An address for an interface of `owner`.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn choose(&mut self, owner: &Object, interface: &str) -> Result<Choice, Exhausted> {
        if let Some(again) = self.again(owner, interface) {
            return Ok(Choice::Again(again));
        }
        let mac = self.free(1)?[0];
        self.trying.insert(mac);
        Ok(Choice::New(mac))
    }

    /// The next `count` addresses: what a request would get, without giving it.
    ///
    /// # Errors
    /// When there are fewer.
    pub(super) fn free(&self, count: usize) -> Result<Vec<Mac>, Exhausted> {
        let range = self.range.ok_or(Exhausted::NoRange)?;
        let first = self.last.map_or(range.start(), |(_, last)| range.after(last));
        let (mut at, mut found) = (first, Vec::new());
        while found.len() < count {
            if !self.is_taken(at) {
                found.push(at);
            }
            at = range.after(at);
            if at == first {
                break;
            }
        }
        if found.len() < count { Err(Exhausted::Full(range)) } else { Ok(found) }
    }

    fn is_taken(&self, mac: Mac) -> bool {
        self.reservations.contains_key(&mac) || self.holders.contains_key(&mac) || self.trying.contains(&mac)
    }

    /// Who asks again for what was not stored gets the same: retries do not use the range up.
    fn again(&self, owner: &Object, interface: &str) -> Option<Reservation> {
        if owner.name.is_empty() {
            return None;
        }
        let least = Open { owner: owner.clone(), interface: interface.to_owned(), mac: Mac::ZERO };
        let same = self.open.range(least..);
        let mut same = same.take_while(|open| (&open.owner, open.interface.as_str()) == (owner, interface));
        same.find_map(|open| {
            let reservation = &self.reservations.get(&open.mac)?.reservation;
            let of_range = self.range.is_some_and(|range| range.contains(open.mac));
            let free = !self.holders.contains_key(&open.mac);
            (reservation.chosen && of_range && free).then(|| reservation.clone())
        })
    }

    /// The attempt to reserve a [`Choice::New`] is over, however it ended.
    pub(super) fn tried(&mut self, mac: Mac) {
        self.trying.remove(&mac);
    }

    /// Who but `owner` has or has reserved `mac`.
    pub(super) fn others(&self, mac: Mac, owner: &Object) -> Vec<Object> {
        let holders = self.holders.get(&mac).into_iter().flatten();
        let reserved = self.reservations.get(&mac).map(|entry| &entry.reservation.owner);
        // A virtual machine has the addresses of its instance, which has its name.
        let is_pod = |object: &Object| object.kind == Kind::Pod;
        let name = |object: &Object| (is_pod(object), object.namespace.clone(), object.name.clone());
        let same = |one: &Object| name(one) == name(owner);
        let others: BTreeSet<&Object> = holders.chain(reserved).filter(|one| !same(one)).collect();
        others.into_iter().cloned().collect()
    }

    /// The addresses that more than one object has, as the objects say.
    pub(super) fn shared(&self) -> Vec<Mac> {
        self.holders.iter().filter(|(_, all)| all.len() > 1).map(|(mac, _)| *mac).collect()
    }

    /// How many addresses are reserved in `namespace` for requests of which it is not known that they were stored; counted up
    /// to `most`.
    pub(super) fn open_in(&self, namespace: &str, most: usize) -> usize {
        let owner = Object { namespace: namespace.to_owned(), kind: Kind::VirtualMachine, name: String::new() };
        let all = self.open.range(Open { owner, interface: String::new(), mac: Mac::ZERO }..);
        all.take_while(|open| open.owner.namespace == namespace).take(most).count()
    }

    /// What becomes of the reservation of `mac` when requests are over after `wait`.
    ///
    /// A reservation that one request alone had, and whose owner was seen with the address, is given back as soon as nobody
    /// has the address: that request is over. Of any other, some request may not be.
    pub(super) fn due(&self, mac: Mac, now: Timestamp, wait: Duration) -> Due {
        let Some(Entry { reservation, stored }) = self.reservations.get(&mac) else { return Due::Kept };
        if self.holders.contains_key(&mac) {
            return Due::Kept;
        }
        let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
        let left = wait.saturating_sub(now.duration_since(reservation.renewed));
        let mut reservation = reservation.clone();
        match stored {
            Some(name) if !reservation.contested => reservation.owner.name.clone_from(name),
            _ if left.is_positive() => return Due::In(left.unsigned_abs()),
            _ => {}
        }
        Due::Now(reservation)
    }
}

fn open(reservation: &Reservation) -> Open {
    Open { owner: reservation.owner.clone(), interface: reservation.interface.clone(), mac: reservation.mac }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
