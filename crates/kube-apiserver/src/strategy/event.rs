//! Events: about an object of their own namespace; those of the newer API say who did what and when.

use serde_json::{Value, json};

use apimachinery::names::qualified_name_problem;

use super::field::{Causes, Field};
use crate::registry::Resource;

const LONGEST: usize = 128;
const LONGEST_NOTE: usize = 1024;
/// Fields of the older API, under their names there and in the newer one.
const OLDER: [(&str, &str); 4] = [
    ("count", "deprecatedCount"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("source", "deprecatedSource"),
];

/// Checks a new event. What was stored in the older API may be anything.
pub(super) fn validate(resource: &Resource, event: &Value, causes: &mut Causes) {
    let newer = resource.group == "events.k8s.io";
    let event = Field::new("", event);
    let about = event.get(if newer { "regarding" } else { "involvedObject" }).get("namespace");
    let about = about.told_as("involvedObject.namespace");
    let own = event.get("metadata").get("namespace").text();
    // Objects of the cluster have their events in the default namespace; the newer API only asks whether there is one.
    let elsewhere = if newer { about.is_empty() } else { about.text() != own };
    if elsewhere && !(about.is_empty() && own == "default") {
        about.invalid_word(about.text(), "does not match event.namespace", causes);
    }
    if !newer && !event.get("eventTime").is_set() {
        return;
    }
    if !event.get("eventTime").is_set() {
        event.get("eventTime").required("", causes);
    }
    let reporter = event.get(if newer { "reportingController" } else { "reportingComponent" });
    if reporter.is_empty() {
        reporter.required("", causes);
    }
    if let Some(why) = qualified_name_problem(reporter.text()) {
        reporter.invalid_word(reporter.text(), &why, causes);
    }
    for name in ["reportingInstance", "action", "reason"] {
        let field = event.get(name);
        if field.is_empty() {
            field.required("", causes);
        }
        at_most(&field, LONGEST, causes);
    }
    at_most(&event.get(if newer { "note" } else { "message" }).told_as("message"), LONGEST_NOTE, causes);
    let kind = event.get("type");
    if !matches!(kind.text(), "Normal" | "Warning") {
        kind.invalid_word("", &format!("has invalid value: {}", kind.text()), causes);
    }
    if newer {
        for (older, name) in OLDER {
            let field = event.get(name);
            let nothing = !field.is_set() || *field.value == json!(0) || *field.value == json!({});
            if !nothing {
                field.told_as(older).invalid_word("", "needs to be unset", causes);
            }
        }
    }
}

fn at_most(field: &Field<'_>, most: usize, causes: &mut Causes) {
    if field.text().len() > most {
        field.invalid_word("", &format!("can have at most {most} characters"), causes);
    }
}
