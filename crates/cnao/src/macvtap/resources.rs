//! From the configuration and the node's links to resources and their devices. Pure.

use std::collections::{BTreeMap, BTreeSet};

use net::macvtap::Mode;
use serde::Deserialize;

/// What resources are called.
pub(super) const PREFIX: &str = "macvtap.network.kubevirt.io/";
/// How many machines may share a link unless the configuration says otherwise.
const CAPACITY: u32 = 100;
/// Names of links have no more characters, and those of devices are names of links.
const LONGEST: usize = 15;

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refused(String);

/// A link whose devices pods ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resource {
    pub(super) name: String,
    /// The link.
    pub(super) lower: String,
    pub(super) mode: Mode,
    pub(super) capacity: u32,
}

/// The links of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// All of their names.
    pub(super) all: BTreeSet<String>,
    /// Those that are resources unless the configuration says otherwise.
    pub(super) lower: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    name: String,
    lower_device: String,
    #[serde(default)]
    mode: String,
    capacity: Option<u32>,
}

/// Reads the configuration; an empty list stands for the links that there are.
pub(super) fn parse(text: &str) -> Result<Vec<Resource>, Refused> {
    let text = if text.trim().is_empty() { "[]" } else { text };
    let all: Vec<Written> = serde_json::from_str(text).map_err(|error| {
        let form = "{\"name\", \"lowerDevice\", \"mode\", \"capacity\"}";
        Refused(format!("DP_MACVTAP_CONF is no list of {form}: {error}"))
    })?;
    let mut found = BTreeMap::new();
    for written in all {
        let resource = read(written)?;
        let name = resource.name.clone();
        if found.insert(name.clone(), resource).is_some() {
            return Err(Refused(format!("two resources are called {name:?}: give each a name of its own")));
        }
    }
    Ok(found.into_values().collect())
}

fn read(written: Written) -> Result<Resource, Refused> {
    let Written { name, lower_device: lower, mode, capacity } = written;
    let refuse = |what: String| Err(Refused(format!("the resource {name:?}: {what}")));
    let mode = match mode.as_str() {
        "" | "bridge" => Mode::Bridge,
        "private" => Mode::Private,
        "vepa" => Mode::Vepa,
        "passthru" => Mode::Passthrough,
        other => return refuse(format!("mode is {other:?}: set bridge, private, vepa or passthru")),
    };
    let most = if mode == Mode::Passthrough { 1 } else { CAPACITY };
    let capacity = capacity.unwrap_or(most);
    if capacity == 0 {
        return refuse("capacity is 0: set how many machines may share the link, or leave the resource out".to_owned());
    }
    if mode == Mode::Passthrough && capacity > 1 {
        return refuse(format!(
            "capacity is {capacity}, and passthru gives the link to one machine: set 1, or another mode"
        ));
    }
    if lower.is_empty() {
        return refuse("lowerDevice is empty: name a link of the nodes".to_owned());
    }
    if !is_name(&name) {
        return refuse("name has to begin and end with a letter or digit, with - _ and . between".to_owned());
    }
    let resource = Resource { name: name.clone(), lower, mode, capacity };
    let last = id(&resource, capacity - 1);
    if last.len() > LONGEST {
        return refuse(format!(
            "its devices would be called up to {last:?}, which is longer than the {LONGEST} characters of a link: shorten name"
        ));
    }
    Ok(resource)
}

/// Whether it is the last part of a resource's name.
fn is_name(name: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    edge(name.chars().next())
        && edge(name.chars().last())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// The resources of this node. Links whose names are too long for names of devices need one that the configuration gives them.
pub(super) fn resources(wanted: &[Resource], seen: &Seen) -> Vec<Resource> {
    if !wanted.is_empty() {
        return wanted.to_vec();
    }
    let own = |lower: &String| {
        let written = Written { name: lower.clone(), lower_device: lower.clone(), mode: String::new(), capacity: None };
        read(written).ok()
    };
    seen.lower.iter().filter_map(own).collect()
}

/// The name of a device, and of its link.
fn id(resource: &Resource, number: u32) -> String {
    format!("{}Mvp{number}", resource.name)
}

/// What can be given: nothing while the link is not there.
pub(super) fn devices(resource: &Resource, seen: &Seen) -> Vec<String> {
    let there = seen.all.contains(&resource.lower);
    (0..resource.capacity).filter(|_| there).map(|number| id(resource, number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(all: &[&str], lower: &[&str]) -> Seen {
        let all = all.iter().map(|name| (*name).to_owned()).collect();
        Seen { all, lower: lower.iter().map(|name| (*name).to_owned()).collect() }
    }

    #[test]
    fn what_is_written_counts_or_else_what_is_there() {
        let wanted = parse(
            r#"[{"name": "dp", "lowerDevice": "eth0"}, {"name": "one", "lowerDevice": "eth1", "mode": "passthru"}]"#,
        )
        .unwrap();
        assert_eq!((wanted[0].mode, wanted[0].capacity, wanted[1].capacity), (Mode::Bridge, 100, 1));
        assert_eq!(resources(&wanted, &seen(&["eth0"], &["eth0"])), wanted);
        assert_eq!(devices(&wanted[0], &seen(&["eth0"], &[])).len(), 100);
        assert_eq!(devices(&wanted[1], &seen(&["eth1"], &[])), ["oneMvp0"]);
        assert!(devices(&wanted[1], &seen(&["eth0"], &[])).is_empty());
        let here = resources(&parse("").unwrap(), &seen(&["lo", "eth0", "enp216s0f0np0"], &["eth0", "enp216s0f0np0"]));
        assert_eq!(here.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["eth0"]);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let check = |text: &str, words: &str| {
            let why = parse(text).unwrap_err().to_string();
            assert!(why.contains(words), "{why}");
        };
        check("{}", "DP_MACVTAP_CONF is no list");
        check(r#"[{"name": "a"}]"#, "lowerDevice");
        check(r#"[{"name": "a", "lowerDevice": "eth0", "lower": 1}]"#, "lower");
        check(r#"[{"name": "a", "lowerDevice": "eth0", "mode": "x"}]"#, "mode is \"x\": set bridge");
        check(r#"[{"name": "a", "lowerDevice": "eth0", "capacity": 0}]"#, "capacity is 0");
        check(
            r#"[{"name": "a", "lowerDevice": "eth0", "mode": "passthru", "capacity": 2}]"#,
            "gives the link to one machine",
        );
        check(r#"[{"name": "a", "lowerDevice": ""}]"#, "lowerDevice is empty");
        check(r#"[{"name": "a/b", "lowerDevice": "eth0"}]"#, "letter or digit");
        check(r#"[{"name": "dataplane-01", "lowerDevice": "eth0"}]"#, "\"dataplane-01Mvp99\"");
        check(
            r#"[{"name": "a", "lowerDevice": "b"}, {"name": "a", "lowerDevice": "c"}]"#,
            "two resources are called \"a\"",
        );
    }
}
