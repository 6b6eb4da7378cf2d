//! What is wrong with sets and pools.

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
    let found = causes(pool(&pool_with(change, Value::Null), false));
    assert_eq!(found, [(field.to_owned(), message.to_owned())]);
}

#[test]
fn a_pool_is_refused_with_the_field() {
    assert!(causes(pool(&pool_with(json!({}), Value::Null), false)).is_empty());
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
fn labels_of_components_neither_select_nor_are_given() {
    let key = "kubevirt.io/vm-pool-revision-name";
    let message = format!("{key} is written by KubeVirt's components: select by a label of your own");
    for operator in ["DoesNotExist", "NotIn"] {
        let values = if operator == "NotIn" { json!(["x"]) } else { Value::Null };
        let terms = json!([{ "key": key, "operator": operator, "values": values }]);
        refused(json!({ "selector": { "matchExpressions": terms } }), "spec.selector", &message);
    }
    let message = format!("{key} is written by KubeVirt's components: leave it out of the template");
    let given = json!({ "labels": { (key): "pool-1" } });
    let metadata = json!({ "virtualMachineTemplate": { "metadata": given } });
    refused(metadata, "spec.virtualMachineTemplate.metadata.labels", &message);
    let guest = json!({ "virtualMachineTemplate": { "spec": { "template": { "metadata": given } } } });
    refused(guest, "spec.virtualMachineTemplate.spec.template.metadata.labels", &message);
    for key in ["kubevirt.io/nodeName", "kubevirt.io/migrationTargetNodeName", "kubevirt.io/outdatedLauncherImage"] {
        let selector = json!({ "matchLabels": { (key): "" } });
        let template = json!({ "metadata": { "labels": { (key): "" } }, "spec": {} });
        let found = causes(set(&a_set(json!({ "selector": selector, "template": template })), false));
        let fields: Vec<&str> = found.iter().map(|(field, _)| field.as_str()).collect();
        assert_eq!(fields, ["spec.template.metadata.labels", "spec.selector"], "{found:?}");
    }
}

#[test]
fn a_pool_whose_machines_could_not_be_called_after_it_is_not_made() {
    let check = |length: usize, replicas: i64, most: Option<usize>| {
        let mut request = pool_with(json!({ "replicas": replicas }), Value::Null);
        let name = "a".repeat(length);
        request.object["metadata"]["name"] = json!(name);
        let said = most.map(|most| {
            let why = "its machines are called after it, with a number, so it has at most";
            ("metadata.name".to_owned(), format!("{name:?} is too long: {why} {most} characters"))
        });
        assert_eq!(causes(pool(&request, false)), said.into_iter().collect::<Vec<_>>());
        // One that is there goes on.
        let old = json!({ "spec": request.object["spec"] });
        request.operation = "UPDATE".into();
        request.old_object = old;
        request.object["spec"]["replicas"] = json!(7);
        assert!(causes(pool(&request, false)).is_empty());
    };
    check(58, 5, None);
    check(59, 5, Some(58));
    check(58, 20_000, Some(57));
}

#[test]
fn instances_are_called_after_what_begins_a_name() {
    let check = |metadata: Value, field: &str| {
        let mut metadata = metadata;
        metadata["labels"] = json!({ "app": "a" });
        let spec = json!({
            "selector": { "matchLabels": { "app": "a" } }, "template": { "metadata": metadata, "spec": {} },
        });
        let found = causes(set(&a_set(spec), false));
        let fields: Vec<&str> = found.iter().map(|(field, _)| field.as_str()).collect();
        assert_eq!(fields.join(" "), field, "{found:?}");
    };
    for good in ["web", "web-", "a.b", "0"] {
        check(json!({ "name": good }), "");
        check(json!({ "generateName": good }), "");
    }
    for bad in ["Web", "-web", "we b", "a..b", "a.-b", "a_b"] {
        check(json!({ "name": bad }), "spec.template.metadata.name");
        check(json!({ "generateName": bad }), "spec.template.metadata.generateName");
    }
    check(json!({ "name": "web", "generateName": "Never-" }), "");
}

#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn a_set(spec: Value) -> Request {
    Request {
        object: json!({ "metadata": { "name": "set" }, "spec": spec }),
        operation: "CREATE".into(),
        ..Request::default()
    }
}

#[test]
fn the_selector_of_a_pool_stays() {
    let old = pool_with(json!({}), Value::Null).object;
    let other = json!({
        "selector": { "matchLabels": { "app": "b" } },
        "virtualMachineTemplate": { "metadata": { "labels": { "app": "b" } } },
    });
    let found = causes(pool(&pool_with(other, old), false));
    assert_eq!(found, [("spec.selector".to_owned(), "selector is immutable after creation.".to_owned())]);
}

#[test]
fn what_a_template_cannot_give_is_said() {
    let metadata = json!({ "name": "x", "finalizers": ["a/b"] });
    let made = pool(&pool_with(json!({ "virtualMachineTemplate": { "metadata": metadata } }), Value::Null), false);
    let warnings = made.unwrap_or_default().unwrap().warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].starts_with("spec.virtualMachineTemplate.metadata.finalizers is not acted on"));
}

#[test]
fn nobody_notes_in_a_template_what_may_be_copied() {
    let note = json!({ "annotations": { (origin::leave::COPIES_ALLOWED): "victim/pvc", "mine": "1" } });
    let made = pool(&pool_with(json!({ "virtualMachineTemplate": { "metadata": note } }), Value::Null), false);
    let object = made.unwrap_or_default().unwrap().request.object;
    assert_eq!(object["metadata"]["annotations"], json!({ "mine": "1" }));
    assert_eq!((&object["metadata"]["name"], &object["metadata"]["namespace"]), (&json!("pool"), &json!("ns")));
}

#[test]
fn a_set_is_refused_with_the_field() {
    let found = causes(set(&a_set(json!({ "selector": { "matchLabels": { "app": "a" } }, "template": {} })), false));
    assert_eq!(
        found,
        [
            ("spec.template".to_owned(), "missing virtual machine template.".to_owned()),
            ("spec.selector".to_owned(), "selector does not match labels.".to_owned()),
        ]
    );
    let unknown = json!({ "selector": { "matchLabels": { "app": "a" } }, "templat": { "a": 1 }, "template": {} });
    assert!(
        causes(set(&a_set(unknown), false))[0].1.contains("unknown field \"spec.templat\": did you mean template?")
    );
}
