//! Workloads that keep pods: selectors and templates that fit, and updates that can move.

use serde_json::{Value, json};

use apimachinery::labels::Labels;

use super::field::{Causes, Field, NOT_NEGATIVE, Rule, SUBDOMAIN, labels};
use super::{match_labels, pod};
use crate::registry::Resource;

pub(super) const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";
const PERCENT: &str = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";

/// Checks what keeps pods by a template.
pub(super) fn validate(resource: &Resource, object: &Value, causes: &mut Causes) {
    let spec = Field::new("spec", &object["spec"]);
    pod::counts(&spec, causes);
    match resource.plural.as_str() {
        "deployments" => {
            selector(&spec, "deployment", causes);
            template(&spec.get("template"), "ReplicaSet", causes);
            deployment(&spec, causes);
        }
        "replicasets" => {
            selector(&spec, "deployment", causes);
            template(&spec.get("template"), "ReplicaSet", causes);
        }
        "daemonsets" => {
            selector(&spec, "daemonset", causes);
            template(&spec.get("template"), "DaemonSet", causes);
            daemon_set(&spec.get("updateStrategy"), causes);
        }
        "statefulsets" => {
            selector(&spec, "statefulset", causes);
            let with_claims = with_claims(&spec.value["template"], &spec.value["volumeClaimTemplates"]);
            template(&Field::new("spec.template", &with_claims), "StatefulSet", causes);
            stateful_set(&spec, causes);
        }
        "replicationcontrollers" if !spec.get("template").is_set() => spec.get("template").required("", causes),
        "replicationcontrollers" => {
            labels(&spec.get("selector"), causes);
            fits(&spec, causes);
            template(&spec.get("template"), "ReplicationController", causes);
        }
        _ => {}
    }
}

/// What a set of pods restarts, it restarts always.
fn template(template: &Field<'_>, kind: &str, causes: &mut Causes) {
    pod::template(template, causes);
    let spec = template.get("spec");
    spec.get("restartPolicy").check(&Rule::OneOf(&["Always"]), causes);
    if spec.get("activeDeadlineSeconds").is_set() {
        let why = format!("activeDeadlineSeconds in {kind} is not Supported");
        spec.get("activeDeadlineSeconds").forbidden(&why, causes);
    }
}

/// Pods are selected by something, and the template's are among them.
fn selector(spec: &Field<'_>, kind: &str, causes: &mut Causes) {
    let selector = spec.get("selector");
    if !selector.is_set() {
        if kind != "daemonset" {
            selector.required("", causes);
        }
        spec.get("template").get("metadata").get("labels").invalid(MISMATCH, causes);
        return;
    }
    let expressions = selector.each("matchExpressions").next().is_some();
    if match_labels(selector.value).is_none_or(serde_json::Map::is_empty) && !expressions {
        selector.invalid(&format!("empty selector is invalid for {kind}"), causes);
        return;
    }
    let mut wrong = Vec::new();
    super::label_selector::check("", selector.value, &mut wrong);
    if wrong.is_empty() {
        fits(spec, causes);
    } else if kind != "daemonset" {
        selector.invalid("invalid label selector", causes);
    }
}

const MISMATCH: &str = "`selector` does not match template `labels`";

pub(super) fn fits(spec: &Field<'_>, causes: &mut Causes) {
    let labels = spec.get("template").get("metadata").get("labels");
    let text = super::selector_text(spec.get("selector").value);
    if !Labels::parse(&text).is_ok_and(|selector| selector.matches(|key| labels.value[key].as_str())) {
        labels.invalid(MISMATCH, causes);
    }
}

fn deployment(spec: &Field<'_>, causes: &mut Causes) {
    let (deadline, ready) = (spec.get("progressDeadlineSeconds"), spec.get("minReadySeconds"));
    deadline.check(&NOT_NEGATIVE, causes);
    if deadline.is_set() && deadline.number() <= ready.number() {
        deadline.invalid("must be greater than minReadySeconds", causes);
    }
    let strategy = spec.get("strategy");
    let rolling = strategy.get("rollingUpdate");
    match strategy.get("type").text() {
        "Recreate" if rolling.is_set() => {
            rolling.forbidden("may not be specified when strategy `type` is 'Recreate'", causes);
        }
        "Recreate" => {}
        "RollingUpdate" if !rolling.is_set() => rolling.required("this should be defaulted and never be nil", causes),
        "RollingUpdate" => {
            let (surge, unavailable) = (rolling.get("maxSurge"), rolling.get("maxUnavailable"));
            share(&surge, false, causes);
            share(&unavailable, true, causes);
            if count(&surge) == 0 && count(&unavailable) == 0 {
                unavailable.invalid("may not be 0 when `maxSurge` is 0", causes);
            }
        }
        _ => strategy.unsupported(&["Recreate", "RollingUpdate"], causes),
    }
}

fn daemon_set(strategy: &Field<'_>, causes: &mut Causes) {
    let rolling = strategy.get("rollingUpdate");
    match strategy.get("type").text() {
        "OnDelete" => {}
        "RollingUpdate" if !rolling.is_set() => rolling.required("", causes),
        "RollingUpdate" => {
            let (surge, unavailable) = (rolling.get("maxSurge"), rolling.get("maxUnavailable"));
            share(&surge, true, causes);
            share(&unavailable, true, causes);
            match (count(&unavailable) != 0, count(&surge) != 0) {
                (true, true) => surge.invalid("may not be set when maxUnavailable is non-zero", causes),
                (false, false) => unavailable.required("cannot be 0 when maxSurge is 0", causes),
                _ => {}
            }
        }
        _ => strategy.unsupported(&["RollingUpdate", "OnDelete"], causes),
    }
}

