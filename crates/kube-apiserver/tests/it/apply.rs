//! Server-side apply and ownership over REST.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, Error, ResourceExt};
use serde_json::json;

use super::server;

#[tokio::test]
async fn apply_creates_then_conflicts_then_forces() {
    let maps: Api<ConfigMap> = Api::default_namespaced(server().await.client());
    let map =
        |value: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"k": value}});
    let apply =
        async |who: &str, value: &str| maps.patch("m", &PatchParams::apply(who), &Patch::Apply(map(value))).await;
    let created = apply("a", "1").await.unwrap();
    assert_eq!(created.managed_fields()[0].manager.as_deref(), Some("a"));
    let again = apply("a", "1").await.unwrap();
    assert_eq!(again.resource_version(), created.resource_version());
    let Err(Error::Api(status)) = apply("b", "2").await else { panic!("a conflict is expected") };
    assert_eq!(status.message, "Apply failed with 1 conflict: conflict with \"a\": .data.k");
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    let forced = maps.patch("m", &PatchParams::apply("b").force(), &Patch::Apply(map("2"))).await.unwrap();
    let owners: Vec<_> = forced.managed_fields().iter().filter_map(|e| e.manager.clone()).collect();
    assert_eq!(owners, ["b"]);
}

#[tokio::test]
async fn status_is_applied_by_its_own_endpoint() {
    let deployments: Api<Deployment> = Api::default_namespaced(server().await.client());
    let spec = json!({"replicas": 1, "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}});
    let object = |part: &str, value: serde_json::Value| json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, part: value});
    deployments.patch("d", &PatchParams::apply("user"), &Patch::Apply(object("spec", spec))).await.unwrap();
    let status = object("status", json!({"readyReplicas": 1, "replicas": 1}));
    let seen = deployments.patch_status("d", &PatchParams::apply("controller"), &Patch::Apply(status)).await.unwrap();
    assert_eq!(seen.status.as_ref().unwrap().ready_replicas, Some(1));
    assert_eq!(seen.spec.as_ref().unwrap().replicas, Some(1));
    let entries: Vec<_> = seen
        .managed_fields()
        .iter()
        .map(|e| (e.manager.as_deref().unwrap(), e.subresource.as_deref().unwrap_or("")))
        .collect();
    assert!(entries.contains(&("user", "")) && entries.contains(&("controller", "status")), "{entries:?}");
}

#[tokio::test]
async fn an_apply_needs_a_name() {
    let maps: Api<ConfigMap> = Api::default_namespaced(server().await.client());
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    let request = http::Request::patch("/api/v1/namespaces/default/configmaps/m")
        .header("Content-Type", "application/apply-patch+yaml")
        .body(map.to_string().into_bytes())
        .unwrap();
    let Err(Error::Api(status)) = maps.into_client().request::<ConfigMap>(request).await else {
        panic!("a refusal is expected")
    };
    assert_eq!(status.code, 422);
    assert!(status.message.contains("fieldManager: Required value"), "{}", status.message);
}

#[tokio::test]
async fn a_scale_is_applied_and_owned_as_the_field_it_is() {
    let deployments: Api<Deployment> = Api::default_namespaced(server().await.client());
    let spec = json!({"replicas": 1, "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}});
    let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec});
    deployments.patch("d", &PatchParams::apply("user"), &Patch::Apply(object)).await.unwrap();
    let scale =
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"}, "spec": {"replicas": 3}});
    let apply = PatchParams::apply("scaler");
    let Err(Error::Api(status)) = deployments.patch_scale("d", &apply, &Patch::Apply(&scale)).await else {
        panic!("a conflict is expected")
    };
    assert_eq!(status.message, "Apply failed with 1 conflict: conflict with \"user\": .spec.replicas");
    let scaled = deployments.patch_scale("d", &apply.force(), &Patch::Apply(&scale)).await.unwrap();
    assert_eq!(scaled.spec.unwrap().replicas, Some(3));
    let seen = deployments.get("d").await.unwrap();
    let entry = seen.managed_fields().iter().find(|e| e.manager.as_deref() == Some("scaler")).unwrap();
    assert_eq!((entry.subresource.as_deref(), entry.api_version.as_deref()), (Some("scale"), Some("apps/v1")));
    assert_eq!(entry.fields_v1.as_ref().unwrap().0, json!({"f:spec": {"f:replicas": {}}}));
}

#[tokio::test]
async fn a_value_of_the_wrong_type_is_refused_at_decoding() {
    use kube::api::PostParams;
    let client = server().await.client();
    let deployment =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": "1"}});
    let request = http::Request::post("/apis/apps/v1/namespaces/default/deployments")
        .header("Content-Type", "application/json")
        .body(deployment.to_string().into_bytes())
        .unwrap();
    let Err(Error::Api(status)) = client.request::<Deployment>(request).await else { panic!("a refusal is expected") };
    assert_eq!((status.code, status.reason.as_str()), (400, "BadRequest"));
    assert_eq!(
        status.message,
        "Deployment in version \"v1\" cannot be handled as a Deployment: json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32"
    );
    // A merge patch that says a field twice is refused when the client wants it strict.
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let map = serde_json::from_value(json!({"metadata": {"name": "m"}})).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    let request = http::Request::patch("/api/v1/namespaces/default/configmaps/m?fieldValidation=Strict")
        .header("Content-Type", "application/merge-patch+json")
        .body(br#"{"data": {"k": "1", "k": "2"}}"#.to_vec())
        .unwrap();
    let Err(Error::Api(status)) = client.request::<ConfigMap>(request).await else { panic!("a refusal is expected") };
    assert_eq!(status.code, 422);
    assert!(status.message.ends_with(r#"strict decoding error: duplicate field "data.k""#), "{}", status.message);
}

#[tokio::test]
async fn a_creator_owns_what_he_sent_and_not_what_the_server_adds() {
    use k8s_openapi::api::core::v1::Pod;
    let pods: Api<Pod> = Api::default_namespaced(server().await.client());
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let created = pods.create(&Default::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    assert_eq!(created.spec.as_ref().unwrap().tolerations.as_ref().map(Vec::len), Some(2), "admission adds them");
    let [entry] = created.managed_fields() else { panic!("{:?}", created.managed_fields()) };
    let fields = &entry.fields_v1.as_ref().unwrap().0;
    assert!(fields["f:spec"]["f:restartPolicy"].is_object(), "a default is his: {fields}");
    assert!(fields["f:spec"].get("f:tolerations").is_none() && fields.get("f:status").is_none(), "{fields}");

    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"name": "n"}});
    let bound: serde_json::Value =
        pods.create_subresource("binding", "p", &Default::default(), &binding).await.unwrap();
    assert_eq!(bound["status"], "Success");
    let bound = pods.get("p").await.unwrap();
    assert_eq!(bound.spec.as_ref().unwrap().node_name.as_deref(), Some("n"));
    assert_eq!(bound.managed_fields(), created.managed_fields());
}
