//! The schema of what the aggregated API takes, in both of OpenAPI's versions that API servers ask for.

use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::upload_token::{GROUP, VERSIONS};

const KIND: &str = "UploadTokenRequest";

/// The request as a schema.
fn schema(version: &str, meta: &Value) -> Value {
    let text = |description: &str| json!({ "type": "string", "description": description });
    json!({
        "type": "object", "required": ["spec"],
        "description": "Asks for a token with which a claim may be uploaded into.",
        "x-kubernetes-group-version-kind": [{ "group": GROUP, "version": version, "kind": KIND }],
        "properties": {
            "apiVersion": text("Group and version of this object's schema."),
            "kind": text("The kind of this object."),
            "metadata": meta,
            "spec": { "type": "object", "required": ["pvcName"], "properties": { "pvcName": text("The claim.") } },
            "status": { "type": "object", "properties": { "token": text("What the upload proxy is shown.") } },
        },
    })
}

fn path(version: &str) -> String {
    format!("/apis/{GROUP}/{version}/namespaces/{{namespace}}/uploadtokenrequests")
}

fn operation(version: &str, body: (&str, Value), answer: &Value) -> Value {
    let mut said = json!({
        "operationId": format!("create{KIND}{version}"), "description": "Makes a token.",
        "x-kubernetes-action": "post",
        "x-kubernetes-group-version-kind": { "group": GROUP, "version": version, "kind": KIND },
        "responses": { "200": answer },
    });
    said[body.0] = body.1;
    said
}

/// Swagger, for all versions at once.
fn v2() -> Value {
    let (mut paths, mut definitions) = (json!({}), json!({}));
    for version in VERSIONS {
        let name = format!("{version}.{KIND}");
        let reference = json!({ "$ref": format!("#/definitions/{name}") });
        let body = json!([
            { "name": "namespace", "in": "path", "required": true, "type": "string", "uniqueItems": true },
            { "name": "body", "in": "body", "required": true, "schema": reference },
        ]);
        let answer = json!({ "description": "OK", "schema": reference });
        let mut post = operation(version, ("parameters", body), &answer);
        post["consumes"] = json!(["application/json"]);
        post["produces"] = json!(["application/json"]);
        paths[path(version)] = json!({ "post": post });
        definitions[name] = schema(version, &json!({ "type": "object" }));
    }
    json!({ "swagger": "2.0", "info": { "title": "CDI", "version": VERSIONS[0] }, "paths": paths, "definitions": definitions })
}

/// OpenAPI 3 of one version.
fn v3(version: &str) -> Value {
    let name = format!("{version}.{KIND}");
    let content = json!({ "application/json": { "schema": { "$ref": format!("#/components/schemas/{name}") } } });
    let post = operation(
        version,
        ("requestBody", json!({ "required": true, "content": content })),
        &json!({ "description": "OK", "content": content }),
    );
    let namespace = json!([{ "name": "namespace", "in": "path", "required": true, "schema": { "type": "string" } }]);
    json!({
        "openapi": "3.0.0", "info": { "title": "CDI", "version": version },
        "paths": { (path(version)): { "post": post, "parameters": namespace } },
        "components": { "schemas": { (name): schema(version, &json!({ "type": "object" })) } },
    })
}

/// `/openapi/v2`, and `/openapi/v3` with what it leads to.
pub(crate) fn router() -> Router {
    let place = |version: &str| format!("apis/{GROUP}/{version}");
    let index: Value = VERSIONS
        .map(|version| (place(version), json!({ "serverRelativeURL": format!("/openapi/v3/{}", place(version)) })))
        .into_iter()
        .collect();
    let index = json!({ "paths": index });
    let router = Router::new()
        .route("/openapi/v2", get(|| async { Json(v2()) }))
        .route("/openapi/v3", get(move || async move { Json(index) }));
    VERSIONS.into_iter().fold(router, |router, version| {
        router.route(&format!("/openapi/v3/{}", place(version)), get(move || async move { Json(v3(version)) }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every reference of a document leads to something in it.
    fn whole(document: &Value, at: &Value) {
        if let Some(to) = at.get("$ref").and_then(Value::as_str) {
            assert!(document.pointer(to.trim_start_matches('#')).is_some(), "{to}");
        }
        let below: Vec<&Value> = match at {
            Value::Object(fields) => fields.values().collect(),
            Value::Array(items) => items.iter().collect(),
            _ => Vec::new(),
        };
        below.into_iter().for_each(|below| whole(document, below));
    }

    #[test]
    fn documents_are_whole() {
        for document in [v2(), v3(VERSIONS[0]), v3(VERSIONS[1])] {
            whole(&document, &document);
            let paths = document["paths"].as_object().unwrap();
            assert!(paths.keys().all(|path| path.starts_with("/apis/upload.cdi.kubevirt.io/")), "{paths:?}");
        }
    }
}
