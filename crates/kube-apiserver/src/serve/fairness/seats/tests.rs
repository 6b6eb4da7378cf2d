//! Levels have what is theirs, borrow what is lent, and flows take turns.

use proptest::prelude::*;

use super::*;
use crate::flow::level::Seats;

fn level(name: &str, nominal: usize, kept: usize, most: usize, full: Full) -> Level {
    Level { name: name.into(), seats: Some(Seats { nominal, kept, most, full }) }
}

fn queue(length: usize) -> Full {
    Full::Queue { queues: 16, hand: 2, length }
}

fn flow<'a>(level: &'a str, distinguisher: &'a str) -> Flow<'a> {
    Flow { schema: "s", level, distinguisher, uids: None }
}

/// Takes seats until there is none; what came last.
fn fill(hall: &Hall, level: &str) -> (Vec<Seat>, Place) {
    let mut seats = Vec::new();
    loop {
        match hall.take(&flow(level, "x")) {
            Place::Seat(seat) => seats.push(seat),
            other => return (seats, other),
        }
    }
}

#[test]
fn a_level_borrows_what_others_lend_and_no_more() {
    let hall = Hall::new(10);
    hall.configure(&[
        level("a", 4, 4, 10, Full::Reject),
        level("b", 4, 1, 10, Full::Reject),
        level("c", 2, 2, 3, Full::Reject),
    ]);
    let (seats, last) = fill(&hall, "a");
    // Its own four, and three of b's.
    assert_eq!(seats.len(), 7);
    assert!(matches!(last, Place::Refused));
    let (of_b, _) = fill(&hall, "b");
    let (of_c, _) = fill(&hall, "c");
    assert_eq!((of_b.len(), of_c.len()), (1, 2));
    drop(seats);
    let (more, _) = fill(&hall, "c");
    assert_eq!(more.len(), 1, "one beyond its own is its limit");
}

#[test]
fn exempt_requests_never_wait() {
    let hall = Hall::new(2);
    hall.configure(&[level("a", 2, 2, 2, Full::Reject), Level { name: "exempt".into(), seats: None }]);
    let (_seats, _) = fill(&hall, "a");
    let exempt: Vec<Place> = (0..50).map(|_| hall.take(&flow("exempt", ""))).collect();
    assert!(exempt.iter().all(|place| matches!(place, Place::Seat(_))));
}

#[test]
fn a_seat_that_is_given_back_goes_to_the_level_that_has_least_of_its_share() {
    let hall = Hall::new(4);
    hall.configure(&[level("a", 2, 0, 4, queue(5)), level("b", 2, 0, 4, queue(5))]);
    let (mut seats, first) = fill(&hall, "a");
    let Place::Queue(mut of_a) = first else { panic!("{first:?}") };
    let Place::Queue(mut of_b) = hall.take(&flow("b", "y")) else { panic!("b waits") };
    assert_eq!(seats.len(), 4);
    seats.pop();
    let of_b = of_b.try_recv();
    assert!(of_b.is_ok());
    assert!(of_a.try_recv().is_err());
    drop(seats);
    assert!(of_a.try_recv().is_ok());
}

#[test]
fn flows_take_turns_whoever_has_more_waiting() {
    let hall = Hall::new(1);
    hall.configure(&[level("a", 1, 1, 1, Full::Queue { queues: 512, hand: 1, length: 100 })]);
    let (seats, gone) = fill(&hall, "a");
    drop(gone);
    let wait = |who: &str| match hall.take(&flow("a", who)) {
        Place::Queue(waiter) => waiter,
        other => panic!("{other:?}"),
    };
    let mut greedy: Vec<_> = (0..50).map(|_| wait("greedy")).collect();
    // Some modest one is in another queue, whatever the hashes are.
    let mut modest: Vec<_> = (0..4).map(|user| wait(&format!("modest-{user}"))).collect();
    drop(seats);
    let mut held = Vec::new();
    for _ in 0..10 {
        held.extend(greedy.iter_mut().chain(&mut modest).find_map(|waiter| waiter.try_recv().ok()));
        held.clear();
    }
    assert!(
        modest.iter_mut().any(|waiter| waiter.try_recv().is_err_and(|e| e == oneshot::error::TryRecvError::Closed))
    );
}

