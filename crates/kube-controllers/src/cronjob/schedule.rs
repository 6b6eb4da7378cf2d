//! The schedule of a CronJob, in its time zone. Pure.

use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::tz::TimeZone;
use kit::cron;

/// A schedule and the zone whose clocks it goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    times: cron::Schedule,
    zone: TimeZone,
}

impl Schedule {
    /// Parses `text`; the error says which part is wrong.
    pub(crate) fn parse(text: &str, zone: Option<&str>) -> Result<Self, String> {
        let zone = match zone.filter(|zone| !zone.is_empty()) {
            Some(name) => TimeZone::get(name).map_err(|_| format!("unknown time zone {name}"))?,
            None => TimeZone::UTC,
        };
        Ok(Self { times: cron::Schedule::parse(text)?, zone })
    }

    /// A moment as its zone's clocks show it.
    pub(crate) fn shown(&self, time: Timestamp) -> String {
        let zoned = time.to_zoned(self.zone.clone());
        if self.zone == TimeZone::UTC { time.to_string() } else { zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string() }
    }

    /// The first time after `after`; `None` when there is none within five years.
    pub(crate) fn next(&self, after: Timestamp) -> Option<Timestamp> {
        self.times.next(after, &self.zone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_looked_up() {
        let parse = |zone: &str| Schedule::parse("0 9 * * *", Some(zone));
        assert_eq!(parse("Nowhere/Land").unwrap_err(), "unknown time zone Nowhere/Land");
        let schedule = parse("Etc/GMT-2").unwrap();
        let next = schedule.next("2026-01-15T10:30:20Z".parse().unwrap()).unwrap();
        assert_eq!(
            (next.to_string(), schedule.shown(next)),
            ("2026-01-16T07:00:00Z".into(), "2026-01-16T09:00:00+02:00".into())
        );
    }
}
