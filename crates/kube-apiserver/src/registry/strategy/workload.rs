//! Workloads: selectors and templates that fit, labels jobs give their pods.

use serde_json::{Value, json};

use super::{invalid, match_labels, pod, required};
use crate::error::Cause;
use crate::registry::Resource;
use crate::registry::defaults::child;
use crate::selector::Labels;

pub(super) const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// A job selects its pods by its own uid unless it says how itself.
pub(super) fn prepare_job(job: &mut Value) {
    if job["spec"]["manualSelector"] == true {
        return;
    }
    let uid = job["metadata"]["uid"].clone();
    let name = job["metadata"]["name"].clone();
    for key in ["batch.kubernetes.io/controller-uid", "controller-uid"] {
        child(child(child(child(job, "spec"), "template"), "metadata"), "labels")[key] = uid.clone();
    }
    for key in ["batch.kubernetes.io/job-name", "job-name"] {
        child(child(child(child(job, "spec"), "template"), "metadata"), "labels")[key] = name.clone();
    }
    let own = job["metadata"].get("labels").and_then(Value::as_object).is_none_or(serde_json::Map::is_empty);
    if own {
        // A job without labels takes those of its template.
        let labels = job["spec"]["template"]["metadata"]["labels"].clone();
        child(job, "metadata")["labels"] = labels;
    }
    child(job, "spec")["selector"] = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}});
}

pub(super) fn validate(resource: &Resource, object: &Value, causes: &mut Vec<Cause>) {
    let spec = &object["spec"];
    match resource.plural.as_str() {
        "deployments" | "daemonsets" | "replicasets" | "statefulsets" => {
            selector(spec, causes);
            match resource.plural.as_str() {
                "deployments" => strategy(&spec["strategy"], "spec.strategy", causes),
                "daemonsets" => strategy(&spec["updateStrategy"], "spec.updateStrategy", causes),
                _ => {}
            }
            let policy = &spec["template"]["spec"]["restartPolicy"];
            super::one_of("spec.template.spec.restartPolicy", policy, &["Always"], causes);
            pod::validate(&with_claims(spec), "spec.template.spec", causes);
            for field in ["replicas", "revisionHistoryLimit", "minReadySeconds"] {
                if let Some(number) = spec[field].as_i64().filter(|n| *n < 0) {
                    invalid(&format!("spec.{field}"), &number.into(), "must be greater than or equal to 0", causes);
                }
            }
        }
        "jobs" => {
            pod::validate(&spec["template"]["spec"], "spec.template.spec", causes);
            restart_of_job(&spec["template"]["spec"], "spec.template.spec", causes);
            policies_of_job(spec, causes);
        }
        "cronjobs" => {
            if let Some(why) = schedule_problem(spec["schedule"].as_str().unwrap_or_default()) {
                invalid("spec.schedule", &spec["schedule"], &why, causes);
            }
            zone(&spec["timeZone"], causes);
            let template = &spec["jobTemplate"]["spec"]["template"]["spec"];
            pod::validate(template, "spec.jobTemplate.spec.template.spec", causes);
            restart_of_job(template, "spec.jobTemplate.spec.template.spec", causes);
        }
        _ => {}
    }
}

/// The spec of the template's pods as a stateful set makes them: each of its claims is a volume of that name, in place of one
/// the template may have.
fn with_claims(spec: &Value) -> Value {
    let mut template = spec["template"]["spec"].clone();
    let mut volumes = template["volumes"].as_array().cloned().unwrap_or_default();
    for claim in spec["volumeClaimTemplates"].as_array().into_iter().flatten() {
        let name = &claim["metadata"]["name"];
        let volume = json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
        match volumes.iter_mut().find(|volume| volume["name"] == *name) {
            Some(replaced) => *replaced = volume,
            None => volumes.push(volume),
        }
    }
    if !volumes.is_empty() {
        template["volumes"] = volumes.into();
    }
    template
}

