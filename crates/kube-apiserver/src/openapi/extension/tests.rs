//! Parts of extension servers by data, and whatever else one may say.

use proptest::prelude::*;

use super::*;

const GROUP: &str = "demo.example.com";
const PATH: &str = "/apis/demo.example.com/v1/namespaces/{namespace}/things/{name}/start";

fn operation(definition: &str) -> Value {
    let schema = json!({"$ref": format!("#/definitions/{definition}")});
    json!({"put": {"operationId": "start", "parameters": [{"name": "body", "in": "body", "schema": schema}],
        "responses": {"200": {"description": "OK", "schema": {"type": "string"}}}}})
}

fn ours() -> Value {
    json!({"swagger": "2.0", "paths": {"/api/v1/pods": {"get": {}}}, "definitions": {
        "v1.Pod": {"type": "object"}, "v1.Same": {"type": "string"}, "v1.Options_v2": {"type": "integer"}, "v1.Options": {"type": "boolean"},
    }})
}

fn joined(document: &Value) -> Value {
    let mut all = ours();
    join(&mut all, &v2(document.clone(), GROUP, "v1").unwrap());
    all
}

#[test]
fn a_part_is_added_and_nothing_is_replaced() {
    let document = json!({
        "paths": {
            PATH: operation("v1.Options"),
            "/apis/demo.example.com/v1": {"get": {"responses": {"200": {"schema": {"$ref": "#/definitions/v1.Same"}}}}},
            "/apis/demo.example.com/v10/things": {"get": {}},
            "/api/v1/pods": {"delete": {}}, "/apis/apps/v1/deployments": {"get": {}},
        },
        "definitions": {
            "v1.Options": {"type": "object", "properties": {"more": {"$ref": "#/definitions/v1.More"}}},
            "v1.More": {"type": "object", "properties": {"again": {"$ref": "#/definitions/v1.Options"}}},
            "v1.Same": {"type": "string"}, "v1.Pod": {"type": "integer"}, "v1.Unused": {"type": "integer"},
        },
    });
    let (before, all) = (ours(), joined(&document));
    for part in ["paths", "definitions"] {
        for (name, value) in before[part].as_object().unwrap() {
            assert_eq!(&all[part][name], value, "{part} {name}");
        }
    }
    let names = |part: &str| {
        let new = all[part].as_object().unwrap().keys().filter(|name| before[part].get(name).is_none());
        new.cloned().collect::<Vec<_>>()
    };
    assert_eq!(names("paths"), ["/apis/demo.example.com/v1", PATH]);
    assert_eq!(names("definitions"), ["v1.More", "v1.Options_v3"]);
    assert_eq!(all["paths"][PATH]["put"]["parameters"][0]["schema"]["$ref"], "#/definitions/v1.Options_v3");
    assert_eq!(all["definitions"]["v1.More"]["properties"]["again"]["$ref"], "#/definitions/v1.Options_v3");
}

#[test]
fn parameters_that_are_shared_are_written_out() {
    let name = json!({"name": "name", "in": "path", "type": "string", "required": true});
    let reference = json!({"$ref": "#/parameters/name-x"});
    let document = json!({
        "paths": {PATH: {"parameters": [reference], "get": {"parameters": [reference]}}},
        "parameters": {"name-x": name},
    });
    let all = joined(&document);
    assert_eq!(all["paths"][PATH]["parameters"][0], name);
    assert_eq!(all["paths"][PATH]["get"]["parameters"][0], name);
}

#[test]
fn kinds_of_others_are_not_claimed() {
    let kind = |group: &str| json!({"group": group, "version": "v1", "kind": "Deployment"});
    let mut start = operation("v1.Options");
    start["put"][KIND] = kind("apps");
    let document = json!({
        "paths": {PATH: start},
        "definitions": {"v1.Options": {"type": "object", KIND: [kind("apps"), kind(GROUP)]}},
    });
    let all = joined(&document);
    assert_eq!(all["paths"][PATH]["put"].get(KIND), None);
    assert_eq!(all["definitions"]["v1.Options_v3"][KIND], json!([kind(GROUP)]));
}

#[track_caller]
fn refused(document: Value, expect: &str) {
    assert_eq!(v2(document, GROUP, "v1").unwrap_err().to_string(), expect);
}

