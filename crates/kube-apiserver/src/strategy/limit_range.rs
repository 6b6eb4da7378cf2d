//! LimitRanges: bounds and defaults of one range that do not contradict each other.

use std::collections::BTreeSet;

use serde_json::Value;

use apimachinery::error::Cause;
use apimachinery::pointer::{items, text};
use apimachinery::schema::validate::cause;

use super::field::Field;
use super::invalid;
use crate::admission::amount::{Amount, amounts};

const TYPES: [&str; 3] = ["Pod", "Container", "PersistentVolumeClaim"];
const FIELDS: [&str; 5] = ["min", "max", "default", "defaultRequest", "maxLimitRequestRatio"];

/// Checks a range.
pub(super) fn validate(range: &Value, causes: &mut Vec<Cause>) {
    let mut seen = BTreeSet::new();
    for (number, limit) in items(range, "/spec/limits").iter().enumerate() {
        let at = format!("spec.limits[{number}]");
        let kind = text(limit, "/type");
        if let Some(why) = apimachinery::names::qualified_name_problem(kind) {
            invalid(&format!("{at}.type"), &kind.into(), &why, causes);
        } else if !TYPES.contains(&kind) && !kind.contains('/') {
            let why = "must be a standard limit type or fully qualified";
            invalid(&format!("{at}.type"), &limit["type"], why, causes);
        }
        if !seen.insert(kind) {
            let message = format!("Duplicate value: {kind:?}");
            causes.push(cause("FieldValueDuplicate", &format!("{at}.type"), message));
        }
        item(&at, kind, limit, causes);
    }
}

fn item(at: &str, kind: &str, limit: &Value, causes: &mut Vec<Cause>) {
    for field in ["default", "defaultRequest"] {
        if kind == "Pod" && limit[field].as_object().is_some_and(|map| !map.is_empty()) {
            let message = "Forbidden: may not be specified when `type` is 'Pod'".to_owned();
            causes.push(cause("FieldValueForbidden", &format!("{at}.{field}"), message));
        }
    }
    let has = |field: &str| limit[field].get("storage").is_some();
    if kind == "PersistentVolumeClaim" && !has("min") && !has("max") {
        let message = "Required value: either minimum or maximum storage value is required, but neither was provided";
        causes.push(cause("FieldValueRequired", &format!("{at}.limits"), message.to_owned()));
    }
    let names: BTreeSet<String> = FIELDS
        .iter()
        .flat_map(|field| limit[*field].as_object().into_iter().flatten())
        .map(|(k, _)| k.clone())
        .collect();
    for name in names {
        for field in FIELDS.iter().filter(|field| limit[**field].get(&name).is_some()) {
            super::pod::resource_name(
                &Field::new(format!("{at}.{field}[{name}]"), &limit[*field][&name]),
                &name,
                kind,
                causes,
            );
        }
        resource(at, limit, &name, causes);
    }
}

/// The bounds and defaults of one resource, in the order `min <= defaultRequest <= default <= max`.
fn resource(at: &str, limit: &Value, name: &str, causes: &mut Vec<Cause>) {
    let of = |field: &str| amounts(limit.get(field)).get(name).copied();
    let (min, max, top, request) = (of("min"), of("max"), of("default"), of("defaultRequest"));
    let pairs = [
        (min, max, "min", min, "min value {a} is greater than max value {b}"),
        (min, request, "defaultRequest", request, "min value {a} is greater than default request value {b}"),
        (request, max, "defaultRequest", request, "default request value {a} is greater than max value {b}"),
        (request, top, "defaultRequest", request, "default request value {a} is greater than default limit value {b}"),
        (min, top, "default", min, "min value {a} is greater than default value {b}"),
        (top, max, "default", max, "default value {a} is greater than max value {b}"),
    ];
    for (low, high, field, shown, why) in pairs {
        if let Some(((low, high), shown)) = low.zip(high).zip(shown).filter(|((low, high), _)| low > high) {
            let why = why.replace("{a}", &low.to_string()).replace("{b}", &high.to_string());
            invalid(&format!("{at}.{field}[{name}]"), &shown.to_string().into(), &why, causes);
        }
    }
    let Some(ratio) = of("maxLimitRequestRatio") else { return };
    let field = format!("{at}.maxLimitRequestRatio[{name}]");
    if ratio < Amount::whole(1) {
        invalid(&field, &ratio.to_string().into(), &format!("ratio {ratio} is less than 1"), causes);
    }
    let bounds = min.zip(max).filter(|(min, _)| min.is_positive());
    if let Some((min, max)) = bounds.filter(|(min, max)| ratio.ratio(Amount::whole(1)) > max.ratio(*min)) {
        let why = format!("ratio {ratio} is greater than max/min = {:.6}", max.ratio(min));
        invalid(&field, &ratio.to_string().into(), &why, causes);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(limits: Value, expect: &[&str]) {
        let mut causes = Vec::new();
        validate(&json!({"spec": {"limits": limits}}), &mut causes);
        let all: Vec<String> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
        assert_eq!(all, expect);
    }

    #[test]
    fn bounds_and_defaults_agree() {
        let container = |bounds: Value| {
            let mut limit = bounds;
            limit["type"] = "Container".into();
            json!([limit])
        };
        check(
            container(json!({"min": {"cpu": "50m"}, "defaultRequest": {"cpu": "0.1"}, "default": {"cpu": "200m"},
                "max": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "4"}})),
            &[],
        );
        let why = "spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1";
        check(container(json!({"min": {"cpu": "2"}, "max": {"cpu": "1"}})), &[why]);
        let why = "spec.limits[0].defaultRequest[memory]: Invalid value: \"2Gi\": default request value 2Gi is greater than default limit value 1Gi";
        check(container(json!({"defaultRequest": {"memory": "2Gi"}, "default": {"memory": "1Gi"}})), &[why]);
        let why = "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"500m\": ratio 500m is less than 1";
        check(container(json!({"maxLimitRequestRatio": {"cpu": "500m"}})), &[why]);
        let why = "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"3\": ratio 3 is greater than max/min = 2.000000";
        check(
            container(json!({"min": {"cpu": "1"}, "max": {"cpu": "2"}, "maxLimitRequestRatio": {"cpu": "3"}})),
            &[why],
        );
    }

    #[test]
    fn types_say_what_they_can() {
        let why = "spec.limits[0].type: Invalid value: \"Node\": must be a standard limit type or fully qualified";
        check(json!([{"type": "Node"}]), &[why]);
        let pod = json!({"type": "Pod", "max": {"cpu": "1"}});
        check(json!([pod, pod]), &["spec.limits[1].type: Duplicate value: \"Pod\""]);
        let why = "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'";
        check(json!([{"type": "Pod", "default": {"cpu": "1"}}]), &[why]);
        let why = "spec.limits[0].limits: Required value: either minimum or maximum storage value is required, but neither was provided";
        check(json!([{"type": "PersistentVolumeClaim"}]), &[why]);
    }
}
