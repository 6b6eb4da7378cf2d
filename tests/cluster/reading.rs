//! Reading: every output of `get`, selectors, pages, `describe`, `events`.

use anyhow::{Result, ensure};
use e2e::Namespace;
use serde_json::json;

use crate::Test;
use crate::pods::{IDLE, apply, idle, pod, template, text};

pub(crate) const TESTS: &[Test] = &[
    ("get_prints_every_format", get_prints_every_format),
    ("selectors_choose_by_label_and_field", selectors_choose_by_label_and_field),
    ("lists_come_in_pages", lists_come_in_pages),
    ("get_watches", get_watches),
    ("describe_tells_what_matters", describe_tells_what_matters),
    ("nodes_show_their_address", nodes_show_their_address),
];

fn get_prints_every_format() -> Result<()> {
    let space = Namespace::new("get")?;
    apply(
        &space,
        &[
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {"tier": "one"}}, "data": {"key": "value"}}),
        ],
    )?;
    let check = |words: &[&str], expect: &str| -> Result<()> {
        let printed = space.kubectl(words)?;
        ensure!(printed.trim() == expect, "kubectl {}: {printed:?}", words.join(" "));
        Ok(())
    };
    check(&["get", "cm", "a", "-o", "jsonpath={.data.key}"], "value")?;
    check(&["get", "cm", "a", "-o", "name"], "configmap/a")?;
    check(&["get", "cm", "a", "--no-headers", "-o", "custom-columns=N:.metadata.name,V:.data.key"], "a     value")?;
    check(&["get", "cm", "a", "-o", "go-template={{index .data \"key\"}}"], "value")?;
    check(
        &["get", "cm", "-l", "tier=one", "-L", "tier", "--no-headers", "-o", "custom-columns=N:.metadata.name"],
        "a",
    )?;
    let yaml = space.kubectl(&["get", "cm", "a", "-o", "yaml"])?;
    ensure!(yaml.starts_with("apiVersion: v1\ndata:\n  key: value\nkind: ConfigMap\n"), "{yaml}");
    let table = space.kubectl(&["get", "cm,sa", "-o", "wide"])?;
    ensure!(table.contains("configmap/a") && table.contains("serviceaccount/default"), "{table}");
    let missing = space.output(&["get", "cm", "b"])?;
    let why = text(&missing.stderr);
    ensure!(
        !missing.status.success() && why.contains("Error from server (NotFound): configmaps \"b\" not found"),
        "{why}"
    );
    let none = space.output(&["get", "pods"])?;
    ensure!(text(&none.stderr).contains("No resources found"), "{none:?}");
    let kind = text(&space.output(&["get", "machines"])?.stderr);
    ensure!(kind.contains("the server doesn't have a resource type \"machines\""), "{kind}");
    Ok(())
}

fn selectors_choose_by_label_and_field() -> Result<()> {
    let space = Namespace::new("select")?;
    let map = |name: &str, tier: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"tier": tier}}});
    apply(&space, &[map("a", "one"), map("b", "two"), map("c", "three")])?;
    let check = |flag: &str, expect: &[&str]| -> Result<()> {
        let printed = space.kubectl(&["get", "cm", flag, "-o", "name"])?;
        let names: Vec<_> = printed.lines().filter_map(|line| line.strip_prefix("configmap/")).collect();
        ensure!(names == expect, "{flag}: {names:?}");
        Ok(())
    };
    check("-ltier=one", &["a"])?;
    check("-ltier!=one,tier", &["b", "c"])?;
    check("-ltier in (one,two)", &["a", "b"])?;
    check("-ltier,tier notin (one,two)", &["c"])?;
    check("-l!tier", &["kube-root-ca.crt"])?;
    check("--field-selector=metadata.name=b", &["b"])?;
    check("--field-selector=metadata.name!=b,metadata.name!=kube-root-ca.crt", &["a", "c"])?;
    let refused = space.output(&["get", "cm", "--field-selector=data.key=x"])?;
    ensure!(text(&refused.stderr).contains("field label not supported: data.key"), "{refused:?}");
    Ok(())
}

