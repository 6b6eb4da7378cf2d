//! The schema of the subresources, in both of OpenAPI's versions that API servers ask for.

use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Map, Value, json};

use crate::discovery::{INSTANCE, MACHINE};
use crate::path::{GROUP, VERSIONS};

/// Which OpenAPI is spoken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    V2,
    V3,
}

/// Something that can be asked for.
struct Operation {
    /// Below `/apis/GROUP/VERSION`.
    path: String,
    method: &'static str,
    id: String,
    /// The definition of the body, where one is read.
    body: Option<&'static str>,
    /// How it is answered, other than with a document.
    answer: Answer,
}

#[derive(Clone, Copy)]
enum Answer {
    Document,
    Nothing,
    Image,
    /// The connection becomes a stream.
    Stream,
}

/// The fields of a body: name, type, and whether it must be there.
type Fields = &'static [(&'static str, &'static str, bool)];

const DRY_RUN: (&str, &str, bool) = ("dryRun", "strings", false);

/// The bodies that are read.
const BODIES: [(&str, Fields); 12] = [
    ("v1.StartOptions", &[("paused", "boolean", false), DRY_RUN]),
    ("v1.StopOptions", &[("gracePeriod", "integer", false), DRY_RUN]),
    ("v1.RestartOptions", &[("gracePeriodSeconds", "integer", false), DRY_RUN]),
    ("v1.MigrateOptions", &[("addedNodeSelector", "map", false), DRY_RUN]),
    ("v1.PauseOptions", &[DRY_RUN]),
    ("v1.UnpauseOptions", &[DRY_RUN]),
    ("v1.FreezeUnfreezeTimeout", &[("unfreezeTimeout", "string", false)]),
    ("v1.EvacuateCancelOptions", &[DRY_RUN]),
    (
        "v1.AddVolumeOptions",
        &[("name", "string", true), ("disk", "object", true), ("volumeSource", "object", true), DRY_RUN],
    ),
    ("v1.RemoveVolumeOptions", &[("name", "string", true), DRY_RUN]),
    ("v1.VirtualMachineMemoryDumpRequest", &[("claimName", "string", false)]),
    ("v1.VirtualMachine", &[("metadata", "object", false), ("spec", "object", true)]),
];

/// The body of a subresource; what is read by virt-handler is not described here.
fn body(subresource: &str) -> Option<&'static str> {
    Some(match subresource {
        "start" => "v1.StartOptions",
        "stop" => "v1.StopOptions",
        "restart" => "v1.RestartOptions",
        "migrate" => "v1.MigrateOptions",
        "pause" => "v1.PauseOptions",
        "unpause" => "v1.UnpauseOptions",
        "freeze" => "v1.FreezeUnfreezeTimeout",
        "evacuate/cancel" => "v1.EvacuateCancelOptions",
        "addvolume" => "v1.AddVolumeOptions",
        "removevolume" => "v1.RemoveVolumeOptions",
        "memorydump" => "v1.VirtualMachineMemoryDumpRequest",
        _ => return None,
    })
}

fn answer(subresource: &str, method: &str) -> Answer {
    match subresource {
        "console" | "vnc" | "portforward" => Answer::Stream,
        "vnc/screenshot" => Answer::Image,
        _ if method == "put" => Answer::Nothing,
        _ => Answer::Document,
    }
}

/// Everything of one version.
fn operations(version: &str) -> Vec<Operation> {
    let of = |resource: &'static str, (subresource, verb): &(&'static str, &'static str)| {
        let method = if *verb == "update" { "put" } else { "get" };
        let short = if resource == "virtualmachines" { "vm" } else { "vmi" };
        let base = format!("/namespaces/{{namespace}}/{resource}/{{name}}/{subresource}");
        let operation = |path: String, more: &str| Operation {
            path,
            method,
            id: format!("{version}{short}-{}{more}", subresource.replace('/', "-")),
            body: body(subresource),
            answer: answer(subresource, method),
        };
        match *subresource {
            "portforward" => vec![
                operation(format!("{base}/{{port}}"), ""),
                operation(format!("{base}/{{port}}/{{protocol}}"), "-with-protocol"),
            ],
            _ => vec![operation(base, "")],
        }
    };
    let plain = |path: &str, method, name: &str, body| Operation {
        path: path.to_owned(),
        method,
        id: format!("{version}{name}"),
        body,
        answer: Answer::Document,
    };
    let machines = MACHINE.iter().flat_map(|entry| of("virtualmachines", entry));
    let instances = INSTANCE.iter().flat_map(|entry| of("virtualmachineinstances", entry));
    let rest = [
        plain("/namespaces/{namespace}/expand-vm-spec", "put", "ExpandSpec", Some("v1.VirtualMachine")),
        plain("/version", "get", "Version", None),
        plain("/guestfs", "get", "Guestfs", None),
        plain("/healthz", "get", "CheckHealth", None),
    ];
    machines.chain(instances).chain(rest).collect()
}

impl Operation {
    /// The words in braces.
    fn parameters(&self, dialect: Dialect) -> Vec<Value> {
        let words = self.path.split('/').filter_map(|word| word.strip_prefix('{')?.strip_suffix('}'));
        let parameter = |name: &str| {
            let type_ = if name == "port" { "integer" } else { "string" };
            let mut parameter = json!({ "name": name, "in": "path", "required": true });
            match dialect {
                Dialect::V2 => parameter["type"] = json!(type_),
                Dialect::V3 => parameter["schema"] = json!({ "type": type_ }),
            }
            parameter
        };
        words.map(parameter).collect()
    }

