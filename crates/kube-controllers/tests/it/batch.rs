//! Jobs and StatefulSets.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube_controllers::{cronjob, gc, job, protection, scheduler, statefulset};
use serde_json::{Value, json};

use crate::cluster::Cluster;

async fn cluster() -> Cluster {
    let cluster = Cluster::new().await;
    cluster.start(job::run);
    cluster.start(cronjob::run);
    cluster.start(statefulset::run);
    cluster.start(scheduler::run);
    cluster.start(gc::run);
    cluster.node("n1", json!({})).await;
    cluster.run_pods();
    cluster
}

fn job(name: &str, exit: &str, spec: Value) -> Value {
    let mut spec = spec;
    spec["template"] = json!({"metadata": {"annotations": {"test/exit": exit}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    json!({"metadata": {"name": name}, "spec": spec})
}

fn ended(type_: &'static str) -> impl Fn(Option<&Job>) -> bool {
    move |job| {
        let conditions = job.and_then(|job| job.status.as_ref()?.conditions.clone()).unwrap_or_default();
        conditions.iter().any(|c| c.type_ == type_ && c.status == "True")
    }
}

#[tokio::test]
async fn a_job_completes_and_goes() {
    let cluster = cluster().await;
    cluster.create::<Job>(job("j", "Succeeded", json!({"completions": 3, "parallelism": 2}))).await;
    let done = cluster.until(cluster.api::<Job>(), "j", ended("Complete")).await.unwrap();
    let status = done.status.unwrap();
    assert_eq!((status.succeeded, status.failed, status.active), (Some(3), None, None));
    assert!(status.completion_time.is_some());
    let pods = cluster.until_all::<Pod>(|pods| pods.iter().all(|p| p.finalizers().is_empty())).await;
    assert_eq!(pods.len(), 3);
    cluster.api::<Job>().delete("j", &DeleteParams::background()).await.unwrap();
    cluster.until_all::<Pod>(|pods| pods.is_empty()).await;
    cluster.create::<Job>(job("short", "Succeeded", json!({"ttlSecondsAfterFinished": 0}))).await;
    cluster.until(cluster.api::<Job>(), "short", |job| job.is_none()).await;
}

#[tokio::test]
async fn a_job_gives_up() {
    let cluster = cluster().await;
    cluster.create::<Job>(job("j", "Failed", json!({"backoffLimit": 0}))).await;
    let failed = cluster.until(cluster.api::<Job>(), "j", ended("Failed")).await.unwrap();
    let status = failed.status.unwrap();
    assert_eq!(status.failed, Some(1));
    let condition = status.conditions.unwrap().into_iter().find(|c| c.type_ == "Failed").unwrap();
    assert_eq!(condition.reason.as_deref(), Some("BackoffLimitExceeded"));
}

#[tokio::test]
async fn indexed_jobs_number_their_pods() {
    let cluster = cluster().await;
    let spec = json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed"});
    cluster.create::<Job>(job("j", "Succeeded", spec)).await;
    let done = cluster.until(cluster.api::<Job>(), "j", ended("Complete")).await.unwrap();
    assert_eq!(done.status.unwrap().completed_indexes.as_deref(), Some("0-2"));
    let pods = cluster.until_all::<Pod>(|pods| pods.len() == 3).await;
    let mut numbers: Vec<_> =
        pods.iter().map(|p| p.annotations()["batch.kubernetes.io/job-completion-index"].clone()).collect();
    numbers.sort();
    assert_eq!(numbers, ["0", "1", "2"]);
}

#[tokio::test]
async fn a_missed_time_is_made_up_once() {
    let cluster = cluster().await;
    let template = job("x", "Succeeded", json!({}));
    let cron = json!({"metadata": {"name": "c"}, "spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": template["spec"]}}});
    cluster.create::<CronJob>(cron).await;
    let long_ago = json!({"status": {"lastScheduleTime": "2024-06-01T00:00:00Z"}});
    cluster.api::<CronJob>().patch_status("c", &PatchParams::default(), &Patch::Merge(long_ago)).await.unwrap();
    let jobs = cluster.until_all::<Job>(|jobs| jobs.len() == 1).await;
    assert!(jobs[0].name_any().starts_with("c-"));
    cluster
        .until(cluster.api::<CronJob>(), "c", |cron| {
            cron.is_some_and(|cron| {
                cron.status.as_ref().is_some_and(|s| s.last_successful_time.is_some() && s.active.is_none())
            })
        })
        .await;
    assert_eq!(cluster.until_all::<Job>(|_| true).await.len(), 1);
}

#[tokio::test]
async fn a_statefulset_counts_up_updates_down_and_keeps_its_claims() {
    let cluster = cluster().await;
    cluster.start(protection::run);
    let template = |image: &str| json!({"metadata": {"labels": {"app": "s"}}, "spec": {"containers": [{"name": "c", "image": image}]}});
    cluster
        .create::<StatefulSet>(json!({"metadata": {"name": "s"}, "spec": {"replicas": 2, "serviceName": "s",
        "selector": {"matchLabels": {"app": "s"}}, "template": template("one")}}))
        .await;
    let at = |count: i32| {
        move |set: Option<&StatefulSet>| {
            set.is_some_and(|set| {
                let status = set.status.clone().unwrap_or_default();
                status.observed_generation == set.metadata.generation
                    && status.replicas == count
                    && status.available_replicas == Some(count)
                    && status.updated_replicas == Some(count).filter(|n| *n > 0)
                    && status.current_revision == status.update_revision
            })
        }
    };
    cluster.until(cluster.api::<StatefulSet>(), "s", at(2)).await;
    let names = |pods: &[Pod]| pods.iter().map(ResourceExt::name_any).collect::<Vec<_>>();
    assert_eq!(names(&cluster.until_all::<Pod>(|pods| pods.len() == 2).await), ["s-0", "s-1"]);
    let change = json!({"spec": {"template": template("two")}});
    cluster.api::<StatefulSet>().patch("s", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    cluster.until(cluster.api::<StatefulSet>(), "s", at(2)).await;
    let pods = cluster.until_all::<Pod>(|pods| pods.len() == 2).await;
    assert!(pods.iter().all(|p| p.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("two")));
    let change = json!({"spec": {"replicas": 1}});
    cluster.api::<StatefulSet>().patch("s", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    cluster.until(cluster.api::<StatefulSet>(), "s", at(1)).await;
    assert_eq!(names(&cluster.until_all::<Pod>(|pods| pods.len() == 1).await), ["s-0"]);

    cluster
        .create::<StatefulSet>(json!({"metadata": {"name": "c"}, "spec": {"replicas": 1, "serviceName": "c",
        "selector": {"matchLabels": {"app": "c"}},
        "template": {"metadata": {"labels": {"app": "c"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}}]}}))
        .await;
    let claims =
        cluster.until_all::<PersistentVolumeClaim>(|claims| claims.iter().any(|c| !c.finalizers().is_empty())).await;
    assert_eq!(claims[0].name_any(), "data-c-0");
    let pod = cluster.until(cluster.api::<Pod>(), "c-0", |pod| pod.is_some()).await.unwrap();
    assert!(pod.spec.unwrap().volumes.unwrap().iter().any(|v| v.persistent_volume_claim.is_some()));
}

#[tokio::test]
async fn a_statefulset_gives_up_its_claims_where_it_is_asked_to() {
    let cluster = cluster().await;
    cluster.start(protection::run);
    let template = json!({"metadata": {"labels": {"app": "r"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "none",
        "resources": {"requests": {"storage": "1Gi"}}}});
    let spec = json!({"replicas": 2, "serviceName": "r", "podManagementPolicy": "Parallel", "template": template,
        "selector": {"matchLabels": {"app": "r"}}, "volumeClaimTemplates": [claim],
        "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete", "whenDeleted": "Delete"}});
    cluster.create::<StatefulSet>(json!({"metadata": {"name": "r"}, "spec": spec})).await;
    let scale = async |count: i32| {
        let change = json!({"spec": {"replicas": count}});
        cluster.api::<StatefulSet>().patch("r", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    };
    let owned = |claims: &[PersistentVolumeClaim], count: usize| {
        claims.len() == count && claims.iter().all(|c| c.owner_references()[0].kind == "StatefulSet")
    };
    let first = cluster.until_all::<PersistentVolumeClaim>(|claims| owned(claims, 2)).await;
    scale(1).await;
    let left = cluster.until_all::<PersistentVolumeClaim>(|claims| claims.len() == 1).await;
    assert_eq!(left[0].name_any(), "data-r-0");
    // A pod that comes again has a claim of its own, also when the one before is just going away.
    for _ in 0..3 {
        scale(2).await;
        cluster.until(cluster.api::<Pod>(), "r-1", |pod| pod.is_some()).await;
        let again = cluster.until_all::<PersistentVolumeClaim>(|claims| owned(claims, 2)).await;
        assert_eq!(again[0].uid(), first[0].uid());
        assert_ne!(again[1].uid(), first[1].uid());
        scale(1).await;
        cluster.until(cluster.api::<Pod>(), "r-1", |pod| pod.is_none()).await;
    }
    cluster.api::<StatefulSet>().delete("r", &DeleteParams::default()).await.unwrap();
    cluster.until_all::<PersistentVolumeClaim>(|claims| claims.is_empty()).await;
}
