//! Sets of instances and pools of machines: what is wrong with them beside their templates, and what would be made of these.

use api::kubevirt::constants::label;
use api::kubevirt::v1::VirtualMachineInstanceReplicaSet;
use api::pool::v1beta1::{VirtualMachinePool, VirtualMachinePoolSelectionPolicy, VirtualMachinePoolSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kit::admission::{Cause, Request};
use kit::controller::owner;
use kube::core::{Selector, SelectorExt as _};
use serde_json::{Value, json};

use super::{deleting, invalid, names, required, strict, unsupported};

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

/// Of a set, as far as its template has to be judged; all of it where it is `unjudged`.
pub(crate) fn set(request: &Request, unjudged: bool) -> Result<Option<Made>, Vec<Cause>> {
    if is_settled(request, unjudged) {
        return Ok(None);
    }
    let set: VirtualMachineInstanceReplicaSet = strict::decode(&request.object)?;
    let template = &set.spec.template;
    let mut causes = Vec::new();
    if template.spec.is_none() {
        causes.push(required("spec.template".to_owned(), "missing virtual machine template.".to_owned()));
    }
    check_start(&set, &mut causes);
    check_labels(SET.1, template.metadata.as_ref(), &mut causes);
    check_selector(&set.spec.selector, template.metadata.as_ref(), &mut causes);
    if !causes.is_empty() {
        return Err(causes);
    }
    // The name is the beginning of a name.
    let warnings = ignored(template.metadata.as_ref(), SET.1, &["name", "generateName"]);
    Ok(Some(Made { request: inner(request, "template", &set.metadata, unjudged), warnings }))
}

/// Of a pool, as far as its template has to be judged; all of it where it is `unjudged`.
pub(crate) fn pool(request: &Request, unjudged: bool) -> Result<Option<Made>, Vec<Cause>> {
    if is_settled(request, unjudged) {
        return Ok(None);
    }
    let pool: VirtualMachinePool = strict::decode(&request.object)?;
    let template = &pool.spec.virtual_machine_template;
    let mut causes = Vec::new();
    if template.spec.is_none() {
        let message = "missing virtual machine template.".to_owned();
        causes.push(required("spec.virtualMachineTemplate".to_owned(), message));
    }
    if request.operation == "CREATE" {
        check_name(&pool, &mut causes);
    }
    check_labels(POOL.1, template.metadata.as_ref(), &mut causes);
    let guest = template.spec.as_ref().and_then(|spec| spec.template.metadata.as_ref());
    check_labels(&format!("{}.template.metadata", POOL.0), guest, &mut causes);
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
    Ok(Some(Made { request: inner(request, "virtualMachineTemplate", &pool.metadata, unjudged), warnings }))
}

/// True when nothing is written that has not been judged.
fn is_settled(request: &Request, unjudged: bool) -> bool {
    let same =
        !unjudged && request.operation == "UPDATE" && request.object.get("spec") == request.old_object.get("spec");
    same || deleting(&request.object)
}

/// The most characters of a pool's name.
const POOL_NAME: usize = 58;
/// The most characters of what is a label's value, too.
const LABEL_VALUE: usize = 63;

/// Its machines and the revisions of its template are called after a pool, with a number, and both names are values of labels.
fn check_name(pool: &VirtualMachinePool, causes: &mut Vec<Cause>) {
    let name = pool.metadata.name.as_deref().unwrap_or_default();
    let last = pool.spec.replicas.unwrap_or(1).saturating_sub(1).max(0);
    let most = POOL_NAME.min(LABEL_VALUE.saturating_sub(format!("-{last}").len()));
    if name.len() > most {
        let message = format!(
            "{name:?} is too long: its machines are called after it, with a number, so it has at most {most} characters"
        );
        causes.push(invalid("metadata.name".to_owned(), message));
    }
}

/// What instances are called after has to be the beginning of a name.
fn check_start(set: &VirtualMachineInstanceReplicaSet, causes: &mut Vec<Cause>) {
    let template = set.spec.template.metadata.as_ref();
    let given = [
        ("name", template.and_then(|metadata| metadata.name.as_deref())),
        ("generateName", template.and_then(|metadata| metadata.generate_name.as_deref())),
    ];
    let Some((key, start)) =
        given.into_iter().find_map(|(key, name)| Some((key, name.filter(|name| !name.is_empty())?)))
    else {
        return;
    };
    // As the API server ends it.
    if !names::is_subdomain(&format!("{start}bcdfg")) {
        let message = format!(
            "{start:?} cannot begin the name of an instance: use lower-case letters, digits, '-' and '.', and begin with a letter or digit"
        );
        causes.push(invalid(format!("{}.{key}", SET.1), message));
    }
}

/// Labels that components write are theirs to write.
fn check_labels(field: &str, metadata: Option<&ObjectMeta>, causes: &mut Vec<Cause>) {
    let labels = metadata.and_then(|metadata| metadata.labels.as_ref());
    for key in
        labels.into_iter().flatten().map(|(key, _)| key).filter(|key| label::OF_COMPONENTS.contains(&key.as_str()))
    {
        let message = format!("{key} is written by KubeVirt's components: leave it out of the template");
        causes.push(unsupported(format!("{field}.labels"), message));
    }
}

fn check_selector(selector: &LabelSelector, metadata: Option<&ObjectMeta>, causes: &mut Vec<Cause>) {
    let field = || "spec.selector".to_owned();
    let labels = metadata.and_then(|metadata| metadata.labels.clone()).unwrap_or_default();
    // What is made would be selected until it has the label, and others be made in its place.
    for key in owner::keys(selector).filter(|key| label::OF_COMPONENTS.contains(key)) {
        let message = format!("{key} is written by KubeVirt's components: select by a label of your own");
        causes.push(invalid(field(), message));
    }
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

/// The request by which the writer of `key` in the spec would make one of it. What was there is held to have been allowed, unless it is `unjudged`.
fn inner(request: &Request, key: &str, of: &ObjectMeta, unjudged: bool) -> Request {
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
                "name": of.name, "namespace": request.namespace,
                "labels": given["labels"], "annotations": annotations,
            },
            "spec": template["spec"],
        }))
    };
    Request {
        object: made(&request.object).unwrap_or_default(),
        old_object: made(&request.old_object).filter(|_| !unjudged).unwrap_or_default(),
        name: of.name.clone().unwrap_or_default(),
        ..request.clone()
    }
}

#[cfg(test)]
mod tests;
