//! Nodes that come, fall silent and go; evictions and budgets; roles and quotas.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, ResourceQuota, ResourceQuotaStatus, Secret};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::ResourceExt;
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams, PostParams};
use kube_controllers::{disruption, eviction, node, podgc, quota, roles, scheduler, token};
use serde_json::json;

use crate::cluster::Cluster;

#[tokio::test]
async fn nodes_get_cidrs_and_taints() {
    let cluster = Cluster::new().await;
    cluster.start(node::run);
    cluster.node("n1", json!({})).await;
    cluster.node("n2", json!({})).await;
    let nodes = cluster
        .until_all::<Node>(|nodes| {
            nodes.len() == 2
                && nodes.iter().all(|n| n.spec.as_ref().is_some_and(|s| s.pod_cidrs.is_some() && s.taints.is_none()))
        })
        .await;
    let mut cidrs: Vec<_> =
        nodes.iter().map(|n| n.spec.as_ref().unwrap().pod_cidrs.clone().unwrap().join(" ")).collect();
    cidrs.sort();
    assert_eq!(cidrs, ["10.244.0.0/24 fd00:10:244::/64", "10.244.1.0/24 fd00:10:244:1::/64"]);
    let broken = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    cluster.all::<Node>().patch_status("n1", &PatchParams::default(), &Patch::Strategic(broken)).await.unwrap();
    let keys = |node: Option<&Node>| {
        let taints = node.and_then(|n| n.spec.as_ref()?.taints.clone()).unwrap_or_default();
        taints.iter().map(|t| format!("{}:{}", t.key, t.effect)).collect::<Vec<_>>().join(" ")
    };
    cluster
        .until(cluster.all::<Node>(), "n1", |n| {
            keys(n) == "node.kubernetes.io/not-ready:NoSchedule node.kubernetes.io/not-ready:NoExecute"
        })
        .await;
}

#[tokio::test]
async fn a_silent_node_loses_its_pods() {
    let cluster = Cluster::new().await;
    cluster.node("n1", json!({})).await;
    cluster.start(scheduler::run);
    cluster.run_pods();
    let pod = |name: &str, seconds: i64| {
        json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}],
            "tolerations": [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": seconds}]}})
    };
    cluster.create::<Pod>(pod("impatient", 0)).await;
    cluster.create::<Pod>(pod("patient", 3600)).await;
    let ready = |pod: Option<&Pod>, state: &str| {
        let conditions = pod.and_then(|p| p.status.as_ref()?.conditions.clone()).unwrap_or_default();
        conditions.iter().any(|c| c.type_ == "Ready" && c.status == state)
    };
    cluster.until(cluster.api::<Pod>(), "impatient", |p| ready(p, "True")).await;
    cluster.until(cluster.api::<Pod>(), "patient", |p| ready(p, "True")).await;
    // One node that goes on renewing its lease: nobody is evicted when all are lost at once.
    cluster.node("n2", json!({})).await;
    cluster.ctx.spawn(renew(cluster.client.clone(), "n2"));
    cluster.start(node::run);
    cluster.start(eviction::run);
    // Time stands still but for what everybody waits for: the silence.
    tokio::time::pause();
    let unknown = |node: Option<&Node>| {
        let conditions = node.and_then(|n| n.status.as_ref()?.conditions.clone()).unwrap_or_default();
        conditions.iter().any(|c| c.type_ == "Ready" && c.status == "Unknown")
    };
    kube::runtime::wait::await_condition(cluster.all::<Node>(), "n1", unknown).await.unwrap();
    kube::runtime::wait::await_condition(cluster.api::<Pod>(), "impatient", |p: Option<&Pod>| p.is_none())
        .await
        .unwrap();
    kube::runtime::wait::await_condition(cluster.api::<Pod>(), "patient", |p: Option<&Pod>| ready(p, "False"))
        .await
        .unwrap();
    assert!(cluster.api::<Pod>().get("patient").await.unwrap().metadata.deletion_timestamp.is_none());
}

