//! Every kind of the product that has several versions is the same object in each of them, whichever it was made in.

use std::path::Path;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::runtime::wait::conditions::is_crd_established;
use kube::{Api, Client};
use kube_apiserver::ApiServer;
use serde_json::{Map, Value, json};

use crate::wait;

/// The least that `schema` accepts.
fn least(schema: &Value) -> Value {
    if schema["x-kubernetes-int-or-string"] == true {
        return json!(1);
    }
    if let Some(first) = schema["enum"].as_array().and_then(|all| all.first()) {
        return first.clone();
    }
    match schema["type"].as_str() {
        Some("object") => {
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let fields = required.map(|name| (name.to_owned(), least(&schema["properties"][name])));
            Value::Object(fields.collect::<Map<_, _>>())
        }
        Some("array") => json!([]),
        Some("boolean") => json!(true),
        Some("integer" | "number") => schema.get("minimum").cloned().unwrap_or(json!(1)),
        _ if schema["format"] == "date-time" => json!("2026-01-01T00:00:00Z"),
        _ => json!("x"),
    }
}

/// The definitions that have more than one served version, and whose objects the API server itself makes those of another: what a
/// webhook converts is shown by its tests.
fn definitions() -> Vec<CustomResourceDefinition> {
    let folder = Path::new("../../deploy/crds");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let all = files.iter().map(|file| {
        let definition: CustomResourceDefinition =
            serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        definition
    });
    let by_webhook = |definition: &CustomResourceDefinition| {
        definition.spec.conversion.as_ref().is_some_and(|conversion| conversion.strategy == "Webhook")
    };
    all.filter(|one| !by_webhook(one) && one.spec.versions.iter().filter(|version| version.served).count() > 1)
        .collect()
}

fn api(client: &Client, definition: &CustomResourceDefinition, version: &str) -> Api<DynamicObject> {
    let (spec, names) = (&definition.spec, &definition.spec.names);
    let kind = GroupVersionKind::gvk(&spec.group, version, &names.kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, &names.plural);
    match spec.scope.as_str() {
        "Cluster" => Api::all_with(client.clone(), &resource),
        _ => Api::namespaced_with(client.clone(), "default", &resource),
    }
}

/// The object as a client of `version` sees it, without the version; which it has to name.
fn seen(object: DynamicObject, group: &str, version: &str) -> Value {
    let mut object = json!(object);
    assert_eq!(object["apiVersion"], format!("{group}/{version}"));
    object["apiVersion"].take();
    object
}

#[tokio::test]
async fn every_served_version_shows_the_same_object() {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let definitions_api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let definitions = definitions();
    let names: Vec<_> = definitions.iter().map(|one| one.spec.names.plural.as_str()).collect();
    for known in ["virtualmachines", "virtualmachineexports", "virtualmachinesnapshots", "virtualmachineclones", "cdis"]
    {
        assert!(names.contains(&known), "{names:?}");
    }
    for definition in &definitions {
        let name = definition.metadata.name.as_deref().unwrap();
        definitions_api.create(&PostParams::default(), definition).await.unwrap();
        wait(&definitions_api, name, "served", is_crd_established()).await;
        check(&client, definition).await;
        let stored = definitions_api.get(name).await.unwrap().status.unwrap().stored_versions.unwrap();
        let storage = definition.spec.versions.iter().find(|version| version.storage).unwrap();
        assert_eq!(stored, std::slice::from_ref(&storage.name), "{name}");
    }
}

/// An object of each version is read, listed, changed and read again in every other.
async fn check(client: &Client, definition: &CustomResourceDefinition) {
    let group = &definition.spec.group;
    let served: Vec<_> = definition.spec.versions.iter().filter(|version| version.served).collect();
    for made in &served {
        let schema = json!(made.schema.as_ref().unwrap().open_api_v3_schema);
        let mut object = least(&schema);
        let name = format!("of-{}", made.name);
        object["apiVersion"] = json!(format!("{group}/{}", made.name));
        object["kind"] = json!(definition.spec.names.kind);
        object["metadata"] = json!({ "name": name, "labels": { "made": made.name } });
        let first = api(client, definition, &made.name);
        let created = first.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await;
        let mut held = seen(created.unwrap_or_else(|error| panic!("{group}: {error}")), group, &made.name);
        for other in &served {
            let second = api(client, definition, &other.name);
            assert_eq!(seen(second.get(&name).await.unwrap(), group, &other.name), held, "{group} {}", other.name);
            let listed = second.list(&ListParams::default().labels(&format!("made={}", made.name))).await.unwrap();
            assert_eq!(listed.items.len(), 1, "{group} {}", other.name);
            let patch = json!({ "metadata": { "annotations": { "by": other.name } } });
            second.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
            held = seen(first.get(&name).await.unwrap(), group, &made.name);
            assert_eq!(held["metadata"]["annotations"]["by"], json!(other.name));
        }
    }
}
