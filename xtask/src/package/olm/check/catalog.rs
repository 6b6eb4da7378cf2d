//! Findings about a file-based catalog of one package.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{is_image, is_version};

/// The findings.
pub(in super::super) fn check(blobs: &[Value]) -> Vec<String> {
    let mut found = Vec::new();
    let of = |schema: &'static str| blobs.iter().filter(move |blob| blob["schema"] == schema);
    let name = |blob: &Value| blob["name"].as_str().unwrap_or_default().to_owned();
    found.extend(
        blobs
            .iter()
            .filter(|blob| blob["schema"].is_null())
            .map(|blob| format!("{} is missing root schema field", name(blob))),
    );
    let packages: Vec<&Value> = of("olm.package").collect();
    let [package] = packages.as_slice() else {
        found.push(format!("the catalog holds {} packages", packages.len()));
        return found;
    };
    let title = name(package);
    if title.is_empty() {
        found.push("package name must be set".to_owned());
    }
    let channels: Vec<String> = of("olm.channel").map(name).collect();
    let default = package["defaultChannel"].as_str().unwrap_or_default();
    if channels.is_empty() || !channels.iter().any(|channel| channel == default) {
        found.push(format!("default channel {default:?} is none of {channels:?}"));
    }
    let mut bundles = BTreeSet::new();
    for bundle in of("olm.bundle") {
        if !bundles.insert(name(bundle)) {
            found.push(format!("{} is there twice", name(bundle)));
        }
        found.extend(about_bundle(bundle, &title));
    }
    let mut offered = BTreeSet::new();
    for channel in of("olm.channel") {
        let entries: Vec<&Value> = channel["entries"].as_array().into_iter().flatten().collect();
        offered.extend(entries.iter().map(|entry| name(entry)));
        found.extend(heads(&entries).into_iter().map(|finding| format!("channel {}: {finding}", name(channel))));
        for entry in &entries {
            if !bundles.contains(&name(entry)) {
                found.push(format!("channel {}: {} is no bundle", name(channel), name(entry)));
            }
        }
    }
    found.extend(bundles.difference(&offered).map(|bundle| format!("{bundle} is in no channel")));
    found
}

fn about_bundle(bundle: &Value, package: &str) -> Vec<String> {
    let mut found = Vec::new();
    let properties: Vec<&Value> = bundle["properties"].as_array().into_iter().flatten().collect();
    let own: Vec<&Value> =
        properties.iter().filter(|one| one["type"] == "olm.package").map(|one| &one["value"]).collect();
    let says = own.len() == 1
        && own[0]["packageName"] == package
        && is_version(own[0]["version"].as_str().unwrap_or_default());
    if !says {
        found.push("must have exactly one property olm.package, of its package and a version".to_owned());
    }
    if !is_image(bundle["image"].as_str().unwrap_or_default()) {
        found.push(format!("image {} is none", bundle["image"]));
    }
    for image in bundle["relatedImages"].as_array().into_iter().flatten() {
        if !is_image(image["image"].as_str().unwrap_or_default()) {
            found.push(format!("related image {image} is none"));
        }
    }
    found.into_iter().map(|finding| format!("{}: {finding}", bundle["name"])).collect()
}

/// From the one entry that nothing replaces, all others are reached.
fn heads(entries: &[&Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let replaced = |name: &str| {
        entries.iter().any(|entry| {
            let skips = entry["skips"].as_array().into_iter().flatten();
            text(&entry["replaces"]) == name || skips.into_iter().any(|skipped| text(skipped) == name)
        })
    };
    let heads: Vec<String> = entries.iter().map(|entry| text(&entry["name"])).filter(|name| !replaced(name)).collect();
    match heads.as_slice() {
        [] => vec!["no channel head found in graph".to_owned()],
        [_] => Vec::new(),
        several => vec![format!("multiple channel heads found in graph: {}", several.join(", "))],
    }
}
