//! Deployments, ReplicaSets, DaemonSets.

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use kube_controllers::{daemonset, deployment, replicaset, scheduler};
use serde_json::{Value, json};

use crate::cluster::Cluster;

fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": image}]}})
}

#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn deployment(replicas: i32, strategy: Value) -> Value {
    json!({"metadata": {"name": "d"}, "spec": {"replicas": replicas, "strategy": strategy,
        "selector": {"matchLabels": {"app": "a"}}, "template": template("one")}})
}

async fn cluster() -> Cluster {
    let cluster = Cluster::new().await;
    cluster.start(deployment::run);
    cluster.start(replicaset::run);
    cluster.start(daemonset::run);
    cluster.start(scheduler::run);
    cluster.node("n1", json!({})).await;
    cluster.run_pods();
    cluster
}

/// What `kubectl rollout status` waits for.
fn rolled_out(deployment: Option<&Deployment>) -> bool {
    let Some(deployment) = deployment else { return false };
    let (Some(spec), Some(status)) = (&deployment.spec, &deployment.status) else { return false };
    status.observed_generation >= deployment.metadata.generation
        && status.updated_replicas == spec.replicas.filter(|r| *r > 0)
        && status.replicas == status.updated_replicas
        && status.available_replicas == status.updated_replicas
}

fn condition(deployment: &Deployment, type_: &str) -> String {
    let conditions = deployment.status.as_ref().unwrap().conditions.as_ref().unwrap();
    let condition = conditions.iter().find(|c| c.type_ == type_).unwrap();
    format!("{}:{}", condition.status, condition.reason.clone().unwrap())
}

