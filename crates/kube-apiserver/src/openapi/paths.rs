//! Paths: what can be done with a resource, in as much detail as clients look for.
//!
//! Clients find a resource's kind by its path (`kubectl explain`), and whether the server understands `dryRun` and
//! `fieldValidation` by the parameters of the PATCH operation of that kind.

use serde_json::{Map, Value, json};

use apimachinery::schema::builtin;

use super::component::{Dialect, gvk, name};
use crate::registry::Resource;

const WRITE: [&str; 3] = ["dryRun", "fieldManager", "fieldValidation"];
const LIST: [(&str, &str); 10] = [
    ("allowWatchBookmarks", "boolean"),
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("timeoutSeconds", "integer"),
    ("watch", "boolean"),
];
const DELETE: [(&str, &str); 4] = [
    ("dryRun", "string"),
    ("gracePeriodSeconds", "integer"),
    ("orphanDependents", "boolean"),
    ("propagationPolicy", "string"),
];
const PATCH_TYPES: [&str; 4] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

/// Adds the paths of a resource.
pub(super) fn add(resource: &Resource, dialect: Dialect, into: &mut Map<String, Value>) {
    let root = if resource.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", resource.group) };
    let base = format!("{root}/{}", resource.version);
    let collection = if resource.namespaced {
        format!("{base}/namespaces/{{namespace}}/{}", resource.plural)
    } else {
        format!("{base}/{}", resource.plural)
    };
    let writer = Writer { resource, dialect };
    into.insert(collection.clone(), writer.collection());
    into.insert(format!("{collection}/{{name}}"), writer.object(""));
    if resource.namespaced && writer.can("list") {
        let all = json!({"get": writer.operation("list", "ForAllNamespaces")});
        into.insert(format!("{base}/{}", resource.plural), all);
    }
    if resource.status_subresource {
        into.insert(format!("{collection}/{{name}}/status"), writer.object("Status"));
    }
    let verbs = ["get", "patch", "update"].map(str::to_owned).to_vec();
    let scale = resource.scale.is_some().then(|| ("scale".to_owned(), verbs, "Scale".to_owned()));
    for (name, verbs, kind) in resource.subresources.iter().chain(&scale) {
        if let Some(part) = Part::new(resource, name, kind) {
            into.insert(format!("{collection}/{{name}}/{name}"), writer.part(&part, verbs));
        }
    }
}

/// A subresource with a kind of its own.
struct Part {
    suffix: String,
    gvk: Value,
    component: String,
}

impl Part {
    /// None for a kind that is no document, such as the options of `exec`.
    fn new(resource: &Resource, name: &str, kind: &str) -> Option<Self> {
        let (group, version) = crate::discovery::foreign(kind).unwrap_or((&resource.group, &resource.version));
        let component = builtin::schema(group, version, kind)?.type_name.clone();
        let gvk = json!({"group": group, "version": version, "kind": kind});
        Some(Self { suffix: capital(name), gvk, component })
    }
}

struct Writer<'a> {
    resource: &'a Resource,
    dialect: Dialect,
}

