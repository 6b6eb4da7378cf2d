//! Sets of instances and pools of machines: what is wrong with them beside their templates, and what would be made of these.

use api::kubevirt::v1::VirtualMachineInstanceReplicaSet;
use api::pool::v1beta1::{VirtualMachinePool, VirtualMachinePoolSelectionPolicy, VirtualMachinePoolSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kit::admission::{Cause, Request};
use kube::core::{Selector, SelectorExt as _};
use serde_json::{Value, json};

use super::{deleting, invalid, required, strict, unsupported};

/// Where a set has the spec and the metadata of what it makes.
pub(crate) const SET: (&str, &str) = ("spec.template.spec", "spec.template.metadata");
/// Where a pool has them.
pub(crate) const POOL: (&str, &str) = ("spec.virtualMachineTemplate.spec", "spec.virtualMachineTemplate.metadata");

/// What would be made of a template.
pub(crate) struct Made {
    /// The request by which the writer of the template would make it themselves.
    pub(crate) request: Request,
    /// What the writer should know.
    pub(crate) warnings: Vec<String>,
}

/// Of a set, as far as its template has to be judged.
pub(crate) fn set(request: &Request) -> Result<Option<Made>, Vec<Cause>> {
    if is_settled(request) {
        return Ok(None);
    }
    let set: VirtualMachineInstanceReplicaSet = strict::decode(&request.object)?;
    let template = &set.spec.template;
    let mut causes = Vec::new();
    if template.spec.is_none() {
        causes.push(required("spec.template".to_owned(), "missing virtual machine template.".to_owned()));
    }
    check_selector(&set.spec.selector, template.metadata.as_ref(), &mut causes);
    if !causes.is_empty() {
        return Err(causes);
    }
    // The name is the beginning of a name.
    let warnings = ignored(template.metadata.as_ref(), SET.1, &["name", "generateName"]);
    Ok(Some(Made { request: inner(request, "template", &set.metadata), warnings }))
}

/// Of a pool, as far as its template has to be judged.
pub(crate) fn pool(request: &Request) -> Result<Option<Made>, Vec<Cause>> {
    if is_settled(request) {
        return Ok(None);
    }
    let pool: VirtualMachinePool = strict::decode(&request.object)?;
    let template = &pool.spec.virtual_machine_template;
    let mut causes = Vec::new();
    if template.spec.is_none() {
        let message = "missing virtual machine template.".to_owned();
        causes.push(required("spec.virtualMachineTemplate".to_owned(), message));
    }
    check_selector(&pool.spec.selector, template.metadata.as_ref(), &mut causes);
    let old: Option<VirtualMachinePool> = serde_json::from_value(request.old_object.clone()).ok();
    if old.is_some_and(|old| request.operation == "UPDATE" && old.spec.selector != pool.spec.selector) {
        causes.push(invalid("spec.selector".to_owned(), "selector is immutable after creation.".to_owned()));
    }
    check_unavailable(pool.spec.max_unavailable.as_ref(), &mut causes);
    check_strategies(&pool.spec, &mut causes);
    check_healing(&pool.spec, &mut causes);
    if !causes.is_empty() {
        return Err(causes);
    }
    let warnings = ignored(template.metadata.as_ref(), POOL.1, &[]);
    Ok(Some(Made { request: inner(request, "virtualMachineTemplate", &pool.metadata), warnings }))
}

/// True when nothing is written that has not been judged.
fn is_settled(request: &Request) -> bool {
    let same = request.operation == "UPDATE" && request.object.get("spec") == request.old_object.get("spec");
    same || deleting(&request.object)
}

fn check_selector(selector: &LabelSelector, metadata: Option<&ObjectMeta>, causes: &mut Vec<Cause>) {
    let field = || "spec.selector".to_owned();
    let labels = metadata.and_then(|metadata| metadata.labels.clone()).unwrap_or_default();
    match Selector::try_from(selector.clone()) {
        Err(error) => causes.push(invalid(field(), format!("selector cannot be read: {error}"))),
        Ok(selector) if selector.selects_all() => {
            let message = "selector is empty, and would select all of its namespace: name a label of the template";
            causes.push(invalid(field(), message.to_owned()));
        }
        Ok(selector) if !selector.matches(&labels) => {
            causes.push(invalid(field(), "selector does not match labels.".to_owned()));
        }
        Ok(_) => {}
    }
}

fn check_unavailable(wanted: Option<&IntOrString>, causes: &mut Vec<Cause>) {
    let message = match wanted {
        None => return,
        Some(IntOrString::Int(count)) if *count > 0 => return,
        Some(IntOrString::Int(_)) => "maxUnavailable must be greater than 0".to_owned(),
        Some(IntOrString::String(text)) => match text.strip_suffix('%') {
            None => "maxUnavailable percentage must end with %".to_owned(),
            Some(number) => match number.parse::<i32>() {
                Ok(1..=100) => return,
                Ok(other) => format!("maxUnavailable percentage value {other} must be between 1 and 100"),
                Err(error) => format!("maxUnavailable percentage value {text:?} is invalid: {error}"),
            },
        },
    };
    causes.push(invalid("spec.maxUnavailable".to_owned(), message));
}

fn check_strategies(spec: &VirtualMachinePoolSpec, causes: &mut Vec<Cause>) {
    let one = |field: &str, named: &[(&str, bool)], causes: &mut Vec<Cause>| {
        let chosen: Vec<&str> = named.iter().filter(|(_, is)| *is).map(|(name, _)| *name).collect();
        if chosen.len() > 1 {
            let message =
                format!("only one strategy can be configured at a time: but found {} strategies", chosen.join(","));
            causes.push(invalid(field.to_owned(), message));
        }
    };
    if let Some(strategy) = &spec.scale_in_strategy {
        let field = "spec.scaleInStrategy";
        let named = [
            ("proactive", strategy.proactive.is_some()),
            ("opportunistic", strategy.opportunistic.is_some()),
            ("unmanaged", strategy.unmanaged.is_some()),
        ];
        one(field, &named, causes);
        let policy = strategy.proactive.as_ref().and_then(|proactive| proactive.selection_policy.as_deref());
        check_policy(&format!("{field}.proactive.selectionPolicy"), policy, causes);
    }
    if let Some(strategy) = &spec.update_strategy {
        let field = "spec.updateStrategy";
        let named = [
            ("proactive", strategy.proactive.is_some()),
            ("opportunistic", strategy.opportunistic.is_some()),
            ("unmanaged", strategy.unmanaged.is_some()),
        ];
        one(field, &named, causes);
        let policy = strategy.proactive.as_ref().and_then(|proactive| proactive.selection_policy.as_deref());
        check_policy(&format!("{field}.proactive.selectionPolicy"), policy, causes);
    }
}

fn check_policy(field: &str, policy: Option<&VirtualMachinePoolSelectionPolicy>, causes: &mut Vec<Cause>) {
    let Some(selectors) = policy.and_then(|policy| policy.selectors.as_ref()) else { return };
    if let Some(Err(error)) = selectors.label_selector.clone().map(Selector::try_from) {
        let field = format!("{field}.selectors.labelSelector");
        causes.push(invalid(field, format!("selector cannot be read: {error}")));
    }
    for (index, term) in selectors.node_selector_requirement_matcher.iter().enumerate() {
        let field = format!("{field}.selectors.nodeSelectorRequirementMatcher[{index}]");
        let values = term.values.as_deref().unwrap_or_default();
        let (good, takes) = match term.operator.as_str() {
            "In" | "NotIn" => (!values.is_empty(), "at least one value"),
            "Exists" | "DoesNotExist" => (values.is_empty(), "no value"),
            "Gt" | "Lt" => (matches!(values, [one] if one.parse::<i64>().is_ok()), "one whole number"),
            other => {
                let message = format!("{other:?} is no operator: use In, NotIn, Exists, DoesNotExist, Gt or Lt");
                causes.push(unsupported(format!("{field}.operator"), message));
                continue;
            }
        };
        if !good {
            causes.push(invalid(format!("{field}.values"), format!("{} takes {takes}", term.operator)));
        }
    }
}

fn check_healing(spec: &VirtualMachinePoolSpec, causes: &mut Vec<Cause>) {
    let Some(healing) = &spec.autohealing else { return };
    if let Some(text) = &healing.min_failing_to_start_duration
        && kit::duration::parse(text).is_none()
    {
        let message = format!("{text:?} is no duration: write it as 5m or 1h30m");
        causes.push(invalid("spec.autohealing.minFailingToStartDuration".to_owned(), message));
    }
}

/// What of a template's metadata nothing is made of, beside `used`, labels and annotations.
fn ignored(metadata: Option<&ObjectMeta>, field: &str, used: &[&str]) -> Vec<String> {
    let Ok(Value::Object(all)) = serde_json::to_value(metadata) else { return Vec::new() };
    let acts = |key: &str| used.contains(&key) || ["labels", "annotations", "creationTimestamp"].contains(&key);
    let idle = all.iter().filter(|(key, value)| !acts(key) && !super::is_zero(value));
    idle.map(|(key, _)| format!("{field}.{key} is not acted on: only labels and annotations are taken from there"))
        .collect()
}

/// The request by which the writer of `key` in the spec would make one of it.
fn inner(request: &Request, key: &str, owner: &ObjectMeta) -> Request {
    let made = |object: &Value| {
        let template = object.get("spec").and_then(|spec| spec.get(key)).filter(|template| !template.is_null())?;
        let given = &template["metadata"];
        let mut annotations = given["annotations"].clone();
        if let Some(annotations) = annotations.as_object_mut() {
            // It is not for the user to say: see `copies`.
            annotations.remove(origin::leave::COPIES_ALLOWED);
        }
        Some(json!({
            "metadata": {
                "name": owner.name, "namespace": request.namespace,
                "labels": given["labels"], "annotations": annotations,
            },
            "spec": template["spec"],
        }))
    };
    Request {
        object: made(&request.object).unwrap_or_default(),
        old_object: made(&request.old_object).unwrap_or_default(),
        name: owner.name.clone().unwrap_or_default(),
        ..request.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn causes(result: Result<Option<Made>, Vec<Cause>>) -> Vec<(String, String)> {
        let causes = result.err().unwrap_or_default();
        causes.into_iter().map(|cause| (cause.field, cause.message)).collect()
    }

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn pool_with(change: Value, old: Value) -> Request {
        let mut object = json!({
            "metadata": { "name": "pool" },
            "spec": {
                "selector": { "matchLabels": { "app": "a" } },
                "virtualMachineTemplate": {
                    "metadata": { "labels": { "app": "a" } },
                    "spec": { "runStrategy": "Always", "template": { "spec": { "domain": { "devices": {} } } } },
                },
            },
        });
        json_patch::merge(&mut object["spec"], &change);
        let operation = if old.is_null() { "CREATE" } else { "UPDATE" };
        Request { object, old_object: old, operation: operation.into(), namespace: "ns".into(), ..Request::default() }
    }

    #[track_caller]
    fn refused(change: Value, field: &str, message: &str) {
        let found = causes(pool(&pool_with(change, Value::Null)));
        assert_eq!(found, [(field.to_owned(), message.to_owned())]);
    }

    #[test]
    fn a_pool_is_refused_with_the_field() {
        assert!(causes(pool(&pool_with(json!({}), Value::Null))).is_empty());
        let unavailable =
            |value: Value, message: &str| refused(json!({ "maxUnavailable": value }), "spec.maxUnavailable", message);
        unavailable(json!(0), "maxUnavailable must be greater than 0");
        unavailable(json!("5"), "maxUnavailable percentage must end with %");
        unavailable(json!("101%"), "maxUnavailable percentage value 101 must be between 1 and 100");
        unavailable(json!("x%"), "maxUnavailable percentage value \"x%\" is invalid: invalid digit found in string");
        let two = json!({ "proactive": {}, "unmanaged": {} });
        let message = "only one strategy can be configured at a time: but found proactive,unmanaged strategies";
        refused(json!({ "scaleInStrategy": two }), "spec.scaleInStrategy", message);
        refused(json!({ "updateStrategy": two }), "spec.updateStrategy", message);
        refused(
            json!({ "selector": { "matchLabels": { "app": "b" } } }),
            "spec.selector",
            "selector does not match labels.",
        );
        let empty = "selector is empty, and would select all of its namespace: name a label of the template";
        refused(json!({ "selector": { "matchLabels": null } }), "spec.selector", empty);
        let missing = json!({ "virtualMachineTemplate": { "spec": null } });
        refused(missing, "spec.virtualMachineTemplate", "missing virtual machine template.");
        let healing = json!({ "autohealing": { "minFailingToStartDuration": "soon" } });
        let message = "\"soon\" is no duration: write it as 5m or 1h30m";
        refused(healing, "spec.autohealing.minFailingToStartDuration", message);
        let matcher = json!([{ "key": "zone", "operator": "Near" }]);
        let policy = json!({ "selectionPolicy": { "selectors": { "nodeSelectorRequirementMatcher": matcher } } });
        refused(
            json!({ "scaleInStrategy": { "proactive": policy } }),
            "spec.scaleInStrategy.proactive.selectionPolicy.selectors.nodeSelectorRequirementMatcher[0].operator",
            "\"Near\" is no operator: use In, NotIn, Exists, DoesNotExist, Gt or Lt",
        );
    }

    #[test]
    fn the_selector_of_a_pool_stays() {
        let old = pool_with(json!({}), Value::Null).object;
        let other = json!({
            "selector": { "matchLabels": { "app": "b" } },
            "virtualMachineTemplate": { "metadata": { "labels": { "app": "b" } } },
        });
        let found = causes(pool(&pool_with(other, old)));
        assert_eq!(found, [("spec.selector".to_owned(), "selector is immutable after creation.".to_owned())]);
    }

    #[test]
    fn what_a_template_cannot_give_is_said() {
        let metadata = json!({ "name": "x", "finalizers": ["a/b"] });
        let made = pool(&pool_with(json!({ "virtualMachineTemplate": { "metadata": metadata } }), Value::Null));
        let warnings = made.unwrap_or_default().unwrap().warnings;
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].starts_with("spec.virtualMachineTemplate.metadata.finalizers is not acted on"));
    }

    #[test]
    fn nobody_notes_in_a_template_what_may_be_copied() {
        let note = json!({ "annotations": { (origin::leave::COPIES_ALLOWED): "victim/pvc", "mine": "1" } });
        let made = pool(&pool_with(json!({ "virtualMachineTemplate": { "metadata": note } }), Value::Null));
        let object = made.unwrap_or_default().unwrap().request.object;
        assert_eq!(object["metadata"]["annotations"], json!({ "mine": "1" }));
        assert_eq!((&object["metadata"]["name"], &object["metadata"]["namespace"]), (&json!("pool"), &json!("ns")));
    }

    #[test]
    fn a_set_is_refused_with_the_field() {
        let request = |spec: Value| Request {
            object: json!({ "metadata": { "name": "set" }, "spec": spec }),
            operation: "CREATE".into(),
            ..Request::default()
        };
        let found = causes(set(&request(json!({ "selector": { "matchLabels": { "app": "a" } }, "template": {} }))));
        assert_eq!(
            found,
            [
                ("spec.template".to_owned(), "missing virtual machine template.".to_owned()),
                ("spec.selector".to_owned(), "selector does not match labels.".to_owned()),
            ]
        );
        let unknown = json!({ "selector": { "matchLabels": { "app": "a" } }, "templat": { "a": 1 }, "template": {} });
        assert!(causes(set(&request(unknown)))[0].1.contains("unknown field \"spec.templat\": did you mean template?"));
    }
}
