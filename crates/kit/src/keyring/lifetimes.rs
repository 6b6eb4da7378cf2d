//! How long certificates live, as objects ask for it.

use std::time::Duration;

use crate::duration;

const HOUR: Duration = Duration::from_secs(3600);

/// How long certificates live and when they are renewed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetimes {
    /// Of the authority.
    pub ca: Duration,
    /// Renewed this long before its end.
    pub ca_renew: Duration,
    /// Of the leaves.
    pub leaf: Duration,
    /// Renewed this long before their end.
    pub leaf_renew: Duration,
}

/// What an object says of the life of a certificate, as durations of Go.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span<'a> {
    /// From its beginning to its end.
    pub duration: Option<&'a str>,
    /// How long before its end it is renewed.
    pub renew_before: Option<&'a str>,
}

impl Lifetimes {
    /// As asked; without a word, authorities live two days, what they sign one, each renewed at half of its time. No leaf outlives its
    /// authority, and what would be renewed before it is made, without an end, is renewed at half of its time as well.
    pub fn asked(ca: Span<'_>, leaf: Span<'_>) -> Self {
        let read = |text: Option<&str>| text.and_then(duration::parse).filter(|time| !time.is_zero());
        let renew =
            |life: Duration, span: Span<'_>| read(span.renew_before).filter(|renew| *renew < life).unwrap_or(life / 2);
        let life = read(ca.duration).unwrap_or(48 * HOUR);
        let short = read(leaf.duration).unwrap_or(24 * HOUR).min(life);
        Self { ca: life, ca_renew: renew(life, ca), leaf: short, leaf_renew: renew(short, leaf) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(ca: [&'static str; 2], leaf: [&'static str; 2], expect: [u64; 4]) {
        let said = |text| Some(text).filter(|text: &&'static str| !text.is_empty());
        let span = |[duration, renew_before]: [&'static str; 2]| Span {
            duration: said(duration),
            renew_before: said(renew_before),
        };
        let found = Lifetimes::asked(span(ca), span(leaf));
        let minutes = [found.ca, found.ca_renew, found.leaf, found.leaf_renew].map(|time| time.as_secs() / 60);
        assert_eq!(minutes, expect);
    }

    #[test]
    fn certificates_live_as_asked_and_no_leaf_outlives_its_authority() {
        check(["", ""], ["", ""], [2880, 1440, 1440, 720]);
        check(["1h0m0s", "30m0s"], ["20m", "5m"], [60, 30, 20, 5]);
        check(["1h", "30m"], ["2h", "1h"], [60, 30, 60, 30]);
        check(["1h", "50m"], ["20m", "15m"], [60, 50, 20, 15]);
        check(["0s", "no"], ["0", "48h"], [2880, 1440, 1440, 720]);
    }
}
