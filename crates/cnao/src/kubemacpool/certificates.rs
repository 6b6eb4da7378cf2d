//! The certificate that the webhook shows: how long it lives, and the key ring that the operator keeps. Pure.

use std::time::Duration;

use kit::certs::Leaf;
use kit::duration;
use kit::keyring::{Keyring, Lifetimes, service_names};

use super::names::{ACCOUNT, BUNDLE, BUNDLE_KEY, SECRET, SERVICE};

/// Secret with the authority.
const AUTHORITY: &str = "kubemacpool-service-ca";
const HOUR: Duration = Duration::from_secs(3600);

/// `selfSignConfiguration` of the network addons, as it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Intervals<'a> {
    /// How long an authority lives.
    pub ca_rotate: Option<&'a str>,
    /// How long it lives together with the next one.
    pub ca_overlap: Option<&'a str>,
    /// How long a certificate lives.
    pub cert_rotate: Option<&'a str>,
    /// How long it lives together with the next one.
    pub cert_overlap: Option<&'a str>,
}

/// What is wrong with them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to validate selfSignConfiguration: {0}")]
pub struct Invalid(String);

impl Intervals<'_> {
    /// How long authorities and certificates live, and how long before their end they are renewed. Without any interval: two
    /// days and one, renewed at half of that.
    ///
    /// # Errors
    /// When only some are there, one is no duration above zero, or one is longer than it can be.
    pub fn lifetimes(&self) -> Result<Lifetimes, Invalid> {
        let all = [
            ("caRotateInterval", self.ca_rotate),
            ("caOverlapInterval", self.ca_overlap),
            ("certRotateInterval", self.cert_rotate),
            ("certOverlapInterval", self.cert_overlap),
        ];
        let is_said = |text: Option<&str>| text.is_some_and(|text| !text.is_empty());
        if !all.iter().any(|(_, text)| is_said(*text)) {
            return Ok(Lifetimes { ca: 48 * HOUR, ca_renew: 24 * HOUR, leaf: 24 * HOUR, leaf_renew: 12 * HOUR });
        }
        let [ca, ca_renew, leaf, leaf_renew] = all.map(|(name, text)| read(name, text));
        let (ca, ca_renew, leaf, leaf_renew) = (ca?, ca_renew?, leaf?, leaf_renew?);
        for ((name, length), (limit, most)) in [
            (("caOverlapInterval", ca_renew), ("caRotateInterval", ca)),
            (("certRotateInterval", leaf), ("caRotateInterval", ca)),
            (("certOverlapInterval", leaf_renew), ("certRotateInterval", leaf)),
        ] {
            if length > most {
                let (length, most) = (duration::format(length), duration::format(most));
                return Err(Invalid(format!("{name}({length}) has to be <= {limit}({most})")));
            }
        }
        Ok(Lifetimes { ca, ca_renew, leaf, leaf_renew })
    }
}

fn read(name: &str, text: Option<&str>) -> Result<Duration, Invalid> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Err(Invalid(format!("{name} is missing"))) };
    match duration::parse(text) {
        Some(length) if length.is_zero() => Err(Invalid(format!("{name} duration has to be > 0"))),
        Some(length) => Ok(length),
        // Go reads a sign, and finds what is below zero not to be above it.
        None if text.strip_prefix('-').is_some_and(|rest| duration::parse(rest).is_some()) => {
            Err(Invalid(format!("{name} duration has to be > 0")))
        }
        None => {
            let shown = meta::text::brief(text, 64);
            Err(Invalid(format!("error parsing {name}: {shown:?} is no duration: write one as in 24h0m0s")))
        }
    }
}