/// Keeps a node's lease.
async fn renew(client: kube::Client, name: &'static str) {
    let leases: kube::Api<Lease> = kube::Api::namespaced(client, "kube-node-lease");
    loop {
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
            "spec": {"holderIdentity": name, "renewTime": MicroTime(jiff::Timestamp::now())}});
        leases.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(lease)).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    }
}

/// A lost node that is declared out of service gives up its pods at once.
#[tokio::test]
async fn an_out_of_service_node_holds_nothing() {
    let cluster = Cluster::new().await;
    cluster.node("n1", json!({})).await;
    cluster.start(scheduler::run);
    cluster
        .create::<Pod>(json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}))
        .await;
    cluster.until(cluster.api::<Pod>(), "p", |p| p.is_some_and(|p| p.spec.as_ref().unwrap().node_name.is_some())).await;
    cluster.start(eviction::run);
    cluster.start(podgc::run);
    let lost = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    cluster.all::<Node>().patch_status("n1", &PatchParams::default(), &Patch::Strategic(lost)).await.unwrap();
    let taint = json!({"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}]}});
    cluster.all::<Node>().patch("n1", &PatchParams::default(), &Patch::Merge(taint)).await.unwrap();
    // Its grace period would be waited for in vain: no node agent runs here.
    cluster.until(cluster.api::<Pod>(), "p", |p| p.is_none()).await;
}

#[tokio::test]
async fn pods_of_a_removed_node_are_given_up() {
    let cluster = Cluster::new().await;
    cluster.node("n1", json!({})).await;
    cluster.start(scheduler::run);
    cluster.start(podgc::run);
    cluster
        .create::<Pod>(json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}))
        .await;
    cluster.until(cluster.api::<Pod>(), "p", |p| p.is_some_and(|p| p.spec.as_ref().unwrap().node_name.is_some())).await;
    cluster.all::<Node>().delete("n1", &DeleteParams::default()).await.unwrap();
    tokio::time::pause();
    kube::runtime::wait::await_condition(cluster.api::<Pod>(), "p", |p: Option<&Pod>| p.is_none()).await.unwrap();
}