/// A rolling update must be able to move, and only a rolling update has bounds.
fn strategy(strategy: &Value, at: &str, causes: &mut Vec<Cause>) {
    let forbidden = |field: &str, why: String, causes: &mut Vec<Cause>| {
        let message = format!("Forbidden: {why}");
        causes.push(crate::schema::validate::cause("FieldValueForbidden", &format!("{at}.{field}"), message));
    };
    let kinds: &[&str] =
        if at == "spec.strategy" { &["Recreate", "RollingUpdate"] } else { &["OnDelete", "RollingUpdate"] };
    super::one_of(&format!("{at}.type"), &strategy["type"], kinds, causes);
    let rolling = &strategy["rollingUpdate"];
    if strategy["type"] == "Recreate" && rolling.is_object() {
        let why = "may not be specified when strategy `type` is 'Recreate'".to_owned();
        forbidden("rollingUpdate", why, causes);
    }
    if strategy["type"] != "RollingUpdate" || !rolling.is_object() {
        return;
    }
    for field in ["maxSurge", "maxUnavailable"] {
        let value = &rolling[field];
        let percent = value.as_str().map(|text| text.strip_suffix('%').and_then(|n| n.parse::<u32>().ok()));
        let at = format!("{at}.rollingUpdate.{field}");
        match percent {
            Some(None) => {
                let why = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
                invalid(&at, value, why, causes);
            }
            Some(Some(percent)) if percent > 100 && field == "maxUnavailable" => {
                invalid(&at, value, "must not be greater than 100%", causes);
            }
            _ if value.as_i64().is_some_and(|n| n < 0) => {
                invalid(&at, value, "must be greater than or equal to 0", causes);
            }
            _ => {}
        }
    }
    let zero = |value: &Value| value == 0 || value == "0%";
    if zero(&rolling["maxSurge"]) && zero(&rolling["maxUnavailable"]) {
        let why =
            if at == "spec.strategy" { "may not be 0 when `maxSurge` is 0" } else { "cannot be 0 when maxSurge is 0" };
        invalid(&format!("{at}.rollingUpdate.maxUnavailable"), &rolling["maxUnavailable"], why, causes);
    }
}

/// What is wrong with a cron schedule: five fields, each a list of values, ranges and steps within its bounds.
fn schedule_problem(text: &str) -> Option<String> {
    const NAMED: [&str; 7] = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];
    const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
    const FIELDS: [(u32, u32, &[&str]); 5] =
        [(0, 59, &[]), (0, 23, &[]), (1, 31, &[]), (1, 12, &MONTHS), (0, 7, &DAYS)];
    let text = text.trim();
    if NAMED.contains(&text) {
        return None;
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Some(format!("expected exactly 5 fields, found {}: [{text}]", fields.len()));
    }
    let good = |field: &str, (low, high, names): (u32, u32, &[&str])| {
        let value = |word: &str| {
            names.contains(&word.to_ascii_lowercase().as_str())
                || word.parse().is_ok_and(|n: u32| (low..=high).contains(&n))
        };
        field.split(',').all(|part| {
            let (range, step) = part.split_once('/').unwrap_or((part, "1"));
            let range_is_good =
                matches!(range, "*" | "?") || range.split('-').count() <= 2 && range.split('-').all(value);
            range_is_good && step.parse().is_ok_and(|n: u32| n > 0)
        })
    };
    let bad = fields.iter().zip(FIELDS).find(|(field, bounds)| !good(field, *bounds));
    bad.map(|(field, (low, high, _))| format!("{field:?} is no list of values, ranges or steps within {low}-{high}"))
}

/// A zone that the time zone database knows.
fn zone(zone: &Value, causes: &mut Vec<Cause>) {
    let Some(name) = zone.as_str() else { return };
    if name.is_empty() {
        invalid("spec.timeZone", zone, "timeZone must be nil or non-empty string", causes);
    } else if name.eq_ignore_ascii_case("local") {
        invalid(
            "spec.timeZone",
            zone,
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones",
            causes,
        );
    } else if jiff::tz::TimeZone::get(name).is_err() {
        invalid("spec.timeZone", zone, &format!("unknown time zone {name}"), causes);
    }
}

/// What only an indexed job, or one whose pods are not restarted in place, can have.
fn policies_of_job(spec: &Value, causes: &mut Vec<Cause>) {
    let indexed = spec["completionMode"] == "Indexed";
    if indexed && spec["completions"].is_null() {
        let why = "Required value: when completion mode is Indexed".to_owned();
        causes.push(crate::schema::validate::cause("FieldValueRequired", "spec.completions", why));
    }
    for field in ["backoffLimitPerIndex", "successPolicy"] {
        if !indexed && !spec[field].is_null() {
            let why = "requires indexed completion mode";
            invalid(&format!("spec.{field}"), &spec[field], why, causes);
        }
    }
    if !spec["maxFailedIndexes"].is_null() && spec["backoffLimitPerIndex"].is_null() {
        let why = "Required value: when maxFailedIndexes is specified".to_owned();
        causes.push(crate::schema::validate::cause("FieldValueRequired", "spec.backoffLimitPerIndex", why));
    }
    let policy = &spec["podFailurePolicy"];
    let restart = &spec["template"]["spec"]["restartPolicy"];
    if policy.is_object() && restart != "Never" {
        let why = "only \"Never\" is supported when podFailurePolicy is specified";
        invalid("spec.template.spec.restartPolicy", restart, why, causes);
    }
    for (number, rule) in policy["rules"].as_array().into_iter().flatten().enumerate() {
        let at = format!("spec.podFailurePolicy.rules[{number}]");
        super::one_of(&format!("{at}.action"), &rule["action"], &["Count", "FailIndex", "FailJob", "Ignore"], causes);
        if rule["action"] == "FailIndex" && spec["backoffLimitPerIndex"].is_null() {
            let why = "requires the backoffLimitPerIndex to be set";
            invalid(&format!("{at}.action"), &rule["action"], why, causes);
        }
        let conditions = rule["onPodConditions"].as_array().is_some_and(|list| !list.is_empty());
        if rule["onExitCodes"].is_object() == conditions {
            let why = "specifying one of OnExitCodes and OnPodConditions is required, and not both";
            invalid(&at, rule, why, causes);
        }
    }
}

