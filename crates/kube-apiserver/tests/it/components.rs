//! ComponentStatus: what runs beside the API server says so.

use http::Request;
use k8s_openapi::api::core::v1::ComponentStatus;
use kube::api::{Api, ListParams};
use kube::{Error, ResourceExt};
use serde_json::Value;

use super::server;

/// Name, whether it is healthy, and what is told of it.
fn told(status: &ComponentStatus) -> (String, bool, String) {
    let condition = &status.conditions.as_ref().unwrap()[0];
    let told = condition.message.clone().or(condition.error.clone()).unwrap();
    (status.name_any(), condition.type_ == "Healthy" && condition.status == "True", told)
}

#[tokio::test]
async fn components_are_healthy_as_long_as_they_run() {
    let server = server().await;
    let api: Api<ComponentStatus> = Api::all(server.client());
    let healthy = async || {
        let list = api.list(&ListParams::default()).await.unwrap();
        list.iter().map(told).map(|(name, healthy, _)| (name, healthy)).collect::<Vec<_>>()
    };
    let expect = |controllers, scheduler| {
        [("controller-manager", controllers), ("etcd-0", true), ("scheduler", scheduler)]
            .map(|(n, h)| (n.to_owned(), h))
    };
    assert_eq!(healthy().await, expect(false, false));
    let why = told(&api.get("scheduler").await.unwrap()).2;
    assert_eq!(why, "it does not run in the process of this API server");
    let running = [server.vitals().begin("scheduler"), server.vitals().begin("controller-manager")];
    assert_eq!(healthy().await, expect(true, true));
    assert_eq!(told(&api.get("etcd-0").await.unwrap()), ("etcd-0".to_owned(), true, "ok".to_owned()));
    let [scheduler, _controllers] = running;
    drop(scheduler);
    assert_eq!(healthy().await, expect(true, false));

    let one = api.list(&ListParams::default().fields("metadata.name=etcd-0")).await.unwrap();
    assert_eq!(one.items.len(), 1);
    assert!(matches!(api.get("kubelet").await, Err(Error::Api(status)) if status.code == 404));
    let path = "/api/v1/componentstatuses";
    let watch =
        server.client().request::<Value>(Request::get(format!("{path}?watch=1")).body(Vec::new()).unwrap()).await;
    assert!(matches!(watch, Err(Error::Api(status)) if status.code == 405));
    let table = Request::get(path).header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    let table: Value = server.client().request(table.body(Vec::new()).unwrap()).await.unwrap();
    let rows: Vec<&Value> = table["rows"].as_array().unwrap().iter().map(|row| &row["cells"]).collect();
    assert_eq!(rows[1], &serde_json::json!(["etcd-0", "Healthy", "ok", ""]));
    assert_eq!(rows[2][1], "Unhealthy");
}
