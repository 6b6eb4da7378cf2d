//! What clients in Go send: zeros, nulls and empty objects for all that nobody set.

use api::kubevirt::v1::KubeVirt;
use axum::body::Body;
use axum::http::Request;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kit::store::Store;
use kube::api::PostParams;
use kube::{Api, Client};
use kube_apiserver::ApiServer;
use serde::Deserialize;
use serde_json::{Value, json};
use tower::ServiceExt;

/// An object as Go's encoding/json writes it, and the webhooks that judge it.
#[derive(Deserialize)]
struct Sent {
    resource: String,
    mutate: Option<String>,
    validate: Option<String>,
    object: Value,
}

impl Sent {
    fn all() -> Vec<Sent> {
        serde_json::from_str(include_str!("../../../api/testdata/typed-clients.json")).unwrap()
    }

    fn what(&self) -> String {
        format!("{} {}", self.object["kind"], self.object["metadata"]["name"])
    }
}

/// What a webhook answers to `object` in place of `old`.
async fn ask(path: &str, object: &Value, old: &Value) -> Value {
    let router = virt_api::webhooks(&Store::<KubeVirt>::default(), "kubevirt");
    let operation = if old.is_null() { "CREATE" } else { "UPDATE" };
    let review = json!({ "request": {
        "uid": "1", "operation": operation, "namespace": "default",
        "userInfo": { "username": "user" }, "object": object, "oldObject": old,
    } });
    let request = Request::post(path).body(Body::from(review.to_string())).unwrap();
    let answer = router.oneshot(request).await.unwrap();
    let bytes = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    serde_json::from_slice::<Value>(&bytes).unwrap()["response"].clone()
}

async fn mutated(path: Option<&str>, mut object: Value, old: &Value) -> Value {
    let Some(path) = path else { return object };
    let answer = ask(path, &object, old).await;
    assert_eq!(answer["allowed"], true, "{answer}");
    if let Some(patch) = answer["patch"].as_str() {
        let patch = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, patch).unwrap();
        let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
        json_patch::patch(&mut object, &patch).unwrap();
    }
    object
}

async fn served() -> (Client, ApiServer) {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for file in std::fs::read_dir("../../deploy/crds").unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        // The embedded cluster attaches networks itself, and so has their kind from the beginning.
        if text.contains("name: network-attachment-definitions.k8s.cni.cncf.io") {
            continue;
        }
        crds.create(&PostParams::default(), &serde_saphyr::from_str(&text).unwrap()).await.unwrap();
    }
    (client, server)
}

async fn write(client: &Client, method: &str, path: &str, object: &Value) -> Result<Value, kube::Error> {
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    client.request(request.body(object.to_string().into_bytes()).unwrap()).await
}

#[tokio::test]
async fn objects_of_typed_clients_are_accepted_without_warnings() {
    let (client, _server) = served().await;
    for sent in Sent::all() {
        let what = sent.what();
        let object = mutated(sent.mutate.as_deref(), sent.object.clone(), &Value::Null).await;
        let place = object["metadata"]["namespace"].as_str().map(|name| format!("/namespaces/{name}"));
        let version = object["apiVersion"].as_str().unwrap();
        let path = format!("/apis/{version}{}/{}", place.unwrap_or_default(), sent.resource);
        let stored = write(&client, "POST", &path, &object).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        if let Some(validate) = &sent.validate {
            let answer = ask(validate, &stored, &Value::Null).await;
            assert_eq!(answer["allowed"], true, "{what}: {answer}");
        }
        // Read, changed a little, and written back with the same zeros.
        let mut again = stored.clone();
        again["metadata"]["labels"]["changed"] = json!("yes");
        if let Some(zeros) = sent.object["status"].as_object() {
            again["status"] = again.get("status").cloned().unwrap_or_else(|| json!({}));
            for (key, zero) in zeros {
                again["status"].as_object_mut().unwrap().entry(key).or_insert(zero.clone());
            }
        }
        let again = mutated(sent.mutate.as_deref(), again, &stored).await;
        let name = object["metadata"]["name"].as_str().unwrap();
        let path = format!("{path}/{name}");
        let after = write(&client, "PUT", &path, &again).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        let validate =
            sent.validate.as_deref().map(|path| path.replace("instances-validate-create", "instances-validate-update"));
        if let Some(validate) = validate {
            let answer = ask(&validate, &after, &stored).await;
            assert_eq!(answer["allowed"], true, "{what}: {answer}");
        }
    }
}

#[tokio::test]
async fn quantities_may_be_numbers() {
    let (client, _server) = served().await;
    for (cpu, memory) in [(json!(2), json!(2_222_222)), (json!(2.2), json!(2_222_222.2))] {
        let amounts = json!({ "cpu": cpu, "memory": memory });
        let vm = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": { "generateName": "vm-", "namespace": "default" },
            "spec": { "runStrategy": "Halted", "template": { "spec": { "domain": {
                "devices": {}, "resources": { "requests": amounts, "limits": amounts },
            } } } },
        });
        let vm = mutated(Some("/virtualmachines-mutate"), vm, &Value::Null).await;
        let path = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines";
        let stored = write(&client, "POST", path, &vm).await.unwrap();
        let answer = ask("/virtualmachines-validate", &stored, &Value::Null).await;
        assert_eq!(answer["allowed"], true, "{answer}");
    }
}
