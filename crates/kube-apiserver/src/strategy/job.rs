//! Jobs: the labels by which a job knows its pods, how many it runs, and when it has failed or succeeded.

mod status;

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use apimachinery::names::{label_problem, qualified_name_problem, subdomain_problem};

pub(super) use self::status::status;
use super::field::{Causes, Field, NOT_NEGATIVE, Rule, check};
use super::{pod, workload};
use apimachinery::tree::child;

const UID: &str = "batch.kubernetes.io/controller-uid";
const UID_KEYS: [&str; 2] = [UID, "controller-uid"];
const NAME_KEYS: [&str; 2] = ["batch.kubernetes.io/job-name", "job-name"];
const MOST_RULES: usize = 20;
const MOST_INDEXES: i64 = 100_000;
const ACTIONS: &[&str] = &["Count", "FailIndex", "FailJob", "Ignore"];
const COUNTS: &[(&str, Rule)] = &[
    ("parallelism", NOT_NEGATIVE),
    ("completions", NOT_NEGATIVE),
    ("activeDeadlineSeconds", NOT_NEGATIVE),
    ("backoffLimit", NOT_NEGATIVE),
    ("ttlSecondsAfterFinished", NOT_NEGATIVE),
    ("backoffLimitPerIndex", NOT_NEGATIVE),
    ("maxFailedIndexes", NOT_NEGATIVE),
    ("completionMode", Rule::OneOf(&["NonIndexed", "Indexed"])),
];

/// A job selects its pods by its own uid unless it says how itself, and takes the labels of its template where it has none.
/// What the template says already stays, to be judged.
pub(super) fn prepare(job: &mut Value) {
    if job["spec"]["manualSelector"] != true {
        let text = |field: &str| job["metadata"][field].as_str().unwrap_or_default().to_owned();
        let own = [(UID_KEYS, text("uid")), (NAME_KEYS, text("name"))];
        for (key, value) in own.iter().flat_map(|(keys, value)| keys.map(|key| (key, value.as_str()))) {
            let labels = child(child(child(child(job, "spec"), "template"), "metadata"), "labels");
            if labels[key].is_null() {
                labels[key] = value.into();
            }
        }
        let uid = job["metadata"]["uid"].clone();
        child(child(child(job, "spec"), "selector"), "matchLabels")[UID] = uid;
    }
    let labels = job["spec"]["template"]["metadata"]["labels"].clone();
    if labels.is_object() && job["metadata"].get("labels").and_then(Value::as_object).is_none_or(Map::is_empty) {
        child(job, "metadata")["labels"] = labels;
    }
}

/// Checks a job.
pub(super) fn validate(job: &Value, causes: &mut Causes) {
    let spec = Field::new("spec", &job["spec"]);
    let labels = spec.get("template").get("metadata").get("labels");
    if *labels.value == job["metadata"]["labels"] {
        // What is wrong with labels that the job took over is told of its template.
        causes.retain(|cause| cause.field != "metadata.labels");
    }
    if spec.get("manualSelector").value != true {
        for (keys, of) in [(UID_KEYS, "uid"), (NAME_KEYS, "name")] {
            let own = job["metadata"][of].as_str().unwrap_or_default();
            for key in keys.into_iter().filter(|key| labels.value[*key] != own) {
                labels.told_as(format!("{}[{key}]", labels.path)).invalid(&format!("must be '{own}'"), causes);
            }
        }
        if *spec.get("selector").value != json!({"matchLabels": {UID: job["metadata"]["uid"]}}) {
            spec.get("selector").invalid("`selector` not auto-generated", causes);
        }
    }
    if spec.get("selector").is_set() {
        workload::fits(&spec, causes);
    } else {
        spec.get("selector").required("", causes);
    }
    self::spec(&spec, causes);
    let completions = spec.get("completions").number();
    if spec.get("completionMode").text() == "Indexed" && completions > 0 {
        let name = Field::new("metadata.name", &job["metadata"]["name"]);
        let host = format!("{}-{}", name.text(), completions - 1);
        if label_problem(&host).is_some() {
            name.invalid(&format!("will not able to create pod with invalid DNS label: {host}"), causes);
        }
    }
}

