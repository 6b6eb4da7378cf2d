//! When a cron polls: the five fields of a schedule, in UTC. Pure.

use jiff::{Timestamp, ToSpan as _, civil::DateTime, tz::TimeZone};

/// A parsed schedule; each field is a set of allowed values as bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Both fields of days restrict, so either may match.
    either: bool,
}

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

impl Schedule {
    /// The schedule that `text` says; the error says which part is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
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
            return Err(format!("expected exactly 5 fields, found {}: {text}", fields.len()));
        };
        let sevens = field(weekdays, 0, 7, &WEEKDAYS)?;
        // Sunday is 0 and 7.
        let sundays = if sevens & (1 << 7) == 0 { sevens } else { (sevens | 1) & !(1 << 7) };
        Ok(Self {
            minutes: field(minutes, 0, 59, &[])?,
            hours: field(hours, 0, 23, &[])?,
            days: field(days, 1, 31, &[])?,
            months: field(months, 1, 12, &MONTHS)?,
            weekdays: sundays,
            either: !days.starts_with('*') && !weekdays.starts_with('*'),
        })
    }

    /// The first moment after `after` that it allows; none when there is none in five years.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let mut at: DateTime = after
            .to_zoned(TimeZone::UTC)
            .datetime()
            .checked_add(1.minute())
            .ok()?
            .with()
            .second(0)
            .subsec_nanosecond(0)
            .build()
            .ok()?;
        let end = at.checked_add(5.years()).ok()?;
        while at < end {
            let date = at.date();
            if self.months & bit(date.month()) == 0 || !self.day(at) {
                at = date.checked_add(1.day()).ok()?.at(0, 0, 0, 0);
            } else if self.hours & bit(at.hour()) == 0 {
                at = at.checked_add(1.hour()).ok()?.with().minute(0).build().ok()?;
            } else if self.minutes & bit(at.minute()) == 0 {
                at = at.checked_add(1.minute()).ok()?;
            } else {
                return at.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp());
            }
        }
        None
    }

    fn day(&self, at: DateTime) -> bool {
        let of_month = self.days & bit(at.day()) != 0;
        let of_week = self.weekdays & bit(at.weekday().to_sunday_zero_offset()) != 0;
        if self.either { of_month || of_week } else { of_month && of_week }
    }
}

fn bit(value: i8) -> u64 {
    1u64 << (value.unsigned_abs() & 63)
}

fn field(text: &str, least: u8, most: u8, names: &[&str]) -> Result<u64, String> {
    let mut allowed = 0;
    for part in text.split(',') {
        let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
        let value = |text: &str| number(text, least, most, names);
        let (from, to) = match range.split_once('-') {
            Some((from, to)) => (value(from)?, value(to)?),
            None if range == "*" => (least, most),
            None => {
                let from = value(range)?;
                (from, if step.is_some() { most } else { from })
            }
        };
        let step: usize = step.map_or(Ok(1), str::parse).map_err(|_| format!("{part} has a step that is no number"))?;
        if step == 0 || from > to {
            return Err(format!("{part} is no range"));
        }
        (from..=to).step_by(step).for_each(|value| allowed |= 1 << value);
    }
    Ok(allowed)
}

fn number(text: &str, least: u8, most: u8, names: &[&str]) -> Result<u8, String> {
    let named = names.iter().position(|name| text.eq_ignore_ascii_case(name));
    let named = named.and_then(|at| u8::try_from(at).ok()).map(|at| at + least);
    let value = named.or_else(|| text.parse().ok());
    value.filter(|value| (least..=most).contains(value)).ok_or_else(|| format!("{text} is not from {least} to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(schedule: &str, after: &str, expect: &str) {
        let next = Schedule::parse(schedule).unwrap().next(after.parse().unwrap());
        assert_eq!(next, Some(expect.parse().unwrap()));
    }

    #[test]
    fn the_next_time_of_a_schedule() {
        check("* * * * *", "2026-01-01T00:00:30Z", "2026-01-01T00:01:00Z");
        check("30 1/12 * * *", "2026-01-01T01:30:00Z", "2026-01-01T13:30:00Z");
        check("0 0 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z");
        check("0 0 1 * mon", "2026-01-01T00:00:00Z", "2026-01-05T00:00:00Z");
        check("0 0 * * 7", "2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z");
        check("@hourly", "2026-12-31T23:30:00Z", "2027-01-01T00:00:00Z");
        check("*/20 8-9 * jun *", "2026-01-01T00:00:00Z", "2026-06-01T08:00:00Z");
    }

    #[test]
    fn what_is_no_schedule_is_said() {
        assert_eq!(Schedule::parse("* * *").unwrap_err(), "expected exactly 5 fields, found 3: * * *");
        assert_eq!(Schedule::parse("61 * * * *").unwrap_err(), "61 is not from 0 to 59");
        assert_eq!(Schedule::parse("5-1 * * * *").unwrap_err(), "5-1 is no range");
        assert_eq!(Schedule::parse("0 0 31 2 *").unwrap().next(Timestamp::UNIX_EPOCH), None);
    }
}
