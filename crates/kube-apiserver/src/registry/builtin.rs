//! The resources the server ships, from generated data.

use serde_json::Value;

use apimachinery::schema::builtin::definition;
use apimachinery::tree::strings;

use super::{Column, Resource, ScalePaths};

static RESOURCES: &str = include_str!("../generated/resources.json");

/// Every shipped resource in the order of discovery; core first.
pub fn resources() -> Vec<Resource> {
    let table: Vec<Value> = serde_json::from_str(RESOURCES).unwrap_or_default();
    table.iter().filter_map(resource).collect()
}

fn resource(entry: &Value) -> Option<Resource> {
    let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let mut status_subresource = false;
    let mut scale = None;
    let mut subresources = Vec::new();
    for sub in entry["subresources"].as_array().into_iter().flatten() {
        match sub[0].as_str()? {
            "status" => status_subresource = true,
            "scale" => {
                scale = Some(ScalePaths {
                    spec_replicas: ".spec.replicas".to_owned(),
                    status_replicas: ".status.replicas".to_owned(),
                    selector: ".spec.selector".to_owned(),
                });
            }
            name => subresources.push((name.to_owned(), strings(&sub[1]), sub[2].as_str()?.to_owned())),
        }
    }
    let kind = text("kind");
    Some(Resource {
        group: text("group"),
        version: text("version"),
        storage_version: storage_version(&text("group"), &text("version")),
        list_kind: format!("{kind}List"),
        kind,
        plural: text("plural"),
        singular: text("singular"),
        short_names: strings(&entry["shortNames"]),
        categories: strings(&entry["categories"]),
        namespaced: entry["namespaced"].as_bool()?,
        verbs: strings(&entry["verbs"]),
        status_subresource,
        scale,
        subresources,
        schema: definition(entry["type"].as_str()?)?,
        rules: None,
        columns: entry["columns"].as_array().into_iter().flatten().filter_map(column).collect(),
        crd: None,
        crd_revision: 0,
        deprecation: deprecation(text("group").as_str(), text("plural").as_str()),
        conversion_webhook: None,
        selectable_fields: strings(&entry["fields"]),
    })
}

/// The version in which a kind is stored; one alone is served in two.
fn storage_version(group: &str, version: &str) -> String {
    if group == "autoscaling" { "v2".to_owned() } else { version.to_owned() }
}

/// What Kubernetes 1.33 warns of who still uses a kind.
fn deprecation(group: &str, plural: &str) -> String {
    match (group, plural) {
        ("", "endpoints") => "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice".to_owned(),
        ("", "componentstatuses") => "v1 ComponentStatus is deprecated in v1.19+".to_owned(),
        _ => String::new(),
    }
}

fn column(entry: &Value) -> Option<Column> {
    Some(Column {
        name: entry[0].as_str()?.to_owned(),
        type_: entry[1].as_str()?.to_owned(),
        format: entry[2].as_str()?.to_owned(),
        description: String::new(),
        priority: i32::try_from(entry[3].as_i64()?).ok()?,
        json_path: String::new(),
    })
}

#[cfg(test)]
mod tests {
    use apimachinery::schema::ListType;

    use super::*;

    #[test]
    fn every_resource_has_a_schema() {
        let resources = resources();
        assert!(resources.len() > 50, "{}", resources.len());
        let pods = resources.iter().find(|r| r.plural == "pods").unwrap();
        assert_eq!((pods.group.as_str(), pods.version.as_str(), pods.status_subresource), ("", "v1", true));
        let containers = &pods.schema.properties["spec"].properties["containers"];
        assert_eq!(containers.list_type, ListType::Map(vec!["name".into()]));
    }
}
