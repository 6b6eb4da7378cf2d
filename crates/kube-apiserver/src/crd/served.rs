//! The registry made of the built-ins, the stored CRDs and the stored APIServices.

use std::sync::Arc;

use base64::Engine as _;
use serde_json::Value;

use apimachinery::rules::Rules;
use apimachinery::schema::parse;
use apimachinery::tree::strings;
use kube_store::Store;

use crate::openapi::descriptions::of_metadata;
use crate::registry::builtin;
use crate::registry::{Aggregated, Column, ConversionWebhook, Registry, Resource, ScalePaths};

/// Everything served. Entries of definitions that did not change are taken over from `before`, because a large schema
/// takes milliseconds to parse.
pub(crate) fn registry(store: &Store, before: &Registry) -> Registry {
    let mut resources: Vec<Arc<Resource>> = before.resources.iter().filter(|r| r.crd.is_none()).cloned().collect();
    if resources.is_empty() {
        resources = builtin::resources().into_iter().map(Arc::new).collect();
    }
    let mut unserved: Vec<Arc<Resource>> = Vec::new();
    for object in store.list(super::STORAGE, None).objects {
        let unchanged = |list: &[Arc<Resource>]| -> Vec<Arc<Resource>> {
            let same = |r: &Resource| r.crd.as_deref() == Some(&object.key.name) && r.crd_revision == object.revision;
            list.iter().filter(|r| same(r)).cloned().collect()
        };
        let known = (unchanged(&before.resources), unchanged(&before.unserved));
        if known.0.is_empty() && known.1.is_empty() {
            for (served, resource) in definition(&object.value(), object.revision) {
                let list = if served { &mut resources } else { &mut unserved };
                list.push(Arc::new(resource));
            }
        } else {
            resources.extend(known.0);
            unserved.extend(known.1);
        }
    }
    let services = store.list("apiservices.apiregistration.k8s.io", None);
    let mut aggregated: Vec<Aggregated> = services.objects.iter().filter_map(|o| delegated(&o.value())).collect();
    aggregated.retain(|a| !resources.iter().any(|r| r.group == a.group && r.version == a.version && r.crd.is_none()));
    Registry { resources, unserved, aggregated }
}

/// The versions of one definition, each with whether it is served.
fn definition(crd: &Value, revision: u64) -> Vec<(bool, Resource)> {
    let spec = &crd["spec"];
    let established = crd["status"]["conditions"]
        .as_array()
        .is_some_and(|list| list.iter().any(|c| c["type"] == "Established" && c["status"] == "True"));
    if !established {
        return Vec::new();
    }
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let storage = versions.iter().find(|v| v["storage"] == true).map(|v| v["name"].as_str().unwrap_or_default());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    // Names asked for since are served once they are accepted.
    let accepted = &crd["status"]["acceptedNames"];
    let names = if text(&accepted["plural"]).is_empty() { &spec["names"] } else { accepted };
    let webhook = ConversionWebhook::new(&spec["conversion"]).map(Arc::new);
    let terminating = crd["metadata"]["deletionTimestamp"].is_string();
    let resource = |version: &Value| {
        let subresources = &version["subresources"];
        let scale = &subresources["scale"];
        let mut verbs = vec!["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
        if terminating {
            verbs.retain(|verb| *verb != "create");
        }
        let schema = Arc::new(parse::custom_resource(
            version["schema"].get("openAPIV3Schema"),
            spec["preserveUnknownFields"].as_bool().unwrap_or(false),
        ));
        Resource {
            group: text(&spec["group"]),
            version: text(&version["name"]),
            storage_version: storage.unwrap_or_default().to_owned(),
            kind: text(&names["kind"]),
            list_kind: text(&names["listKind"]),
            plural: text(&names["plural"]),
            singular: text(&names["singular"]),
            short_names: strings(&names["shortNames"]),
            categories: strings(&names["categories"]),
            namespaced: spec["scope"] == "Namespaced",
            verbs: verbs.into_iter().map(str::to_owned).collect(),
            status_subresource: subresources["status"].is_object(),
            scale: scale.is_object().then(|| ScalePaths {
                spec_replicas: text(&scale["specReplicasPath"]),
                status_replicas: text(&scale["statusReplicasPath"]),
                selector: text(&scale["labelSelectorPath"]),
            }),
            subresources: Vec::new(),
            rules: Rules::compile(&schema),
            schema,
            columns: columns(&version["additionalPrinterColumns"]),
            crd: Some(text(&crd["metadata"]["name"])),
            crd_revision: revision,
            deprecation: deprecation(spec, version),
            conversion_webhook: webhook.clone(),
            selectable_fields: version["selectableFields"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|field| text(&field["jsonPath"]))
                .collect(),
        }
    };
    versions.iter().map(|version| (version["served"] == true, resource(version))).collect()
}

/// The warning of a deprecated version, its own or the usual one.
fn deprecation(spec: &Value, version: &Value) -> String {
    if version["deprecated"] != true {
        return String::new();
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, name, kind) = (text(&spec["group"]), text(&version["name"]), text(&spec["names"]["kind"]));
    let own = version["deprecationWarning"].as_str().map(str::to_owned);
    own.unwrap_or_else(|| format!("{group}/{name} {kind} is deprecated"))
}

fn columns(list: &Value) -> Vec<Column> {
    let Some(list) = list.as_array().filter(|list| !list.is_empty()) else {
        return vec![Column {
            name: "Age".into(),
            type_: "date".into(),
            format: String::new(),
            description: of_metadata("creationTimestamp").into(),
            priority: 0,
            json_path: ".metadata.creationTimestamp".into(),
        }];
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    list.iter()
        .map(|column| Column {
            name: text(&column["name"]),
            type_: text(&column["type"]),
            format: text(&column["format"]),
            description: match text(&column["description"]) {
                none if none.is_empty() => {
                    format!("Custom resource definition column (in JSONPath format): {}", text(&column["jsonPath"]))
                }
                said => said,
            },
            priority: column["priority"].as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(0),
            json_path: text(&column["jsonPath"]),
        })
        .collect()
}

/// The delegation an APIService asks for; None for one that names no Service.
fn delegated(service: &Value) -> Option<Aggregated> {
    let spec = &service["spec"];
    let target = spec["service"].as_object()?;
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let number = |key: &str| spec[key].as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(0);
    Some(Aggregated {
        group: text(spec.get("group")),
        version: text(spec.get("version")),
        service: (
            text(target.get("namespace")),
            text(target.get("name")),
            target.get("port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok()).unwrap_or(443),
        ),
        ca_bundle: spec["caBundle"]
            .as_str()
            .and_then(|text| base64::engine::general_purpose::STANDARD.decode(text).ok()),
        insecure_skip_tls_verify: spec["insecureSkipTLSVerify"] == true,
        priority: (number("groupPriorityMinimum"), number("versionPriority")),
    })
}
