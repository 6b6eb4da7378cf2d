//! Pods that are resized: what a write of the subresource does, and what it may not.

use k8s_openapi::api::core::v1::{LimitRange, Pod, ResourceQuota};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Error};
use kube_apiserver::ApiServer;
use serde_json::{Value, json};

async fn pods() -> (ApiServer, Api<Pod>) {
    let server = super::server().await;
    let accounts = Api::<k8s_openapi::api::core::v1::ServiceAccount>::default_namespaced(server.client());
    let account = serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
    let _ = accounts.create(&PostParams::default(), &account).await;
    let pods = Api::default_namespaced(server.client());
    (server, pods)
}

fn size(cpu: &str) -> Value {
    json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": cpu, "memory": "2Gi"}})
}

async fn create(pods: &Api<Pod>, resources: &Value) -> Pod {
    let container = json!({"name": "c", "image": "i", "resources": resources});
    let spec = json!({"automountServiceAccountToken": false, "containers": [container]});
    let pod = json!({"metadata": {"name": "p", "labels": {"a": "b"}}, "spec": spec});
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap()
}

async fn resize(pods: &Api<Pod>, resources: Value) -> Result<Pod, Error> {
    let patch = json!({"spec": {"containers": [{"name": "c", "resources": resources}]}});
    pods.patch_subresource("resize", "p", &PatchParams::default(), &Patch::Strategic(patch)).await
}

fn cpu(pod: &Pod) -> String {
    let resources = pod.spec.as_ref().unwrap().containers[0].resources.as_ref().unwrap();
    resources.limits.as_ref().unwrap()["cpu"].0.clone()
}

#[track_caller]
fn refused(outcome: Result<Pod, Error>, code: u16, why: &str) {
    match outcome {
        Err(Error::Api(status)) => {
            assert_eq!(status.code, code, "{}", status.message);
            assert!(status.message.contains(why), "{}", status.message);
        }
        other => panic!("expected {code}, got {other:?}"),
    }
}

#[tokio::test]
async fn a_pod_is_resized_by_every_kind_of_write() {
    let (_server, pods) = pods().await;
    let made = create(&pods, &size("2")).await;
    assert_eq!((made.metadata.generation, made.spec.unwrap().containers[0].resize_policy.clone()), (Some(1), None));
    let grown = resize(&pods, json!({"limits": {"cpu": "3"}})).await.unwrap();
    assert_eq!((cpu(&grown), grown.metadata.generation), ("3".into(), Some(2)));
    let json_patch = json!([{"op": "replace", "path": "/spec/containers/0/resources/limits/cpu", "value": "4"}]);
    let patch: Patch<Value> = Patch::Json(serde_json::from_value(json_patch).unwrap());
    let grown = pods.patch_subresource("resize", "p", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(cpu(&grown), "4");
    // Whatever else the object says is not looked at.
    let mut whole = pods.get_subresource("resize", "p").await.unwrap();
    whole.metadata.labels = None;
    let spec = whole.spec.as_mut().unwrap();
    spec.node_name = Some("elsewhere".into());
    spec.containers[0].image = Some("other".into());
    spec.containers[0].resources = serde_json::from_value(size("5")).unwrap();
    whole.status.as_mut().unwrap().phase = Some("Succeeded".into());
    let put = pods.replace_subresource("resize", "p", &PostParams::default(), &whole).await.unwrap();
    let kept = pods.get("p").await.unwrap();
    assert_eq!(put, kept);
    let spec = kept.spec.as_ref().unwrap();
    assert_eq!((cpu(&kept), spec.containers[0].image.as_deref(), &spec.node_name), ("5".into(), Some("i"), &None));
    assert_eq!((kept.metadata.labels.unwrap()["a"].as_str(), kept.metadata.generation), ("b", Some(4)));
    assert_eq!(kept.status.unwrap().phase.as_deref(), Some("Pending"));
    let applied = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "6"}}}]}});
    let params = PatchParams::apply("scaler").force();
    let applied = pods.patch_subresource("resize", "p", &params, &Patch::Apply(applied)).await.unwrap();
    assert_eq!(cpu(&applied), "6");
    let owner = applied.metadata.managed_fields.unwrap().into_iter().find(|f| f.manager.as_deref() == Some("scaler"));
    assert_eq!(owner.unwrap().subresource.as_deref(), Some("resize"));
}

#[tokio::test]
async fn what_may_not_change_is_refused_in_the_usual_words() {
    let (_server, pods) = pods().await;
    create(&pods, &size("2")).await;
    let class = "spec: Invalid value: \"Burstable\": Pod QOS Class may not change as a result of resizing";
    let same = json!({"cpu": "2", "memory": "2Gi"});
    refused(resize(&pods, json!({"requests": same, "limits": same})).await, 422, class);
    let removed = "spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed";
    refused(resize(&pods, json!({"limits": {"cpu": null}})).await, 422, removed);
    let only = "spec: Forbidden: only cpu and memory resources are mutable";
    refused(resize(&pods, json!({"limits": {"ephemeral-storage": "1Gi"}})).await, 422, only);
    let less =
        "spec.containers[0].resources.requests: Invalid value: \"3\": must be less than or equal to cpu limit of 2";
    refused(resize(&pods, json!({"requests": {"cpu": "3"}})).await, 422, less);
    let patch = json!({"spec": {"containers": [{"name": "new", "image": "i"}]}});
    let added = pods.patch_subresource("resize", "p", &PatchParams::default(), &Patch::Strategic(patch)).await;
    refused(added, 422, "spec.containers: Forbidden: containers may not be added or removed on resize");
    // A pod itself still refuses what only its resize may do.
    let patch = json!({"spec": {"containers": [{"name": "c", "resources": size("3")}]}});
    let direct = pods.patch("p", &PatchParams::default(), &Patch::Strategic(patch)).await;
    refused(direct, 422, "pod updates may not change fields other than");
    assert_eq!(pods.get("p").await.unwrap().metadata.generation, Some(1));
}

#[tokio::test]
async fn a_resize_stays_within_quotas_and_ranges() {
    let (server, pods) = pods().await;
    create(&pods, &size("2")).await;
    let quotas: Api<ResourceQuota> = Api::default_namespaced(server.client());
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"limits.cpu": "3"}}});
    quotas.create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
    let over = "exceeded quota: q, requested: limits.cpu=2, used: limits.cpu=2, limited: limits.cpu=3";
    refused(resize(&pods, json!({"limits": {"cpu": "4"}})).await, 403, over);
    resize(&pods, json!({"limits": {"cpu": "3"}})).await.unwrap();
    let ranges: Api<LimitRange> = Api::default_namespaced(server.client());
    let range =
        json!({"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Container", "max": {"memory": "2Gi"}}]}});
    ranges.create(&PostParams::default(), &serde_json::from_value(range).unwrap()).await.unwrap();
    let over = "maximum memory usage per Container is 2Gi, but limit is 3Gi";
    refused(resize(&pods, json!({"limits": {"memory": "3Gi"}})).await, 403, over);
    resize(&pods, json!({"limits": {"cpu": "2"}})).await.unwrap();
}
