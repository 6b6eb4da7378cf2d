//! Custom resources.

use futures::TryStreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams, WatchEvent,
    WatchParams,
};
use kube::{Api, Client, Error, ResourceExt};
use serde_json::{Value, json};

use super::server;

fn definition() -> CustomResourceDefinition {
    serde_json::from_value(json!({
        "metadata": {"name": "gadgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "gadgets", "kind": "Gadget", "shortNames": ["gd"]},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}, "scale": {
                    "specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}},
                "schema": {"openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": {
                    "spec": {"type": "object", "required": ["size"], "properties": {
                        "size": {"type": "integer", "minimum": 1},
                        "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
                        "fixed": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "fixed is fixed"}]}},
                        "x-kubernetes-validations": [{"rule": "self.size < 100", "message": "too big"}]},
                    "status": {"type": "object", "properties": {"size": {"type": "integer"}}}}}}},
                {"name": "v1beta1", "served": true, "storage": false,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}
    }))
    .unwrap()
}

fn gadgets(client: &Client, version: &str) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("example.com", version, "Gadget"), "gadgets");
    Api::default_namespaced_with(client.clone(), &kind)
}

fn gadget(version: &str, name: &str, spec: Value) -> DynamicObject {
    serde_json::from_value(json!({"apiVersion": format!("example.com/{version}"), "kind": "Gadget", "metadata": {"name": name}, "spec": spec})).unwrap()
}

