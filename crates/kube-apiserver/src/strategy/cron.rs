//! CronJobs: a schedule that can be read, a time zone that there is, and a template that makes jobs.

use serde_json::Value;

use super::field::{Causes, Field, NOT_NEGATIVE, Rule, check};
use super::job;

const LONGEST_NAME: usize = 52;
const RULES: &[(&str, Rule)] = &[
    ("schedule", Rule::Needed),
    ("schedule", Rule::Name(schedule_problem)),
    ("concurrencyPolicy", Rule::Chosen(&["Allow", "Forbid", "Replace"])),
    ("startingDeadlineSeconds", NOT_NEGATIVE),
    ("successfulJobsHistoryLimit", NOT_NEGATIVE),
    ("failedJobsHistoryLimit", NOT_NEGATIVE),
];

/// Checks a CronJob.
pub(super) fn validate(cron: &Value, causes: &mut Causes) {
    let spec = Field::new("spec", &cron["spec"]);
    check(&spec, RULES, causes);
    zone(&spec.get("timeZone"), causes);
    let job = spec.get("jobTemplate").get("spec");
    if job.get("selector").is_set() {
        job.get("selector").invalid("`selector` will be auto-generated", causes);
    }
    if job.get("manualSelector").value == true {
        job.get("manualSelector").unsupported(&["nil", "false"], causes);
    }
    job::spec(&job, causes);
    let name = Field::new("metadata.name", &cron["metadata"]["name"]);
    if name.text().len() > LONGEST_NAME {
        name.invalid(&format!("must be no more than {LONGEST_NAME} characters"), causes);
    }
}

/// A zone that the time zone database knows, under the name that it has there.
fn zone(zone: &Field<'_>, causes: &mut Causes) {
    let name = zone.text();
    let known = || jiff::tz::TimeZone::get(name).is_ok_and(|found| found.iana_name() == Some(name));
    if !zone.is_set() {
    } else if name.is_empty() {
        zone.invalid("timeZone must be nil or non-empty string", causes);
    } else if name.eq_ignore_ascii_case("local") {
        let why = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        zone.invalid(why, causes);
    } else if !known() {
        zone.invalid(&format!("unknown time zone {name}"), causes);
    }
}

/// The bounds of a field, and the words that stand for its numbers, from the lowest.
type Bounds = (u32, u32, &'static [&'static str]);

/// What is wrong with a schedule: five fields, each a list of values, ranges and steps within its bounds, or a name.
fn schedule_problem(text: &str) -> Option<String> {
    const NAMED: [&str; 7] = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];
    const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
    const FIELDS: [Bounds; 5] = [(0, 59, &[]), (0, 23, &[]), (1, 31, &[]), (1, 12, &MONTHS), (0, 6, &DAYS)];
    if text.contains("TZ") {
        return Some("cannot use TZ or CRON_TZ in schedule, use timeZone field instead".into());
    }
    let text = text.trim();
    if NAMED.contains(&text) || text.strip_prefix("@every ").is_some_and(is_duration) {
        return None;
    }
    if text.starts_with('@') {
        return Some(format!("unrecognized descriptor: {text}"));
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Some(format!("expected exactly 5 fields, found {}: [{text}]", fields.len()));
    }
    let mut parts =
        fields.iter().zip(FIELDS).flat_map(|(field, bounds)| field.split(',').map(move |part| (part, bounds)));
    parts.find_map(|(part, bounds)| part_problem(part, bounds))
}

fn part_problem(part: &str, (low, high, names): Bounds) -> Option<String> {
    let number = |word: &str| {
        let named = names.iter().position(|name| name.eq_ignore_ascii_case(word));
        named.and_then(|at| u32::try_from(at).ok()).map(|at| at + low).or_else(|| word.parse().ok())
    };
    let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
    let ends: Vec<&str> = range.split('-').collect();
    let (first, last) = match ends.as_slice() {
        ["*" | "?"] => (Some(low), Some(high)),
        // A step from one value goes on to the highest.
        [one] if step.is_some() => (number(one), Some(high)),
        [one] => (number(one), number(one)),
        [first, last] => (number(first), number(last)),
        _ => return Some(format!("too many hyphens: {part}")),
    };
    let (Some(first), Some(last)) = (first, last) else { return Some(format!("failed to parse int from {part}")) };
    match step.map(str::parse::<u32>) {
        Some(Err(_)) => return Some(format!("failed to parse int from {part}")),
        Some(Ok(0)) => return Some(format!("step of range should be a positive number: {part}")),
        _ => {}
    }
    match (first, last) {
        _ if first < low => Some(format!("beginning of range ({first}) below minimum ({low}): {part}")),
        _ if last > high => Some(format!("end of range ({last}) above maximum ({high}): {part}")),
        _ if first > last => Some(format!("beginning of range ({first}) beyond end of range ({last}): {part}")),
        _ => None,
    }
}

/// Whether a text is a length of time, `1h30m`.
fn is_duration(text: &str) -> bool {
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let unit = ["ns", "us", "ms", "s", "m", "h"].iter().find(|unit| {
            let after = digits.strip_prefix(**unit);
            after.is_some_and(|after| after.is_empty() || after.starts_with(|c: char| c.is_ascii_digit()))
        });
        match unit.filter(|_| digits.len() < rest.len()) {
            Some(unit) => rest = &digits[unit.len()..],
            None => return false,
        }
    }
    !text.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules() {
        for good in
            ["0 0 1 1 *", "*/5 * * * *", "0 9-17 * * mon-fri", "1,2,30-40/5 ? 1 jan,DEC 6", "@daily", "@every 1h30m"]
        {
            assert_eq!(schedule_problem(good), None, "{good}");
        }
        let check =
            |text: &str, words: &str| assert!(schedule_problem(text).is_some_and(|why| why.contains(words)), "{text}");
        check("often", "found 1");
        check("60 * * * *", "(60) above maximum (59)");
        check("* * 0 * *", "(0) below minimum (1)");
        check("*/0 * * * *", "should be a positive number: */0");
        check("1-2-3 * * * *", "too many hyphens: 1-2-3");
        check("5-1 * * * *", "(5) beyond end of range (1)");
        check("0 0 * * 7", "(7) above maximum (6)");
        check("@often", "unrecognized");
        check("@every day", "unrecognized");
        check("TZ=UTC * * * * *", "timeZone field");
    }
}
