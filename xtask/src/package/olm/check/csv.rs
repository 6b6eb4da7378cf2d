//! Findings about a ClusterServiceVersion by itself.

use std::collections::BTreeSet;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

use super::{is_image, is_name, is_version};

const CAPABILITIES: [&str; 5] = ["Basic Install", "Seamless Upgrades", "Full Lifecycle", "Deep Insights", "Auto Pilot"];
const CATEGORIES: [&str; 16] = [
    "AI/Machine Learning",
    "Application Runtime",
    "Big Data",
    "Cloud Provider",
    "Developer Tools",
    "Database",
    "Integration & Delivery",
    "Logging & Tracing",
    "Modernization & Migration",
    "Monitoring",
    "Networking",
    "OpenShift Optional",
    "Security",
    "Storage",
    "Streaming & Messaging",
    "Other",
];
const PICTURES: [&str; 4] = ["image/gif", "image/jpeg", "image/png", "image/svg+xml"];
const MODES: [&str; 4] = ["OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces"];

/// The findings.
pub(super) fn check(csv: &Value) -> Vec<String> {
    let mut found = Vec::new();
    found.extend(identity(csv));
    found.extend(modes(&csv["spec"]["installModes"]));
    found.extend(people(&csv["spec"]));
    found.extend(icon(&csv["spec"]["icon"]));
    found.extend(words(&csv["metadata"]["annotations"]));
    found.extend(examples(csv));
    found.extend(images(&csv["spec"]["relatedImages"]));
    found.extend(strategy(&csv["spec"]["install"]));
    found.into_iter().map(|finding| format!("ClusterServiceVersion: {finding}")).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn identity(csv: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let name = text(&csv["metadata"]["name"]);
    if !is_name(name) {
        found.push(format!("metadata.name {name:?} is no name of at most 63 characters"));
    }
    let version = text(&csv["spec"]["version"]);
    if !is_version(version) {
        found.push(format!("spec.version {version:?} is no semantic version"));
    }
    if !name.ends_with(&format!(".v{version}")) {
        found.push(format!("metadata.name {name:?} does not end with .v{version}"));
    }
    if let Some(replaces) = csv["spec"].get("replaces")
        && !is_name(text(replaces))
    {
        found.push(format!("spec.replaces {replaces} is no name of at most 63 characters"));
    }
    if !is_version(text(&csv["spec"]["minKubeVersion"])) {
        found.push("spec.minKubeVersion is missing or no version".to_owned());
    }
    if csv["apiVersion"] != "operators.coreos.com/v1alpha1" {
        found.push("apiVersion is not operators.coreos.com/v1alpha1".to_owned());
    }
    for field in ["displayName", "description"] {
        if text(&csv["spec"][field]).is_empty() {
            found.push(format!("spec.{field} is missing"));
        }
    }
    found
}

fn modes(modes: &Value) -> Vec<String> {
    let names: Vec<&str> = list(modes).iter().map(|mode| text(&mode["type"])).collect();
    let mut found = Vec::new();
    if names.is_empty() {
        found.push("install modes not found".to_owned());
    }
    if names.iter().collect::<BTreeSet<_>>().len() != names.len() {
        found.push("duplicate install modes present".to_owned());
    }
    found.extend(
        names.iter().filter(|name| !MODES.contains(name)).map(|name| format!("install mode {name} is unknown")),
    );
    if !names.is_empty() && !list(modes).iter().any(|mode| mode["supported"] == true) {
        found.push("none of InstallModeTypes are supported".to_owned());
    }
    found
}

fn people(spec: &Value) -> Vec<String> {
    let mut found = Vec::new();
    if text(&spec["provider"]["name"]).is_empty() {
        found.push("spec.provider.name is missing".to_owned());
    }
    if list(&spec["maintainers"]).is_empty() {
        found.push("spec.maintainers are missing".to_owned());
    }
    for person in list(&spec["maintainers"]) {
        let address = text(&person["email"]);
        let is_address = address.split_once('@').is_some_and(|(who, host)| !who.is_empty() && host.contains('.'));
        if text(&person["name"]).is_empty() || !is_address {
            found.push(format!("spec.maintainers holds {person}, which has no name and address"));
        }
    }
    for link in list(&spec["links"]) {
        let url = text(&link["url"]);
        if text(&link["name"]).is_empty() || !(url.starts_with("https://") || url.starts_with("http://")) {
            found.push(format!("spec.links holds {link}, which has no name and URL"));
        }
    }
    found
}

fn icon(icons: &Value) -> Vec<String> {
    let [icon] = list(icons) else { return vec!["spec.icon is not exactly one".to_owned()] };
    let mut found = Vec::new();
    if !PICTURES.contains(&text(&icon["mediatype"])) {
        found.push(format!("spec.icon is of type {}", icon["mediatype"]));
    }
    let data = BASE64_STANDARD.decode(text(&icon["base64data"]));
    if data.is_err() || data.is_ok_and(|data| data.is_empty()) {
        found.push("spec.icon holds no picture".to_owned());
    }
    found
}

fn words(annotations: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let capabilities = text(&annotations["capabilities"]);
    if !CAPABILITIES.contains(&capabilities) {
        found.push(format!("annotation capabilities is {capabilities:?}"));
    }
    let categories = text(&annotations["categories"]);
    let unknown = categories.split(',').map(str::trim).filter(|category| !CATEGORIES.contains(category));
    found.extend(unknown.map(|category| format!("annotation categories names {category:?}")));
    const NAMES: [&str; 5] = ["capabilities", "categories", "containerImage", "createdAt", "alm-examples"];
    for key in annotations.as_object().into_iter().flat_map(serde_json::Map::keys) {
        let meant = NAMES.iter().find(|name| name.eq_ignore_ascii_case(key) && **name != key);
        found.extend(meant.map(|name| format!("annotation {key} should be {name}")));
    }
    found
}

/// Each example is of an API that is provided, and each of these has one.
fn examples(csv: &Value) -> Vec<String> {
    let Ok(examples) = serde_json::from_str::<Vec<Value>>(text(&csv["metadata"]["annotations"]["alm-examples"])) else {
        return vec!["annotation alm-examples is no list".to_owned()];
    };
    let owned = list(&csv["spec"]["customresourcedefinitions"]["owned"]);
    let provides = |owned: &Value, example: &Value| {
        let group = text(&owned["name"]).split_once('.').map_or("", |(_, group)| group);
        text(&example["apiVersion"]) == format!("{group}/{}", text(&owned["version"]))
            && owned["kind"] == example["kind"]
    };
    let mut found = Vec::new();
    for example in &examples {
        if !owned.iter().any(|owned| provides(owned, example)) {
            found.push(format!("the example of {} must have a provided API", example["kind"]));
        }
    }
    for owned in owned {
        if !examples.iter().any(|example| example["kind"] == owned["kind"]) {
            found.push(format!("{} has no example", owned["kind"]));
        }
        if text(&owned["description"]).is_empty() {
            found.push(format!("{} has no description", owned["kind"]));
        }
    }
    found
}

fn images(images: &Value) -> Vec<String> {
    let bad = list(images).iter().filter(|image| text(&image["name"]).is_empty() || !is_image(text(&image["image"])));
    let mut found: Vec<String> = bad.map(|image| format!("spec.relatedImages holds {image}")).collect();
    if list(images).is_empty() {
        found.push("spec.relatedImages is empty".to_owned());
    }
    found
}

fn strategy(install: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let deployments = list(&install["spec"]["deployments"]);
    if install["strategy"] != "deployment" || deployments.is_empty() {
        found.push("spec.install deploys nothing".to_owned());
    }
    for deployment in deployments {
        let pod = &deployment["spec"]["template"]["spec"];
        for container in list(&pod["containers"]) {
            if container["resources"]["requests"].is_null() {
                found.push(format!("{} requests no resources", deployment["name"]));
            }
        }
        let account = &pod["serviceAccountName"];
        let spec = &install["spec"];
        let mut granted = list(&spec["permissions"]).iter().chain(list(&spec["clusterPermissions"]));
        if !granted.any(|granted| granted["serviceAccountName"] == *account) {
            found.push(format!("{} runs as {account}, to which nothing is granted", deployment["name"]));
        }
    }
    found
}