#[track_caller]
fn message(outcome: Result<DynamicObject, Error>) -> String {
    match outcome {
        Err(Error::Api(status)) => format!("{} {}", status.code, status.message),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

async fn with_gadgets() -> Client {
    let client = server().await.client();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let created = definitions.create(&PostParams::default(), &definition()).await.unwrap();
    let status = created.status.unwrap();
    assert!(status.conditions.unwrap().iter().any(|c| c.type_ == "Established" && c.status == "True"));
    assert_eq!(status.stored_versions, Some(vec!["v1".to_owned()]));
    client
}

#[tokio::test]
async fn schemas_default_prune_and_validate() {
    let client = with_gadgets().await;
    let api = gadgets(&client, "v1");
    let post = PostParams::default();
    let created = api.create(&post, &gadget("v1", "g", json!({"size": 3, "unknown": 1}))).await.unwrap();
    assert_eq!(created.data["spec"], json!({"size": 3, "mode": "a"}));
    assert_eq!(created.metadata.generation, Some(1));
    let unset = api.create(&post, &gadget("v1", "u", json!({"size": 3, "mode": null, "fixed": null}))).await.unwrap();
    assert_eq!(unset.data["spec"], json!({"size": 3, "mode": "a"}), "null is not set");
    let got = message(api.create(&post, &gadget("v1", "x", json!({"size": 0}))).await);
    let less = "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1";
    assert_eq!(
        got,
        format!("422 Gadget.example.com \"x\" is invalid: {less}"),
        "what has its shape is asked the rules"
    );
    let refusals = [
        (json!({"size": 1, "mode": "c"}), "spec.mode: Unsupported value: \"c\": supported values: \"a\", \"b\""),
        (json!({}), "spec.size: Required value"),
    ];
    let unasked = "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
    for (spec, expect) in refusals {
        let got = message(api.create(&post, &gadget("v1", "x", spec)).await);
        assert_eq!(got, format!("422 Gadget.example.com \"x\" is invalid: [{expect}, {unasked}]"));
    }
    let got = message(api.create(&post, &gadget("v1", "x", json!({"size": 100}))).await);
    assert_eq!(got, "422 Gadget.example.com \"x\" is invalid: spec: Invalid value: \"object\": too big");
}

#[tokio::test]
async fn transition_rules_see_the_old_value() {
    let client = with_gadgets().await;
    let api = gadgets(&client, "v1");
    api.create(&PostParams::default(), &gadget("v1", "g", json!({"size": 3, "fixed": "x"}))).await.unwrap();
    let change = |value: &str| json!({"spec": {"fixed": value, "size": 4}});
    api.patch("g", &PatchParams::default(), &Patch::Merge(change("x"))).await.unwrap();
    let got = message(api.patch("g", &PatchParams::default(), &Patch::Merge(change("y"))).await);
    assert!(got.contains("spec.fixed: Invalid value: \"string\": fixed is fixed"), "{got}");
}

#[tokio::test]
async fn versions_share_their_objects() {
    let client = with_gadgets().await;
    gadgets(&client, "v1").create(&PostParams::default(), &gadget("v1", "g", json!({"size": 3}))).await.unwrap();
    let old = gadgets(&client, "v1beta1");
    assert_eq!(old.get("g").await.unwrap().types.unwrap().api_version, "example.com/v1beta1");
    let listed = old.list(&ListParams::default()).await.unwrap();
    assert_eq!(listed.items[0].data["spec"]["size"], 3);
}

#[tokio::test]
async fn subresources_follow_the_definition() {
    let client = with_gadgets().await;
    let api = gadgets(&client, "v1");
    api.create(&PostParams::default(), &gadget("v1", "g", json!({"size": 3}))).await.unwrap();
    let both = json!({"spec": {"size": 9}, "status": {"size": 2}});
    let patched = api.patch_status("g", &PatchParams::default(), &Patch::Merge(&both)).await.unwrap();
    assert_eq!((&patched.data["spec"]["size"], &patched.data["status"]["size"]), (&json!(3), &json!(2)));
    let scale = api.get_scale("g").await.unwrap();
    assert_eq!((scale.spec.unwrap().replicas, scale.status.unwrap().replicas), (Some(3), 2));
}

#[tokio::test]
async fn a_definition_takes_its_objects_with_it() {
    let client = with_gadgets().await;
    let api = gadgets(&client, "v1");
    let mut held = gadget("v1", "held", json!({"size": 3}));
    held.metadata.finalizers = Some(vec!["example.com/hold".into()]);
    api.create(&PostParams::default(), &held).await.unwrap();
    api.create(&PostParams::default(), &gadget("v1", "free", json!({"size": 3}))).await.unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.delete("gadgets.example.com", &DeleteParams::default()).await.unwrap();
    // Deletion proceeds in the background; each step is a state to wait for.
    let deleting = |o: Option<&DynamicObject>| o.is_some_and(|o| o.metadata.deletion_timestamp.is_some());
    kube::runtime::wait::await_condition(api.clone(), "held", deleting).await.unwrap();
    let patch = json!({"metadata": {"finalizers": null}});
    api.patch("held", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    let gone = |o: Option<&CustomResourceDefinition>| o.is_none();
    kube::runtime::wait::await_condition(definitions, "gadgets.example.com", gone).await.unwrap();
}

/// The largest definitions there are to serve: they are taken in, read back unchanged, and their objects checked, fast
/// enough that nobody waits.
#[tokio::test]
async fn large_definitions_are_served() {
    let directory = "../../deploy/crds";
    let client = server().await.client();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut files: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for document in serde_saphyr::from_multiple::<Value>(&text).unwrap() {
            let built_in = document["metadata"]["name"] == "network-attachment-definitions.k8s.cni.cncf.io";
            if document["kind"] != "CustomResourceDefinition" || built_in {
                continue;
            }
            let request =
                http::Request::post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions?fieldValidation=Strict")
                    .header("content-type", "application/json")
                    .body(document.to_string().into_bytes())
                    .unwrap();
            let stored: Value =
                client.request(request).await.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            assert_eq!(stored["spec"]["versions"], document["spec"]["versions"], "{}", file.display());
        }
    }
    assert!(definitions.list(&ListParams::default()).await.unwrap().items.len() > 10);
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachine"));
    let machines: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &kind);
    let machine = |more: Value| {
        let mut object = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm"},
            "spec": {"runStrategy": "Always", "template": {"spec": {"domain": {
                "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]}, "memory": {"guest": "128Mi"}},
                "volumes": [{"name": "root", "containerDisk": {"image": "example/disk:1"}}]}}}});
        json_patch::merge(&mut object, &more);
        serde_json::from_value::<DynamicObject>(object).unwrap()
    };
    let created = machines.create(&PostParams::default(), &machine(json!({}))).await.unwrap();
    assert_eq!(created.data["spec"]["template"]["spec"]["domain"]["memory"]["guest"], "128Mi");
    let wrong = machine(json!({"metadata": {"name": "x"}, "spec": {"runStrategy": 5}}));
    let got = message(machines.create(&PostParams::default(), &wrong).await);
    assert!(
        got.contains("spec.runStrategy: Invalid value: \"integer\": spec.runStrategy in body must be of type string"),
        "{got}"
    );
}