    fn responses(&self, dialect: Dialect) -> Value {
        let (type_, schema) = match self.answer {
            Answer::Stream => return json!({ "101": { "description": "the connection is a stream from here on" } }),
            Answer::Nothing => {
                return json!({ "200": { "description": "OK" }, "202": { "description": "Accepted" } });
            }
            Answer::Image => ("image/png", json!({ "type": "string", "format": "binary" })),
            Answer::Document => ("application/json", json!({ "type": "object" })),
        };
        match dialect {
            Dialect::V2 => json!({ "200": { "description": "OK", "schema": schema } }),
            Dialect::V3 => json!({ "200": { "description": "OK", "content": { (type_): { "schema": schema } } } }),
        }
    }

    fn describe(&self, dialect: Dialect) -> Value {
        let mut said = json!({ "operationId": self.id, "responses": self.responses(dialect) });
        let mut parameters = self.parameters(dialect);
        match (dialect, self.body) {
            (Dialect::V2, Some(name)) => {
                let schema = json!({ "$ref": format!("#/definitions/{name}") });
                parameters.push(json!({ "name": "body", "in": "body", "schema": schema }));
                said["consumes"] = json!(["application/json"]);
            }
            (Dialect::V3, Some(name)) => {
                let schema = json!({ "$ref": format!("#/components/schemas/{name}") });
                said["requestBody"] = json!({ "content": { "application/json": { "schema": schema } } });
            }
            (_, None) => {}
        }
        said["parameters"] = json!(parameters);
        said
    }
}

fn paths(version: &str, dialect: Dialect) -> Map<String, Value> {
    let entry = |operation: Operation| {
        let path = format!("/apis/{GROUP}/{version}{}", operation.path);
        (path, json!({ (operation.method): operation.describe(dialect) }))
    };
    operations(version).into_iter().map(entry).collect()
}

fn definitions() -> Map<String, Value> {
    let field = |word: &str| match word {
        "strings" => json!({ "type": "array", "items": { "type": "string" } }),
        "map" => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
        type_ => json!({ "type": type_ }),
    };
    let definition = |(name, fields): &(&str, Fields)| {
        let properties: Map<String, Value> =
            fields.iter().map(|(field_name, type_, _)| ((*field_name).to_owned(), field(type_))).collect();
        let required: Vec<&str> =
            fields.iter().filter(|(_, _, required)| *required).map(|(field_name, ..)| *field_name).collect();
        let mut schema = json!({ "type": "object", "properties": properties });
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        ((*name).to_owned(), schema)
    };
    BODIES.iter().map(definition).collect()
}

fn info(version: &str) -> Value {
    json!({ "title": "KubeVirt", "version": version })
}

/// Swagger, for all versions at once.
fn v2() -> Value {
    let paths: Map<String, Value> = VERSIONS.into_iter().flat_map(|version| paths(version, Dialect::V2)).collect();
    json!({ "swagger": "2.0", "info": info(VERSIONS[0]), "paths": paths, "definitions": definitions() })
}

/// OpenAPI 3 of one version.
fn v3(version: &str) -> Value {
    json!({
        "openapi": "3.0.0", "info": info(version), "paths": paths(version, Dialect::V3),
        "components": { "schemas": definitions() },
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
    use std::collections::BTreeSet;

    use super::*;
    use crate::discovery;

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

    /// The names that discovery gives to what a path is about.
    fn discovered(path: &str, version: &str) -> Option<String> {
        let rest = path.strip_prefix(&format!("/apis/{GROUP}/{version}/"))?;
        let rest = rest.trim_start_matches("namespaces/{namespace}/");
        Some(rest.replace("/{name}", "").replace("/{port}", "").replace("/{protocol}", ""))
    }

    #[test]
    fn documents_describe_what_discovery_names() {
        for version in VERSIONS {
            let list = discovery::resources(version);
            let names =
                list["resources"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned());
            let names: BTreeSet<String> = names.collect();
            for document in [v2(), v3(version)] {
                whole(&document, &document);
                let paths = document["paths"].as_object().unwrap();
                let described: BTreeSet<String> = paths.keys().filter_map(|path| discovered(path, version)).collect();
                assert_eq!(described, names);
            }
        }
    }

    #[test]
    fn every_operation_has_a_name_of_its_own() {
        let all: Vec<String> = VERSIONS.into_iter().flat_map(operations).map(|operation| operation.id).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{all:?}");
    }

    #[test]
    fn a_path_is_described_as_it_is_served() {
        let path = format!("/apis/{GROUP}/v1/namespaces/{{namespace}}/virtualmachines/{{name}}/start");
        let start = &v2()["paths"][&path]["put"];
        assert_eq!(start["operationId"], "v1vm-start");
        let names: Vec<&Value> = start["parameters"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
        assert_eq!(names, ["namespace", "name", "body"]);
        let body = &v3("v1")["paths"][&path]["put"]["requestBody"]["content"]["application/json"]["schema"]["$ref"];
        assert_eq!(body, "#/components/schemas/v1.StartOptions");
        let served = crate::path::parse(&path.replace("{namespace}", "a").replace("{name}", "x"));
        assert!(served.is_some());
    }
}
