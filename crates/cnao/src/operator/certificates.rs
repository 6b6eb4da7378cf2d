//! The certificates of webhooks. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use kit::certs::Leaf;
use kit::duration;
use kit::keyring::{Keyring, Lifetimes, service_names};

use crate::kubemacpool::PROGRAM;
use crate::kubemacpool::manifests::{BUNDLE, BUNDLE_KEY, CERTIFICATE, SERVICE};

/// Intervals of `selfSignConfiguration`, with their hours where nothing is said.
const INTERVALS: [(&str, u64); 4] =
    [("caRotateInterval", 48), ("caOverlapInterval", 24), ("certRotateInterval", 24), ("certOverlapInterval", 12)];

/// How long certificates live: all four are said, or none.
///
/// # Errors
/// A sentence that names what is wrong.
pub(super) fn lifetimes(said: Option<&BTreeMap<String, String>>) -> Result<Lifetimes, String> {
    let refuse = |what: String| format!("failed to validate selfSignConfiguration: {what}");
    let said = said.filter(|said| said.values().any(|text| !text.is_empty()));
    let mut found = [Duration::ZERO; 4];
    for (at, (name, hours)) in found.iter_mut().zip(INTERVALS) {
        *at = match said.map(|said| said.get(name).map(String::as_str).unwrap_or_default()) {
            None => Duration::from_secs(hours * 3600),
            Some("") => return Err(refuse(format!("{name} is missing"))),
            Some(text) => duration::parse(text)
                .ok_or_else(|| refuse(format!("error parsing {name}: {text:?} is no duration such as 24h0m0s")))?,
        };
        if at.is_zero() {
            return Err(refuse(format!("{name} duration has to be > 0")));
        }
    }
    let [ca, ca_renew, leaf, leaf_renew] = found;
    let rules = [(1, 0), (2, 0), (3, 2)];
    for (less, more) in rules {
        if found[less] > found[more] {
            let (less, more) = ((INTERVALS[less].0, found[less]), (INTERVALS[more].0, found[more]));
            let (first, second) = (duration::format(less.1), duration::format(more.1));
            return Err(refuse(format!("{}({first}) has to be <= {}({second})", less.0, more.0)));
        }
    }
    // What is renewed as soon as it is made would be made without an end.
    Ok(Lifetimes { ca, ca_renew: ca_renew.min(ca / 2), leaf, leaf_renew: leaf_renew.min(leaf / 2) })
}

/// What is to be there for the pool in `namespace`.
pub(super) fn kubemacpool(namespace: &str, lifetimes: Lifetimes) -> Keyring {
    let names = service_names(SERVICE, namespace);
    let leaf = Leaf { name: names[0].clone(), role: PROGRAM.to_owned(), node: None, dns: names.into() };
    Keyring {
        authority: "kubemacpool-ca".to_owned(),
        bundle: BUNDLE.to_owned(),
        bundle_key: BUNDLE_KEY.to_owned(),
        name: "kubemacpool-ca".to_owned(),
        leaves: vec![(CERTIFICATE.to_owned(), leaf)],
        lifetimes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(said: &[(&str, &str)], expect: Result<[u64; 4], &str>) {
        let said = said.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        match (lifetimes(Some(&said)), expect) {
            (Ok(found), Ok(expect)) => {
                let hours = [found.ca, found.ca_renew, found.leaf, found.leaf_renew].map(|time| time.as_secs() / 3600);
                assert_eq!(hours, expect);
            }
            (Err(error), Err(expect)) => assert!(error.contains(expect), "{error}"),
            (found, _) => panic!("{found:?}"),
        }
    }

    #[test]
    fn lifetimes_follow_the_object() {
        check(&[], Ok([48, 24, 24, 12]));
        let all = |ca: &'static str, overlap: &'static str, cert: &'static str| {
            [
                ("caRotateInterval", ca),
                ("caOverlapInterval", overlap),
                ("certRotateInterval", cert),
                ("certOverlapInterval", "1h"),
            ]
        };
        check(&all("100h", "10h", "20h"), Ok([100, 10, 20, 1]));
        check(&all("100h", "101h", "20h"), Err("caOverlapInterval(101h0m0s) has to be <= caRotateInterval(100h0m0s)"));
        check(&all("100h", "10h", "101h"), Err("certRotateInterval(101h0m0s) has to be <= caRotateInterval"));
        check(&all("0s", "10h", "1h"), Err("caRotateInterval duration has to be > 0"));
        check(&all("x", "10h", "1h"), Err("error parsing caRotateInterval"));
        check(&[("caRotateInterval", "1h")], Err("caOverlapInterval is missing"));
    }
}
