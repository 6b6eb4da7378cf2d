//! Machines judged by rules.

use proptest::prelude::*;
use serde_json::json;

use super::super::rules;
use super::*;

fn machine() -> Value {
    json!({ "spec": { "template": { "metadata": { "labels": { "kubevirt.io/size": "tiny" } }, "spec": {
        "hostname": "größe",
        "domain": {
            "cpu": { "cores": 4 }, "memory": { "guest": "2Gi" },
            "resources": { "requests": { "memory": "1536Mi", "cpu": "1500m" } },
            "devices": { "disks": [
                { "name": "root", "disk": { "bus": "virtio" } }, { "name": "old", "disk": { "bus": "sata" } },
                { "name": "cd", "cdrom": {} },
            ] },
        },
    } } } })
}

/// The rule `arguments` with a name and a message, on the machine above.
#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn check(kind: &str, path: &str, arguments: Value, expect: Outcome) {
    let mut rule = json!({ "rule": kind, "name": "n", "message": "m", "path": format!("jsonpath::{path}") });
    rule.as_object_mut().unwrap().extend(arguments.as_object().unwrap().clone());
    let entries = rules::parse(&json!([rule]).to_string()).unwrap();
    assert_eq!(evaluate(&entries, &machine())[0].outcome, expect);
}

fn unmet(why: &str) -> Outcome {
    Outcome::Unmet(why.to_owned())
}

const MEMORY: &str = ".spec.domain.memory.guest";
const CORES: &str = ".spec.domain.cpu.cores";
const BUS: &str = ".spec.domain.devices.disks[*].disk.bus";

#[test]
fn integers_are_numbers_and_quantities_within_bounds() {
    check("integer", MEMORY, json!({ "min": 2_147_483_648_i64 }), Outcome::Met);
    let low = unmet("value 2147483648 is lower than minimum [2147483649]");
    check("integer", MEMORY, json!({ "min": 2_147_483_649_i64, "max": 3_000_000_000_i64 }), low);
    check("integer", CORES, json!({ "min": 1, "max": 2 }), unmet("value 4 is higher than maximum [2]"));
    check("integer", CORES, json!({}), Outcome::Met);
    let both = unmet("value 4 is lower than minimum [9], value 1 is lower than minimum [9]");
    check("integer", ".spec.domain.cpu['cores','threads']", json!({ "min": 9 }), both);
    let fraction = Failure::Mismatch("string", "int or resource.Quantity");
    check("integer", ".spec.domain.resources.requests.cpu", json!({ "min": 0 }), Outcome::Failed(fraction));
    let object = Failure::Mismatch("object", "int or resource.Quantity");
    check("integer", ".spec.domain.cpu", json!({ "min": 0 }), Outcome::Failed(object));
}

#[test]
fn bounds_may_be_elsewhere_in_the_machine() {
    check("integer", MEMORY, json!({ "min": "jsonpath::.spec.domain.resources.requests.memory" }), Outcome::Met);
    let high = unmet("value 2147483648 is higher than maximum [1610612736]");
    check("integer", MEMORY, json!({ "max": "jsonpath::.spec.domain.resources.requests.memory" }), high);
    let many = "jsonpath::.spec.domain.cpu['cores','threads']";
    check("integer", MEMORY, json!({ "min": many }), Outcome::Failed(Failure::NotOne(2)));
    let none = "jsonpath::.spec.domain.devices.disks[?(@.name == 'x')]";
    check("integer", MEMORY, json!({ "min": none }), Outcome::Failed(Failure::NotOne(0)));
    check("integer", MEMORY, json!({ "min": "jsonpath::.spec.nowhere" }), Outcome::Failed(Failure::Nowhere));
}

#[test]
fn strings_are_as_long_as_their_bytes() {
    check("string", ".spec.hostname", json!({ "minLength": 7, "maxLength": 7 }), Outcome::Met);
    let long = unmet("Lengths of some strings are not in interval [N/A, 5]");
    check("string", ".spec.hostname", json!({ "maxLength": 5 }), long);
    let short = unmet("Lengths of some strings are not in interval [5, 9]");
    check("string", BUS, json!({ "minLength": 5, "maxLength": 9 }), short);
    check("string", CORES, json!({}), Outcome::Failed(Failure::Mismatch("number", "string")));
}

