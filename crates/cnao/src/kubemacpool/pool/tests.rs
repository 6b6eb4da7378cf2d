//! What the pool gives, by tables.

use std::time::Duration;

use jiff::Timestamp;

use super::*;

const WAIT: Duration = Duration::from_secs(600);

fn mac(last: u8) -> Mac {
    format!("02:00:00:00:00:{last:02x}").parse().unwrap()
}

fn vm(name: &str) -> Object {
    Object { namespace: "ns".into(), kind: Kind::VirtualMachine, name: name.into() }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

fn pool(first: u8, last: u8) -> Pool {
    let mut pool = Pool::default();
    pool.set_range(Range::new(mac(first), mac(last)).unwrap());
    pool
}

fn reservation(last: u8, owner: &str, seconds: i64) -> Reservation {
    let reservation = Reservation::new(mac(last), &vm(owner), "a", true, at(seconds));
    Reservation { version: ("uid".into(), format!("{seconds}")), ..reservation }
}

/// Chooses, and reserves what was chosen.
fn give(pool: &mut Pool, owner: &str, seconds: i64) -> Result<Mac, String> {
    match pool.choose(&vm(owner), "a") {
        Ok(Choice::New(mac)) => {
            let reservation = Reservation::new(mac, &vm(owner), "a", true, at(seconds));
            pool.reserved(Reservation { version: ("uid".into(), format!("{seconds}")), ..reservation });
            Ok(mac)
        }
        Ok(Choice::Again(reservation)) => Ok(reservation.mac),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn addresses_are_given_in_turn_and_used_ones_are_skipped() {
    let mut pool = pool(1, 4);
    pool.held(&vm("there-before"), &[], &[mac(2)]);
    assert_eq!(give(&mut pool, "one", 1), Ok(mac(1)));
    assert_eq!(give(&mut pool, "two", 2), Ok(mac(3)));
    // What was given back is not given next, but once all others were.
    pool.forget(mac(1));
    assert_eq!(give(&mut pool, "three", 3), Ok(mac(4)));
    assert_eq!(give(&mut pool, "four", 4), Ok(mac(1)));
    let full = "the range is full: every address of 02:00:00:00:00:01-02:00:00:00:00:04 is taken";
    assert_eq!(give(&mut pool, "five", 5), Err(full.into()));
    pool.held(&vm("there-before"), &[mac(2)], &[]);
    assert_eq!(give(&mut pool, "five", 5), Ok(mac(2)));
    assert_eq!(Pool::default().choose(&vm("a"), "a"), Err(Exhausted::NoRange));
}

#[test]
fn a_restarted_replica_goes_on_after_the_last_address() {
    let mut pool = pool(1, 9);
    for (last, seconds) in [(7, 30), (3, 20), (5, 10)] {
        pool.reserved(reservation(last, "vm", seconds));
    }
    // Given by a request: it says nothing of where the pool is.
    pool.reserved(Reservation { chosen: false, ..reservation(2, "vm", 40) });
    assert_eq!(pool.free(3), Ok(vec![mac(8), mac(9), mac(1)]));
}

#[test]
fn a_new_range_counts_from_now_on() {
    let mut pool = pool(1, 4);
    assert_eq!(give(&mut pool, "one", 1), Ok(mac(1)));
    pool.set_range(Range::new(mac(8), mac(9)).unwrap());
    assert_eq!(give(&mut pool, "two", 2), Ok(mac(8)));
    pool.set_range(Range::new(mac(1), mac(2)).unwrap());
    assert_eq!(give(&mut pool, "three", 3), Ok(mac(2)));
    assert!(give(&mut pool, "four", 4).is_err());
}

#[test]
fn requests_under_way_do_not_try_the_same_address() {
    let mut pool = pool(1, 2);
    assert_eq!(pool.choose(&vm("one"), "a"), Ok(Choice::New(mac(1))));
    assert_eq!(pool.choose(&vm("two"), "a"), Ok(Choice::New(mac(2))));
    assert!(pool.choose(&vm("three"), "a").is_err());
    pool.tried(mac(1));
    assert_eq!(pool.choose(&vm("three"), "a"), Ok(Choice::New(mac(1))));
}

#[test]
fn who_asks_again_for_what_was_not_stored_gets_the_same() {
    let mut pool = pool(1, 9);
    assert_eq!(give(&mut pool, "vm", 1), Ok(mac(1)));
    assert_eq!(give(&mut pool, "vm", 2), Ok(mac(1)));
    assert!(matches!(pool.choose(&vm("vm"), "b"), Ok(Choice::New(_))));
    // A pod whose name is made up later may be any.
    let unnamed = Object { kind: Kind::Pod, ..vm("") };
    pool.reserved(Reservation { owner: unnamed.clone(), ..reservation(5, "", 9) });
    assert_eq!(pool.choose(&unnamed, "a"), Ok(Choice::New(mac(6))));
    // A request has named it since, for whichever object.
    let named = reservation(1, "vm", 1).touched(false, at(20));
    pool.reserved(Reservation { version: ("uid".into(), "20".into()), ..named });
    assert!(matches!(pool.choose(&vm("vm"), "a"), Ok(Choice::New(_))));
    // Once it is stored, the interface has it and does not ask; another one of the same name gets another.
    pool.held(&vm("vm"), &[], &[mac(1)]);
    pool.held(&vm("vm"), &[mac(1)], &[]);
    assert!(matches!(pool.choose(&vm("vm"), "a"), Ok(Choice::New(_))));
}

#[test]
fn reservations_of_requests_that_were_not_stored_are_counted_by_namespace() {
    let mut pool = pool(1, 9);
    for last in 1..=3 {
        pool.reserved(reservation(last, &format!("vm-{last}"), i64::from(last)));
    }
    pool.reserved(Reservation { owner: Object { namespace: "other".into(), ..vm("vm") }, ..reservation(4, "", 4) });
    assert_eq!((pool.open_in("ns", 9), pool.open_in("ns", 2), pool.open_in("other", 9)), (3, 2, 1));
    pool.held(&vm("vm-2"), &[], &[mac(2)]);
    pool.forget(mac(3));
    assert_eq!((pool.open_in("ns", 9), pool.open_in("nobody", 9)), (1, 0));
}

#[track_caller]
fn due(pool: &Pool, seconds: i64, expect: &str) {
    let found = match pool.due(mac(1), at(seconds), WAIT) {
        Due::Kept => "kept".to_owned(),
        Due::In(left) => format!("in {}", left.as_secs()),
        Due::Now(_) => "now".to_owned(),
    };
    assert_eq!(found, expect);
}

#[test]
fn an_address_is_given_back_once_no_request_with_it_can_be_stored() {
    let mut pool = pool(1, 9);
    due(&pool, 0, "kept");
    pool.reserved(reservation(1, "vm", 0));
    due(&pool, 10, "in 590");
    due(&pool, 600, "now");
    pool.held(&vm("vm"), &[], &[mac(1)]);
    due(&pool, 5000, "kept");
    pool.held(&vm("vm"), &[mac(1)], &[]);
    due(&pool, 20, "now");
    // Another request had it: that it was stored once says nothing of that request.
    pool.reserved(Reservation { version: ("uid".into(), "2".into()), ..reservation(1, "vm", 0).touched(true, at(30)) });
    due(&pool, 40, "in 590");
    pool.held(&vm("vm"), &[], &[mac(1)]);
    pool.held(&vm("vm"), &[mac(1)], &[]);
    due(&pool, 40, "in 590");
    due(&pool, 630, "now");
}

#[test]
fn an_address_is_kept_while_anybody_has_it() {
    let mut pool = pool(1, 9);
    pool.reserved(reservation(1, "vm", 0));
    let running = Object { kind: Kind::VirtualMachineInstance, ..vm("vm") };
    pool.held(&vm("vm"), &[], &[mac(1)]);
    pool.held(&running, &[], &[mac(1)]);
    pool.held(&vm("copy"), &[], &[mac(1)]);
    assert_eq!(pool.others(mac(1), &vm("vm")), [vm("copy")]);
    assert_eq!(pool.others(mac(1), &vm("copy")), [vm("vm"), running.clone()]);
    pool.held(&vm("vm"), &[mac(1)], &[]);
    pool.held(&vm("copy"), &[mac(1)], &[]);
    due(&pool, 5000, "kept");
    pool.held(&running, &[mac(1)], &[]);
    due(&pool, 10, "now");
    // A list that tells the same again changes nothing.
    pool.reserved(reservation(1, "vm", 0));
    due(&pool, 10, "now");
}