/// What `kubectl drain` does: an eviction beyond the budget is refused with 429.
#[tokio::test]
async fn evictions_keep_to_the_budget() {
    let cluster = Cluster::new().await;
    cluster.node("n1", json!({})).await;
    cluster.start(scheduler::run);
    cluster.start(disruption::run);
    cluster.run_pods();
    for name in ["p1", "p2"] {
        cluster
            .create::<Pod>(json!({"metadata": {"name": name, "labels": {"app": "a"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}))
            .await;
    }
    cluster
        .create::<PodDisruptionBudget>(json!({"metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}}))
        .await;
    let allows = |count: i32| {
        move |b: Option<&PodDisruptionBudget>| {
            b.is_some_and(|b| b.status.as_ref().is_some_and(|s| s.disruptions_allowed == count && s.expected_pods > 0))
        }
    };
    let budgets = || cluster.api::<PodDisruptionBudget>();
    cluster.until(budgets(), "b", allows(1)).await;
    cluster.api::<Pod>().evict("p1", &EvictParams::default()).await.unwrap();
    cluster.until(budgets(), "b", allows(0)).await;
    let refused = cluster.api::<Pod>().evict("p2", &EvictParams::default()).await.unwrap_err();
    let kube::Error::Api(status) = &refused else { panic!("{refused}") };
    let cause = &status.details.as_ref().unwrap().causes[0];
    assert_eq!((status.code, status.reason.as_str()), (429, "TooManyRequests"));
    assert_eq!(status.message, "Cannot evict pod as it would violate the pod's disruption budget.");
    assert_eq!(
        (cause.reason.as_str(), cause.message.as_str()),
        ("DisruptionBudget", "The disruption budget b needs 1 healthy pods and has 1 currently")
    );
    budgets().delete("b", &DeleteParams::default()).await.unwrap();
    cluster.api::<Pod>().evict("p2", &EvictParams::default()).await.unwrap();
    cluster.until(cluster.api::<Pod>(), "p2", |p| p.is_none()).await;
}

#[tokio::test]
async fn roles_are_aggregated() {
    let cluster = Cluster::new().await;
    cluster.start(roles::run);
    let part: ClusterRole = serde_json::from_value(json!({"metadata": {"name": "things-viewer",
            "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": [{"apiGroups": ["example.com"], "resources": ["things"], "verbs": ["get"]}]}))
    .unwrap();
    cluster.all::<ClusterRole>().create(&PostParams::default(), &part).await.unwrap();
    let has = |role: Option<&ClusterRole>| {
        let rules = role.and_then(|r| r.rules.clone()).unwrap_or_default();
        rules.iter().any(|rule| rule.api_groups.as_ref().is_some_and(|groups| groups[0] == "example.com"))
    };
    cluster.until(cluster.all::<ClusterRole>(), "view", has).await;
    cluster.all::<ClusterRole>().delete("things-viewer", &DeleteParams::default()).await.unwrap();
    cluster.until(cluster.all::<ClusterRole>(), "view", |role| !has(role)).await;
}

#[tokio::test]
async fn quotas_say_what_is_used() {
    let cluster = Cluster::new().await;
    cluster.start(quota::run);
    cluster
        .create::<Pod>(json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i",
        "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}}}]}}))
        .await;
    cluster
        .create::<ResourceQuota>(json!({"metadata": {"name": "q"}, "spec": {"hard":
        {"pods": "5", "requests.cpu": "1", "requests.memory": "1Gi", "count/secrets": "9"}}}))
        .await;
    let quota = cluster
        .until(cluster.api::<ResourceQuota>(), "q", |q| {
            q.is_some_and(|q| q.status.as_ref().is_some_and(|s| s.used.as_ref().is_some_and(|u| u.len() == 4)))
        })
        .await
        .unwrap();
    let used = quota.status.unwrap().used.unwrap();
    let text: Vec<_> = used.iter().map(|(name, q)| format!("{name}={}", q.0)).collect();
    assert_eq!(text, ["count/secrets=0", "pods=1", "requests.cpu=250m", "requests.memory=64Mi"]);
}

#[tokio::test]
async fn what_was_counted_before_does_not_undo_what_admission_noted() {
    let cluster = Cluster::new().await;
    let read: ResourceQuota =
        cluster.create(json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/configmaps": "6"}}})).await;
    let status = |used: &str| json!({"hard": {"count/configmaps": "6"}, "used": {"count/configmaps": used}});
    let noted = Patch::Merge(json!({"status": status("6")}));
    cluster.api::<ResourceQuota>().patch_status("q", &PatchParams::default(), &noted).await.unwrap();
    let counted: ResourceQuotaStatus = serde_json::from_value(status("5")).unwrap();
    let write = cluster.ctx.set_status_unless_changed("write status", &read, read.status.as_ref(), &counted);
    assert_eq!(write.await.unwrap_err().code(), 409);
    let stored = cluster.api::<ResourceQuota>().get("q").await.unwrap();
    assert_eq!(stored.status.unwrap().used.unwrap()["count/configmaps"].0, "6");
    let current = cluster.api::<ResourceQuota>().get("q").await.unwrap();
    let write = cluster.ctx.set_status_unless_changed("write status", &current, current.status.as_ref(), &counted);
    write.await.unwrap();
    let stored = cluster.api::<ResourceQuota>().get("q").await.unwrap();
    assert_eq!(stored.status.unwrap().used.unwrap()["count/configmaps"].0, "5");
}

#[tokio::test]
async fn token_secrets_are_filled() {
    let cluster = Cluster::new().await;
    cluster.start(token::run);
    cluster
        .create::<Secret>(
            json!({"metadata": {"name": "t", "annotations": {"kubernetes.io/service-account.name": "default"}},
        "type": "kubernetes.io/service-account-token"}),
        )
        .await;
    let secret = cluster.until(cluster.api::<Secret>(), "t", |s| s.is_some_and(|s| s.data.is_some())).await.unwrap();
    let token = String::from_utf8(secret.data.as_ref().unwrap()["token"].0.clone()).unwrap();
    assert_eq!(token.split('.').count(), 3);
    assert!(secret.annotations().contains_key("kubernetes.io/service-account.uid"));
}