#[tokio::test]
async fn names_belong_to_one_definition() {
    let client = with_gadgets().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut rival = serde_json::to_value(definition()).unwrap();
    rival["metadata"]["name"] = "widgets.example.com".into();
    rival["spec"]["names"] = json!({"plural": "widgets", "kind": "Gadget"});
    let rival = definitions.create(&PostParams::default(), &serde_json::from_value(rival).unwrap()).await.unwrap();
    let conditions = rival.status.unwrap().conditions.unwrap();
    let accepted = conditions.iter().find(|c| c.type_ == "NamesAccepted").unwrap();
    assert_eq!((accepted.status.as_str(), accepted.reason.as_deref()), ("False", Some("SingularConflict")));
    definitions.delete("gadgets.example.com", &DeleteParams::default()).await.unwrap();
    let established = kube::runtime::conditions::is_crd_established();
    kube::runtime::wait::await_condition(definitions, "widgets.example.com", established).await.unwrap();
}

#[tokio::test]
async fn unchanged_values_survive_a_stricter_schema() {
    let client = with_gadgets().await;
    let api = gadgets(&client, "v1");
    api.create(&PostParams::default(), &gadget("v1", "g", json!({"size": 3, "mode": "b"}))).await.unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    let mut stricter = serde_json::to_value(definitions.get("gadgets.example.com").await.unwrap()).unwrap();
    let spec = &mut stricter["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    spec["mode"]["enum"] = json!(["a"]);
    let stricter = serde_json::from_value(stricter).unwrap();
    definitions.replace("gadgets.example.com", &PostParams::default(), &stricter).await.unwrap();
    let patch = |spec: Value| Patch::Merge(json!({"spec": spec}));
    api.patch("g", &PatchParams::default(), &patch(json!({"size": 4}))).await.unwrap();
    let got = message(api.patch("g", &PatchParams::default(), &patch(json!({"mode": "c"}))).await);
    assert!(got.contains("spec.mode: Unsupported value: \"c\": supported values: \"a\""), "{got}");
}

async fn change_definition(
    client: &Client,
    change: impl FnOnce(&mut Value),
) -> Result<CustomResourceDefinition, Error> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut definition = serde_json::to_value(definitions.get("gadgets.example.com").await.unwrap()).unwrap();
    change(&mut definition);
    let definition = serde_json::from_value(definition).unwrap();
    definitions.replace("gadgets.example.com", &PostParams::default(), &definition).await
}

#[tokio::test]
async fn an_item_of_a_map_list_comes_once() {
    let client = with_gadgets().await;
    let ports = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port"],
        "items": {"type": "object", "required": ["port"], "properties": {"port": {"type": "integer"}}}});
    let change = |definition: &mut Value| {
        let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        schema["properties"]["spec"]["properties"]["ports"] = ports;
    };
    change_definition(&client, change).await.unwrap();
    let api = gadgets(&client, "v1");
    api.create(&PostParams::default(), &gadget("v1", "g", json!({"size": 3, "ports": [{"port": 80}]}))).await.unwrap();
    let twice = Patch::Merge(json!({"spec": {"ports": [{"port": 80}, {"port": 80}]}}));
    let got = message(api.patch("g", &PatchParams::default(), &twice).await);
    assert!(got.contains("spec.ports[1]: Duplicate value: {\"port\":80}"), "{got}");
}

