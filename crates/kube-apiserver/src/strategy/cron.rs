//! CronJobs: a schedule that can be read, a time zone that there is, and a template that makes jobs.

use kit::cron::Schedule;
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

/// What is wrong with a schedule.
fn schedule_problem(text: &str) -> Option<String> {
    if text.contains("TZ") {
        return Some("cannot use TZ or CRON_TZ in schedule, use timeZone field instead".into());
    }
    Schedule::parse(text).err()
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
        check("@every day", "failed to parse duration @every day");
        check("TZ=UTC * * * * *", "timeZone field");
    }
}