fn stateful_set(spec: &Field<'_>, causes: &mut Causes) {
    let management = spec.get("podManagementPolicy");
    if !matches!(management.text(), "OrderedReady" | "Parallel") {
        management.invalid("must be 'OrderedReady' or 'Parallel'", causes);
    }
    spec.get("serviceName").check(&SUBDOMAIN, causes);
    spec.get("ordinals").get("start").check(&NOT_NEGATIVE, causes);
    for when in ["whenDeleted", "whenScaled"] {
        let policy = spec.get("persistentVolumeClaimRetentionPolicy").get(when);
        policy.check(&Rule::OneOf(&["Retain", "Delete"]), causes);
    }
    let strategy = spec.get("updateStrategy");
    let rolling = strategy.get("rollingUpdate");
    match strategy.get("type").text() {
        "OnDelete" if rolling.is_set() => rolling.invalid("only allowed for updateStrategy 'RollingUpdate'", causes),
        "OnDelete" => {}
        "RollingUpdate" => {
            rolling.get("partition").check(&NOT_NEGATIVE, causes);
        }
        _ => strategy.invalid("must be 'RollingUpdate' or 'OnDelete'", causes),
    }
    spec.each("volumeClaimTemplates").for_each(|claim| pod::claim(&claim.get("spec"), causes));
}

/// Checks the counts of a status: parts are not more than the whole.
pub(super) fn status(object: &Value, causes: &mut Causes) {
    let status = Field::new("status", &object["status"]);
    let total = status.get("replicas").number();
    let available = status.get("availableReplicas");
    status.get("replicas").check(&NOT_NEGATIVE, causes);
    for part in ["updatedReplicas", "readyReplicas", "availableReplicas", "fullyLabeledReplicas"] {
        let part = status.get(part);
        part.check(&NOT_NEGATIVE, causes);
        if part.number() > total && (part.is_set() || !part.path.ends_with("fullyLabeledReplicas")) {
            part.invalid("cannot be greater than status.replicas", causes);
        }
    }
    if available.number() > status.get("readyReplicas").number() {
        available.invalid("cannot be greater than readyReplicas", causes);
    }
    for name in ["unavailableReplicas", "observedGeneration", "collisionCount"] {
        status.get(name).check(&NOT_NEGATIVE, causes);
    }
}

/// A number or a share of something: not negative, and where it is a part, not more than all.
pub(super) fn share(field: &Field<'_>, part: bool, causes: &mut Causes) {
    match field.value {
        Value::String(text) => match percent(text) {
            None => field.invalid(PERCENT, causes),
            Some(percent) if part && percent > 100 => field.invalid("must not be greater than 100%", causes),
            Some(_) => {}
        },
        _ => field.check(&NOT_NEGATIVE, causes),
    }
}

fn percent(text: &str) -> Option<i64> {
    text.strip_suffix('%').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()
}

/// The number that stands in a number or a share; 0 when there is none.
fn count(field: &Field<'_>) -> i64 {
    field.value.as_str().map_or(field.number(), |text| percent(text).unwrap_or(0))
}

/// The template of the pods as a stateful set makes them: each of its claims is a volume of that name, in place of one the
/// template may have.
fn with_claims(template: &Value, claims: &Value) -> Value {
    let mut template = template.clone();
    let mut volumes = template["spec"]["volumes"].as_array().cloned().unwrap_or_default();
    for claim in claims.as_array().into_iter().flatten() {
        let name = &claim["metadata"]["name"];
        let volume = json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
        match volumes.iter_mut().find(|volume| volume["name"] == *name && !name.is_null()) {
            Some(replaced) => *replaced = volume,
            None => volumes.push(volume),
        }
    }
    if !volumes.is_empty() {
        template["spec"]["volumes"] = volumes.into();
    }
    template
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_of_a_stateful_set_are_volumes_of_its_pods() {
        let check = |volumes: Value, expect: &[&str]| {
            let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
            let container = json!({"name": "c", "image": "i", "volumeMounts": [mount("data"), mount("other")]});
            let spec = json!({"containers": [container], "volumes": volumes, "restartPolicy": "Always", "dnsPolicy": "Default"});
            let template = with_claims(&json!({"spec": spec}), &json!([{"metadata": {"name": "data"}}]));
            let mut causes = Vec::new();
            pod::template(&Field::new("", &template), &mut causes);
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
        fn check(strategy: Value, expect: &[&str]) {
            let mut causes = Vec::new();
            deployment(&Field::new("spec", &json!({"strategy": strategy})), &mut causes);
            let got: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
            assert_eq!(got, expect);
        }
        let rolling = |surge: Value, unavailable: Value| json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}});
        check(rolling(json!("25%"), json!("25%")), &[]);
        check(rolling(json!(0), json!(1)), &[]);
        check(rolling(json!("150%"), json!(0)), &[]);
        check(
            rolling(json!(0), json!("0%")),
            &["spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"0%\": may not be 0 when `maxSurge` is 0"],
        );
        check(
            rolling(json!(1), json!("101%")),
            &["spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%"],
        );
        check(json!({"type": "Recreate"}), &[]);
        check(
            json!({"type": "Recreate", "rollingUpdate": {}}),
            &["spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"],
        );
        check(
            json!({"type": "Rolling"}),
            &[
                "spec.strategy: Unsupported value: {\"type\":\"Rolling\"}: supported values: \"Recreate\", \"RollingUpdate\"",
            ],
        );
    }
}