#[tokio::test]
async fn old_objects_are_read_as_the_definition_says_now() {
    let client = with_gadgets().await;
    let api = gadgets(&client, "v1");
    api.create(&PostParams::default(), &gadget("v1", "g", json!({"size": 3, "fixed": "x"}))).await.unwrap();
    change_definition(&client, |definition| {
        let spec =
            &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        spec["colour"] = json!({"type": "string", "default": "red"});
        spec.as_object_mut().unwrap().remove("fixed");
    })
    .await
    .unwrap();
    let expect = json!({"size": 3, "mode": "a", "colour": "red"});
    assert_eq!(api.get("g").await.unwrap().data["spec"], expect);
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items[0].data["spec"], expect);
    let patched = api.patch("g", &PatchParams::default(), &Patch::Merge(json!({"spec": {"size": 4}}))).await.unwrap();
    assert_eq!(patched.data["spec"], json!({"size": 4, "mode": "a", "colour": "red"}));
}

/// What is left of a watch, until it ends.
async fn rest(events: impl futures::TryStream<Ok = WatchEvent<DynamicObject>, Error = Error>) -> Vec<String> {
    let events: Vec<_> = events.try_collect().await.unwrap();
    let said = |event: &WatchEvent<DynamicObject>| match event {
        WatchEvent::Added(object) => format!("+{}", object.name_any()),
        WatchEvent::Deleted(object) => format!("-{}", object.name_any()),
        other => format!("{other:?}"),
    };
    events.iter().map(said).collect()
}

#[tokio::test(start_paused = true)]
async fn watches_end_with_the_version_and_with_the_definition() {
    let client = with_gadgets().await;
    let (old, new) = (gadgets(&client, "v1beta1"), gadgets(&client, "v1"));
    new.create(&PostParams::default(), &gadget("v1", "g", json!({"size": 3}))).await.unwrap();
    let forever = WatchParams::default().timeout(290);
    let begun = tokio::time::Instant::now();
    let (withdrawn, staying) = (old.watch(&forever, "0").await.unwrap(), new.watch(&forever, "0").await.unwrap());
    change_definition(&client, |definition| definition["spec"]["versions"][1]["served"] = false.into()).await.unwrap();
    assert_eq!(rest(withdrawn).await, ["+g"]);
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.delete("gadgets.example.com", &DeleteParams::default()).await.unwrap();
    assert_eq!(rest(staying).await, ["+g", "-g"]);
    assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_version_is_served_until_it_is_not() {
    let client = with_gadgets().await;
    gadgets(&client, "v1").create(&PostParams::default(), &gadget("v1", "g", json!({"size": 3}))).await.unwrap();
    change_definition(&client, |definition| definition["spec"]["versions"][1]["served"] = false.into()).await.unwrap();
    let got = message(gadgets(&client, "v1beta1").get("g").await);
    assert!(got.starts_with("404 "), "{got}");
    let gone = change_definition(&client, |definition| {
        definition["spec"]["versions"].as_array_mut().unwrap().remove(0);
        definition["spec"]["versions"][0]["storage"] = true.into();
        definition["spec"]["versions"][0]["served"] = true.into();
    })
    .await;
    let Err(Error::Api(status)) = gone else { panic!("{gone:?}") };
    assert_eq!(
        status.message,
        "CustomResourceDefinition.apiextensions.k8s.io \"gadgets.example.com\" is invalid: status.storedVersions[0]: Invalid value: \"v1\": missing from spec.versions; v1 was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in v1 and removes v1 from status.storedVersions"
    );
    let scope = change_definition(&client, |definition| definition["spec"]["scope"] = "Cluster".into()).await;
    let Err(Error::Api(status)) = scope else { panic!("{scope:?}") };
    assert!(
        status.message.ends_with("spec.scope: Invalid value: \"Cluster\": field is immutable"),
        "{}",
        status.message
    );
}

#[tokio::test]
async fn unchanged_values_that_break_a_new_rule_are_warned_of() {
    let client = with_gadgets().await;
    let api = gadgets(&client, "v1");
    api.create(&PostParams::default(), &gadget("v1", "g", json!({"size": 3, "mode": "b"}))).await.unwrap();
    change_definition(&client, |definition| {
        let spec =
            &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        spec["mode"]["x-kubernetes-validations"] = json!([{"rule": "self == 'a'", "message": "b is no more"}]);
    })
    .await
    .unwrap();
    let request = http::Request::patch("/apis/example.com/v1/namespaces/default/gadgets/g")
        .header("content-type", "application/merge-patch+json")
        .body(kube::client::Body::from(json!({"spec": {"size": 4}}).to_string().into_bytes()))
        .unwrap();
    let response = client.send(request).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["warning"], "299 - \"spec.mode: Invalid value: \\\"string\\\": b is no more\"");
    let got = message(api.create(&PostParams::default(), &gadget("v1", "h", json!({"size": 3, "mode": "b"}))).await);
    assert!(got.ends_with("spec.mode: Invalid value: \"string\": b is no more"), "{got}");
}

