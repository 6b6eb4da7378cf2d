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
async fn a_deleted_pod_is_counted_before_it_goes() {
    let cluster = cluster().await;
    let mut spec = job("j", "", json!({"backoffLimit": 3}));
    spec["spec"]["template"]["metadata"] = json!({});
    cluster.create::<Job>(spec).await;
    let running = |pods: &[Pod]| pods.len() == 1 && pods[0].status.as_ref().is_some_and(|s| s.pod_ip.is_some());
    let first = cluster.until_all::<Pod>(running).await.remove(0);
    assert_eq!(first.finalizers(), ["batch.kubernetes.io/job-tracking"]);
    cluster.api::<Pod>().delete(&first.name_any(), &DeleteParams::default()).await.unwrap();
    let counted = |job: Option<&Job>| {
        job.and_then(|job| job.status.as_ref()).is_some_and(|status| {
            let uncounted = status.uncounted_terminated_pods.clone().unwrap_or_default();
            status.failed == Some(1) && uncounted.failed.is_none_or(|uids| uids.is_empty())
        })
    };
    cluster.until(cluster.api::<Job>(), "j", counted).await;
    cluster.until(cluster.api::<Pod>(), &first.name_any(), |pod| pod.is_none()).await;
}

#[tokio::test]
async fn a_job_that_lets_its_pods_go_does_not_hold_them() {
    let cluster = cluster().await;
    let mut spec = job("j", "", json!({"parallelism": 2, "completions": 2}));
    spec["spec"]["template"]["metadata"] = json!({});
    cluster.create::<Job>(spec).await;
    cluster.until_all::<Pod>(|pods| pods.len() == 2).await;
    cluster.api::<Job>().delete("j", &DeleteParams::orphan()).await.unwrap();
    cluster.until(cluster.api::<Job>(), "j", |job| job.is_none()).await;
    let free = |pod: &Pod| pod.finalizers().is_empty() && pod.owner_references().is_empty();
    cluster.until_all::<Pod>(|pods| pods.len() == 2 && pods.iter().all(free)).await;
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
async fn claims_go_as_the_retention_policy_says() {
    let cluster = cluster().await;
    cluster.start(protection::run);
    let set = |name: &str, policy: Value| {
        json!({"metadata": {"name": name}, "spec": {"replicas": 2, "serviceName": name,
        "podManagementPolicy": "Parallel", "persistentVolumeClaimRetentionPolicy": policy,
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}}]}})
    };
    let names = |claims: &[PersistentVolumeClaim]| {
        let mut names: Vec<String> = claims.iter().map(ResourceExt::name_any).collect();
        names.sort();
        names
    };
    cluster.create::<StatefulSet>(set("gone", json!({"whenDeleted": "Delete", "whenScaled": "Delete"}))).await;
    cluster.create::<StatefulSet>(set("kept", json!({"whenDeleted": "Retain", "whenScaled": "Delete"}))).await;
    cluster.until_all::<PersistentVolumeClaim>(|claims| claims.len() == 4).await;
    let scale = async |name: &str, replicas: i32| {
        let change = json!({"spec": {"replicas": replicas}});
        cluster.api::<StatefulSet>().patch(name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    };
    scale("gone", 1).await;
    scale("kept", 1).await;
    cluster.until_all::<PersistentVolumeClaim>(|claims| names(claims) == ["data-gone-0", "data-kept-0"]).await;
    scale("gone", 2).await;
    let all = ["data-gone-0", "data-gone-1", "data-kept-0"];
    cluster.until_all::<PersistentVolumeClaim>(|claims| names(claims) == all).await;
    for name in ["gone", "kept"] {
        cluster.api::<StatefulSet>().delete(name, &DeleteParams::background()).await.unwrap();
    }
    cluster.until_all::<PersistentVolumeClaim>(|claims| names(claims) == ["data-kept-0"]).await;
    let left = cluster.until_all::<PersistentVolumeClaim>(|_| true).await;
    assert!(left[0].owner_references().is_empty(), "{:?}", left[0].owner_references());
}