fn restart_of_job(spec: &Value, at: &str, causes: &mut Vec<Cause>) {
    let field = format!("{at}.restartPolicy");
    match spec["restartPolicy"].as_str() {
        Some("OnFailure" | "Never") => {}
        None => {
            let message = "Required value: valid values: \"OnFailure\", \"Never\"".to_owned();
            causes.push(crate::schema::validate::cause("FieldValueRequired", &field, message));
        }
        Some(_) => super::one_of(&field, &spec["restartPolicy"], &["OnFailure", "Never"], causes),
    }
}

fn selector(spec: &Value, causes: &mut Vec<Cause>) {
    let selector = &spec["selector"];
    if !selector.is_object() {
        required("spec.selector", causes);
        return;
    }
    let expressions = selector["matchExpressions"].as_array().is_some_and(|list| !list.is_empty());
    if match_labels(selector).is_none_or(serde_json::Map::is_empty) && !expressions {
        invalid("spec.selector", selector, "empty selector is invalid for deployment", causes);
        return;
    }
    let labels = &spec["template"]["metadata"]["labels"];
    let fits = Labels::parse(&super::selector_text(selector)).is_ok_and(|s| s.matches(|key| labels[key].as_str()));
    if !fits {
        let why = "`selector` does not match template `labels`";
        invalid("spec.template.metadata.labels", labels, why, causes);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{pod, schedule_problem, strategy, with_claims};

    #[test]
    fn claims_of_a_stateful_set_are_volumes_of_its_pods() {
        let check = |volumes: Value, expect: &[&str]| {
            let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
            let container = json!({"name": "c", "image": "i", "volumeMounts": [mount("data"), mount("other")]});
            let spec = json!({"template": {"spec": {"containers": [container], "volumes": volumes}},
                "volumeClaimTemplates": [{"metadata": {"name": "data"}}]});
            let mut causes = Vec::new();
            pod::validate(&with_claims(&spec), "spec", &mut causes);
            let got: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
            assert_eq!(got, expect);
        };
        let missing = "spec.containers[0].volumeMounts[1].name: Not found: \"other\"";
        check(json!(null), &[missing]);
        check(json!([{"name": "other", "emptyDir": {}}]), &[]);
        check(json!([{"name": "other", "emptyDir": {}}, {"name": "data", "emptyDir": {}}]), &[]);
    }

    #[test]
    fn rolling_updates_can_move() {
        #[track_caller]
        #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
        fn check(given: Value, expect: &[&str]) {
            let mut causes = Vec::new();
            strategy(&given, "spec.strategy", &mut causes);
            let got: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
            assert_eq!(got, expect);
        }
        let rolling = |surge: Value, unavailable: Value| json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}});
        check(rolling(json!("25%"), json!("25%")), &[]);
        check(rolling(json!(0), json!(1)), &[]);
        check(
            rolling(json!(0), json!("0%")),
            &["spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"0%\": may not be 0 when `maxSurge` is 0"],
        );
        check(
            rolling(json!(1), json!("101%")),
            &["spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%"],
        );
        check(
            json!({"type": "Recreate", "rollingUpdate": {}}),
            &["spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"],
        );
        check(
            json!({"type": "Rolling"}),
            &["spec.strategy.type: Unsupported value: \"Rolling\": supported values: \"Recreate\", \"RollingUpdate\""],
        );
    }

    #[test]
    fn schedules() {
        for good in ["0 0 1 1 *", "*/5 * * * *", "0 9-17 * * mon-fri", "1,2,30-40/5 ? 1 jan,DEC 7", "@daily"] {
            assert_eq!(schedule_problem(good), None, "{good}");
        }
        let check =
            |text: &str, words: &str| assert!(schedule_problem(text).is_some_and(|why| why.contains(words)), "{text}");
        check("often", "found 1");
        check("60 * * * *", "within 0-59");
        check("* * 0 * *", "within 1-31");
        check("*/0 * * * *", "\"*/0\"");
        check("1-2-3 * * * *", "1-2-3");
    }
}