#[tokio::test]
async fn fields_select_and_scales_name_their_selector() {
    let client = server().await.client();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut definition = serde_json::to_value(definition()).unwrap();
    let version = &mut definition["spec"]["versions"][0];
    version["selectableFields"] = json!([{"jsonPath": ".spec.mode"}]);
    version["subresources"]["scale"]["labelSelectorPath"] = ".status.selector".into();
    version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["selector"] = json!({"type": "string"});
    definitions.create(&PostParams::default(), &serde_json::from_value(definition).unwrap()).await.unwrap();
    let api = gadgets(&client, "v1");
    for (name, mode) in [("one", "a"), ("two", "b")] {
        api.create(&PostParams::default(), &gadget("v1", name, json!({"size": 3, "mode": mode}))).await.unwrap();
    }
    let found = api.list(&ListParams::default().fields("spec.mode=b")).await.unwrap();
    assert_eq!(found.items.iter().map(|item| item.metadata.name.as_deref().unwrap()).collect::<Vec<_>>(), ["two"]);
    let outcome = api.list(&ListParams::default().fields("spec.size=3")).await;
    assert!(matches!(outcome, Err(Error::Api(status)) if status.code == 400));
    let status = json!({"status": {"size": 3, "selector": "app=one"}});
    api.patch_status("one", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    assert_eq!(api.get_scale("one").await.unwrap().status.unwrap().selector.as_deref(), Some("app=one"));
    let scaled = api.patch_scale("one", &PatchParams::default(), &Patch::Merge(json!({"spec": {"replicas": 7}}))).await;
    assert_eq!(scaled.unwrap().spec.unwrap().replicas, Some(7));
    assert_eq!(api.get("one").await.unwrap().data["spec"]["size"], 7);
}

/// The client of each round leaves a step later than the one before.
#[tokio::test]
async fn a_definition_is_served_though_its_client_left() {
    let server = server().await;
    let client = server.client();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut left = 0;
    for steps in 1.. {
        let group = format!("round{steps}.example.com");
        let mut definition = definition();
        definition.metadata.name = Some(format!("gadgets.{group}"));
        definition.spec.group.clone_from(&group);
        let params = PostParams::default();
        let mut create = Box::pin(definitions.create(&params, &definition));
        let mut answered = false;
        for _ in 0..steps {
            answered = futures::poll!(create.as_mut()).is_ready();
            if answered {
                break;
            }
            tokio::task::yield_now().await;
        }
        if answered {
            break;
        }
        drop(create);
        // Writes are durable in their order: what the client that left has begun is there, or never will be.
        let later = serde_json::from_value(json!({"metadata": {"name": format!("round{steps}")}})).unwrap();
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
        namespaces.create(&params, &later).await.unwrap();
        if definitions.get_opt(definition.metadata.name.as_deref().unwrap()).await.unwrap().is_none() {
            continue;
        }
        left += 1;
        let served = async {
            while client.list_api_group_resources(&format!("{group}/v1")).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(20), served).await.expect("the kind is never served");
    }
    assert!(left > 0, "no client left in time");
}