#[test]
fn an_enum_holds_all_values_that_are_found() {
    check("enum", BUS, json!({ "values": ["virtio", "sata", "scsi"] }), Outcome::Met);
    check("enum", BUS, json!({ "values": ["virtio"] }), unmet("Some of [virtio, sata] are not in [virtio]"));
    check("enum", BUS, json!({}), unmet("Some of [virtio, sata] are not in []"));
    let root = "jsonpath::.spec.domain.devices.disks[0].disk.bus";
    check("enum", BUS, json!({ "values": [root, "sata"] }), Outcome::Met);
    check("enum", BUS, json!({ "values": [format!("jsonpath::{BUS}")] }), Outcome::Failed(Failure::NotOne(2)));
    // A disk that leaves its bus to the cluster has none of these.
    check(
        "enum",
        ".spec.domain.devices.disks[*].cdrom.bus",
        json!({ "values": ["sata"] }),
        unmet("Some of [] are not in [sata]"),
    );
}

#[test]
fn a_regex_matches_anywhere_in_the_text() {
    check("regex", BUS, json!({ "regex": "t[ia]" }), Outcome::Met);
    check("regex", BUS, json!({ "regex": "^v" }), unmet("Some of [virtio, sata] do not match ^v"));
    check("regex", BUS, json!({}), Outcome::Met);
}

#[test]
fn a_rule_applies_where_its_valid_path_finds_something() {
    check(
        "integer",
        CORES,
        json!({ "max": 1, "valid": format!("jsonpath::{MEMORY}") }),
        unmet("value 4 is higher than maximum [1]"),
    );
    check("integer", CORES, json!({ "max": 1, "valid": "jsonpath::.spec.domain.memory.hugepages" }), Outcome::Skipped);
    check(
        "integer",
        CORES,
        json!({ "max": 1, "valid": "jsonpath::.spec.domain.devices.disks[?(@.name=='x')]" }),
        Outcome::Skipped,
    );
}

#[test]
fn what_the_machine_does_not_say_is_empty_and_what_no_machine_says_is_an_error() {
    check("integer", ".spec.domain.memory.maxGuest", json!({ "min": 1 }), unmet("value 0 is lower than minimum [1]"));
    check("integer", ".spec.domain.cpu.sockets", json!({ "min": 1, "max": 1 }), Outcome::Met);
    check("string", ".spec.domain.machine.type", json!({ "maxLength": 0 }), Outcome::Met);
    check("integer", ".spec.domain.memory.gest", json!({ "min": 0 }), Outcome::Failed(Failure::Nowhere));
    check("enum", ".spec.domain.devices.disks[?(@.name=='x')]", json!({}), Outcome::Failed(Failure::NoValues));
}

fn judged(rules: &Value) -> (Vec<Cause>, Vec<String>) {
    let entries = rules::parse(&rules.to_string()).unwrap();
    let reports = evaluate(&entries, &machine());
    (causes(&reports), warnings(&reports))
}

#[test]
fn a_rule_that_just_warns_refuses_nothing_and_is_told_when_another_does() {
    let path = format!("jsonpath::${CORES}");
    let warns =
        json!({ "rule": "integer", "name": "w", "path": path, "message": "Many cores", "max": 2, "justWarning": true });
    let refuses = json!({ "rule": "integer", "name": "r", "path": path, "message": "Too many", "max": 3 });
    let many = "Many cores: value 4 is higher than maximum [2]";
    assert_eq!(judged(&json!([warns])), (vec![], vec![many.to_owned()]));
    let cause =
        |message: &str| Cause { reason: "FieldValueInvalid", field: CORES.to_owned(), message: message.to_owned() };
    let both = vec![cause("Too many: value 4 is higher than maximum [3]"), cause(many)];
    assert_eq!(judged(&json!([refuses, warns])).0, both);
}

#[test]
fn a_rule_that_cannot_be_applied_refuses_even_if_it_just_warns() {
    let path = format!("jsonpath::{CORES}");
    let good = json!({ "rule": "integer", "name": "n", "path": path, "message": "m", "justWarning": true });
    let found = |rules: Value| judged(&rules).0.into_iter().map(|cause| cause.message).collect::<Vec<_>>();
    assert_eq!(found(json!([good, good])), ["m: duplicate Rule Name"]);
    assert_eq!(
        found(json!([{ "rule": "x", "name": "n", "path": path, "message": "m" }])),
        ["m: unrecognized Rule type"]
    );
    assert_eq!(found(json!([{ "rule": "integer", "name": "n", "path": path }])), ["rule \"n\": missing required key"]);
    let nowhere = json!({ "rule": "enum", "name": "n", "path": path, "message": "m", "values": ["jsonpath::.x"] });
    assert_eq!(found(json!([nowhere])), ["m: invalid JSONPath"]);
}

