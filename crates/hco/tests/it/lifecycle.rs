//! From one object to all others, and back.

use hco::child::Child;
use hco::render::NAME;
use http::Method;
use serde_json::{Value, json};

use crate::cluster::{Cluster, NAMESPACE, PATH, address, condition, refusal, text, until};

/// How many looks in a row show nothing new of what is at rest.
const LOOKS: u32 = 10;

#[tokio::test(flavor = "multi_thread")]
async fn one_object_asks_all_operators_and_says_how_they_are() {
    let mut cluster = Cluster::new().await;
    cluster.create(&json!({})).await.unwrap();
    until("the children are there and say nothing", async || {
        let object = cluster.object().await?;
        let waits = condition(&object, "Available")["reason"] == "KubeVirtConditions";
        (waits && object["status"]["relatedObjects"].as_array()?.len() == 4).then_some(())
    })
    .await;
    cluster.play("v1");
    cluster.healthy().await;
    let object = cluster.object().await.unwrap();
    let expect = json!([{ "name": "operator", "version": "v1" }]);
    assert_eq!(object["status"]["versions"], expect);
    assert_eq!(object["metadata"]["finalizers"], json!(["kubevirt.io/hyperconverged"]));
    assert_eq!(condition(&object, "LiveMigrationPossible")["status"], "False");
    assert_eq!(object["status"]["nodeInfo"]["defaultWorkloadArchitecture"], "amd64");
    let schedule = text(&object, "/status/dataImportSchedule");
    assert!(schedule.ends_with("/12 * * *"), "{schedule}");
    let ssp = cluster.child(Child::Ssp).await.unwrap();
    let images = ssp["spec"]["commonTemplates"]["dataImportCronTemplates"].as_array().unwrap();
    assert!(images.len() == 3 && images.iter().all(|image| image["spec"]["schedule"] == *schedule));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_of_a_child_is_put_right_counted_and_told_of() {
    let mut cluster = Cluster::new().await;
    cluster.available(json!({})).await;
    for child in Child::ALL {
        let before = cluster.child(child).await.unwrap()["spec"].clone();
        // One field that the operator sets, and one that it does not.
        let edit = match child {
            Child::KubeVirt => json!({ "configuration": { "vmRolloutStrategy": "Stage", "minCPUModel": "x" } }),
            Child::Cdi => json!({ "uninstallStrategy": "RemoveWorkloads", "cloneStrategyOverride": "copy" }),
            Child::NetworkAddons => json!({ "multus": null, "ovs": {} }),
            Child::Ssp => json!({ "templateValidator": { "replicas": 7 }, "enableMultipleArchitectures": true }),
        };
        let start = std::time::Instant::now();
        cluster.call(Method::PATCH, &address(child), &json!({ "spec": edit })).await.unwrap();
        until("the child is as it was", async || (cluster.child(child).await?["spec"] == before).then_some(())).await;
        assert!(start.elapsed().as_secs() < 5, "{child:?}");
        until("it is told of", async || {
            let events = cluster.get(&format!("/api/v1/namespaces/{NAMESPACE}/events")).await?;
            let told =
                |event: &Value| event["reason"] == "Overwritten" && text(event, "/message").contains(child.kind().name);
            events["items"].as_array()?.iter().any(told).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_is_deleted_comes_back() {
    let mut cluster = Cluster::new().await;
    cluster.available(json!({})).await;
    let before = cluster.child(Child::Cdi).await.unwrap()["metadata"]["uid"].clone();
    cluster.call(Method::DELETE, &address(Child::Cdi), &Value::Null).await.unwrap();
    until("it is back", async || (cluster.child(Child::Cdi).await?["metadata"]["uid"] != before).then_some(())).await;
    cluster.healthy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_starts_again_writes_nothing() {
    let mut cluster = Cluster::new().await;
    cluster.available(json!({})).await;
    let versions = async |cluster: &Cluster| {
        let mut all = vec![cluster.object().await.unwrap()["metadata"]["resourceVersion"].clone()];
        for child in Child::ALL {
            all.push(cluster.child(child).await.unwrap()["metadata"]["resourceVersion"].clone());
        }
        all
    };
    // The status may still follow what was applied last: it is at rest when several looks show the same.
    let mut last = (versions(&cluster).await, 0);
    let before = until("nothing is written", async || {
        let now = versions(&cluster).await;
        last.1 = if now == last.0 { last.1 + 1 } else { 0 };
        last.0 = now;
        (last.1 == LOOKS).then(|| last.0.clone())
    })
    .await;
    cluster.start("v1");
    // What it puts right shows that it has been through.
    cluster
        .call(Method::PATCH, &address(Child::Ssp), &json!({ "spec": { "templateValidator": { "replicas": 9 } } }))
        .await
        .unwrap();
    until("it is at work", async || {
        (cluster.child(Child::Ssp).await?["spec"]["templateValidator"]["replicas"] == 1).then_some(())
    })
    .await;
    let after = versions(&cluster).await;
    assert_eq!(before[..4], after[..4], "all but the one that was edited");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_object_and_the_nodes_are_followed() {
    let mut cluster = Cluster::new().await;
    cluster.available(json!({})).await;
    cluster.merge(&json!({ "spec": { "virtualization": { "vmiCPUAllocationRatio": 4 } } })).await.unwrap();
    until("KubeVirt has the ratio", async || {
        let kubevirt = cluster.child(Child::KubeVirt).await?;
        (kubevirt.pointer("/spec/configuration/developerConfiguration/cpuAllocationRatio")? == 4).then_some(())
    })
    .await;
    let eviction = async || Some(text(&cluster.child(Child::KubeVirt).await?, "/spec/configuration/evictionStrategy"));
    assert_eq!(eviction().await.unwrap(), "None");
    cluster.node("node2").await;
    until("machines migrate", async || (eviction().await? == "LiveMigrate").then_some(())).await;
    until("the status says so", async || {
        let object = cluster.object().await?;
        let said = condition(&object, "LiveMigrationPossible")["status"] == "True";
        (said && object["status"]["infrastructureHighlyAvailable"] == true).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_is_not_served_is_named_and_taken_in_when_it_comes() {
    let mut cluster = Cluster::serving(&[Child::KubeVirt, Child::Cdi, Child::NetworkAddons]).await;
    cluster.play("v1");
    cluster.create(&json!({})).await.unwrap();
    until("SSP is missed", async || {
        let object = cluster.object().await?;
        (condition(&object, "Degraded")["reason"] == "SSPNotServed").then_some(())
    })
    .await;
    let definition = crate::cluster::documents("crds/ssps.ssp.kubevirt.io.yaml");
    kit::apply::all(&cluster.client, &kit::apply::Applied::by("kubectl"), &definition).await.unwrap();
    cluster.healthy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_lasts_until_all_operators_are_of_the_version() {
    let mut cluster = Cluster::new().await;
    cluster.available(json!({})).await;
    cluster.start("v2");
    until("it is said", async || {
        let object = cluster.object().await?;
        (condition(&object, "Progressing")["reason"] == "HCOUpgrading").then_some(())
    })
    .await;
    let object = cluster.object().await.unwrap();
    assert_eq!(object["status"]["versions"][0]["version"], "v1");
    assert_eq!(condition(&object, "Upgradeable")["status"], "False");
    // As the operators do when they are upgraded.
    cluster.play("v2");
    cluster.healthy().await;
    let object = cluster.object().await.unwrap();
    assert_eq!(object["status"]["versions"][0]["version"], "v2");
}

#[tokio::test(flavor = "multi_thread")]
async fn removal_ends_machines_before_disks_and_waits_for_what_refuses() {
    let mut cluster = Cluster::new().await;
    cluster.available(json!({})).await;
    // As an operator does, which takes its time.
    let held = json!({ "metadata": { "finalizers": ["test/held"] } });
    cluster.call(Method::PATCH, &address(Child::KubeVirt), &held).await.unwrap();
    cluster.call(Method::DELETE, &format!("{PATH}/{NAME}"), &Value::Null).await.unwrap();
    until("KubeVirt is going", async || {
        cluster.child(Child::KubeVirt).await?.pointer("/metadata/deletionTimestamp").map(drop)
    })
    .await;
    until("networks and templates are gone", async || {
        let left = cluster.child(Child::Ssp).await.is_some() || cluster.child(Child::NetworkAddons).await.is_some();
        (!left).then_some(())
    })
    .await;
    assert!(cluster.child(Child::Cdi).await.unwrap().pointer("/metadata/deletionTimestamp").is_none());
    let namespace = format!("/api/v1/namespaces/{NAMESPACE}");
    let message = refusal(cluster.call(Method::DELETE, &namespace, &Value::Null).await);
    assert!(message.contains("HyperConverged CR is still present"), "{message}");
    let released = json!({ "metadata": { "finalizers": null } });
    cluster.call(Method::PATCH, &address(Child::KubeVirt), &released).await.unwrap();
    until("the object is gone", async || cluster.object().await.is_none().then_some(())).await;
    for child in Child::ALL {
        assert!(cluster.child(child).await.is_none(), "{child:?}");
    }
}
