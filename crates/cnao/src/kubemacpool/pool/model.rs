//! Two replicas and the API server between them, in any order of what they do: no address is given while anybody has it.
//!
//! What a replica knows comes from watches that are as late as chance has it; it may die between any two steps.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::*;

const WAIT: Duration = Duration::from_secs(600);
/// The API server gives requests up after this long.
const LONGEST_REQUEST: SignedDuration = SignedDuration::from_secs(60);
const ADDRESSES: u8 = 4;

fn mac(at: u8) -> Mac {
    format!("02:00:00:00:00:{:02x}", at % ADDRESSES).parse().unwrap()
}

#[derive(Clone, Copy, Debug)]
enum Act {
    /// A request reaches a replica: an object of this name is made, or gets another interface. It names the address, or not.
    Ask { replica: usize, name: u8, given: Option<u8> },
    /// A replica goes on with a request.
    Proceed(usize),
    /// The API server stores a request that was answered, if the object is still what the request was about.
    Store(usize),
    /// The API server refuses a request.
    Refuse(usize),
    /// An object loses its first interface.
    Shrink(u8),
    /// An object is deleted.
    Delete(u8),
    /// Events reach a replica: of reservations, or of objects.
    Deliver { replica: usize, objects: bool, count: usize },
    /// All events reach both replicas.
    DeliverAll,
    /// A replica dies, and another takes its place.
    Crash(usize),
    /// A replica looks whether an address can be given back.
    Look { replica: usize, address: u8 },
    /// A replica goes on giving an address back.
    GiveBack(usize),
    /// A replica looks, and gives an address back without a pause.
    Return { replica: usize, address: u8 },
    /// Time passes.
    Pass(i64),
}

fn act(given: bool) -> impl Strategy<Value = Act> {
    let named = if given { proptest::option::of(0..ADDRESSES).boxed() } else { Just(None).boxed() };
    prop_oneof![
        3 => (0..2usize, 0..3u8, named).prop_map(|(replica, name, given)| Act::Ask { replica, name, given }),
        8 => (0..8usize).prop_map(Act::Proceed),
        4 => (0..8usize).prop_map(Act::Store),
        1 => (0..8usize).prop_map(Act::Refuse),
        1 => (0..3u8).prop_map(Act::Shrink),
        2 => (0..3u8).prop_map(Act::Delete),
        4 => (0..2usize, any::<bool>(), 1..6usize)
            .prop_map(|(replica, objects, count)| Act::Deliver { replica, objects, count }),
        3 => Just(Act::DeliverAll),
        1 => (0..2usize).prop_map(Act::Crash),
        4 => (0..2usize, 0..ADDRESSES).prop_map(|(replica, address)| Act::Look { replica, address }),
        5 => (0..4usize).prop_map(Act::GiveBack),
        4 => (0..2usize, 0..ADDRESSES).prop_map(|(replica, address)| Act::Return { replica, address }),
        2 => prop_oneof![Just(1), Just(20), Just(650)].prop_map(Act::Pass),
    ]
}

#[derive(Clone, Debug, Default)]
struct Stored {
    version: u64,
    macs: Vec<Mac>,
}

struct Replica {
    pool: Pool,
    /// How many events of reservations and of objects it has seen.
    seen: [usize; 2],
    /// The addresses of objects, as it has seen them.
    objects: BTreeMap<u8, Vec<Mac>>,
}

#[derive(Debug)]
struct Request {
    replica: usize,
    name: u8,
    /// The version of the object that it was made from; none where it makes the object.
    base: Option<Stored>,
    interface: String,
    given: Option<Mac>,
    choice: Option<Choice>,
    granted: Option<Mac>,
    since: Timestamp,
}

/// A reservation that is about to be given back, and whether the API server was asked about its owner.
struct Returning(Reservation, bool);

struct World {
    now: Timestamp,
    versions: u64,
    leases: BTreeMap<Mac, Reservation>,
    objects: BTreeMap<u8, Stored>,
    lease_events: Vec<(Mac, Option<Reservation>)>,
    object_events: Vec<(u8, Vec<Mac>)>,
    replicas: [Replica; 2],
    requests: Vec<Request>,
    returning: Vec<Returning>,
    /// Whether watches are at most as late as requests are long.
    prompt: bool,
}

fn object(name: u8) -> Object {
    Object { namespace: "ns".into(), kind: Kind::VirtualMachine, name: format!("vm-{name}") }
}

