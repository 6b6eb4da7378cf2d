//! HorizontalPodAutoscalers: what is scaled, within which bounds, by which metrics, and how fast.

use serde_json::Value;

use super::field::{Causes, Field, Rule, check};
use super::pod::amount;

const LONGEST_WINDOW: i64 = 3600;
const LONGEST_PERIOD: i64 = 1800;
/// Types of metrics, in the order in which errors list them, and the fields that describe them.
const METRICS: [(&str, &str); 5] = [
    ("ContainerResource", "containerResource"),
    ("External", "external"),
    ("Object", "object"),
    ("Pods", "pods"),
    ("Resource", "resource"),
];

/// Checks an autoscaler.
pub(super) fn validate(autoscaler: &Value, causes: &mut Causes) {
    let spec = Field::new("spec", &autoscaler["spec"]);
    let (least, most) = (spec.get("minReplicas"), spec.get("maxReplicas"));
    if least.is_set() && least.number() < 1 {
        least.invalid("must be greater than or equal to 1", causes);
    }
    match most.number() {
        0 => most.required("must be set and greater than 0", causes),
        number if number < 0 => most.invalid("must be greater than or equal to 1", causes),
        _ => {}
    }
    if least.is_set() && most.number() < least.number() {
        most.invalid("must be greater than or equal to `minReplicas`", causes);
    }
    let target = spec.get("scaleTargetRef");
    reference(&target, causes);
    let grouped = target.get("apiVersion").text().split('/').count() == 2;
    if !grouped && target.get("kind").text() != "ReplicationController" {
        let version = target.get("apiVersion");
        version.invalid_word(version.text(), "apiVersion must specify API group", causes);
    }
    spec.each("metrics").for_each(|each| metric(&each, causes));
    let outside = |metric: &Field<'_>| matches!(metric.get("type").text(), "Object" | "External");
    if least.is_set() && least.number() == 0 && !spec.each("metrics").any(|metric| outside(&metric)) {
        let why = "must specify at least one Object or External metric to support scaling to zero replicas";
        spec.get("metrics").forbidden(why, causes);
    }
    for direction in ["scaleUp", "scaleDown"] {
        rules(&spec.get("behavior").get(direction), causes);
    }
}

fn reference(reference: &Field<'_>, causes: &mut Causes) {
    check(reference, &[("kind", Rule::Needed), ("name", Rule::Needed)], causes);
}

fn metric(metric: &Field<'_>, causes: &mut Causes) {
    let kind = metric.get("type");
    if kind.is_empty() {
        kind.required("must specify a metric source type", causes);
    }
    let Some((_, field)) = METRICS.iter().find(|(name, _)| *name == kind.text()) else {
        kind.unsupported(&METRICS.map(|(name, _)| name), causes);
        return;
    };
    let given: Vec<_> = METRICS.iter().map(|(_, field)| metric.get(field)).filter(Field::is_set).collect();
    let source = metric.get(field);
    if !source.is_set() {
        source.required("must populate information for the given metric source", causes);
        return;
    }
    for other in given.iter().filter(|other| other.path != source.path) {
        other.forbidden("must populate the given metric source only", causes);
    }
    let named = source.get("metric").get("name");
    match *field {
        "containerResource" | "resource" => {
            if *field == "containerResource" {
                source.get("container").check(&Rule::Needed, causes);
            }
            if source.get("name").is_empty() {
                source.get("name").required("must specify a resource name", causes);
            }
            share(&source.get("target"), causes);
        }
        _ if named.is_empty() => named.required("must specify a metric name", causes),
        _ => {}
    }
    match *field {
        "pods" => average(&source.get("target"), causes),
        "object" => {
            reference(&source.get("describedObject"), causes);
            value(&source.get("target"), causes);
        }
        "external" => value(&source.get("target"), causes),
        _ => {}
    }
}

/// How much there should be of a metric, in which way of counting.
fn target(target: &Field<'_>, causes: &mut Causes) {
    let kind = target.get("type");
    if kind.is_empty() {
        kind.required("must specify a metric target type", causes);
    }
    if !matches!(kind.text(), "Utilization" | "Value" | "AverageValue") {
        kind.invalid_word(kind.text(), "must be either Utilization, Value, or AverageValue", causes);
    }
    for name in ["value", "averageValue"] {
        if amount(target.get(name).value).is_some_and(|amount| amount <= 0) {
            target.get(name).invalid("must be positive", causes);
        }
    }
}

fn share(of: &Field<'_>, causes: &mut Causes) {
    target(of, causes);
    let (utilization, average) = (of.get("averageUtilization"), of.get("averageValue"));
    utilization.check(&Rule::AtLeast(1), causes);
    match (utilization.is_set(), average.is_set()) {
        (false, false) => utilization.required("must set either a target raw value or a target utilization", causes),
        (true, true) => average.forbidden("may not set both a target raw value and a target utilization", causes),
        _ => {}
    }
}

fn average(of: &Field<'_>, causes: &mut Causes) {
    target(of, causes);
    if !of.get("averageValue").is_set() {
        of.get("averageValue").required("must specify a positive target averageValue", causes);
    }
}

fn value(of: &Field<'_>, causes: &mut Causes) {
    target(of, causes);
    if !of.get("value").is_set() && !of.get("averageValue").is_set() {
        of.get("averageValue").required("must set either a target value for metric or a per-pod target", causes);
    }
}

fn rules(rules: &Field<'_>, causes: &mut Causes) {
    if !rules.is_set() {
        return;
    }
    let window = rules.get("stabilizationWindowSeconds");
    if window.number() < 0 {
        window.invalid("must be greater than or equal to zero", causes);
    }
    if window.number() > LONGEST_WINDOW {
        window.invalid(&format!("must be less than or equal to {LONGEST_WINDOW}"), causes);
    }
    rules.get("selectPolicy").check(&Rule::OneOf(&["Disabled", "Max", "Min"]), causes);
    if rules.get("policies").is_empty() {
        rules.get("policies").required("must specify at least one Policy", causes);
    }
    for policy in rules.each("policies") {
        policy.get("type").check(&Rule::Exactly(&["Percent", "Pods"]), causes);
        for number in ["value", "periodSeconds"].map(|name| policy.get(name)) {
            if number.number() <= 0 {
                number.invalid("must be greater than zero", causes);
            }
        }
        if policy.get("periodSeconds").number() > LONGEST_PERIOD {
            policy.get("periodSeconds").invalid(&format!("must be less than or equal to {LONGEST_PERIOD}"), causes);
        }
    }
}
