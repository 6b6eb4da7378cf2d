//! LimitRanger and ResourceQuota, the parts that namespaces of a small cluster use: container defaults and bounds, and
//! quotas on object counts and on the requests and limits of pods.

use serde_json::Value;

use super::{Attributes, Operation};
use crate::authz::view::{View, items, text};
use crate::error::ApiError;

fn new_pod(attributes: &Attributes) -> bool {
    attributes.resource.group.is_empty()
        && attributes.resource.plural == "pods"
        && attributes.info.subresource.is_empty()
        && attributes.operation == Operation::Create
}

/// Gives containers the default requests and limits of the namespace's LimitRanges.
pub fn default_limits(view: &dyn View, attributes: &mut Attributes) {
    if !new_pod(attributes) {
        return;
    }
    let ranges = view.list("", "limitranges", &attributes.namespace);
    let Some(pod) = attributes.object.as_mut().filter(|_| !ranges.is_empty()) else { return };
    for limit in ranges.iter().flat_map(|r| items(r, "/spec/limits")).filter(|l| text(l, "/type") == "Container") {
        for list in ["/spec/initContainers", "/spec/containers"] {
            let Some(Value::Array(containers)) = pod.pointer_mut(list) else { continue };
            for container in containers {
                for (from, to) in [("default", "limits"), ("defaultRequest", "requests")] {
                    let Some(defaults) = limit.get(from).and_then(Value::as_object) else { continue };
                    for (name, quantity) in defaults {
                        if container["resources"][to].get(name).is_none() {
                            container["resources"][to][name] = quantity.clone();
                        }
                    }
                }
            }
        }
    }
}

/// Bounds of LimitRanges and quotas of the namespace.
///
/// # Errors
/// 403 naming the bound.
pub fn check(view: &dyn View, attributes: &Attributes) -> Result<(), ApiError> {
    if attributes.operation != Operation::Create
        || !attributes.info.subresource.is_empty()
        || attributes.namespace.is_empty()
    {
        return Ok(());
    }
    let Some(object) = &attributes.object else { return Ok(()) };
    if new_pod(attributes) {
        limits(view, attributes, object)?;
    }
    for quota in view.list("", "resourcequotas", &attributes.namespace) {
        within(view, attributes, object, &quota)?;
    }
    Ok(())
}

fn refuse(attributes: &Attributes, why: &str) -> ApiError {
    ApiError::forbidden(&attributes.resource.group, &attributes.resource.plural, &attributes.name, why)
}

fn limits(view: &dyn View, attributes: &Attributes, pod: &Value) -> Result<(), ApiError> {
    for range in view.list("", "limitranges", &attributes.namespace) {
        for limit in items(&range, "/spec/limits").iter().filter(|l| text(l, "/type") == "Container") {
            for container in items(pod, "/spec/containers").iter().chain(items(pod, "/spec/initContainers")) {
                for (bound, word, wrong) in [("min", "minimum", -1), ("max", "maximum", 1)] {
                    for (name, quantity) in limit.get(bound).and_then(Value::as_object).into_iter().flatten() {
                        let field = if bound == "min" { "requests" } else { "limits" };
                        let used = container.pointer(&format!("/resources/{field}/{name}"));
                        let allowed = amount(quantity).unwrap_or(0.0);
                        let text_of = |v: &Value| v.as_str().map_or_else(|| v.to_string(), ToOwned::to_owned);
                        let Some(used) = used else {
                            let why = format!(
                                "{word} {name} usage per Container is {}.  No {} is specified",
                                text_of(quantity),
                                field.trim_end_matches('s')
                            );
                            return Err(refuse(attributes, &why));
                        };
                        let given = amount(used).unwrap_or(0.0);
                        if (wrong < 0 && given < allowed) || (wrong > 0 && given > allowed) {
                            let why = format!(
                                "{word} {name} usage per Container is {}, but {} is {}",
                                text_of(quantity),
                                field.trim_end_matches('s'),
                                text_of(used)
                            );
                            return Err(refuse(attributes, &why));
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// A quantity as a number; exact enough to compare with a bound.
#[must_use]
pub fn amount(value: &Value) -> Option<f64> {
    let text = match value {
        Value::Number(number) => return number.as_f64(),
        Value::String(text) => text.trim(),
        _ => return None,
    };
    const UNITS: [(&str, f64); 14] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
    ];
    for (unit, factor) in UNITS {
        if let Some(number) = text.strip_suffix(unit) {
            return number.parse::<f64>().ok().map(|n| n * factor);
        }
    }
    text.parse().ok()
}

fn requested(pod: &Value, field: &str, name: &str) -> f64 {
    let pointer = format!("/resources/{field}/{name}");
    let sum = |list: &str| items(pod, list).iter().filter_map(|c| c.pointer(&pointer).and_then(amount)).sum::<f64>();
    let init = items(pod, "/spec/initContainers").iter().filter_map(|c| c.pointer(&pointer).and_then(amount));
    init.fold(sum("/spec/containers"), f64::max)
}

fn within(view: &dyn View, attributes: &Attributes, object: &Value, quota: &Value) -> Result<(), ApiError> {
    let resource = &attributes.resource;
    let counted = [
        if resource.group.is_empty() {
            format!("count/{}", resource.plural)
        } else {
            format!("count/{}.{}", resource.plural, resource.group)
        },
        if resource.group.is_empty() { resource.plural.clone() } else { String::new() },
    ];
    for (name, hard) in quota.pointer("/spec/hard").and_then(Value::as_object).into_iter().flatten() {
        let bound = amount(hard).unwrap_or(f64::MAX);
        let existing = || view.list(&resource.group, &resource.plural, &attributes.namespace);
        let (asked, used) = if counted.contains(name) {
            (1.0, count(existing().len()))
        } else if new_pod(attributes) {
            let (field, what) = match name.split_once('.') {
                Some((field @ ("requests" | "limits"), what)) => (field, what),
                _ if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") => ("requests", name.as_str()),
                _ => continue,
            };
            let live = existing();
            let live = live.iter().filter(|p| !matches!(text(p, "/status/phase"), "Succeeded" | "Failed"));
            let asked = requested(object, field, what);
            let pointer = format!("/resources/{field}/{what}");
            if matches!(what, "cpu" | "memory")
                && items(object, "/spec/containers").iter().any(|c| c.pointer(&pointer).is_none())
            {
                let why = format!("failed quota: {}: must specify {name}", text(quota, "/metadata/name"));
                return Err(refuse(attributes, &why));
            }
            (asked, live.map(|p| requested(p, field, what)).sum())
        } else {
            continue;
        };
        if asked > 0.0 && used + asked > bound {
            let limited = hard.as_str().map_or_else(|| hard.to_string(), ToOwned::to_owned);
            let why = format!(
                "exceeded quota: {}, requested: {name}={asked}, used: {name}={used}, limited: {name}={limited}",
                text(quota, "/metadata/name")
            );
            return Err(refuse(attributes, &why));
        }
    }
    Ok(())
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts() {
        let check =
            |text: &str, expect: f64| assert!((amount(&Value::from(text)).unwrap() - expect).abs() < 1e-6, "{text}");
        check("1", 1.0);
        check("500m", 0.5);
        check("1Ki", 1024.0);
        check("2G", 2e9);
        check("1e3", 1000.0);
        assert_eq!(amount(&Value::from("x")), None);
    }
}