#[test]
fn malformed_documents_of_extension_servers_are_left_out() {
    let path = format!("paths[{PATH:?}] is not as OpenAPI has it");
    refused(json!([]), "the document is not as OpenAPI has it");
    refused(json!({"paths": 1}), "paths is not as OpenAPI has it");
    refused(json!({"paths": {PATH: []}}), &path);
    refused(json!({"paths": {PATH: {"get": {"parameters": 5}}}}), &path);
    refused(json!({"paths": {PATH: {"get": {"responses": {"200": "OK"}}}}}), &path);
    refused(json!({"paths": {PATH: {"$ref": "#/paths/other"}}}), &path);
    refused(json!({"paths": {PATH: operation("v1.Gone")}}), "\"v1.Gone\" is referred to and is not there");
    let shared = json!({"parameters": [{"$ref": "#/parameters/gone"}]});
    refused(json!({"paths": {PATH: shared}}), "\"gone\" is referred to and is not there");
    for wrong in
        [json!({"type": 5}), json!({"properties": []}), json!({"required": "name"}), json!({"$ref": "elsewhere"})]
    {
        let document = json!({"paths": {PATH: operation("v1.Options")}, "definitions": {"v1.Options": wrong}});
        refused(document, "definitions[\"v1.Options\"] is not as OpenAPI has it");
    }
}

#[test]
fn expanding_shared_parameters_is_bounded() {
    let large = json!({"name": "x".repeat(1 << 20), "in": "query"});
    let uses: Vec<Value> = (0..1000).map(|_| json!({"$ref": "#/parameters/large"})).collect();
    let document = json!({"paths": {PATH: {"parameters": uses}}, "parameters": {"large": large}});
    refused(document, "its shared parameters are used too often");
}

#[test]
fn a_document_of_the_newer_dialect_keeps_to_its_version() {
    let document = json!({"openapi": "3.0.0", "info": {"title": "t", "version": "v"}, "paths": {PATH: {}, "/api/v1/pods": {}},
        "components": {"schemas": {"v1.Options": {"type": "object"}}}});
    let part: Value = serde_json::from_str(&v3(document, GROUP, "v1").unwrap().text).unwrap();
    assert_eq!(part["paths"], json!({PATH: {}}));
    assert_eq!(part["components"]["schemas"]["v1.Options"]["type"], "object");
    for wrong in [json!({}), json!({"openapi": "2.0"}), json!({"openapi": "3.0.0", "components": 5}), json!("3.0.0")] {
        assert!(v3(wrong.clone(), GROUP, "v1").is_err(), "{wrong}");
    }
}

/// Documents of the words that are looked for, in any place.
fn document() -> impl Strategy<Value = Value> {
    let key = prop::sample::select(vec![
        "paths",
        "definitions",
        "parameters",
        "get",
        "put",
        "responses",
        "200",
        "schema",
        "properties",
        "items",
        "$ref",
        "type",
        "name",
        "in",
        "openapi",
        "components",
        "schemas",
        "required",
        "v1.Pod",
        "v1.Options",
        KIND,
        "group",
        PATH,
        "/api/v1/pods",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        prop::sample::select(vec![
            "#/definitions/v1.Pod",
            "#/definitions/v1.Options",
            "#/parameters/name",
            "3.0.0",
            "apps",
            "string"
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(7, 96, 6, move |inner| {
        prop_oneof![
            1 => proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            4 => proptest::collection::vec((key.clone(), inner), 0..6).prop_map(|members| Value::Object(
                members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
            )),
        ]
    })
}

/// A sound document, parts of which are replaced.
fn mutated() -> impl Strategy<Value = Value> {
    let places = prop::sample::select(vec![
        "/paths",
        "/definitions",
        "/definitions/v1.Options",
        "/definitions/v1.Options/properties",
        "/parameters",
    ]);
    (places, document()).prop_map(|(place, other)| {
        let mut document = json!({"openapi": "3.0.0", "paths": {PATH: operation("v1.Options")}, "parameters": {"name": {}},
            "definitions": {"v1.Options": {"type": "object", "properties": {"pod": {"$ref": "#/definitions/v1.Pod"}}},
                "v1.Pod": {"type": "object"}}});
        if let Some(part) = document.pointer_mut(place) {
            *part = other;
        }
        document
    })
}

proptest! {
    #[test]
    fn any_document_of_an_extension_server_leaves_ours_unchanged(document in prop_oneof![document(), mutated()]) {
        let before = ours();
        if let Ok(part) = v2(document.clone(), GROUP, "v1") {
            let mut all = before.clone();
            join(&mut all, &part);
            for section in ["paths", "definitions"] {
                for (name, value) in before[section].as_object().unwrap() {
                    prop_assert_eq!(&all[section][name], value);
                }
            }
            let own = |path: &String| before["paths"].get(path).is_some() || path.starts_with("/apis/demo.example.com/v1");
            prop_assert!(all["paths"].as_object().unwrap().keys().all(own));
            let mut used = BTreeSet::new();
            references(&all, &mut used);
            prop_assert!(used.iter().all(|name| all["definitions"].get(name).is_some()), "{:?}", used);
            // What was kept is as sound as it was.
            let kept: Value = serde_json::from_str(&part.text).unwrap();
            prop_assert_eq!(v2(kept, GROUP, "v1").unwrap(), part);
        }
        if let Ok(part) = v3(document, GROUP, "v1") {
            prop_assert_eq!(v3(serde_json::from_str(&part.text).unwrap(), GROUP, "v1").unwrap(), part);
        }
    }
}