impl World {
    fn new(prompt: bool) -> Self {
        let mut world = World {
            now: Timestamp::from_second(1_000_000).unwrap(),
            versions: 0,
            leases: BTreeMap::new(),
            objects: BTreeMap::new(),
            lease_events: Vec::new(),
            object_events: Vec::new(),
            replicas: [0, 1].map(|_| Replica { pool: Pool::default(), seen: [0; 2], objects: BTreeMap::new() }),
            requests: Vec::new(),
            returning: Vec::new(),
            prompt,
        };
        world.crash(0);
        world.crash(1);
        world
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Ask { replica, name, given } => {
                let base = self.objects.get(&name).cloned();
                // Whoever names an address of its own has it already.
                let given = given.map(mac);
                if base.as_ref().is_some_and(|base| given.is_some_and(|given| base.macs.contains(&given))) {
                    return;
                }
                let interface = base.as_ref().map_or(0, |base| base.macs.len()).to_string();
                let (since, choice, granted) = (self.now, None, None);
                self.requests.push(Request { replica, name, base, interface, given, choice, granted, since });
            }
            Act::Proceed(at) if at < self.requests.len() => self.proceed(at),
            Act::Store(at) if self.requests.get(at).is_some_and(|request| request.granted.is_some()) => {
                let request = self.requests.remove(at);
                let current = self.objects.get(&request.name).map(|stored| stored.version);
                if current == request.base.as_ref().map(|base| base.version) {
                    let mut macs = request.base.map(|base| base.macs).unwrap_or_default();
                    macs.extend(request.granted);
                    self.store(request.name, macs);
                }
            }
            Act::Refuse(at) if at < self.requests.len() => self.drop_request(at),
            Act::Shrink(name) => {
                if let Some(stored) = self.objects.get(&name).filter(|stored| !stored.macs.is_empty()).cloned() {
                    self.store(name, stored.macs[1..].to_vec());
                }
            }
            Act::Delete(name) if self.objects.remove(&name).is_some() => self.object_events.push((name, Vec::new())),
            Act::Deliver { replica, objects, count } => self.deliver(replica, objects, count),
            Act::DeliverAll => self.deliver_all(),
            Act::Crash(replica) => self.crash(replica),
            Act::Return { replica, address } => {
                let others = std::mem::take(&mut self.returning);
                self.act(Act::Look { replica, address });
                while !self.returning.is_empty() {
                    self.give_back(0);
                }
                self.returning = others;
            }
            Act::Look { replica, address } => {
                if let Due::Now(reservation) = self.replicas[replica].pool.due(mac(address), self.now, WAIT) {
                    self.returning.push(Returning(reservation, false));
                }
            }
            Act::GiveBack(at) if at < self.returning.len() => self.give_back(at),
            Act::Pass(seconds) => {
                if self.prompt {
                    self.deliver_all();
                }
                self.now += SignedDuration::from_secs(seconds);
                while let Some(at) = self.requests.iter().position(|one| self.now - LONGEST_REQUEST > one.since) {
                    self.drop_request(at);
                }
            }
            _ => {}
        }
    }

    fn store(&mut self, name: u8, macs: Vec<Mac>) {
        self.versions += 1;
        self.object_events.push((name, macs.clone()));
        self.objects.insert(name, Stored { version: self.versions, macs });
    }

    fn drop_request(&mut self, at: usize) {
        let request = self.requests.remove(at);
        if let Some(Choice::New(mac)) = request.choice {
            self.replicas[request.replica].pool.tried(mac);
        }
    }

    /// One step of a replica with a request: it chooses, or it writes what it has chosen.
    fn proceed(&mut self, at: usize) {
        let request = &mut self.requests[at];
        let pool = &mut self.replicas[request.replica].pool;
        let owner = object(request.name);
        if request.granted.is_some() {
            return;
        }
        let Some(choice) = request.choice.take() else {
            let given = request.given.map(Choice::New);
            request.choice = given.or_else(|| pool.choose(&owner, &request.interface).ok());
            return;
        };
        let (mac, chosen) = match &choice {
            Choice::New(mac) => (*mac, request.given.is_none()),
            Choice::Again(reservation) => (reservation.mac, reservation.chosen),
        };
        let held = self.leases.get(&mac).cloned();
        let written = match (choice, &held) {
            (Choice::New(mac), None) => Some(Reservation::new(mac, &owner, &request.interface, chosen, self.now)),
            (Choice::Again(reservation), Some(held)) if held.version == reservation.version => {
                Some(reservation.touched(true, self.now))
            }
            // Whoever names an address that is reserved has it as well, and says so.
            (Choice::New(_), Some(held)) if request.given.is_some() => Some(held.clone().touched(false, self.now)),
            _ => None,
        };
        pool.tried(mac);
        let Some(mut written) = written else {
            match held {
                Some(held) => pool.reserved(held),
                None => pool.forget(mac),
            }
            return;
        };
        self.versions += 1;
        written.version = ("uid".into(), self.versions.to_string());
        pool.reserved(written.clone());
        request.granted = Some(mac);
        let (name, given) = (request.name, request.given.is_some());
        self.leases.insert(mac, written.clone());
        self.lease_events.push((mac, Some(written)));
        if !given {
            self.nobody_else_has(mac, name);
        }
    }

    fn nobody_else_has(&self, mac: Mac, name: u8) {
        for (other, stored) in &self.objects {
            assert!(*other == name || !stored.macs.contains(&mac), "{mac} is given to {name}, and {other} has it");
        }
        for other in &self.requests {
            assert!(other.name == name || other.granted != Some(mac), "{mac} is given to {name} and to {}", other.name);
        }
    }

    fn deliver_all(&mut self) {
        for (replica, objects) in [(0, false), (0, true), (1, false), (1, true)] {
            self.deliver(replica, objects, usize::MAX);
        }
    }

    fn deliver(&mut self, replica: usize, objects: bool, count: usize) {
        let replica = &mut self.replicas[replica];
        let seen = replica.seen[usize::from(objects)];
        if objects {
            for (name, macs) in self.object_events.iter().skip(seen).take(count) {
                let was = replica.objects.insert(*name, macs.clone()).unwrap_or_default();
                replica.pool.held(&object(*name), &was, macs);
                replica.seen[1] += 1;
            }
            return;
        }
        for (mac, reservation) in self.lease_events.iter().skip(seen).take(count) {
            replica.seen[0] += 1;
            // The store keeps what is newer: the answers of the replica's own writes come before the events.
            let known = replica.pool.reservations.get(mac).map(|entry| version(&entry.reservation));
            match reservation {
                Some(reservation) if known.is_none_or(|known| known <= version(reservation)) => {
                    replica.pool.reserved(reservation.clone());
                }
                Some(_) => {}
                None => {
                    let later = self.lease_events[replica.seen[0]..].iter();
                    let mut later = later.filter_map(|(one, new)| new.as_ref().filter(|_| one == mac));
                    if known.is_none_or(|known| !later.any(|one| version(one) == known)) {
                        replica.pool.forget(*mac);
                    }
                }
            }
        }
    }

    fn crash(&mut self, at: usize) {
        self.requests.retain(|request| request.replica != at || request.granted.is_some());
        let mut pool = Pool::default();
        pool.set_range(Range::new(mac(0), mac(ADDRESSES - 1)).unwrap());
        self.leases.values().for_each(|reservation| pool.reserved(reservation.clone()));
        let mut objects = BTreeMap::new();
        for (name, stored) in &self.objects {
            pool.held(&object(*name), &[], &stored.macs);
            objects.insert(*name, stored.macs.clone());
        }
        self.replicas[at] = Replica { pool, seen: [self.lease_events.len(), self.object_events.len()], objects };
    }

    /// One step of giving an address back: the API server is asked about the owner, then the reservation is deleted as it was.
    fn give_back(&mut self, at: usize) {
        let Returning(reservation, asked) = &mut self.returning[at];
        if !*asked {
            *asked = true;
            let mac = reservation.mac;
            let has = |name: u8, stored: &Stored| reservation.owner.may_be(&object(name)) && stored.macs.contains(&mac);
            if self.objects.iter().any(|(name, stored)| has(*name, stored)) {
                self.returning.remove(at);
            }
            return;
        }
        let Returning(reservation, _) = self.returning.remove(at);
        if self.leases.get(&reservation.mac).is_some_and(|held| held.version == reservation.version) {
            self.leases.remove(&reservation.mac);
            self.lease_events.push((reservation.mac, None));
        }
    }

    /// Everything is over: what nobody has is given back.
    fn settle(&mut self) {
        self.requests.clear();
        self.act(Act::Pass(0));
        for round in 0..2 {
            self.crash(round);
            self.now += SignedDuration::from_secs(700);
            (0..ADDRESSES).for_each(|address| self.act(Act::Return { replica: round, address }));
        }
        let used = self.objects.values().flat_map(|stored| &stored.macs);
        let used: BTreeSet<&Mac> = used.collect();
        assert!(self.leases.keys().all(|mac| used.contains(mac)), "{:?} is lost", self.leases);
    }
}