impl Writer<'_> {
    fn can(&self, verb: &str) -> bool {
        self.resource.verbs.iter().any(|v| v == verb)
    }

    fn collection(&self) -> Value {
        let mut item = json!({"parameters": self.path_parameters(false)});
        for (method, verb) in [("get", "list"), ("post", "create"), ("delete", "deletecollection")] {
            if self.can(verb) {
                item[method] = self.operation(verb, "");
            }
        }
        item
    }

    fn object(&self, suffix: &str) -> Value {
        let mut item = json!({"parameters": self.path_parameters(true)});
        for (method, verb) in [("get", "get"), ("put", "update"), ("patch", "patch"), ("delete", "delete")] {
            if self.can(verb) && (suffix.is_empty() || method != "delete") {
                item[method] = self.operation(verb, suffix);
            }
        }
        item
    }

    fn part(&self, part: &Part, verbs: &[String]) -> Value {
        let mut item = json!({"parameters": self.path_parameters(true)});
        for (method, verb) in [("get", "get"), ("post", "create"), ("put", "update"), ("patch", "patch")] {
            if verbs.iter().any(|v| v == verb) {
                let kind = self.dialect.reference(&part.component);
                item[method] = self.operation_on(verb, &part.suffix, &kind, &part.gvk);
            }
        }
        item
    }

    fn path_parameters(&self, named: bool) -> Value {
        let mut list = Vec::new();
        if named {
            list.push(self.parameter("name", "string", "path"));
        }
        if self.resource.namespaced {
            list.push(self.parameter("namespace", "string", "path"));
        }
        Value::Array(list)
    }

    fn parameter(&self, name: &str, type_: &str, place: &str) -> Value {
        let mut parameter = json!({"name": name, "in": place});
        if place == "path" {
            parameter["required"] = true.into();
        }
        if self.dialect == Dialect::V3 {
            parameter["schema"] = json!({"type": type_, "uniqueItems": true});
        } else {
            parameter["type"] = type_.into();
            parameter["uniqueItems"] = true.into();
        }
        parameter
    }

    fn operation(&self, verb: &str, suffix: &str) -> Value {
        let kind = self.dialect.reference(&name(self.resource));
        self.operation_on(verb, suffix, &kind, &gvk(self.resource, &self.resource.kind)[0])
    }

    fn operation_on(&self, verb: &str, suffix: &str, kind: &Value, gvk: &Value) -> Value {
        let (action, word) = match verb {
            "list" => ("list", "list"),
            "create" => ("post", "create"),
            "update" => ("put", "replace"),
            "deletecollection" => ("deletecollection", "deleteCollection"),
            "get" => ("get", "read"),
            other => (other, other),
        };
        let group = self.resource.group.split('.').next().filter(|group| !group.is_empty()).unwrap_or("core");
        let scope = if self.resource.namespaced && suffix != "ForAllNamespaces" { "Namespaced" } else { "" };
        let id =
            format!("{word}{}{}{scope}{}{suffix}", capital(group), capital(&self.resource.version), self.resource.kind);
        let query: Vec<(&str, &str)> = match verb {
            "list" => LIST.to_vec(),
            "deletecollection" => LIST.iter().chain(&DELETE).copied().collect(),
            "delete" => DELETE.to_vec(),
            "create" | "update" => WRITE.map(|name| (name, "string")).to_vec(),
            "patch" => WRITE.map(|name| (name, "string")).into_iter().chain([("force", "boolean")]).collect(),
            _ => Vec::new(),
        };
        let mut parameters: Vec<Value> =
            query.iter().map(|(name, type_)| self.parameter(name, type_, "query")).collect();
        let answer = match verb {
            "list" => self.dialect.reference(&format!("{}List", name(self.resource))),
            "delete" | "deletecollection" => self.dialect.reference("io.k8s.apimachinery.pkg.apis.meta.v1.Status"),
            _ => kind.clone(),
        };
        let body = match verb {
            "create" | "update" => Some((kind.clone(), vec!["application/json", "application/yaml"])),
            "patch" => {
                let mut types = PATCH_TYPES.to_vec();
                // Clients send a strategic merge patch wherever it is offered, and custom resources know none.
                types.retain(|type_| self.resource.crd.is_none() || !type_.contains("strategic"));
                Some((self.dialect.reference("io.k8s.apimachinery.pkg.apis.meta.v1.Patch"), types))
            }
            "delete" | "deletecollection" => Some((
                self.dialect.reference("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"),
                vec!["application/json"],
            )),
            _ => None,
        };
        let mut operation = json!({"operationId": id, "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": gvk});
        let required = !verb.starts_with("delete");
        if self.dialect == Dialect::V3 {
            if let Some((schema, types)) = body {
                let content: Map<String, Value> =
                    types.iter().map(|t| ((*t).to_owned(), json!({"schema": schema}))).collect();
                operation["requestBody"] = json!({"content": content, "required": required});
            }
            operation["responses"] =
                json!({"200": {"description": "OK", "content": {"application/json": {"schema": answer}}}});
        } else {
            if let Some((schema, types)) = body {
                parameters.push(json!({"name": "body", "in": "body", "required": required, "schema": schema}));
                operation["consumes"] = json!(types);
            }
            operation["produces"] = json!(["application/json"]);
            operation["responses"] = json!({"200": {"description": "OK", "schema": answer}});
        }
        operation["parameters"] = Value::Array(parameters);
        operation
    }
}

fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}
