//! What FlowSchemas and PriorityLevelConfigurations may say.

use super::*;

fn resource(plural: &str) -> Resource {
    let all = crate::registry::builtin::resources();
    all.into_iter().find(|resource| resource.plural == plural).unwrap()
}

#[track_caller]
fn check(plural: &str, name: &str, spec: Value, expect: &[&str]) {
    let resource = resource(plural);
    let mut object = json!({"metadata": {"name": name}, "spec": spec});
    super::super::set_defaults(&resource, &mut object);
    let mut causes = Vec::new();
    validate(&resource, &object, &mut causes);
    let said: Vec<_> = causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
    assert_eq!(said, expect);
}

#[track_caller]
fn schema_with(change: Value, expect: &[&str]) {
    let mut spec = json!({"priorityLevelConfiguration": {"name": "system"}, "rules": [{
        "subjects": [{"kind": "User", "user": {"name": "ann"}}],
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz"]}]}]});
    json_patch::merge(&mut spec, &change);
    check("flowschemas", "x", spec, expect);
}

#[track_caller]
fn level_with(change: Value, expect: &[&str]) {
    let mut spec = json!({"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {}}}});
    json_patch::merge(&mut spec, &change);
    check("prioritylevelconfigurations", "x", spec, expect);
}

#[test]
fn shipped_objects_are_valid_and_mandatory_ones_immutable() {
    for (plural, objects) in [("flowschemas", shipped::schemas()), ("prioritylevelconfigurations", shipped::levels())] {
        for object in objects {
            check(plural, object["metadata"]["name"].as_str().unwrap(), object["spec"].clone(), &[]);
        }
    }
    let mut spec = shipped::levels().remove(1)["spec"].clone();
    spec["limited"]["nominalConcurrencyShares"] = 6.into();
    let mut causes = Vec::new();
    let object = json!({"metadata": {"name": "catch-all"}, "spec": spec});
    validate(&resource("prioritylevelconfigurations"), &object, &mut causes);
    assert!(causes[0].message.ends_with("spec of 'catch-all' must equal the fixed value"), "{causes:?}");
    let exempt = json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 10, "lendablePercent": 50}});
    check("prioritylevelconfigurations", "exempt", exempt, &[]);
}

#[test]
fn schemas() {
    schema_with(json!({}), &[]);
    let at = "spec.matchingPrecedence: Invalid value: ";
    schema_with(json!({"matchingPrecedence": -1}), &[&format!("{at}-1: must be a positive value")]);
    schema_with(json!({"matchingPrecedence": 10001}), &[&format!("{at}10001: must not be greater than 10000")]);
    let why = format!("{at}1: only the schema named 'exempt' may have matchingPrecedence 1");
    schema_with(json!({"matchingPrecedence": 1}), &[&why]);
    schema_with(
        json!({"distinguisherMethod": {"type": "ByMoon"}}),
        &[
            "spec.distinguisherMethod.type: Unsupported value: \"ByMoon\": supported values: \"ByNamespace\", \"ByUser\"",
        ],
    );
    schema_with(
        json!({"priorityLevelConfiguration": null}),
        &["spec.priorityLevelConfiguration.name: Required value: must reference a priority level"],
    );
    schema_with(
        json!({"rules": [{}]}),
        &[
            "spec.rules[0].subjects: Required value: subjects must contain at least one value",
            "spec.rules[0]: Required value: at least one of resourceRules and nonResourceRules has to be non-empty",
        ],
    );
}

#[test]
fn subjects() {
    let of = |subject: Value, expect: &[&str]| {
        let rule = json!({"subjects": [subject], "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]});
        schema_with(json!({"rules": [rule]}), expect);
    };
    let at = "spec.rules[0].subjects[0]";
    of(json!({"kind": "Group", "group": {"name": "*"}}), &[]);
    of(
        json!({"kind": "Robot"}),
        &[&format!(
            "{at}.kind: Unsupported value: \"Robot\": supported values: \"Group\", \"ServiceAccount\", \"User\""
        )],
    );
    of(
        json!({"kind": "User", "group": {"name": "g"}}),
        &[
            &format!("{at}.group: Forbidden: group is forbidden when subject kind is not 'Group'"),
            &format!("{at}.user: Required value: user is required when subject kind is 'User'"),
        ],
    );
    of(json!({"kind": "User", "user": {"name": ""}}), &[&format!("{at}.user.name: Required value")]);
    of(
        json!({"kind": "ServiceAccount", "serviceAccount": {"name": "*", "namespace": ""}}),
        &[&format!("{at}.serviceAccount.namespace: Required value: must specify namespace for service account")],
    );
}

#[test]
fn rules() {
    let of = |rule: Value, expect: &[&str]| {
        let subjects = json!([{"kind": "User", "user": {"name": "*"}}]);
        schema_with(json!({"rules": [{"subjects": subjects, "resourceRules": [rule]}]}), expect);
    };
    let at = "spec.rules[0].resourceRules[0]";
    let rule = |change: Value| {
        let mut rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "namespaces": ["a"]});
        json_patch::merge(&mut rule, &change);
        rule
    };
    of(rule(json!({})), &[]);
    of(rule(json!({"namespaces": null, "clusterScope": true})), &[]);
    of(
        rule(json!({"namespaces": null})),
        &[&format!(
            "{at}.namespaces: Required value: resource rules that are not cluster scoped must supply at least one namespace"
        )],
    );
    of(
        rule(json!({"verbs": ["*", "get"]})),
        &[&format!("{at}.verbs: Invalid value: [\"*\",\"get\"]: if '*' is present, must not specify other verbs")],
    );
    of(
        rule(json!({"verbs": ["look"], "apiGroups": [], "resources": []})),
        &[
            &format!(
                "{at}.verbs: Unsupported value: [\"look\"]: supported values: \"create\", \"delete\", \"deletecollection\", \"get\", \"list\", \"patch\", \"proxy\", \"update\", \"watch\""
            ),
            &format!("{at}.apiGroups: Required value: resource rules must supply at least one api group"),
            &format!("{at}.resources: Required value: resource rules must supply at least one resource"),
        ],
    );
    for (path, why) in [
        ("healthz", "must start with slash"),
        ("/a b", "must not contain white-space"),
        ("/a//b", "must not contain double slash"),
        ("/a*", "wildcard can only do suffix matching"),
        ("/*/a", "wildcard can only do suffix matching"),
    ] {
        assert_eq!(path_problem(path), Some(why), "{path}");
    }
    assert_eq!(["/", "/a/*", "/a"].map(path_problem), [None; 3]);
}

#[test]
fn levels() {
    level_with(json!({}), &[]);
    level_with(json!({"limited": {"nominalConcurrencyShares": 0, "borrowingLimitPercent": 0}}), &[]);
    level_with(
        json!({"limited": {"nominalConcurrencyShares": -1, "lendablePercent": 101, "borrowingLimitPercent": -1}}),
        &[
            "spec.limited.nominalConcurrencyShares: Invalid value: -1: must be a non-negative integer",
            "spec.limited.lendablePercent: Invalid value: 101: must be between 0 and 100, inclusive",
            "spec.limited.borrowingLimitPercent: Invalid value: -1: if specified, must be a non-negative integer",
        ],
    );
    level_with(
        json!({"type": "Exempt"}),
        &[
            "spec.type: Invalid value: \"Exempt\": type must be 'Exempt' if and only if name is 'exempt'",
            "spec.limited: Forbidden: must be nil if the type is not Limited",
        ],
    );
    level_with(json!({"exempt": {}}), &["spec.exempt: Forbidden: must be nil if the type is Limited"]);
    level_with(json!({"limited": null}), &["spec.limited: Required value: must not be empty when type is Limited"]);
    level_with(
        json!({"type": "Free"}),
        &["spec.type: Unsupported value: \"Free\": supported values: \"Exempt\", \"Limited\""],
    );
}

#[test]
fn responses() {
    let of = |response: Value, expect: &[&str]| level_with(json!({"limited": {"limitResponse": response}}), expect);
    let at = "spec.limited.limitResponse";
    of(
        json!({"type": "Reject"}),
        &[&format!("{at}.queuing: Forbidden: must be nil if limited.limitResponse.type is not Limited")],
    );
    of(
        json!({"queuing": null}),
        &[&format!("{at}.queuing: Required value: must not be empty if limited.limitResponse.type is Limited")],
    );
    of(
        json!({"type": "Hope"}),
        &[&format!("{at}.type: Unsupported value: \"Hope\": supported values: \"Queue\", \"Reject\"")],
    );
    let queuing = |queuing: Value, expect: &[&str]| of(json!({"queuing": queuing}), expect);
    queuing(
        json!({"queues": -1, "handSize": -1, "queueLengthLimit": -1}),
        &[
            &format!("{at}.queuing.queueLengthLimit: Invalid value: -1: must be positive"),
            &format!("{at}.queuing.queues: Invalid value: -1: must be positive"),
            &format!("{at}.queuing.handSize: Invalid value: -1: must be positive"),
        ],
    );
    queuing(
        json!({"queues": 10_000_001, "handSize": 1}),
        &[&format!("{at}.queuing.queues: Invalid value: 10000001: must not be greater than 10000000")],
    );
    queuing(
        json!({"queues": 4, "handSize": 5}),
        &[&format!("{at}.queuing.handSize: Invalid value: 5: should not be greater than queues (4)")],
    );
    queuing(
        json!({"queues": 512, "handSize": 8}),
        &[&format!(
            "{at}.queuing.handSize: Invalid value: 8: required entropy bits of deckSize 512 and handSize 8 should not be greater than 60"
        )],
    );
}