fn version(reservation: &Reservation) -> u64 {
    reservation.version.1.parse().unwrap()
}

#[test]
fn a_request_that_is_late_keeps_its_address_though_the_object_was_made_and_deleted() {
    let mut world = World::new(false);
    let ask = || Act::Ask { replica: 0, name: 0, given: None };
    // Two requests make the same object, and get the same address. The second one is stored.
    for act in [ask(), Act::Proceed(0), Act::Proceed(0), ask(), Act::Proceed(1), Act::Proceed(1), Act::Store(1)] {
        world.act(act);
    }
    let given = world.requests[0].granted;
    assert_eq!(given.map(|mac| vec![mac]), world.objects.get(&0).map(|stored| stored.macs.clone()));
    for act in [Act::DeliverAll, Act::Delete(0), Act::DeliverAll, Act::Return { replica: 0, address: 0 }] {
        world.act(act);
    }
    assert_eq!(world.leases.keys().copied().next(), given);
    world.act(Act::Store(0));
    assert!(world.objects.contains_key(&0));
    world.settle();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn no_address_is_given_twice_and_none_is_lost(acts in proptest::collection::vec(act(false), 0..200)) {
        let mut world = World::new(false);
        acts.into_iter().for_each(|act| world.act(act));
        world.settle();
    }

    #[test]
    fn no_address_is_given_that_a_request_named(acts in proptest::collection::vec(act(true), 0..200)) {
        let mut world = World::new(true);
        acts.into_iter().for_each(|act| world.act(act));
        world.settle();
    }
}
