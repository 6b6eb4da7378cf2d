//! Which authority signs, and which comes after it.
//!
//! ```text
//! signs ──due──▶ signs, and the next one is in the bundle ──everybody has read the bundle──▶ the next one signs
//! ```
//! Whoever verifies reads the bundle from files that a kubelet refreshes once in a while. A certificate signed by an authority
//! that was born a moment ago would meet peers that do not know it.

use std::time::Duration;

use jiff::Timestamp;

use super::{Keyring, good};
use crate::certs::{self, Authority, Error, Pair};

/// In this time everybody has read a bundle again: what a controller takes to copy it where it is mounted, a kubelet's refresh of a
/// minute and a half at most, and what a component takes to look at its files.
const READ_BY_ALL: Duration = Duration::from_secs(300);

/// The authority that signs, and the one after it once that is made.
pub(super) struct Succession {
    pub(super) signs: Authority,
    pub(super) next: Option<Pair>,
    /// Nobody can have known the authority that signs: there was none before it.
    pub(super) first: bool,
    /// When the next one takes over.
    pub(super) again: Duration,
}

/// How long the next authority is in the bundle before it signs.
pub(super) fn notice(ring: &Keyring) -> Duration {
    READ_BY_ALL.min(ring.lifetimes.ca_renew / 3)
}

/// Decides on both. Makes keys, otherwise pure.
pub(super) fn plan(
    ring: &Keyring,
    held: Option<&Pair>,
    next: Option<&Pair>,
    now: Timestamp,
) -> Result<Succession, Error> {
    let lifetimes = ring.lifetimes;
    let generate = || Authority::generate(&format!("{}@{}", ring.name, now.as_second()), now, lifetimes.ca);
    let is_due = |pair: &Pair| !good(&pair.certificate, lifetimes.ca_renew, lifetimes.ca, now);
    let usable =
        |pair: &&Pair| certs::lifetime(&pair.certificate).is_some_and(|(from, until)| from <= now && now < until);
    let read = |pair: Option<&Pair>| pair.filter(usable).and_then(|pair| Authority::from_pair(pair.clone()).ok());

    let next = read(next).filter(|next| !super::outlives(&next.pair().certificate, lifetimes.ca));
    let known = |next: &Authority| {
        let made = certs::life(&next.pair().certificate).map_or(now, |(made, _)| made);
        Duration::try_from(now.duration_since(made)).unwrap_or_default()
    };
    let mut first = false;
    let (signs, next) = match (read(held), next) {
        (None, Some(next)) => (next, None),
        (None, None) => {
            first = true;
            (generate()?, None)
        }
        (Some(signs), _) if !is_due(signs.pair()) => (signs, None),
        (Some(_), Some(next)) if known(&next) >= notice(ring) => (next, None),
        (Some(signs), next) => (signs, next),
    };
    let next = match next {
        None if !first && is_due(signs.pair()) => Some(generate()?),
        next => next,
    };
    let again = next.as_ref().map_or(Duration::MAX, |next| notice(ring).saturating_sub(known(next)));
    Ok(Succession { signs, next: next.map(|next| next.pair().clone()), first, again })
}
