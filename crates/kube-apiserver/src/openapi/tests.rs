//! OpenAPI documents by data.

use apimachinery::schema::{Schema, builtin};

use super::*;

fn registry() -> Arc<Registry> {
    let mut resources: Vec<Arc<Resource>> = crate::registry::builtin::resources().into_iter().map(Arc::new).collect();
    let mut custom = (**resources.iter().find(|r| r.plural == "configmaps").unwrap()).clone();
    let metadata = builtin::definition("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").unwrap();
    custom.group = "example.com".into();
    custom.kind = "Widget".into();
    custom.plural = "widgets".into();
    custom.crd = Some("widgets.example.com".into());
    custom.schema = Arc::new(Schema { properties: [("metadata".to_owned(), metadata)].into(), ..Schema::default() });
    resources.push(Arc::new(custom));
    Arc::new(Registry { resources, ..Registry::default() })
}

/// Every `$ref` below `node` names something in `defined`.
fn resolved(node: &Value, prefix: &str, defined: &Map<String, Value>) {
    match node {
        Value::Object(map) => {
            if let Some(Value::String(reference)) = map.get("$ref") {
                let name = reference.strip_prefix(prefix).unwrap();
                assert!(defined.contains_key(name), "{reference}");
            }
            map.values().for_each(|node| resolved(node, prefix, defined));
        }
        Value::Array(list) => list.iter().for_each(|node| resolved(node, prefix, defined)),
        _ => {}
    }
}

#[test]
fn every_reference_resolves_in_both_dialects() {
    let registry = registry();
    let index = Cache::default().index(&registry, []);
    assert!(
        index["paths"]["apis/apps/v1"]["serverRelativeURL"]
            .as_str()
            .unwrap()
            .starts_with("/openapi/v3/apis/apps/v1?hash=")
    );
    for path in index["paths"].as_object().unwrap().keys() {
        let parts: Vec<&str> = path.split('/').collect();
        let (group, version) = if parts[0] == "api" { ("", parts[1]) } else { (parts[1], parts[2]) };
        let document = v3(&registry, group, version).unwrap();
        resolved(&document, "#/components/schemas/", document["components"]["schemas"].as_object().unwrap());
    }
    let document = v2(&registry, &[]);
    resolved(&document, "#/definitions/", document["definitions"].as_object().unwrap());
}

#[test]
fn clients_find_kinds_and_parameters() {
    let document = v3(&registry(), "example.com", "v1").unwrap();
    let patch = &document["paths"]["/apis/example.com/v1/namespaces/{namespace}/widgets/{name}"]["patch"];
    assert_eq!(
        patch["x-kubernetes-group-version-kind"],
        json!({"group": "example.com", "version": "v1", "kind": "Widget"})
    );
    let names: Vec<&str> =
        patch["parameters"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["dryRun", "fieldManager", "fieldValidation", "force"]);
    // `kubectl apply` makes its patch of the types it finds here.
    let types = |patch: &Value| -> Vec<String> {
        patch["requestBody"]["content"].as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(
        types(patch),
        ["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"]
    );
    let widget = &document["components"]["schemas"]["com.example.v1.Widget"];
    assert_eq!(widget["x-kubernetes-group-version-kind"][0]["kind"], "Widget");
    let pods = v3(&registry(), "", "v1").unwrap();
    let containers = &pods["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert!(
        types(&pods["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"])
            .iter()
            .any(|t| t.contains("strategic"))
    );
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(containers["items"]["$ref"], "#/components/schemas/io.k8s.api.core.v1.Container");
}

#[test]
fn the_hash_follows_the_registry() {
    let (cache, first) = (Cache::default(), registry());
    let before = cache.hash(&first, "example.com", "v1").unwrap();
    let mut resources = first.resources.clone();
    let mut changed = (**resources.last().unwrap()).clone();
    changed.schema = Arc::new(Schema { description: "changed".into(), ..Schema::default() });
    *resources.last_mut().unwrap() = Arc::new(changed);
    let second = Arc::new(Registry { resources, ..Registry::default() });
    assert_ne!(cache.hash(&second, "example.com", "v1").unwrap(), before);
    assert_eq!(cache.hash(&second, "apps", "v1"), cache.hash(&first, "apps", "v1"));
}

#[test]
fn the_protobuf_form_nests_as_gnostic_does() {
    let document = json!({"swagger": "2.0", "paths": {}, "definitions": {"a": {"type": "string", "x-b": 1}}});
    // definitions(9) > pair(1) > name(1) "a", schema(2) > type(22) > value(1) "string"; extension(31) > name, any(2) > yaml(2)
    let schema = [&[0xb2, 1, 8, 10, 6][..], b"string", &[0xfa, 1, 10, 10, 3], b"x-b", &[18, 3, 18, 1], b"1"].concat();
    let pair = [&[10, 1][..], b"a", &[18, u8::try_from(schema.len()).unwrap()], &schema].concat();
    let definitions = [&[10, u8::try_from(pair.len()).unwrap()][..], &pair].concat();
    let all = [&[10, 3][..], b"2.0", &[66, 0, 74, u8::try_from(definitions.len()).unwrap()], &definitions].concat();
    assert_eq!(encode_v2(&document), all);
}

/// A custom resource with every subresource and a schema full of extensions.
fn gauge() -> Arc<Registry> {
    let mut resources = registry().resources.clone();
    let mut custom = (**resources.last().unwrap()).clone();
    custom.status_subresource = true;
    custom.scale = resources.iter().find(|r| r.plural == "deployments").unwrap().scale.clone();
    let ports = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}});
    let rule = json!([{"rule": "self.size() < 9", "message": "too many"}]);
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "ports": ports,
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "port": {"x-kubernetes-int-or-string": true},
        "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": {"type": "string"}}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "object": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
        "few": {"type": "string", "x-kubernetes-validations": rule}}}}});
    custom.schema = Arc::new(apimachinery::schema::parse::custom_resource(Some(&schema), false));
    *resources.last_mut().unwrap() = Arc::new(custom);
    Arc::new(Registry { resources, ..Registry::default() })
}

