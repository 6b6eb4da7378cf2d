//! Discovery: which groups, versions and resources there are, in the legacy and the aggregated form.
//!
//! Pure functions of the registry. What delegated servers offer comes from a [`Fetch`] argument, so nothing here waits.
//! Groups keep the order clients resolve short names by: core, built-ins, then the others by priority.

use std::cmp::Reverse;

use serde_json::{Map, Value, json};

use crate::registry::{Aggregated, Registry, Resource};

/// Looks up the `resources` of a delegated version's `APIResourceList`; None while its server does not answer.
pub type Fetch<'a> = &'a dyn Fn(&Aggregated) -> Option<Vec<Value>>;

/// Media type parameters of the aggregated form, newest first. `v2beta1` is what clients before 1.30 know.
const FORMS: [(&str, &str); 2] = [("v=v2;", "v2"), ("v=v2beta1;", "v2beta1")];

/// Which aggregated form an `Accept` header prefers, `v2` or `v2beta1`; None when it wants the legacy documents.
pub fn aggregated_form(accept: &str) -> Option<&'static str> {
    let wanted = accept.split(',').map(|part| part.replace(' ', "") + ";").find(|part| {
        part.starts_with("application/json;")
            && (!part.contains("as=")
                || part.contains("as=APIGroupDiscoveryList;") && part.contains("g=apidiscovery.k8s.io;"))
    })?;
    FORMS.iter().find(|(parameter, _)| wanted.contains("as=") && wanted.contains(parameter)).map(|(_, form)| *form)
}

/// The `Content-Type` of an aggregated document.
pub fn aggregated_media_type(form: &str) -> String {
    format!("application/json;g=apidiscovery.k8s.io;v={form};as=APIGroupDiscoveryList")
}

/// `/api`.
pub fn core_versions(server: &str) -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server}]})
}