#[test]
fn a_machine_without_anything_is_judged_by_the_empty_one() {
    let rules =
        json!([{ "rule": "integer", "name": "n", "path": format!("jsonpath::{MEMORY}"), "message": "m", "min": 1 }]);
    let entries = rules::parse(&rules.to_string()).unwrap();
    for machine in [json!(null), json!([]), json!({ "spec": { "template": null } })] {
        assert_eq!(evaluate(&entries, &machine)[0].outcome, unmet("value 0 is lower than minimum [1]"));
    }
}

#[test]
fn rules_that_look_everywhere_again_and_again_stop() {
    let disks: Vec<Value> =
        (0..2000).map(|n| json!({ "name": format!("d{n}"), "disk": { "bus": "virtio" } })).collect();
    let machine = json!({ "spec": { "template": { "spec": { "domain": { "devices": { "disks": disks } } } } } });
    let rule = |n: usize| {
        json!({
            "rule": "enum", "name": n.to_string(), "message": "m", "path": "jsonpath::..*..*..name", "values": ["x"],
        })
    };
    let rules: Vec<Value> = (0..rules::MOST).map(rule).collect();
    let entries = rules::parse(&json!(rules).to_string()).unwrap();
    let reports = evaluate(&entries, &machine);
    assert!(reports.iter().all(|report| report.outcome == Outcome::Failed(Failure::Spent)));
}

#[test]
fn a_long_value_is_not_told_whole() {
    let long = "x".repeat(100_000);
    let machine = json!({ "spec": { "template": { "spec": { "hostname": long } } } });
    let rule =
        json!([{ "rule": "enum", "name": "n", "message": "m", "path": "jsonpath::.spec.hostname", "values": ["a"] }]);
    let entries = rules::parse(&rule.to_string()).unwrap();
    let causes = causes(&evaluate(&entries, &machine));
    assert!(causes[0].message.len() <= SAID, "{}", causes[0].message.len());
}

/// Values as JSON has them, of names that machines have.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "(virtio|2Gi|1500m|[ -~]{0,12})".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, |inner| {
        let name = "(spec|domain|cpu|cores|devices|disks|disk|bus|memory|guest|[a-z]{1,3})";
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(name, inner, 0..6).prop_map(|map| json!(map)),
        ]
    })
}

/// Rules of which some can be applied.
fn rule() -> impl Strategy<Value = Value> {
    let path = r"(jsonpath::)?\$?(\.(spec|domain|cpu|cores|devices|disks|disk|bus|memory|guest|\*)|\.\.|\[(\*|0|-1|1:|\?\(@\.bus == 'a'\))\]){0,8}|[ -~]{0,20}";
    let kinds = prop_oneof![Just("integer"), Just("string"), Just("enum"), Just("regex"), Just("?")];
    let bound = prop_oneof![any::<i64>().prop_map(Value::from), path.prop_map(Value::from), value()];
    (kinds, "[ab]{0,1}", path, path, bound.clone(), bound, "[a-z()*+?\\[\\]{},0-9]{0,24}", any::<bool>()).prop_map(
        |(kind, name, path, valid, least, most, regex, warns)| {
            json!({
                "rule": kind, "name": name, "path": path, "valid": valid, "message": "m", "min": least, "max": most,
                "minLength": most, "maxLength": least, "values": [least, "virtio"], "regex": regex, "justWarning": warns,
            })
        },
    )
}

proptest! {
    #[test]
    fn any_rules_judge_any_machine(rules in prop::collection::vec(prop_oneof![rule(), value()], 0..6), machine in value()) {
        let machine = json!({ "spec": { "template": machine } });
        if let Ok(entries) = rules::parse(&json!(rules).to_string()) {
            let reports = evaluate(&entries, &machine);
            prop_assert_eq!(reports.len(), entries.len());
            let failed = reports.iter().any(|report| matches!(report.outcome, Outcome::Failed(_) | Outcome::Unmet(_)));
            prop_assert_eq!(failed, !causes(&reports).is_empty());
        }
    }

    #[test]
    fn any_text_is_rules_or_refused(text in "\\PC{0,200}") {
        if let Ok(entries) = rules::parse(&text) {
            evaluate(&entries, &Value::Null);
        }
    }
}