#[test]
fn full_queues_refuse_and_places_of_those_who_left_are_free() {
    let hall = Hall::new(1);
    hall.configure(&[level("a", 1, 1, 1, Full::Queue { queues: 1, hand: 1, length: 2 })]);
    let (seats, first) = fill(&hall, "a");
    let second = hall.take(&flow("a", "x"));
    assert!(matches!(second, Place::Queue(_)));
    assert!(matches!(hall.take(&flow("a", "x")), Place::Refused));
    drop(second);
    assert!(matches!(hall.take(&flow("a", "x")), Place::Queue(_)));
    let Place::Queue(mut first) = first else { panic!("{first:?}") };
    drop(seats);
    assert!(first.try_recv().is_ok());
}

#[test]
fn queued_requests_follow_a_new_configuration() {
    let hall = Hall::new(1);
    let one = |full| level("a", 1, 1, 1, full);
    hall.configure(&[one(queue(5))]);
    let (seats, first) = fill(&hall, "a");
    let Place::Queue(mut first) = first else { panic!("{first:?}") };
    hall.configure(&[one(Full::Queue { queues: 1, hand: 1, length: 5 })]);
    assert_eq!(first.try_recv().unwrap_err(), oneshot::error::TryRecvError::Empty);
    hall.configure(&[level("a", 2, 2, 2, queue(5))]);
    let seat = first.try_recv().unwrap();
    let Place::Queue(mut second) = hall.take(&flow("a", "x")) else { panic!("the seats are taken") };
    hall.configure(&[one(Full::Reject)]);
    assert_eq!(second.try_recv().unwrap_err(), oneshot::error::TryRecvError::Closed);
    // A level that is gone stays until its last request ends.
    hall.configure(&[level(CATCH_ALL, 1, 1, 1, Full::Reject)]);
    assert_eq!(hall.lock().levels.len(), 2);
    drop((seat, seats));
    assert_eq!(hall.lock().levels.len(), 1);
    assert_eq!(hall.lock().taken, 0);
}

proptest! {
    #[test]
    fn hands_are_of_different_queues(hash: u64, queues in 1..600_u64, hand in 1..20_u64) {
        let dealt = deal(hash, queues, hand);
        prop_assert_eq!(dealt.len() as u64, hand.min(queues));
        prop_assert!(dealt.windows(2).all(|pair| pair[0] < pair[1]) && dealt.iter().all(|queue| *queue < queues));
    }

    /// However requests come and go, nobody waits who may sit, and no level has less than it keeps.
    #[test]
    fn seats_are_never_lost(steps in prop::collection::vec((0..3_usize, 0..4_usize, any::<bool>()), 1..200)) {
        const NAMES: [&str; 3] = ["a", "b", "c"];
        let hall = Hall::new(10);
        hall.configure(&[level("a", 4, 4, 6, queue(3)), level("b", 4, 1, 10, queue(2)), level("c", 2, 0, 10, Full::Reject)]);
        let mut seats: Vec<Seat> = Vec::new();
        let mut waiting = Vec::new();
        for (which, at, leave) in steps {
            if leave && !seats.is_empty() {
                drop(seats.swap_remove(at % seats.len()));
            } else if leave && !waiting.is_empty() {
                drop(waiting.swap_remove(at % waiting.len()));
            } else {
                match hall.take(&flow(NAMES[which], ["p", "q", "r", "s"][at])) {
                    Place::Seat(seat) => seats.push(seat),
                    Place::Queue(waiter) => waiting.push(waiter),
                    Place::Refused => {}
                }
            }
            waiting.retain_mut(|waiter| waiter.try_recv().map(|seat| seats.push(seat)).is_err());
            let state = hall.lock();
            prop_assert_eq!(state.taken, seats.len());
            prop_assert!(state.taken <= 10);
            for (name, row) in &state.levels {
                let waits = row.queues.values().flatten().any(|waiter| !waiter.is_closed());
                prop_assert!(!waits || !state.may(name), "{} may sit", name);
            }
        }
        drop((seats, waiting));
        prop_assert_eq!(hall.lock().taken, 0);
    }
}
