//! Cron schedules: five fields, names, lists, ranges, steps, and the `@daily` forms, in a time zone. Pure.

use k8s_openapi::jiff::civil::{Date, DateTime, Time, Weekday};
use k8s_openapi::jiff::tz::TimeZone;
use k8s_openapi::jiff::{Timestamp, ToSpan};

/// A parsed schedule; each field is a set of allowed values as bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Both day fields restrict, so either may match.
    either_day: bool,
    zone: TimeZone,
}

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

impl Schedule {
    /// Parses `text`; the error says which part is wrong.
    pub(crate) fn parse(text: &str, zone: Option<&str>) -> Result<Self, String> {
        let zone = match zone.filter(|zone| !zone.is_empty()) {
            Some(name) => TimeZone::get(name).map_err(|_| format!("unknown time zone {name}"))?,
            None => TimeZone::UTC,
        };
        let text = match text.trim() {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other => other,
        };
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields.as_slice() else {
            return Err(format!("expected exactly 5 fields, found {}: [{text}]", fields.len()));
        };
        // Steps restrict: `*/2` is not every day.
        let free = |field: &str| field.split(',').any(|part| matches!(part, "*" | "?" | "*/1" | "?/1"));
        let mut weekday_bits = parse_field(weekdays, 0, 7, &WEEKDAYS, 0)?;
        // 7 is Sunday as well.
        weekday_bits |= weekday_bits >> 7 & 1;
        Ok(Self {
            minutes: parse_field(minutes, 0, 59, &[], 0)?,
            hours: parse_field(hours, 0, 23, &[], 0)?,
            days: parse_field(days, 1, 31, &[], 0)?,
            months: parse_field(months, 1, 12, &MONTHS, 1)?,
            weekdays: weekday_bits,
            either_day: !free(days) && !free(weekdays),
            zone,
        })
    }

    fn has_day(&self, date: Date) -> bool {
        let bit = |bits: u64, value: i8| bits >> value & 1 == 1;
        let weekday = match date.weekday() {
            Weekday::Sunday => 0,
            other => other.to_monday_one_offset(),
        };
        let (day, weekday) = (bit(self.days, date.day()), bit(self.weekdays, weekday));
        bit(self.months, date.month()) && if self.either_day { day || weekday } else { day && weekday }
    }

    /// A moment as its zone's clocks show it.
    pub(crate) fn shown(&self, time: Timestamp) -> String {
        let zoned = time.to_zoned(self.zone.clone());
        if self.zone == TimeZone::UTC { time.to_string() } else { zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string() }
    }

    /// The first time after `after`; `None` when there is none within five years.
    pub(crate) fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let local = after.to_zoned(self.zone.clone()).datetime();
        let mut moment = local.checked_add(1.minute()).ok()?;
        moment = DateTime::from_parts(moment.date(), Time::new(moment.hour(), moment.minute(), 0, 0).ok()?);
        let mut date = moment.date();
        let mut earliest = (moment.hour(), moment.minute());
        for _ in 0..(5 * 366) {
            if self.has_day(date) {
                for hour in (earliest.0..24).filter(|hour| self.hours >> hour & 1 == 1) {
                    let first = if hour == earliest.0 { earliest.1 } else { 0 };
                    for minute in (first..60).filter(|minute| self.minutes >> minute & 1 == 1) {
                        let found = DateTime::from_parts(date, Time::new(hour, minute, 0, 0).ok()?);
                        let found = self.zone.to_timestamp(found).ok()?;
                        // A clock set back shows the same minute twice.
                        if found > after {
                            return Some(found);
                        }
                    }
                }
            }
            date = date.tomorrow().ok()?;
            earliest = (0, 0);
        }
        None
    }
}

fn parse_field(field: &str, low: u32, high: u32, names: &[&str], first_name: u32) -> Result<u64, String> {
    let value = |text: &str| {
        let lower = text.to_ascii_lowercase();
        if let Some(index) = names.iter().position(|name| *name == lower) {
            return Ok(first_name + u32::try_from(index).unwrap_or(0));
        }
        let number: u32 = text.parse().map_err(|_| format!("failed to parse int from {text}"))?;
        if (low..=high).contains(&number) { Ok(number) } else { Err(format!("{number} is outside of {low}-{high}")) }
    };
    let mut bits = 0u64;
    for part in field.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => {
                let step: u32 = step.parse().map_err(|_| format!("failed to parse step of {part}"))?;
                (range, Some(step).filter(|s| *s > 0).ok_or_else(|| format!("step of {part} must be positive"))?)
            }
            None => (part, 1),
        };
        let (first, last) = match range {
            "*" | "?" => (low, if names.len() == 7 { 6 } else { high }),
            _ => match range.split_once('-') {
                Some((first, last)) => (value(first)?, value(last)?),
                None if part.contains('/') => (value(range)?, high),
                None => (value(range)?, value(range)?),
            },
        };
        if first > last {
            return Err(format!("beginning of range ({first}) beyond end of range ({last}): {part}"));
        }
        let mut number = first;
        while number <= last {
            bits |= 1 << number;
            number += step;
        }
    }
    Ok(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, zone: Option<&str>, after: &str, expect: &str) {
        let next = Schedule::parse(text, zone)
            .map(|schedule| schedule.next(after.parse().unwrap()).map_or("never".into(), |time| time.to_string()));
        assert_eq!(next.unwrap_or_else(|error| error), expect, "{text}");
    }

    #[test]
    fn next_times() {
        let after = "2026-01-15T10:30:20Z";
        check("* * * * *", None, after, "2026-01-15T10:31:00Z");
        check("*/15 * * * *", None, after, "2026-01-15T10:45:00Z");
        check("30 10 * * *", None, after, "2026-01-16T10:30:00Z");
        check("0 0 1 * *", None, after, "2026-02-01T00:00:00Z");
        check("0 12 * * mon-wed", None, after, "2026-01-19T12:00:00Z");
        check("0 12 * * 7", None, after, "2026-01-18T12:00:00Z");
        check("0 0 20 * fri", None, after, "2026-01-16T00:00:00Z");
        check("5,10 9-11/2 * jan *", None, after, "2026-01-15T11:05:00Z");
        check("0 0 */10 * fri", None, after, "2026-01-16T00:00:00Z");
        check("0 0 */10 * *", None, after, "2026-01-21T00:00:00Z");
        check("@yearly", None, after, "2027-01-01T00:00:00Z");
        check("0 0 30 2 *", None, after, "never");
        check("0 9 * * *", Some("Etc/GMT-2"), after, "2026-01-16T07:00:00Z");
    }

    #[test]
    fn errors_name_the_part() {
        let after = "2026-01-15T10:30:20Z";
        check("* * * *", None, after, "expected exactly 5 fields, found 4: [* * * *]");
        check("61 * * * *", None, after, "61 is outside of 0-59");
        check("5-1 * * * *", None, after, "beginning of range (5) beyond end of range (1): 5-1");
        check("* * * * *", Some("Nowhere/Land"), after, "unknown time zone Nowhere/Land");
    }
}
