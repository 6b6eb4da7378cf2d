//! Key rings over their lives, in simulated time.

use jiff::SignedDuration;

use super::*;

fn held(renewed: &Renewed) -> Held {
    Held {
        authority: Some(renewed.authority.clone()),
        next: renewed.next.clone(),
        bundle: renewed.bundle.clone(),
        leaves: renewed.leaves.clone(),
    }
}

fn hours(hours: u64) -> Duration {
    Duration::from_secs(hours * 3600)
}

fn start() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// For these roles.
fn ring(roles: &[&str], lifetimes: Lifetimes) -> Keyring {
    let leaf = |role: &&str| (format!("{role}-certs"), Leaf { role: (*role).to_owned(), ..Leaf::default() });
    Keyring { leaves: roles.iter().map(leaf).collect(), lifetimes, ..Keyring::default() }
}

#[test]
fn leaves_are_renewed_without_the_authority_and_the_authority_without_a_gap() {
    let lifetimes = Lifetimes { ca: hours(168), ca_renew: hours(34), leaf: hours(24), leaf_renew: hours(5) };
    let ring = ring(&["a", "b"], lifetimes);
    let start = start();
    let first = ring.plan(&Held::default(), start).unwrap();
    assert_eq!(first.leaves.len(), 2);
    let same = ring.plan(&held(&first), start + SignedDuration::from_hours(1)).unwrap();
    assert_eq!((&same.leaves, &same.authority), (&first.leaves, &first.authority));
    assert_eq!(same.again, hours(18));

    let day = ring.plan(&held(&first), start + SignedDuration::from_hours(20)).unwrap();
    assert_eq!(day.authority, first.authority);
    assert!(day.leaves.iter().all(|(name, pair)| first.leaves[name] != *pair));

    let week = ring.plan(&held(&day), start + SignedDuration::from_hours(160)).unwrap();
    let next = week.next.clone().unwrap();
    assert_eq!(week.authority, first.authority);
    assert!(week.bundle.contains(first.authority.certificate.trim()) && week.bundle.contains(next.certificate.trim()));
    let later = ring.plan(&held(&week), start + SignedDuration::from_hours(161)).unwrap();
    assert_eq!((&later.authority, &later.next), (&next, &None));
    assert!(later.bundle.contains(first.authority.certificate.trim()));
}

#[test]
fn a_certificate_due_at_once_is_not_renewed_in_a_loop() {
    let lifetimes = Lifetimes { ca: hours(2), ca_renew: hours(1), leaf: hours(2), leaf_renew: hours(12) };
    let ring = ring(&["a"], lifetimes);
    let start = start();
    let first = ring.plan(&Held::default(), start).unwrap();
    let second = ring.plan(&held(&first), start).unwrap();
    assert_eq!((second.leaves, second.again), (first.leaves, hours(1)));
}

#[test]
fn certificates_longer_than_a_shortened_lifetime_are_renewed_once() {
    let lifetimes = Lifetimes { ca: hours(48), ca_renew: hours(24), leaf: hours(24), leaf_renew: hours(12) };
    let long = ring(&["a"], lifetimes);
    let shorter = Lifetimes { ca: hours(2), ca_renew: hours(1), leaf: hours(1), leaf_renew: hours(0) };
    let short = Keyring { lifetimes: shorter, ..long.clone() };
    let start = start();
    let first = long.plan(&Held::default(), start).unwrap();
    let second = short.plan(&held(&first), start).unwrap();
    assert_ne!((&second.next, &second.leaves), (&None, &first.leaves));
    let later = start + SignedDuration::from_mins(20);
    let third = short.plan(&held(&second), later).unwrap();
    assert_eq!((Some(&third.authority), &third.next), (second.next.as_ref(), &None));
    assert_eq!(third.leaves, second.leaves);
    let fourth = short.plan(&held(&third), later).unwrap();
    assert_eq!((fourth.authority, fourth.leaves), (third.authority.clone(), third.leaves));
}

#[test]
fn ten_rotations_leave_no_moment_at_which_a_peer_is_not_trusted() {
    let check = |ca, ca_renew, leaf, leaf_renew| {
        let [ca, ca_renew, leaf, leaf_renew] = [ca, ca_renew, leaf, leaf_renew].map(Duration::from_secs);
        let lifetimes = Lifetimes { ca, ca_renew, leaf, leaf_renew };
        assert_eq!(rehearse(&ring(&["a", "b"], lifetimes), 10), Ok(()), "{lifetimes:?}");
    };
    check(300, 225, 150, 100);
    check(240, 180, 150, 90);
    // Authority and leaf are due in the same moment, as with the defaults of CDI and the network addons.
    check(480, 240, 240, 120);
    check(172_800, 86_400, 86_400, 43_200);
    check(3600, 3600, 3600, 3600);
}
