//! A rehearsal of what a key ring does in the course of time, for the tests of those who have one: nothing of it is a cluster's.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::succession::notice;
use super::{Held, Keyring, Renewed};
use crate::tls::Trust;

/// Renews everything of `ring` so often, authorities and leaves. Whoever shows a certificate and whoever checks it may have read
/// theirs this moment or a while ago: almost as long as the next authority is announced, and as certificates overlap.
///
/// # Errors
/// What was not trusted, and when.
pub fn rehearse(ring: &Keyring, rotations: usize) -> Result<(), String> {
    let lifetimes = ring.lifetimes;
    let overlap = if lifetimes.leaf_renew < lifetimes.leaf { lifetimes.leaf_renew } else { lifetimes.leaf / 2 };
    let late = notice(ring).min(overlap) * 9 / 10;
    let late = SignedDuration::try_from(late).unwrap_or_default();
    let mut past: Vec<(Timestamp, Renewed)> = Vec::new();
    let (mut authorities, mut leaves) = (BTreeSet::new(), BTreeSet::new());
    let mut now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24);
    let begin = now;
    while authorities.len() <= rotations || (leaves.len() <= rotations && !ring.leaves.is_empty()) {
        let held = past.last().map(|(_, last)| Held {
            authority: Some(last.authority.clone()),
            next: last.next.clone(),
            bundle: last.bundle.clone(),
            leaves: last.leaves.clone(),
        });
        let renewed = ring.plan(&held.unwrap_or_default(), now).map_err(|error| crate::Chain(&error).to_string())?;
        let again = renewed.again;
        authorities.insert(renewed.authority.certificate.clone());
        leaves.extend(renewed.leaves.first_key_value().map(|(_, pair)| pair.certificate.clone()));
        past.push((now, renewed));
        for at in [now, now + late] {
            check(&past, at, late).map_err(|what| format!("after {:?}: {what}", at.duration_since(begin)))?;
        }
        now += SignedDuration::try_from(again.max(Duration::from_secs(1))).unwrap_or(late);
    }
    Ok(())
}

fn check(past: &[(Timestamp, Renewed)], at: Timestamp, late: SignedDuration) -> Result<(), String> {
    let as_of = |then: Timestamp| {
        let known = past.iter().rev().find(|(since, _)| *since <= then);
        known.or(past.first()).map(|(_, state)| state).ok_or("nothing is there")
    };
    for (shown, read) in [(at, at - late), (at - late, at), (at - late, at - late)] {
        let (shows, checks) = (as_of(shown)?, as_of(read)?);
        let trust = Trust::new();
        trust.set(&checks.bundle).map_err(|error| crate::Chain(&error).to_string())?;
        for (name, pair) in &shows.leaves {
            if !trust.vouches(&pair.certificate, at) {
                return Err(format!("{name} of {shown} is not trusted by the bundle of {read}"));
            }
        }
    }
    Ok(())
}
