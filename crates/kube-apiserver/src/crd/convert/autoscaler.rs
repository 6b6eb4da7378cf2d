//! HorizontalPodAutoscalers: autoscaling/v1 has fields for a share of CPU alone, and keeps the rest in annotations.

use serde_json::{Map, Value, json};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";

/// Sources of metrics: the type, and the field of that name.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
    ("External", "external"),
];

/// What v1 calls a target or a current value of v2, by its type; those of Object and External are not averages by name.
fn value_names(source: &str, current: bool) -> [(&'static str, &'static str); 3] {
    let whole = matches!(source, "object" | "external");
    match (current, whole) {
        (false, true) => [("averageUtilization", ""), ("averageValue", "averageValue"), ("value", "targetValue")],
        (false, false) => {
            [("averageUtilization", "targetAverageUtilization"), ("averageValue", "targetAverageValue"), ("value", "")]
        }
        (true, true) => [("averageUtilization", ""), ("averageValue", "averageValue"), ("value", "currentValue")],
        (true, false) => [
            ("averageUtilization", "currentAverageUtilization"),
            ("averageValue", "currentAverageValue"),
            ("value", ""),
        ],
    }
}

/// Fields of a source that have another name in v1.
fn renamed(source: &str) -> &'static [(&'static str, &'static str)] {
    match source {
        "object" => &[("describedObject", "target"), ("metric.name", "metricName"), ("metric.selector", "selector")],
        "pods" => &[("metric.name", "metricName"), ("metric.selector", "selector")],
        "external" => &[("metric.name", "metricName"), ("metric.selector", "metricSelector")],
        _ => &[("name", "name"), ("container", "container")],
    }
}

fn value_name(source: &str, current: bool, kind: &str) -> &'static str {
    let name = value_names(source, current).into_iter().find(|(v2, _)| *v2 == kind).map_or("", |(_, v1)| v1);
    // External metrics alone call their average a target's.
    if source == "external" && kind == "averageValue" {
        return if current { "currentAverageValue" } else { "targetAverageValue" };
    }
    name
}

fn metric_to_v1(metric: &Value, current: bool) -> Value {
    let mut out = json!({"type": metric["type"]});
    for (_, source) in SOURCES {
        let Some(of) = metric.get(source) else { continue };
        let mut told = Map::new();
        for (v2, v1) in renamed(source) {
            if let Some(value) = of.pointer(&format!("/{}", v2.replace('.', "/"))) {
                told.insert((*v1).to_owned(), value.clone());
            }
        }
        let values = &of[if current { "current" } else { "target" }];
        for kind in ["averageUtilization", "averageValue", "value"] {
            let name = value_name(source, current, kind);
            if let Some(value) = values.get(kind).filter(|_| !name.is_empty()) {
                told.insert(name.to_owned(), value.clone());
            }
        }
        out[source] = Value::Object(told);
    }
    out
}

fn metric_to_v2(metric: &Value, current: bool) -> Value {
    let mut out = json!({"type": metric["type"]});
    for (_, source) in SOURCES {
        let Some(of) = metric.get(source) else { continue };
        let mut told = json!({});
        for (v2, v1) in renamed(source) {
            let Some(value) = of.get(*v1) else { continue };
            match v2.split_once('.') {
                Some((outer, inner)) => told[outer][inner] = value.clone(),
                None => told[*v2] = value.clone(),
            }
        }
        let mut values = json!({});
        let mut type_ = "";
        for (kind, word) in
            [("value", "Value"), ("averageValue", "AverageValue"), ("averageUtilization", "Utilization")]
        {
            let name = value_name(source, current, kind);
            if let Some(value) = of.get(name).filter(|_| !name.is_empty()) {
                values[kind] = value.clone();
                type_ = word;
            }
        }
        if !current {
            values["type"] = type_.into();
        }
        told[if current { "current" } else { "target" }] = values;
        out[source] = told;
    }
    out
}

/// The share of CPU among metrics, and the others.
fn without_cpu(metrics: &Value, place: &str) -> (Option<Value>, Vec<Value>) {
    let mut share = None;
    let mut others = Vec::new();
    for metric in metrics.as_array().into_iter().flatten() {
        let cpu = metric["type"] == "Resource" && metric["resource"]["name"] == "cpu";
        match metric["resource"][place].get("averageUtilization").filter(|_| cpu && share.is_none()) {
            Some(value) => share = Some(value.clone()),
            None => others.push(metric.clone()),
        }
    }
    (share, others)
}