#[tokio::test]
async fn a_deployment_rolls_out_and_over() {
    let cluster = cluster().await;
    cluster.create::<Deployment>(deployment(3, json!({}))).await;
    let done = cluster.until(cluster.api::<Deployment>(), "d", rolled_out).await.unwrap();
    assert_eq!(condition(&done, "Available"), "True:MinimumReplicasAvailable");
    assert_eq!(done.annotations()["deployment.kubernetes.io/revision"], "1");

    let change = json!({"spec": {"template": template("two")}});
    cluster.api::<Deployment>().patch("d", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    cluster
        .until(cluster.api::<Deployment>(), "d", |d| {
            rolled_out(d)
                && d.unwrap().annotations()["deployment.kubernetes.io/revision"] == "2"
                && condition(d.unwrap(), "Progressing") == "True:NewReplicaSetAvailable"
        })
        .await;
    let pods = cluster.until_all::<Pod>(|pods| pods.len() == 3).await;
    assert!(pods.iter().all(|p| p.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("two")));
    let sets = cluster.until_all::<ReplicaSet>(|sets| sets.len() == 2).await;
    let sizes: Vec<_> = sets.iter().map(|s| s.spec.as_ref().unwrap().replicas).collect();
    assert!(sizes.contains(&Some(0)) && sizes.contains(&Some(3)), "{sizes:?}");
    cluster
        .until_all::<Event>(|events| {
            events.iter().any(|e| {
                e.reason.as_deref() == Some("ScalingReplicaSet") && e.involved_object.name.as_deref() == Some("d")
            })
        })
        .await;

    // Back to the first template: the first set gets a new revision, no third one appears.
    let change = json!({"spec": {"template": template("one")}});
    cluster.api::<Deployment>().patch("d", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    cluster
        .until(cluster.api::<Deployment>(), "d", |d| {
            rolled_out(d) && d.unwrap().annotations()["deployment.kubernetes.io/revision"] == "3"
        })
        .await;
    assert_eq!(cluster.until_all::<ReplicaSet>(|_| true).await.len(), 2);
}

#[tokio::test]
async fn recreate_never_runs_both() {
    let cluster = cluster().await;
    cluster.create::<Deployment>(deployment(2, json!({"type": "Recreate"}))).await;
    cluster.until(cluster.api::<Deployment>(), "d", rolled_out).await;
    let change = json!({"spec": {"template": template("two")}});
    cluster.api::<Deployment>().patch("d", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    let image = |p: &Pod| p.spec.as_ref().unwrap().containers[0].image.clone().unwrap();
    cluster
        .until_all::<Pod>(|pods| {
            let new = pods.iter().filter(|p| image(p) == "two").count();
            assert!(new == 0 || new == pods.len(), "old and new pods at once");
            new == 2
        })
        .await;
}

#[tokio::test]
async fn scaling_and_lost_pods() {
    let cluster = cluster().await;
    cluster.create::<Deployment>(deployment(2, json!({}))).await;
    cluster.until(cluster.api::<Deployment>(), "d", rolled_out).await;
    let pods = cluster.until_all::<Pod>(|pods| pods.len() == 2).await;
    let lost = pods[0].name_any();
    cluster.api::<Pod>().delete(&lost, &Default::default()).await.unwrap();
    cluster.until_all::<Pod>(|pods| pods.len() == 2 && pods.iter().all(|p| p.name_any() != lost)).await;
    for size in [5, 1, 0] {
        let change = json!({"spec": {"replicas": size}});
        cluster.api::<Deployment>().patch("d", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
        cluster.until(cluster.api::<Deployment>(), "d", rolled_out).await;
        cluster.until_all::<Pod>(|pods| pods.len() == size).await;
    }
}

#[tokio::test]
async fn a_replicaset_adopts_and_releases() {
    let cluster = cluster().await;
    cluster
        .create::<Pod>(json!({"metadata": {"name": "orphan", "labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": "one"}]}}))
        .await;
    cluster
        .create::<ReplicaSet>(json!({"metadata": {"name": "s"}, "spec": {"replicas": 2,
        "selector": {"matchLabels": {"app": "a"}}, "template": template("one")}}))
        .await;
    let pods =
        cluster.until_all::<Pod>(|pods| pods.len() == 2 && pods.iter().all(|p| p.owner_references().len() == 1)).await;
    assert!(pods.iter().any(|p| p.name_any() == "orphan"));
    let change = json!({"metadata": {"labels": {"app": "other"}}});
    cluster.api::<Pod>().patch("orphan", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    cluster
        .until_all::<Pod>(|pods| {
            pods.len() == 3 && pods.iter().any(|p| p.name_any() == "orphan" && p.owner_references().is_empty())
        })
        .await;
}

#[tokio::test]
async fn a_pod_nobody_admits_is_a_condition() {
    let cluster = cluster().await;
    let mut wrong = deployment(1, json!({}));
    wrong["spec"]["template"]["spec"]["serviceAccountName"] = json!("absent");
    cluster.create::<Deployment>(wrong).await;
    let failed = |set: &ReplicaSet| set.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let sets = cluster.until_all::<ReplicaSet>(|sets| sets.iter().any(|s| !failed(s).is_empty())).await;
    assert_eq!(failed(&sets[0])[0].reason.as_deref(), Some("FailedCreate"));
}

#[tokio::test]
async fn a_daemonset_covers_and_updates_the_nodes() {
    let cluster = cluster().await;
    cluster
        .create::<DaemonSet>(json!({"metadata": {"name": "ds"}, "spec": {
        "selector": {"matchLabels": {"app": "a"}}, "template": template("one")}}))
        .await;
    let covers = |count: i32| {
        move |set: Option<&DaemonSet>| {
            set.is_some_and(|set| {
                let status = set.status.clone().unwrap_or_default();
                status.observed_generation == set.metadata.generation
                    && status.number_available == Some(count)
                    && status.updated_number_scheduled == Some(count)
            })
        }
    };
    cluster.until(cluster.api::<DaemonSet>(), "ds", covers(1)).await;
    cluster.node("n2", json!({})).await;
    cluster.until(cluster.api::<DaemonSet>(), "ds", covers(2)).await;
    let change = json!({"spec": {"template": template("two")}});
    cluster.api::<DaemonSet>().patch("ds", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    cluster.until(cluster.api::<DaemonSet>(), "ds", covers(2)).await;
    let pods = cluster.until_all::<Pod>(|pods| pods.len() == 2).await;
    let on: std::collections::BTreeSet<_> =
        pods.iter().map(|p| p.spec.as_ref().unwrap().node_name.clone().unwrap()).collect();
    assert_eq!(on.len(), 2);
    assert!(pods.iter().all(|p| p.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("two")));
    cluster.until_all::<ControllerRevision>(|revisions| revisions.len() == 2).await;
}