#[test]
fn subresources_and_extensions_of_a_custom_resource_are_shown_in_both_dialects() {
    let registry = gauge();
    let (new, old) = (v3(&registry, "example.com", "v1").unwrap(), v2(&registry, &[]));
    resolved(&new, "#/components/schemas/", new["components"]["schemas"].as_object().unwrap());
    resolved(&old, "#/definitions/", old["definitions"].as_object().unwrap());
    let object = "/apis/example.com/v1/namespaces/{namespace}/widgets/{name}";
    for (paths, kinds) in [(&new["paths"], &new["components"]["schemas"]), (&old["paths"], &old["definitions"])] {
        assert_eq!(paths[format!("{object}/status")]["put"]["x-kubernetes-group-version-kind"]["kind"], "Widget");
        let scale = &paths[format!("{object}/scale")];
        for method in ["get", "put", "patch"] {
            let gvk = json!({"group": "autoscaling", "version": "v1", "kind": "Scale"});
            assert_eq!(scale[method]["x-kubernetes-group-version-kind"], gvk);
        }
        assert_eq!(scale["get"]["operationId"], "readExampleV1NamespacedWidgetScale");
        assert!(scale["delete"].is_null() && scale["post"].is_null());
        let widget = &kinds["com.example.v1.Widget"];
        let gvk = json!([{"group": "example.com", "version": "v1", "kind": "Widget"}]);
        assert_eq!(widget["x-kubernetes-group-version-kind"], gvk);
        let spec = &widget["properties"]["spec"]["properties"];
        assert_eq!(spec["ports"]["x-kubernetes-list-type"], "map");
        assert_eq!(spec["ports"]["x-kubernetes-list-map-keys"], json!(["name"]));
        assert_eq!(spec["tags"]["x-kubernetes-list-type"], "set");
        assert_eq!(spec["port"]["x-kubernetes-int-or-string"], true);
        assert_eq!(spec["whole"]["x-kubernetes-map-type"], "atomic");
        assert_eq!(spec["free"]["x-kubernetes-preserve-unknown-fields"], true);
        assert_eq!(spec["object"]["x-kubernetes-embedded-resource"], true);
        assert_eq!(spec["few"]["x-kubernetes-validations"][0]["message"], "too many");
    }
    let eviction = &old["paths"]["/api/v1/namespaces/{namespace}/pods/{name}/eviction"];
    assert_eq!(eviction["post"]["x-kubernetes-group-version-kind"]["kind"], "Eviction");
}