/// `/apis`.
pub fn group_list(registry: &Registry) -> Value {
    let groups: Vec<Value> = groups(registry).iter().filter(|g| !g.name.is_empty()).map(group_entry).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/{group}`; None when nothing serves it.
pub fn group(registry: &Registry, name: &str) -> Option<Value> {
    let groups = groups(registry);
    let mut entry = group_entry(groups.iter().find(|g| g.name == name && !name.is_empty())?);
    entry["kind"] = "APIGroup".into();
    entry["apiVersion"] = "v1".into();
    Some(entry)
}

/// `/api/v1` and `/apis/{group}/{version}`; None when this server does not serve it (the delegated ones answer themselves).
pub fn resource_list(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let resources = entries(registry, group, version);
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    (!resources.is_empty()).then(|| {
        let mut list = json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": resources});
        // The list of the first API is as old as the API.
        if !group.is_empty() {
            list["apiVersion"] = "v1".into();
        }
        list
    })
}

/// The aggregated document of `/api` (`core` true) or `/apis`.
pub fn aggregated(registry: &Registry, core: bool, form: &str, fetch: Fetch<'_>) -> Value {
    let items: Vec<Value> = groups(registry)
        .iter()
        .filter(|group| group.name.is_empty() == core)
        .map(|group| {
            let versions: Vec<Value> =
                group.versions.iter().map(|v| version_entry(registry, &group.name, v, fetch)).collect();
            let metadata = if core {
                json!({"creationTimestamp": null})
            } else {
                json!({"name": group.name, "creationTimestamp": null})
            };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{form}"), "metadata": {}, "items": items})
}

struct Group<'a> {
    name: String,
    versions: Vec<Version<'a>>,
}

struct Version<'a> {
    name: String,
    delegated: Option<&'a Aggregated>,
}

fn groups(registry: &Registry) -> Vec<Group<'_>> {
    // Built-in groups come first in table order; the priority of CRD groups is what upstream registers them with.
    let mut groups: Vec<(i32, Group<'_>)> = Vec::new();
    let mut add = |group: &str, version: &str, priority: i32, delegated| {
        let at = groups.iter().position(|(_, g)| g.name == group).unwrap_or_else(|| {
            groups.push((priority, Group { name: group.to_owned(), versions: Vec::new() }));
            groups.len() - 1
        });
        let entry = &mut groups[at];
        entry.0 = entry.0.max(priority);
        if !entry.1.versions.iter().any(|v| v.name == version) {
            entry.1.versions.push(Version { name: version.to_owned(), delegated });
        }
    };
    for resource in &registry.resources {
        let priority = if resource.crd.is_none() { i32::MAX } else { 1000 };
        add(&resource.group, &resource.version, priority, None);
    }
    for delegated in &registry.aggregated {
        add(&delegated.group, &delegated.version, delegated.priority.0, Some(delegated));
    }
    for (_, group) in &mut groups {
        group.versions.sort_by_cached_key(|v| (Reverse(v.delegated.map(|d| d.priority.1)), Reverse(maturity(&v.name))));
    }
    groups.sort_by_cached_key(|(priority, group)| {
        (Reverse(*priority), if *priority == i32::MAX { String::new() } else { group.name.clone() })
    });
    groups.into_iter().map(|(_, group)| group).collect()
}

/// Orders versions as Kubernetes does: stable before beta before alpha, then the higher numbers; others last.
pub fn maturity(version: &str) -> (u8, u32, u32) {
    let parse = || {
        let rest = version.strip_prefix('v')?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let major = rest[..digits].parse().ok()?;
        match &rest[digits..] {
            "" => Some((3, major, 0)),
            tail => {
                let (level, minor) = match tail.strip_prefix("beta") {
                    Some(minor) => (2, minor),
                    None => (1, tail.strip_prefix("alpha")?),
                };
                Some((level, major, minor.parse().ok()?))
            }
        }
    };
    parse().unwrap_or((0, 0, 0))
}

fn group_entry(group: &Group<'_>) -> Value {
    let versions: Vec<Value> = group
        .versions
        .iter()
        .map(|v| json!({"groupVersion": format!("{}/{}", group.name, v.name), "version": v.name}))
        .collect();
    json!({"name": group.name, "preferredVersion": versions.first(), "versions": versions})
}

fn entries(registry: &Registry, group: &str, version: &str) -> Vec<Value> {
    let of = registry.resources.iter().filter(|r| r.group == group && r.version == version);
    of.flat_map(|resource| resource_entries(resource)).collect()
}

/// A resource and its subresources as entries of an `APIResourceList`.
fn resource_entries(resource: &Resource) -> Vec<Value> {
    let mut main = json!({"name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
        "kind": resource.kind, "verbs": resource.verbs});
    for (key, words) in [("shortNames", &resource.short_names), ("categories", &resource.categories)] {
        if !words.is_empty() {
            main[key] = json!(words);
        }
    }
    if let Some(hash) = storage_hash(resource) {
        main["storageVersionHash"] = hash.into();
    }
    let mut entries = vec![main];
    let mut sub = |name: &str, kind: &str, verbs: &[&str]| {
        let mut entry = json!({"name": format!("{}/{name}", resource.plural), "singularName": "",
            "namespaced": resource.namespaced, "kind": kind, "verbs": verbs});
        if let Some((group, version)) = foreign(kind) {
            entry["group"] = group.into();
            entry["version"] = version.into();
        }
        entries.push(entry);
    };
    if resource.status_subresource {
        sub("status", &resource.kind, &["get", "patch", "update"]);
    }
    if resource.scale.is_some() {
        sub("scale", "Scale", &["get", "patch", "update"]);
    }
    for (name, verbs, kind) in &resource.subresources {
        sub(name, kind, &verbs.iter().map(String::as_str).collect::<Vec<_>>());
    }
    entries[1..].sort_by_cached_key(|entry| entry["name"].as_str().unwrap_or_default().to_owned());
    entries
}

/// A word that changes with the version in which objects are stored; None where none are.
fn storage_hash(resource: &Resource) -> Option<String> {
    use base64::Engine as _;
    use sha2::Digest as _;
    // What cannot be watched is not stored.
    if !resource.verbs.iter().any(|verb| verb == "watch") {
        return None;
    }
    // Both event APIs have the same objects.
    let group = if resource.group == "events.k8s.io" { "" } else { &resource.group };
    let name = format!("{group}/{}/{}", resource.storage_version, resource.kind);
    let digest = sha2::Sha256::digest(name.as_bytes());
    Some(base64::engine::general_purpose::STANDARD.encode(&digest[..8]))
}

/// Group and version of subresource kinds that live in another group than their parent.
pub fn foreign(kind: &str) -> Option<(&'static str, &'static str)> {
    match kind {
        "Scale" => Some(("autoscaling", "v1")),
        "Eviction" => Some(("policy", "v1")),
        "TokenRequest" => Some(("authentication.k8s.io", "v1")),
        _ => None,
    }
}

fn version_entry(registry: &Registry, group: &str, version: &Version<'_>, fetch: Fetch<'_>) -> Value {
    let fetched = match version.delegated {
        Some(delegated) => fetch(delegated),
        None => Some(entries(registry, group, &version.name)),
    };
    let freshness = if fetched.is_some() { "Current" } else { "Stale" };
    let mut resources: Vec<Map<String, Value>> = Vec::new();
    for entry in fetched.unwrap_or_default() {
        let name = entry["name"].as_str().unwrap_or_default();
        let kind = json!({"group": entry["group"].as_str().unwrap_or(group), "version": entry["version"].as_str().unwrap_or(&version.name),
            "kind": entry["kind"]});
        let (parent, sub) = name.split_once('/').map_or((name, None), |(parent, sub)| (parent, Some(sub)));
        let at = resources.iter().position(|r| r["resource"] == parent).unwrap_or_else(|| {
            let scope = if entry["namespaced"] == true { "Namespaced" } else { "Cluster" };
            resources
                .push(Map::from_iter([("resource".to_owned(), parent.into()), ("scope".to_owned(), scope.into())]));
            resources.len() - 1
        });
        let resource = &mut resources[at];
        if let Some(sub) = sub {
            let list = resource.entry("subresources").or_insert_with(|| json!([]));
            if let Some(list) = list.as_array_mut() {
                list.push(json!({"subresource": sub, "responseKind": kind, "verbs": entry["verbs"]}));
            }
            continue;
        }
        resource.insert("responseKind".to_owned(), kind);
        resource.insert("singularResource".to_owned(), entry["singularName"].clone());
        for key in ["verbs", "shortNames", "categories"] {
            if let Some(value) = entry.get(key) {
                resource.insert(key.to_owned(), value.clone());
            }
        }
    }
    json!({"version": version.name, "freshness": freshness, "resources": resources})
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::registry::builtin;

    fn registry() -> Registry {
        let aggregated = |group: &str, version: &str| Aggregated {
            group: group.into(),
            version: version.into(),
            service: ("kubevirt".into(), "virt-api".into(), 443),
            ca_bundle: None,
            insecure_skip_tls_verify: false,
            priority: (1000, 15),
        };
        Registry {
            resources: builtin::resources().into_iter().map(Arc::new).collect(),
            aggregated: vec![
                aggregated("subresources.kubevirt.io", "v1alpha3"),
                aggregated("subresources.kubevirt.io", "v1"),
            ],
            unserved: Vec::new(),
        }
    }

    #[test]
    fn versions_are_ordered_by_maturity() {
        let mut versions = vec!["v1alpha1", "v2", "foo", "v1beta2", "v1", "v10beta3", "v11alpha2"];
        versions.sort_by_key(|v| Reverse(maturity(v)));
        assert_eq!(versions, ["v2", "v1", "v10beta3", "v1beta2", "v11alpha2", "v1alpha1", "foo"]);
    }

    #[track_caller]
    fn check_accept(accept: &str, expect: Option<&str>) {
        assert_eq!(aggregated_form(accept), expect);
    }

    #[test]
    fn the_first_json_type_decides_the_form() {
        let v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        check_accept(&format!("{v2},application/json"), Some("v2"));
        check_accept(
            "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json",
            Some("v2beta1"),
        );
        check_accept("application/json", None);
        check_accept("application/json, */*", None);
        check_accept("", None);
    }

    #[test]
    fn groups_list_built_ins_first_and_prefer_the_stable_version() {
        let list = group_list(&registry());
        let last = list["groups"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(last["name"], "subresources.kubevirt.io");
        assert_eq!(last["preferredVersion"]["version"], "v1");
        assert!(group(&registry(), "apps").is_some());
        assert!(group(&registry(), "").is_none());
    }

    #[test]
    fn subresources_nest_in_the_aggregated_form() {
        let document = aggregated(&registry(), true, "v2", &|_| None);
        let resources = document["items"][0]["versions"][0]["resources"].as_array().unwrap();
        let pods = resources.iter().find(|r| r["resource"] == "pods").unwrap();
        assert_eq!(pods["shortNames"], json!(["po"]));
        let eviction =
            pods["subresources"].as_array().unwrap().iter().find(|s| s["subresource"] == "eviction").unwrap();
        assert_eq!(eviction["responseKind"], json!({"group": "policy", "version": "v1", "kind": "Eviction"}));
    }

    #[test]
    fn a_delegated_version_is_stale_until_its_server_answers() {
        let offered =
            vec![json!({"name": "virtualmachines/start", "namespaced": true, "kind": "", "verbs": ["update"]})];
        let document = aggregated(&registry(), false, "v2", &|a| (a.version == "v1").then(|| offered.clone()));
        let group = document["items"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(group["versions"][0]["freshness"], "Current");
        assert_eq!(group["versions"][0]["resources"][0]["subresources"][0]["subresource"], "start");
        assert_eq!(group["versions"][1]["freshness"], "Stale");
    }
}