/// The authority and the certificate of the webhook in `namespace`.
pub fn keyring(namespace: &str, lifetimes: Lifetimes) -> Keyring {
    let leaf = Leaf {
        name: format!("{SERVICE}.{namespace}.svc"),
        role: ACCOUNT.to_owned(),
        node: None,
        dns: service_names(SERVICE, namespace).into(),
    };
    Keyring {
        authority: AUTHORITY.to_owned(),
        bundle: BUNDLE.to_owned(),
        bundle_key: BUNDLE_KEY.to_owned(),
        name: AUTHORITY.to_owned(),
        leaves: vec![(SECRET.to_owned(), leaf)],
        lifetimes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(intervals: [&str; 4], expect: Result<[u64; 4], &str>) {
        let [ca_rotate, ca_overlap, cert_rotate, cert_overlap] =
            intervals.map(|text| Some(text).filter(|text| *text != "none"));
        let found = Intervals { ca_rotate, ca_overlap, cert_rotate, cert_overlap }.lifetimes();
        let found =
            found.map(|found| [found.ca, found.ca_renew, found.leaf, found.leaf_renew].map(|time| time.as_secs()));
        let prefix = "failed to validate selfSignConfiguration: ";
        let found = found.map_err(|error| error.to_string().strip_prefix(prefix).unwrap().to_owned());
        assert_eq!(found.as_ref().map_err(String::as_str), expect.as_ref().map_err(|why| *why));
    }

    #[test]
    fn intervals_are_all_there_or_none_and_fit_into_each_other() {
        check(["none"; 4], Ok([172_800, 86_400, 86_400, 43_200]));
        check([""; 4], Ok([172_800, 86_400, 86_400, 43_200]));
        check(["168h", "24h0m0s", "24h", "8h"], Ok([604_800, 86_400, 86_400, 28_800]));
        check(["1h", "1h", "1h", "1h"], Ok([3600; 4]));
        check(["none", "24h", "24h", "8h"], Err("caRotateInterval is missing"));
        check(["168h", "24h", "24h", ""], Err("certOverlapInterval is missing"));
        check(
            ["168h", "a", "24h", "8h"],
            Err("error parsing caOverlapInterval: \"a\" is no duration: write one as in 24h0m0s"),
        );
        check(["168h", "24h", "0s", "8h"], Err("certRotateInterval duration has to be > 0"));
        check(["168h", "-24h", "24h", "8h"], Err("caOverlapInterval duration has to be > 0"));
        check(["1h", "90m", "1h", "1h"], Err("caOverlapInterval(1h30m0s) has to be <= caRotateInterval(1h0m0s)"));
        check(["1h", "1h", "2h", "1h"], Err("certRotateInterval(2h0m0s) has to be <= caRotateInterval(1h0m0s)"));
        check(["2h", "1h", "1h", "2h"], Err("certOverlapInterval(2h0m0s) has to be <= certRotateInterval(1h0m0s)"));
    }

    #[test]
    fn ten_rotations_interrupt_nobody() {
        let of = |ca_rotate, ca_overlap, cert_rotate, cert_overlap| Intervals {
            ca_rotate: Some(ca_rotate),
            ca_overlap: Some(ca_overlap),
            cert_rotate: Some(cert_rotate),
            cert_overlap: Some(cert_overlap),
        };
        for intervals in [Intervals::default(), of("300s", "225s", "150s", "100s"), of("168h", "24h", "24h", "8h")] {
            let lifetimes = intervals.lifetimes().unwrap();
            assert_eq!(kit::keyring::rehearse(&keyring("ns", lifetimes), 10), Ok(()));
            assert_eq!(kit::keyring::rehearse(&crate::ipam::certificates::keyring("ns", lifetimes), 10), Ok(()));
        }
    }

    #[test]
    fn the_certificate_is_for_the_service() {
        let lifetimes = Intervals::default().lifetimes().unwrap();
        let ring = keyring("ns", lifetimes);
        assert!(ring.leaves[0].1.dns.contains(&"kubemacpool-service.ns.svc".to_owned()));
        assert_eq!(ring.lifetimes, lifetimes);
    }
}
