//! What claims and slices must say, by data.

use serde_json::json;

use super::*;

#[track_caller]
fn check(plural: &str, object: &Value, expect: &[&str]) {
    let mut object = object.clone();
    defaults(plural, &mut object);
    said(plural, &object, None, "", expect);
}

#[track_caller]
fn said(plural: &str, object: &Value, old: Option<&Value>, subresource: &str, expect: &[&str]) {
    let mut causes = Vec::new();
    validate(plural, object, old, subresource, &mut causes);
    let said: Vec<_> = causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
    assert_eq!(said, expect);
}

fn claim(devices: Value) -> Value {
    json!({"spec": {"devices": devices}})
}

#[test]
fn a_claim_asks_for_one_device_unless_it_says_otherwise() {
    let mut object = claim(json!({"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}},
        {"name": "s", "firstAvailable": [{"name": "t", "deviceClassName": "c", "allocationMode": "All"}]}]}));
    defaults("resourceclaims", &mut object);
    let requests = &object["spec"]["devices"]["requests"];
    assert_eq!(requests[0]["exactly"], json!({"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1}));
    assert_eq!(requests[1]["firstAvailable"][0]["count"], Value::Null);
    check("resourceclaims", &object, &[]);
}

#[test]
fn requests() {
    let one = |request: Value| claim(json!({"requests": [request]}));
    check("resourceclaims", &claim(json!({})), &[]);
    check(
        "resourceclaims",
        &one(json!({"name": "r"})),
        &["spec.devices.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required"],
    );
    let all = json!({"name": "R", "exactly": {"deviceClassName": "", "allocationMode": "All", "count": 2}});
    check(
        "resourceclaims",
        &one(all),
        &[
            "spec.devices.requests[0].name: Invalid value: \"R\": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
            "spec.devices.requests[0].exactly.deviceClassName: Required value",
            "spec.devices.requests[0].exactly.count: Invalid value: 2: must not be specified when allocationMode is 'All'",
        ],
    );
    let mode = json!({"name": "r", "exactly": {"deviceClassName": "c", "allocationMode": "Some"}});
    check(
        "resourceclaims",
        &one(mode),
        &[
            "spec.devices.requests[0].exactly.allocationMode: Unsupported value: \"Some\": supported values: \"All\", \"ExactCount\"",
        ],
    );
}

#[test]
fn constraints_and_configurations_name_requests() {
    let request = json!({"name": "r", "firstAvailable": [{"name": "s", "deviceClassName": "c"}]});
    let good = claim(json!({"requests": [request], "constraints": [{"requests": ["r/s"], "matchAttribute": "a.io/b"}],
        "config": [{"requests": ["r"], "opaque": {"driver": "d.io", "parameters": {}}}]}));
    check("resourceclaims", &good, &[]);
    let bad = claim(json!({"requests": [request], "constraints": [{"requests": ["x"], "matchAttribute": "b"}, {}],
        "config": [{"opaque": {"driver": "d.io", "parameters": {"a": "x".repeat(10 * 1024)}}}]}));
    check(
        "resourceclaims",
        &bad,
        &[
            "spec.devices.constraints[0].requests[0]: Invalid value: \"x\": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'",
            "spec.devices.constraints[0].matchAttribute: Invalid value: \"b\": must include a domain, `domain/name`",
            "spec.devices.constraints[1]: Required value: exactly one of the constraint types must be set: `matchAttribute`",
            "spec.devices.config[0].opaque.parameters: Too long: may not be more than 10240 bytes",
        ],
    );
}

#[test]
fn expressions_are_bounded() {
    let class = |expression: &str| json!({"spec": {"selectors": [{"cel": {"expression": expression}}]}});
    check("deviceclasses", &class("device.driver == 'd.io'"), &[]);
    check("deviceclasses", &json!({"spec": {"selectors": [{}]}}), &["spec.selectors[0].cel: Required value"]);
    let long = format!("device.driver == '{}'", "x".repeat(10 * 1024));
    check(
        "deviceclasses",
        &class(&long),
        &["spec.selectors[0].cel.expression: Too long: may not be more than 10240 bytes"],
    );
    let mut causes = Vec::new();
    let costly = "device.attributes.all(a, device.attributes.all(b, device.attributes.all(c, device.attributes.all(d, \
                  device.attributes.all(e, a == b && c == d && d == e)))))";
    validate("deviceclasses", &class(costly), None, "", &mut causes);
    assert!(causes[0].message.starts_with("Forbidden: too complex, exceeds cost limit"), "{}", causes[0].message);
}

fn slice(spec: Value) -> Value {
    let mut all =
        json!({"driver": "d.io", "nodeName": "n", "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1}});
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({ "spec": all })
}

#[test]
fn slices() {
    let device = json!({"name": "a", "attributes": {"model": {"string": "x"}, "o.io/v": {"version": "1.2.3-rc.1"}},
        "capacity": {"memory": {"value": "1Gi"}}, "taints": [{"key": "k", "effect": "NoSchedule"}]});
    check("resourceslices", &slice(json!({"devices": [device]})), &[]);
    check(
        "resourceslices",
        &slice(json!({"pool": {"name": "", "resourceSliceCount": 0}})),
        &[
            "spec.pool.name: Required value",
            "spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero",
        ],
    );
}

#[test]
fn a_slice_is_in_one_place() {
    let places = |spec: Value| {
        let mut causes = Vec::new();
        validate("resourceslices", &slice(spec), None, "", &mut causes);
        causes.into_iter().map(|c| format!("{}: {}", c.field, c.reason)).collect::<Vec<_>>()
    };
    assert_eq!(places(json!({"allNodes": true})), ["spec: FieldValueInvalid"]);
    assert_eq!(places(json!({"nodeName": null})), ["spec: FieldValueRequired"]);
    let two = json!({"nodeName": null, "nodeSelector": {"nodeSelectorTerms": [{}, {}]}});
    assert_eq!(places(two), ["spec.nodeSelector.nodeSelectorTerms: FieldValueInvalid"]);
    let each = json!({"nodeName": null, "perDeviceNodeSelection": true, "devices": [{"name": "a"}, {"name": "b", "allNodes": true}]});
    assert_eq!(places(each), ["spec.devices[0]: FieldValueRequired"]);
}

#[test]
fn devices_of_slices() {
    let bad = json!([
        {"name": "a", "attributes": {"two": {"int": 1, "bool": true}, "9": {"int": 1}, "v": {"version": "1.2"}}},
        {"name": "a", "nodeName": "m", "consumesCounters": [{"counterSet": "s", "counters": {}}],
            "taints": [{"key": "k", "effect": "NoExecute"}]}]);
    let mut causes = Vec::new();
    validate("resourceslices", &slice(json!({"devices": bad})), None, "", &mut causes);
    let said: Vec<_> = causes.iter().map(|c| format!("{}: {}", c.field, c.reason)).collect();
    assert_eq!(
        said,
        [
            "spec.devices[0].attributes[9]: FieldValueInvalid",
            "spec.devices[0].attributes[two]: FieldValueInvalid",
            "spec.devices[0].attributes[v].version: FieldValueInvalid",
            "spec.devices[1].name: FieldValueDuplicate",
            "spec.devices[1].nodeName: FieldValueForbidden",
            "spec.devices[1].consumesCounters: FieldValueForbidden",
            "spec.devices[1].taints[0].effect: FieldValueInvalid",
        ]
    );
}

#[test]
fn the_status_of_a_claim() {
    let result = |request: &str| json!({"request": request, "driver": "d.io", "pool": "n", "device": "a"});
    let with = |status: Value| {
        let mut object = claim(json!({"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}));
        object["status"] = status;
        object
    };
    let old = with(json!({}));
    let pod = json!({"resource": "pods", "name": "p", "uid": "u"});
    let given = with(json!({"allocation": {"devices": {"results": [result("r")]}}, "reservedFor": [pod]}));
    said("resourceclaims", &given, Some(&old), "status", &[]);
    let wrong = with(json!({"allocation": {"devices": {"results": [result("x")]}}}));
    said(
        "resourceclaims",
        &wrong,
        Some(&old),
        "status",
        &[
            "status.allocation.devices.results[0].request: Invalid value: \"x\": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'",
        ],
    );
    let mut causes = Vec::new();
    let mut other = given.clone();
    other["status"]["allocation"]["devices"]["results"][0]["device"] = "b".into();
    validate("resourceclaims", &other, Some(&given), "status", &mut causes);
    assert!(causes[0].message.ends_with("field is immutable"), "{}", causes[0].message);
    said(
        "resourceclaims",
        &with(json!({"reservedFor": [pod]})),
        Some(&old),
        "status",
        &["status.reservedFor: Forbidden: may not be specified when `allocated` is not set"],
    );
    said("resourceclaims", &with(json!({})), Some(&given), "status", &[]);
    let mut leaving = given.clone();
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let mut more = leaving.clone();
    more["status"]["reservedFor"] = json!([pod, {"resource": "pods", "name": "q", "uid": "v"}]);
    said(
        "resourceclaims",
        &more,
        Some(&leaving),
        "status",
        &[
            "status.reservedFor: Forbidden: new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set",
        ],
    );
    let mut reported = given.clone();
    reported["status"]["devices"] = json!([{"driver": "d.io", "pool": "n", "device": "z"}]);
    let mut causes = Vec::new();
    validate("resourceclaims", &reported, Some(&given), "status", &mut causes);
    assert!(causes[0].message.ends_with("must be an allocated device in the claim"), "{causes:?}");
}

#[test]
fn specs_of_claims_and_identity_of_slices_are_immutable() {
    let mut causes = Vec::new();
    let (old, mut new) = (slice(json!({})), slice(json!({"devices": [{"name": "a"}]})));
    update("resourceslices", &old, &new, &mut causes);
    assert!(causes.is_empty());
    new["spec"]["nodeName"] = "m".into();
    update("resourceslices", &old, &new, &mut causes);
    update("resourceclaims", &claim(json!({})), &claim(json!({"requests": []})), &mut causes);
    let fields: Vec<_> = causes.iter().map(|c| c.field.as_str()).collect();
    assert_eq!(fields, ["spec.nodeName", "spec"]);
}

#[test]
fn an_allocated_claim_keeps_its_allocation_and_finalizer() {
    let with = |finalizers: &[&str], status: Value| json!({"metadata": {"finalizers": finalizers}, "status": status});
    let refused = |old: &Value, new: &Value| {
        let mut causes = Vec::new();
        update("resourceclaims", old, new, &mut causes);
        causes.into_iter().map(|c| c.field).collect::<Vec<_>>()
    };
    let held = with(&["a", PROTECTION], json!({"allocation": {}}));
    assert_eq!(refused(&held, &with(&["a"], json!({"allocation": {}}))), ["metadata.finalizers"]);
    assert!(refused(&held, &with(&[PROTECTION], json!({"allocation": {}}))).is_empty());
    assert!(refused(&with(&[PROTECTION], json!({})), &with(&[], json!({}))).is_empty());
}
