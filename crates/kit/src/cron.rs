//! Cron schedules as Kubernetes reads them: five fields of lists, ranges, steps and names, `@daily` and its like, and
//! `@every 1h30m`. Pure.
//!
//! Rules and sentences are those of the parser that CronJobs are read with (robfig/cron, version 3, standard form).

use jiff::civil::{Date, DateTime, Time, Weekday};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};

use crate::duration;

/// When something is to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule(When);

#[derive(Clone, Debug, PartialEq, Eq)]
enum When {
    /// So many seconds after the time before, at least one.
    Every(i64),
    Fields(Fields),
}

/// The allowed values of each field as bits.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Both fields of days restrict, so either may match.
    either_day: bool,
}

/// The least and the greatest value of a field, and the names of its values from the least.
struct Bounds(u32, u32, &'static [&'static str]);

const MINUTES: Bounds = Bounds(0, 59, &[]);
const HOURS: Bounds = Bounds(0, 23, &[]);
const DAYS: Bounds = Bounds(1, 31, &[]);
const MONTHS: Bounds =
    Bounds(1, 12, &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]);
const WEEKDAYS: Bounds = Bounds(0, 6, &["sun", "mon", "tue", "wed", "thu", "fri", "sat"]);

/// A schedule that has no time for so long has none.
const DAYS_AHEAD: usize = 5 * 366;

impl Schedule {
    /// Reads `text`.
    ///
    /// # Errors
    /// A sentence that names the part that is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = match text.trim() {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other => other,
        };
        if let Some(every) = text.strip_prefix("@every ") {
            let every = duration::parse(every).ok_or_else(|| format!("failed to parse duration {text}"))?;
            return Ok(Self(When::Every(i64::try_from(every.as_secs()).unwrap_or(i64::MAX).max(1))));
        }
        if text.starts_with('@') {
            return Err(format!("unrecognized descriptor: {text}"));
        }
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields.as_slice() else {
            return Err(format!("expected exactly 5 fields, found {}: [{text}]", fields.len()));
        };
        let ((minutes, _), (hours, _)) = (MINUTES.field(minutes)?, HOURS.field(hours)?);
        let ((days, every_day), (months, _)) = (DAYS.field(days)?, MONTHS.field(months)?);
        let (weekdays, every_weekday) = WEEKDAYS.field(weekdays)?;
        let either_day = !every_day && !every_weekday;
        Ok(Self(When::Fields(Fields { minutes, hours, days, months, weekdays, either_day })))
    }

    /// The first time after `after`, by the clocks of `zone`; none when there is none within five years.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match &self.0 {
            When::Every(seconds) => Timestamp::from_second(after.as_second().checked_add(*seconds)?).ok(),
            When::Fields(fields) => fields.next(after, zone),
        }
    }
}

impl Fields {
    fn has_day(&self, date: Date) -> bool {
        let bit = |bits: u64, value: i8| bits >> value & 1 == 1;
        let weekday = match date.weekday() {
            Weekday::Sunday => 0,
            other => other.to_monday_one_offset(),
        };
        let (day, weekday) = (bit(self.days, date.day()), bit(self.weekdays, weekday));
        bit(self.months, date.month()) && if self.either_day { day || weekday } else { day && weekday }
    }

    fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let moment = after.to_zoned(zone.clone()).datetime().checked_add(1.minute()).ok()?;
        let mut date = moment.date();
        let mut earliest = (moment.hour(), moment.minute());
        for _ in 0..DAYS_AHEAD {
            if self.has_day(date) {
                for hour in (earliest.0..24).filter(|hour| self.hours >> hour & 1 == 1) {
                    let first = if hour == earliest.0 { earliest.1 } else { 0 };
                    for minute in (first..60).filter(|minute| self.minutes >> minute & 1 == 1) {
                        let found = DateTime::from_parts(date, Time::new(hour, minute, 0, 0).ok()?);
                        let found = zone.to_timestamp(found).ok()?;
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

impl Bounds {
    /// The values of a field, and whether it restricts nothing: a step does, `*/2` is not every day.
    fn field(&self, text: &str) -> Result<(u64, bool), String> {
        let (mut bits, mut every) = (0, false);
        for part in text.split(',') {
            let (values, is_free) = self.part(part)?;
            bits |= values;
            every |= is_free;
        }
        Ok((bits, every))
    }

    fn part(&self, part: &str) -> Result<(u64, bool), String> {
        let Self(low, high, _) = *self;
        let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
        let any = matches!(range, "*" | "?");
        let number = |text: &str| self.number(text).ok_or_else(|| format!("failed to parse int from {part}"));
        let (first, last) = match range.split('-').collect::<Vec<_>>().as_slice() {
            _ if any => (low, high),
            // A step from one value goes on to the highest.
            [one] if step.is_some() => (number(one)?, high),
            [one] => (number(one)?, number(one)?),
            [first, last] => (number(first)?, number(last)?),
            _ => return Err(format!("too many hyphens: {part}")),
        };
        let step: u32 = step.map_or(Ok(1), str::parse).map_err(|_| format!("failed to parse int from {part}"))?;
        match (first, last) {
            _ if step == 0 => Err(format!("step of range should be a positive number: {part}")),
            _ if first < low => Err(format!("beginning of range ({first}) below minimum ({low}): {part}")),
            _ if last > high => Err(format!("end of range ({last}) above maximum ({high}): {part}")),
            _ if first > last => Err(format!("beginning of range ({first}) beyond end of range ({last}): {part}")),
            _ => {
                let step = usize::try_from(step).unwrap_or(usize::MAX);
                let bits = (first..=last).step_by(step).fold(0, |bits, value| bits | 1 << value);
                Ok((bits, any && step == 1))
            }
        }
    }

    fn number(&self, text: &str) -> Option<u32> {
        let named = self.2.iter().position(|name| name.eq_ignore_ascii_case(text));
        named.and_then(|at| u32::try_from(at).ok()).map(|at| at + self.0).or_else(|| text.parse().ok())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, after: &str, expect: &str) {
        let next = Schedule::parse(text).map(|schedule| schedule.next(after.parse().unwrap(), &TimeZone::UTC));
        let next = next.map(|next| next.map_or("never".into(), |time| time.to_string()));
        assert_eq!(next.unwrap_or_else(|error| error), expect, "{text}");
    }

    #[test]
    fn next_times() {
        let after = "2026-01-15T10:30:20Z";
        check("* * * * *", after, "2026-01-15T10:31:00Z");
        check("*/15 * * * *", after, "2026-01-15T10:45:00Z");
        check("30 10 * * *", after, "2026-01-16T10:30:00Z");
        check("0 0 1 * *", after, "2026-02-01T00:00:00Z");
        check("0 12 * * mon-wed", after, "2026-01-19T12:00:00Z");
        check("0 0 20 * fri", after, "2026-01-16T00:00:00Z");
        check("5,10 9-11/2 * jan *", after, "2026-01-15T11:05:00Z");
        check("0 0 */10 * fri", after, "2026-01-16T00:00:00Z");
        check("0 0 */10 * *", after, "2026-01-21T00:00:00Z");
        check("0 0 ? * DEC *", after, "expected exactly 5 fields, found 6: [0 0 ? * DEC *]");
        check("@yearly", after, "2027-01-01T00:00:00Z");
        check("0 0 30 2 *", after, "never");
        check("* * * * *", "2026-01-01T00:00:30Z", "2026-01-01T00:01:00Z");
        check("30 1/12 * * *", "2026-01-01T01:30:00Z", "2026-01-01T13:30:00Z");
        check("0 0 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z");
        check("0 0 1 * mon", "2026-01-01T00:00:00Z", "2026-01-05T00:00:00Z");
        check("@hourly", "2026-12-31T23:30:00Z", "2027-01-01T00:00:00Z");
        check("*/20 8-9 * jun *", "2026-01-01T00:00:00Z", "2026-06-01T08:00:00Z");
        check("@every 1h30m", "2026-01-15T10:30:20.7Z", "2026-01-15T12:00:20Z");
        check("@every 10ms", after, "2026-01-15T10:30:21Z");
        // A step beyond every value leaves the first.
        check("30/4294967295 * * * *", after, "2026-01-15T11:30:00Z");
    }

    #[test]
    fn a_zone_has_clocks_of_its_own() {
        let next = |text: &str, after: &str, zone: &str| {
            let next =
                Schedule::parse(text).unwrap().next(after.parse().unwrap(), &TimeZone::get(zone).unwrap()).unwrap();
            next.to_string()
        };
        assert_eq!(next("0 9 * * *", "2026-01-15T10:30:20Z", "Etc/GMT-2"), "2026-01-16T07:00:00Z");
        // At the second half past two of that night it has been already.
        assert_eq!(next("30 2 * * *", "2026-10-25T00:30:00Z", "Europe/Berlin"), "2026-10-26T01:30:00Z");
    }

    #[test]
    fn errors_name_the_part() {
        let check = |text: &str, expect: &str| assert_eq!(Schedule::parse(text).unwrap_err(), expect, "{text}");
        check("often", "expected exactly 5 fields, found 1: [often]");
        check("* * * *", "expected exactly 5 fields, found 4: [* * * *]");
        check("60 * * * *", "end of range (60) above maximum (59): 60");
        check("* * 0 * *", "beginning of range (0) below minimum (1): 0");
        check("*/0 * * * *", "step of range should be a positive number: */0");
        check("*/x * * * *", "failed to parse int from */x");
        check("1-2-3 * * * *", "too many hyphens: 1-2-3");
        check("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1");
        check("0 0 * * 7", "end of range (7) above maximum (6): 7");
        check("@often", "unrecognized descriptor: @often");
        check("@every day", "failed to parse duration @every day");
    }

    proptest! {
        #[test]
        fn any_schedule_has_later_times_of_whole_minutes(text in "([0-9*?/,-]{1,6} ){4}[0-9a-z*?/,-]{1,6}", now in 0i64..4_000_000_000) {
            let Ok(schedule) = Schedule::parse(&text) else { return Ok(()) };
            let now = Timestamp::from_second(now).unwrap();
            if let Some(next) = schedule.next(now, &TimeZone::UTC) {
                prop_assert!(next > now, "{next} is not after {now}");
                prop_assert_eq!(next.as_second() % 60, 0);
            }
        }
    }
}