/// Checks what of a job changed. An indexed one may grow and shrink while its parallelism follows; one that waits may yet be
/// told where its pods run.
pub(super) fn update(old: &Value, new: &Value, causes: &mut Causes) {
    const FIELD: &str = "field is immutable";
    let (before, after) = (Field::new("spec", &old["spec"]), Field::new("spec", &new["spec"]));
    let elastic = after.get("completionMode").text() == "Indexed"
        && after.get("completions").value == after.get("parallelism").value;
    for name in ["selector", "completionMode", "completions", "podFailurePolicy", "backoffLimitPerIndex", "managedBy"] {
        let free = elastic && name == "completions";
        if !free && before.get(name).value != after.get(name).value {
            after.get(name).invalid(FIELD, causes);
        }
    }
    let waits = before.get("suspend").value == true && old["status"]["startTime"].is_null();
    if !waits && before.get("template").value != after.get("template").value {
        after.get("template").invalid(FIELD, causes);
    } else if unplaced(before.get("template").value) != unplaced(after.get("template").value) {
        after.get("template").get("spec").invalid(FIELD, causes);
    }
}

/// A template without what says where and with how much its pods run.
fn unplaced(template: &Value) -> Value {
    let mut spec = template["spec"].clone();
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        containers.filter_map(Value::as_object_mut).for_each(|container| {
            container.remove("resources");
        });
    }
    if let Some(fields) = spec.as_object_mut() {
        for name in ["nodeSelector", "tolerations", "affinity", "schedulingGates"] {
            fields.remove(name);
        }
    }
    spec
}