fn lists_come_in_pages() -> Result<()> {
    let space = Namespace::new("pages")?;
    let maps: Vec<_> = (0..25)
        .map(|n| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("map-{n:02}")}}))
        .collect();
    apply(&space, &maps)?;
    let names = space.kubectl(&["get", "cm", "--chunk-size=4", "-o", "name"])?;
    ensure!(names.lines().count() == 26, "{names}");
    let path = format!("/api/v1/namespaces/{}/configmaps?limit=10", space.name());
    let page: serde_json::Value = serde_json::from_str(&space.kubectl(&["get", "--raw", &path])?)?;
    ensure!(page["items"].as_array().is_some_and(|items| items.len() == 10), "{page}");
    ensure!(page["metadata"]["remainingItemCount"] == 16, "{}", page["metadata"]);
    Ok(())
}

fn get_watches() -> Result<()> {
    let space = Namespace::new("watch")?;
    let watch = space
        .command("kubectl")
        .args(["get", "cm", "-w", "--output-watch-events", "--request-timeout=8s", "-o", "name"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()?;
    // It lists first; what comes after its list arrives as events.
    space.kubectl(&["create", "cm", "seen"])?;
    space.kubectl(&["label", "cm", "seen", "a=b"])?;
    space.kubectl(&["delete", "cm", "seen"])?;
    let printed = text(&watch.wait_with_output()?.stdout);
    ensure!(printed.contains("configmap/seen"), "{printed}");
    let only = space.output(&["get", "cm", "--watch-only", "--request-timeout=1s", "-o", "name"])?;
    ensure!(only.stdout.is_empty(), "{}", text(&only.stdout));
    Ok(())
}

fn describe_tells_what_matters() -> Result<()> {
    let space = Namespace::new("describe")?;
    idle(&space, "one")?;
    let labels = json!({"app": "many"});
    apply(
        &space,
        &[
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "many"},
               "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template(&labels, IDLE)}}),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "many"}, "spec": {"selector": labels, "ports": [{"port": 80}]}}),
        ],
    )?;
    space.kubectl(&["rollout", "status", "deployment/many", "--timeout=120s"])?;
    let check = |kind: &str, name: &str, expect: &[&str]| -> Result<()> {
        let printed = space.kubectl(&["describe", kind, name])?;
        for words in expect {
            ensure!(printed.contains(words), "describe {kind} {name} lacks {words:?}:\n{printed}");
        }
        Ok(())
    };
    check(
        "pod",
        "one",
        &[
            "Node:",
            "node1/10.88.0.11",
            "QoS Class:",
            "BestEffort",
            "Successfully assigned",
            "Started container main",
            "IPs:",
        ],
    )?;
    check(
        "deployment",
        "many",
        &["1 desired | 1 updated | 1 total | 1 available", "NewReplicaSet:", "ScalingReplicaSet"],
    )?;
    check("service", "many", &["Type:", "ClusterIP", "Endpoints:", "10.244."])?;
    check(
        "node",
        "node1",
        &["Ready", "KubeletReady", "Allocated resources:", "containerd://", "PodCIDR:", "10.244.0.0/24"],
    )?;
    check("namespace", space.name(), &["Active"])?;
    Ok(())
}

fn nodes_show_their_address() -> Result<()> {
    let space = Namespace::new("address")?;
    let printed = space.kubectl(&["get", "nodes", "-o", "wide", "--no-headers"])?;
    let cells: Vec<_> = printed.split_whitespace().collect();
    ensure!(cells.get(..2) == Some(&["node1", "Ready"]) && cells.get(5) == Some(&"10.88.0.11"), "{printed}");
    apply(&space, &[pod("p", IDLE)])?;
    crate::pods::ready(&space, "p")?;
    space.event("Pod", "p", "Scheduled")?;
    space.event("Pod", "p", "Started")?;
    let events = space.kubectl(&["events", "--for", "pod/p"]);
    let events = match events {
        Ok(events) => events,
        // An old kubectl has no `events`.
        Err(_) => space.kubectl(&["get", "events", "--field-selector=involvedObject.name=p"])?,
    };
    ensure!(events.contains("Scheduled") && events.contains("Started"), "{events}");
    Ok(())
}
