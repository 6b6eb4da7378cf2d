//! Tables by data.

use super::*;
use crate::registry::builtin;

/// The table as `kubectl get -o wide` lays it out, without padding.
fn print(plural: &str, objects: &[Value]) -> String {
    let resource = builtin::resources().into_iter().find(|r| r.plural == plural).unwrap();
    text(&resource, objects)
}

fn text(resource: &Resource, objects: &[Value]) -> String {
    let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
    let table = render(resource, objects, "None", now);
    let names: Vec<&str> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    let mut lines = vec![names.join(" | ")];
    for row in table["rows"].as_array().unwrap() {
        let cells = row["cells"].as_array().unwrap();
        assert_eq!(cells.len(), names.len());
        let cells: Vec<String> =
            cells.iter().map(|c| c.as_str().map_or_else(|| c.to_string(), str::to_owned)).collect();
        lines.push(cells.join(" | "));
    }
    lines.join("\n")
}

fn meta(name: &str) -> Value {
    json!({"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"})
}

#[test]
fn pods() {
    let pod = |name: &str, spec: Value, status: Value| json!({"metadata": meta(name), "spec": spec, "status": status});
    let one = json!({"containers": [{"name": "c"}], "nodeName": "n"});
    let crash = json!({"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [{"name": "c", "ready": false, "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"finishedAt": "2026-01-01T00:58:00Z"}}}]});
    let mut deleted = pod("deleted", one.clone(), json!({"phase": "Running"}));
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:59:00Z".into();
    let init = json!({"containers": [{"name": "c"}], "initContainers": [{"name": "i"}, {"name": "j"}]});
    let initializing = json!({"phase": "Pending", "initContainerStatuses": [
        {"name": "i", "state": {"terminated": {"exitCode": 0}}}, {"name": "j", "state": {"running": {}}}]});
    let done = json!({"phase": "Succeeded", "containerStatuses": [
        {"name": "c", "restartCount": 0, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]});
    let running = json!({"phase": "Running", "containerStatuses": [
        {"name": "c", "ready": true, "restartCount": 0, "state": {"running": {}}}]});
    let objects = [
        pod("pending", json!({"containers": [{"name": "c"}]}), json!({"phase": "Pending"})),
        pod("running", one.clone(), running),
        pod("crash", one.clone(), crash),
        deleted,
        pod("init", init, initializing),
        pod("done", one, done),
    ];
    insta::assert_snapshot!(print("pods", &objects), @r"
    Name | Ready | Status | Restarts | Age | IP | Node | Nominated Node | Readiness Gates
    pending | 0/1 | Pending | 0 | 60m | <none> | <none> | <none> | <none>
    running | 1/1 | Running | 0 | 60m | <none> | n | <none> | <none>
    crash | 0/1 | CrashLoopBackOff | 3 (2m ago) | 60m | 10.0.0.1 | n | <none> | <none>
    deleted | 0/1 | Terminating | 0 | 60m | <none> | n | <none> | <none>
    init | 0/1 | Init:1/2 | 0 | 60m | <none> | <none> | <none> | <none>
    done | 0/1 | Completed | 0 | 60m | <none> | n | <none> | <none>
    ");
}

#[test]
fn workloads_and_services() {
    let template = json!({"spec": {"containers": [{"name": "a", "image": "x:1"}, {"name": "b", "image": "y:1"}]}});
    let spec = json!({"replicas": 3, "selector": {"matchLabels": {"app": "d"}}, "template": template});
    let deployment = json!({"metadata": meta("d"), "spec": spec, "status": {"readyReplicas": 2, "updatedReplicas": 3}});
    insta::assert_snapshot!(print("deployments", &[deployment]), @r"
    Name | Ready | Up-to-date | Available | Age | Containers | Images | Selector
    d | 2/3 | 3 | 0 | 60m | a,b | x:1,y:1 | app=d
    ");
    let service = json!({"metadata": meta("s"), "spec": {"type": "NodePort", "clusterIP": "10.96.0.9", "selector": {"a": "b"},
        "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}});
    insta::assert_snapshot!(print("services", &[service]), @r"
    Name | Type | Cluster-IP | External-IP | Port(s) | Age | Selector
    s | NodePort | 10.96.0.9 | <none> | 80:30080/TCP,53/UDP | 60m | a=b
    ");
}

#[test]
fn nodes_and_events() {
    let node = json!({"metadata": {"name": "n", "labels": {"node-role.kubernetes.io/control-plane": ""},
            "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"unschedulable": true},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "addresses": [{"type": "InternalIP", "address": "10.0.0.2"}],
            "nodeInfo": {"kubeletVersion": "v1"}}});
    insta::assert_snapshot!(print("nodes", &[node]), @r"
    Name | Status | Roles | Age | Version | Internal-IP | External-IP | OS-Image | Kernel-Version | Container-Runtime
    n | Ready,SchedulingDisabled | control-plane | 60m | v1 | 10.0.0.2 | <none> | <none> | <none> | <none>
    ");
    let event = json!({"metadata": meta("e"), "type": "Normal", "reason": "Created", "note": "made ", "eventTime": "2026-01-01T00:59:30Z",
        "regarding": {"kind": "Pod", "name": "p"}, "reportingController": "c", "reportingInstance": "h"});
    insta::assert_snapshot!(print("events", &[event]), @r"
    Last Seen | Type | Reason | Object | Subobject | Source | Message | First Seen | Count | Name
    30s | Normal | Created | pod/p |  | c, h | made | 30s | 1 | e
    ");
}

#[test]
fn every_built_in_fills_its_columns() {
    for resource in builtin::resources() {
        let object = json!({"metadata": meta("x")});
        text(&resource, std::slice::from_ref(&object));
        let now = Timestamp::UNIX_EPOCH;
        if computed(&resource) {
            assert_eq!(cells::of(&resource, &object, now).len(), resource.columns.len(), "{}", resource.plural);
        }
    }
}

#[test]
fn printer_columns() {
    let column = |name: &str, type_: &str, path: &str| Column {
        name: name.into(),
        type_: type_.into(),
        format: String::new(),
        description: String::new(),
        priority: 0,
        json_path: path.into(),
    };
    let mut resource = builtin::resources().into_iter().find(|r| r.plural == "configmaps").unwrap();
    resource.crd = Some("virtualmachines.kubevirt.io".into());
    resource.columns = vec![
        column("Age", "date", ".metadata.creationTimestamp"),
        column("Status", "string", ".status.printableStatus"),
        column("Ready", "string", ".status.conditions[?(@.type=='Ready')].status"),
        column("Cores", "integer", ".spec.cores"),
        column("Missing", "string", ".spec.missing"),
    ];
    let vm = json!({"metadata": meta("vm"), "spec": {"cores": 2},
        "status": {"printableStatus": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    insta::assert_snapshot!(text(&resource, std::slice::from_ref(&vm)), @r"
    Name | Age | Status | Ready | Cores | Missing
    vm | 60m | Running | True | 2 | null
    ");
    resource.columns.clear();
    insta::assert_snapshot!(text(&resource, &[vm]), @r"
    Name | Age
    vm | 60m
    ");
}

#[test]
fn autoscalers_show_what_they_measure() {
    let scaler = |metrics: Value, measured: Value| {
        json!({"metadata": meta("h"), "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "maxReplicas": 5, "metrics": metrics},
            "status": {"currentReplicas": 2, "currentMetrics": measured}})
    };
    let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 80}}});
    let measured = json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 40}}});
    let external = json!({"type": "External", "external": {"target": {"averageValue": "10"}}});
    let printed = print(
        "horizontalpodautoscalers",
        &[
            scaler(json!([cpu]), json!([measured])),
            scaler(json!([cpu, external, cpu]), json!([])),
            scaler(json!([]), json!([])),
        ],
    );
    let targets: Vec<&str> = printed.lines().skip(1).map(|line| line.split(" | ").nth(2).unwrap()).collect();
    assert_eq!(targets, ["cpu: 40%/80%", "cpu: <unknown>/80%, <unknown>/10 (avg) + 1 more...", "<none>"]);
}