fn take(object: &mut Value, part: &str, field: &str) -> Option<Value> {
    object.get_mut(part)?.as_object_mut()?.remove(field)
}

fn annotate(object: &mut Value, key: &str, value: &Value) {
    object["metadata"]["annotations"][key] = value.to_string().into();
}

fn annotated(object: &mut Value, key: &str) -> Option<Value> {
    let annotations = object.get_mut("metadata")?.get_mut("annotations")?.as_object_mut()?;
    let found = annotations.remove(key).and_then(|text| serde_json::from_str(text.as_str()?).ok());
    if annotations.is_empty()
        && let Some(metadata) = object["metadata"].as_object_mut()
    {
        metadata.remove("annotations");
    }
    found
}

/// The stored object as v1 has it.
pub(super) fn to_v1(mut object: Value) -> Value {
    object["apiVersion"] = "autoscaling/v1".into();
    for (part, field, place, key, own) in [
        ("spec", "metrics", "target", METRICS, "targetCPUUtilizationPercentage"),
        ("status", "currentMetrics", "current", CURRENT, "currentCPUUtilizationPercentage"),
    ] {
        let (share, others) = without_cpu(&take(&mut object, part, field).unwrap_or_default(), place);
        if let Some(share) = share {
            object[part][own] = share;
        }
        if !others.is_empty() {
            let others: Vec<Value> = others.iter().map(|metric| metric_to_v1(metric, part == "status")).collect();
            annotate(&mut object, key, &others.into());
        }
    }
    for (part, field, key) in [("spec", "behavior", BEHAVIOR), ("status", "conditions", CONDITIONS)] {
        if let Some(value) = take(&mut object, part, field).filter(|value| !value.is_null()) {
            annotate(&mut object, key, &value);
        }
    }
    if object["status"].is_object() && object["status"].get("currentReplicas").is_none() {
        object["status"]["currentReplicas"] = 0.into();
    }
    object
}

/// An object of v1 as it is stored.
pub(super) fn to_v2(mut object: Value) -> Value {
    object["apiVersion"] = "autoscaling/v2".into();
    for (part, field, place, key, own) in [
        ("spec", "metrics", "target", METRICS, "targetCPUUtilizationPercentage"),
        ("status", "currentMetrics", "current", CURRENT, "currentCPUUtilizationPercentage"),
    ] {
        let others = annotated(&mut object, key).unwrap_or_default();
        let others = others.as_array().map(Vec::as_slice).unwrap_or_default();
        let mut metrics: Vec<Value> = others.iter().map(|metric| metric_to_v2(metric, part == "status")).collect();
        if let Some(share) = take(&mut object, part, own).filter(|share| !share.is_null()) {
            let mut values = json!({"averageUtilization": share});
            if part == "spec" {
                values["type"] = "Utilization".into();
            }
            metrics.push(json!({"type": "Resource", "resource": {"name": "cpu", place: values}}));
        }
        if !metrics.is_empty() {
            object[part][field] = metrics.into();
        }
    }
    for (part, field, key) in [("spec", "behavior", BEHAVIOR), ("status", "conditions", CONDITIONS)] {
        if let Some(value) = annotated(&mut object, key) {
            object[part][field] = value;
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_between_the_versions() {
        let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"});
        let v2 = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
            "spec": {"scaleTargetRef": target, "maxReplicas": 3, "behavior": {"scaleUp": {"selectPolicy": "Max"}}, "metrics": [
                {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}},
                {"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "5"}}},
                {"type": "Object", "object": {"describedObject": target, "metric": {"name": "o"}, "target": {"type": "Value", "value": "7"}}},
                {"type": "External", "external": {"metric": {"name": "e", "selector": {"matchLabels": {"a": "b"}}}, "target": {"type": "AverageValue", "averageValue": "9"}}},
                {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]},
            "status": {"currentReplicas": 1, "conditions": [{"type": "AbleToScale", "status": "True"}]}});
        let v1 = to_v1(v2.clone());
        assert_eq!(
            v1["spec"],
            json!({"scaleTargetRef": target, "maxReplicas": 3, "targetCPUUtilizationPercentage": 80})
        );
        assert_eq!(v1["status"], json!({"currentReplicas": 1}));
        assert_eq!(to_v2(v1), v2);
    }

    #[test]
    fn a_share_of_cpu_is_a_metric() {
        let v1 = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
            "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50}});
        let metrics = json!([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]);
        let v2 = to_v2(v1.clone());
        assert_eq!(v2["spec"], json!({"maxReplicas": 3, "metrics": metrics}));
        assert_eq!(to_v1(v2), v1);
    }
}
