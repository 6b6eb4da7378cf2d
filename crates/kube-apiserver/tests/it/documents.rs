//! Discovery, OpenAPI and tables, as clients fetch them.

use http::Request;
use kube::Client;
use serde_json::Value;

use super::server;

async fn get(client: &Client, path: &str, accept: &str) -> Value {
    let request = Request::get(path).header("Accept", accept).body(Vec::new()).unwrap();
    client.request(request).await.unwrap()
}

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

#[tokio::test]
async fn discovery_answers_in_the_form_asked_for() {
    let client = server().await.client();
    let legacy = get(&client, "/apis", "application/json").await;
    assert_eq!(legacy["kind"], "APIGroupList");
    let aggregated = get(&client, "/apis", AGGREGATED).await;
    assert_eq!(aggregated["apiVersion"], "apidiscovery.k8s.io/v2");
    let names = |list: &Value, key: &str| -> Vec<String> {
        let all = list[key].as_array().unwrap().iter();
        all.map(|g| g["name"].as_str().or(g["metadata"]["name"].as_str()).unwrap().to_owned()).collect()
    };
    assert_eq!(names(&legacy, "groups"), names(&aggregated, "items"));
    let core = get(&client, "/api/v1", "application/json").await;
    assert!(
        core["resources"].as_array().unwrap().iter().any(|r| r["name"] == "pods/eviction" && r["group"] == "policy")
    );
}

#[tokio::test]
async fn openapi_addresses_lead_to_documents() {
    let client = server().await.client();
    let index = get(&client, "/openapi/v3", "application/json").await;
    for entry in index["paths"].as_object().unwrap().values() {
        let document = get(&client, entry["serverRelativeURL"].as_str().unwrap(), "application/json").await;
        assert_eq!(document["openapi"], "3.0.0");
    }
    let swagger = get(&client, "/openapi/v2", "application/json").await;
    assert!(swagger["definitions"]["io.k8s.api.core.v1.Pod"].is_object());
}

#[tokio::test]
async fn tables_have_the_columns_of_the_kind() {
    let client = server().await.client();
    let table = get(&client, "/api/v1/namespaces", TABLE).await;
    assert_eq!(table["kind"], "Table");
    let row = table["rows"].as_array().unwrap().iter().find(|r| r["cells"][0] == "default").unwrap();
    assert_eq!(row["cells"][1], "Active");
    assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
}

#[tokio::test]
async fn openapi_documents_may_be_kept_by_their_hash() {
    use tower::ServiceExt;
    let server = server().await;
    let router = server.router().layer(axum::Extension(apimachinery::request::User::admin()));
    let ask = async |path: &str, tag: &str| {
        let request = Request::get(path).header("If-None-Match", tag).body(axum::body::Body::empty()).unwrap();
        router.clone().oneshot(request).await.unwrap()
    };
    let index = get(&server.client(), "/openapi/v3", "application/json").await;
    let address = index["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    let kept = ask(&address, "").await;
    assert_eq!(
        (kept.status().as_u16(), &kept.headers()["cache-control"]),
        (200, &"public, immutable".parse().unwrap())
    );
    let tag = kept.headers()["etag"].to_str().unwrap().to_owned();
    assert_eq!(ask(&address, &tag).await.status(), 304);
    let moved = ask("/openapi/v3/apis/apps/v1?hash=OLD", "").await;
    assert_eq!((moved.status().as_u16(), moved.headers()["location"].to_str().unwrap()), (301, address.as_str()));
    assert!(!ask("/openapi/v3/apis/apps/v1", "").await.headers().contains_key("cache-control"));
}

#[tokio::test]
async fn rows_carry_what_was_asked_for() {
    let client = server().await.client();
    let shown = async |include: &str| {
        let table = get(&client, &format!("/api/v1/namespaces?includeObject={include}"), TABLE).await;
        table["rows"][0]["object"].clone()
    };
    assert!(shown("None").await.is_null());
    assert_eq!(shown("Metadata").await["kind"], "PartialObjectMetadata");
    assert_eq!(shown("Object").await["kind"], "Namespace");
    let request =
        Request::get("/api/v1/namespaces?includeObject=Some").header("Accept", TABLE).body(Vec::new()).unwrap();
    let Err(kube::Error::Api(status)) = client.request::<Value>(request).await else { panic!("a refusal is expected") };
    assert_eq!(status.code, 400);
}