/// Checks what jobs and the templates of jobs have in common.
pub(super) fn spec(spec: &Field<'_>, causes: &mut Causes) {
    check(spec, COUNTS, causes);
    completions(spec, causes);
    managed_by(&spec.get("managedBy"), causes);
    let failure = spec.get("podFailurePolicy").is_set();
    let replacements: &[&str] = if failure { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    let replacement = spec.get("podReplacementPolicy");
    if replacement.is_set() && !replacements.contains(&replacement.text()) {
        replacement.unsupported(replacements, causes);
    }
    pod::template(&spec.get("template"), causes);
    let restart = spec.get("template").get("spec").get("restartPolicy");
    match restart.text() {
        // That the empty word is missing is told of every pod.
        "" => {}
        "Always" => restart.required("valid values: \"OnFailure\", \"Never\"", causes),
        _ => restart.check(&Rule::OneOf(&["OnFailure", "Never"]), causes),
    }
    if failure {
        if restart.text() == "OnFailure" {
            restart.invalid("only \"Never\" is supported when podFailurePolicy is specified", causes);
        }
        failure_policy(spec, causes);
    }
    if spec.get("successPolicy").is_set() {
        success_policy(spec, causes);
    }
}

fn completions(spec: &Field<'_>, causes: &mut Causes) {
    let indexed = spec.get("completionMode").text() == "Indexed";
    let (completions, per_index) = (spec.get("completions"), spec.get("backoffLimitPerIndex"));
    let (failed, parallelism) = (spec.get("maxFailedIndexes"), spec.get("parallelism"));
    if indexed && !completions.is_set() {
        completions.required("when completion mode is Indexed", causes);
    }
    if indexed && parallelism.number() > MOST_INDEXES {
        let why = format!("must be less than or equal to {MOST_INDEXES} when completion mode is Indexed");
        parallelism.invalid(&why, causes);
    }
    if !indexed && per_index.is_set() {
        per_index.invalid("requires indexed completion mode", causes);
    }
    if !indexed && spec.get("successPolicy").is_set() {
        spec.get("successPolicy").invalid("requires indexed completion mode", causes);
    }
    if failed.is_set() {
        if !per_index.is_set() {
            per_index.required("when maxFailedIndexes is specified", causes);
        }
        if completions.is_set() && failed.number() > completions.number() {
            failed.invalid("must be less than or equal to completions", causes);
        }
    }
}

fn managed_by(manager: &Field<'_>, causes: &mut Causes) {
    if !manager.is_set() {
        return;
    }
    let parts = manager.text().split_once('/');
    let good = parts.is_some_and(|(domain, path)| subdomain_problem(domain).is_none() && !path.is_empty());
    if !good {
        manager.invalid("must be a domain-prefixed path (such as \"acme.io/foo\")", causes);
    }
}

fn failure_policy(spec: &Field<'_>, causes: &mut Causes) {
    let policy = spec.get("podFailurePolicy");
    let template = spec.get("template").get("spec");
    let lists = ["containers", "initContainers"];
    let names: HashSet<&str> =
        lists.iter().flat_map(|list| template.each(list)).map(|container| container.get("name").text()).collect();
    at_most(&policy.get("rules"), MOST_RULES, causes);
    for rule in policy.each("rules") {
        let (action, codes, conditions) = (rule.get("action"), rule.get("onExitCodes"), rule.get("onPodConditions"));
        match action.text() {
            "" => action.required("valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]", causes),
            "FailIndex" if !spec.get("backoffLimitPerIndex").is_set() => {
                action.invalid("requires the backoffLimitPerIndex to be set", causes);
            }
            _ => action.check(&Rule::OneOf(ACTIONS), causes),
        }
        match (codes.is_set(), !conditions.is_empty()) {
            (true, true) => rule.invalid("specifying both OnExitCodes and OnPodConditions is not supported", causes),
            (false, false) => rule.invalid("specifying one of OnExitCodes and OnPodConditions is required", causes),
            _ => {}
        }
        if codes.is_set() {
            exit_codes(&codes, &names, causes);
        }
        at_most(&conditions, MOST_RULES, causes);
        for condition in rule.each("onPodConditions") {
            let (kind, status) = (condition.get("type"), condition.get("status"));
            if let Some(why) = qualified_name_problem(kind.text()) {
                kind.invalid_word(kind.text(), &why, causes);
            }
            if status.is_empty() {
                status.required("valid values: [\"False\" \"True\" \"Unknown\"]", causes);
            } else {
                status.check(&Rule::OneOf(&["False", "True", "Unknown"]), causes);
            }
        }
    }
}

fn exit_codes(codes: &Field<'_>, names: &HashSet<&str>, causes: &mut Causes) {
    let (operator, container, values) = (codes.get("operator"), codes.get("containerName"), codes.get("values"));
    if operator.is_empty() {
        operator.required("valid values: [\"In\" \"NotIn\"]", causes);
    } else {
        operator.check(&Rule::OneOf(&["In", "NotIn"]), causes);
    }
    if container.is_set() && !names.contains(container.text()) {
        container.invalid("must be one of the container or initContainer names in the pod template", causes);
    }
    if values.is_empty() {
        values.invalid("at least one value is required", causes);
    }
    let mut seen = HashSet::new();
    for value in codes.each("values") {
        if !seen.insert(value.number()) {
            value.duplicate(causes);
        }
        if value.number() == 0 && operator.text() == "In" {
            value.invalid("must not be 0 for the In operator", causes);
        }
    }
    let numbers: Vec<i64> = codes.each("values").map(|value| value.number()).collect();
    if !numbers.is_sorted() {
        values.invalid("must be ordered", causes);
    }
}

fn success_policy(spec: &Field<'_>, causes: &mut Causes) {
    let (policy, completions) = (spec.get("successPolicy"), spec.get("completions"));
    if policy.get("rules").is_empty() {
        let why = "at least one rules must be specified when the successPolicy is specified";
        policy.get("rules").required(why, causes);
    }
    at_most(&policy.get("rules"), MOST_RULES, causes);
    for rule in policy.each("rules") {
        let (count, indexes) = (rule.get("succeededCount"), rule.get("succeededIndexes"));
        if !count.is_set() && !indexes.is_set() {
            rule.required("at least one of succeededCount or succeededIndexes must be specified", causes);
        }
        let mut most = completions.is_set().then(|| completions.number());
        if indexes.is_set() {
            match count_indexes(indexes.text(), completions.number()) {
                Ok(total) => most = Some(total),
                Err(why) => indexes.invalid(&format!("error parsing succeededIndexes: {why}"), causes),
            }
        }
        count.check(&NOT_NEGATIVE, causes);
        if let Some(most) = most.filter(|most| count.number() > *most) {
            let why = format!("must be less than or equal to {most} (the number of specified completions)");
            count.invalid(&why, causes);
        }
    }
}

/// How many indexes there are in `1,3-5`.
fn count_indexes(text: &str, completions: i64) -> Result<i64, String> {
    let (mut previous, mut total) = (-1, 0);
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (first, last) = part.split_once('-').map_or((part, None), |(first, last)| (first, Some(last)));
        let mut ends = Vec::new();
        for end in std::iter::once(first).chain(last) {
            let number: i64 =
                end.parse().map_err(|_| format!("cannot convert string to integer for index: {end:?}"))?;
            if number <= previous {
                return Err(format!("non-increasing order, previous: {previous}, current: {number}"));
            }
            if number >= completions {
                return Err(format!("too large index: {end:?}"));
            }
            previous = number;
            ends.push(number);
        }
        total += previous - ends.first().copied().unwrap_or(previous) + 1;
    }
    Ok(total)
}

fn at_most(list: &Field<'_>, most: usize, causes: &mut Causes) {
    let count = list.value.as_array().map_or(0, Vec::len);
    if count > most {
        let message = format!("Too many: {count}: must have at most {most} items");
        causes.push(apimachinery::schema::validate::cause("FieldValueTooMany", &list.path, message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_counted() {
        assert_eq!(count_indexes("", 5), Ok(0));
        assert_eq!(count_indexes("0", 5), Ok(1));
        assert_eq!(count_indexes("0,2-4", 5), Ok(4));
        for bad in ["2-1", "1,1", "5", "x", "1-", "-1"] {
            assert!(count_indexes(bad, 5).is_err(), "{bad}");
        }
    }
}
