//! The claims that a launcher's pod names, and those that it is to name. Pure.

use std::collections::BTreeMap;

use api::kubevirt::constants::annotation::DOMAIN;
use api::kubevirt::constants::label;
use kit::store::Key;
use serde_json::{Map, Value, json};

use super::names::{DEFAULT_NETWORK, NETWORKS, PRIMARY_CLAIM, REFERENCE, REFERENCE_UID};
use super::plan::Plan;

/// Name of the definition by which Multus hands the pod's own network to OVN-Kubernetes.
const DEFAULT_DEFINITION: &str = "default";
/// More networks than any node has interfaces for.
const MOST: usize = 256;

/// The value of an annotation of `pod`, or empty.
pub fn annotation<'a>(pod: &'a Value, key: &str) -> &'a str {
    pod["metadata"]["annotations"][key].as_str().unwrap_or_default()
}

/// The instance that `pod` runs.
pub fn instance(pod: &Value) -> Option<&str> {
    Some(annotation(pod, DOMAIN)).filter(|name| !name.is_empty())
}

/// True when nothing that counts here differs between two states of a pod.
pub fn is_unchanged(old: &Value, new: &Value) -> bool {
    let same = |key: &&str| annotation(old, key) == annotation(new, key);
    let label = |pod: &Value| pod["metadata"]["labels"][label::APP].clone();
    [NETWORKS, DEFAULT_NETWORK, PRIMARY_CLAIM, DOMAIN].iter().all(same)
        && label(old) == label(new)
        && old["metadata"]["ownerReferences"] == new["metadata"]["ownerReferences"]
}

/// The elements of an annotation about networks; of one that is not in JSON, which names no claim, none.
///
/// # Errors
/// A sentence for the pod's owner.
pub fn elements(pod: &Value, key: &str) -> Result<Option<Vec<Map<String, Value>>>, String> {
    let text = annotation(pod, key).trim();
    if !text.starts_with(['[', '{']) {
        return Ok(None);
    }
    let refuse = |what: String| format!("annotation {key}: {what}");
    let all: Vec<Map<String, Value>> =
        serde_json::from_str(text).map_err(|error| refuse(format!("not a JSON list of networks: {error}")))?;
    if all.len() > MOST {
        return Err(refuse(format!("{} networks are asked for, and {MOST} are the most", all.len())));
    }
    Ok(Some(all))
}

/// Whether a pod asks for any network, in either form.
pub fn has_networks(pod: &Value) -> bool {
    !matches!(annotation(pod, NETWORKS).trim(), "" | "[]")
}

/// A claim that the pod names, whoever wrote it. Readers in Go take a key in any case.
///
/// # Errors
/// A sentence for the pod's owner.
pub fn named(pod: &Value) -> Result<Option<String>, String> {
    for key in [NETWORKS, DEFAULT_NETWORK] {
        for element in elements(pod, key)?.unwrap_or_default() {
            if let Some((_, name)) = element.iter().find(|(key, _)| is_reference(key)) {
                return Ok(Some(name.as_str().unwrap_or_default().to_owned()));
            }
        }
    }
    Ok(Some(annotation(pod, PRIMARY_CLAIM).to_owned()).filter(|name| !name.is_empty()))
}

fn is_reference(key: &str) -> bool {
    [REFERENCE, REFERENCE_UID].iter().any(|one| one.eq_ignore_ascii_case(key))
}

/// What becomes of a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// No claim is for it.
    Nothing,
    /// It names its claims already.
    Done,
    /// These annotations are to be as they are here.
    Write(BTreeMap<&'static str, String>),
}

/// What is known of a pod's surroundings.
#[derive(Clone, Copy, Debug)]
pub struct Around<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// The claims of its machine that are there: their UIDs, by name.
    pub uids: &'a BTreeMap<String, String>,
    /// Namespace of the definition of the pod's own network.
    pub default: &'a str,
    /// Whether it is being made.
    pub is_new: bool,
}

/// The annotations of `pod`, which runs the machine of `plan`.
///
/// # Errors
/// A sentence for the pod's owner: it names a claim that is not for it, or a network in the place of its own.
pub fn change(pod: &Value, plan: &Plan, around: Around<'_>) -> Result<Change, String> {
    let mut wanted: BTreeMap<&'static str, String> = BTreeMap::new();
    let mut given = false;
    if let Some(mut all) = elements(pod, NETWORKS)? {
        let before = all.clone();
        for element in &mut all {
            given |= refer(element, plan, around)?;
        }
        if all != before {
            wanted.insert(NETWORKS, json!(all).to_string());
        }
    }
    let held = annotation(pod, PRIMARY_CLAIM);
    match &plan.primary {
        Some(primary) => {
            let claim = &primary.wanted.name;
            if around.is_new && pod["metadata"]["annotations"].get(DEFAULT_NETWORK).is_some() {
                return Err(format!(
                    "multus default network annotation {DEFAULT_NETWORK:?} is not allowed on pod creation"
                ));
            }
            if !held.is_empty() && held != claim {
                return Err(foreign(PRIMARY_CLAIM, held));
            }
            given = true;
            wanted.insert(PRIMARY_CLAIM, claim.clone());
            if primary.mac.is_some() || !primary.ips.is_empty() {
                let mut element = json!({ "name": DEFAULT_DEFINITION, "namespace": around.default, REFERENCE: claim });
                if let Some(mac) = &primary.mac {
                    element["mac"] = json!(mac);
                }
                if !primary.ips.is_empty() {
                    element["ips"] = json!(primary.ips);
                }
                wanted.insert(DEFAULT_NETWORK, json!([element]).to_string());
            }
        }
        None => {
            if !held.is_empty() {
                return Err(foreign(PRIMARY_CLAIM, held));
            }
            for element in elements(pod, DEFAULT_NETWORK)?.unwrap_or_default() {
                if let Some((_, name)) = element.iter().find(|(key, _)| is_reference(key)) {
                    return Err(foreign(DEFAULT_NETWORK, name.as_str().unwrap_or_default()));
                }
            }
        }
    }
    wanted.retain(|key, value| annotation(pod, key) != value);
    Ok(match (wanted.is_empty(), given) {
        (false, _) => Change::Write(wanted),
        (true, true) => Change::Done,
        (true, false) => Change::Nothing,
    })
}

/// Has an element name its claim, if one is for it. Whether one is.
fn refer(element: &mut Map<String, Value>, plan: &Plan, around: Around<'_>) -> Result<bool, String> {
    let uids = around.uids;
    let text = |key: &str| element.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let key = Key::new(text("namespace").unwrap_or(around.namespace), text("name").unwrap_or_default());
    let interface = text("interface");
    let fits = plan.secondary.iter().find(|(of, wanted)| *of == key && interface == Some(&wanted.spec.interface));
    let claim = fits.map(|(_, wanted)| wanted.name.as_str());
    let is_own = |key: &str, value: &Value| match key {
        REFERENCE => value.as_str() == claim,
        REFERENCE_UID => claim.and_then(|claim| uids.get(claim)).is_none_or(|uid| value == uid.as_str()),
        // The same in other letters is read by some and not by others.
        _ => false,
    };
    for (key, value) in element.iter().filter(|(key, _)| is_reference(key)) {
        if claim.is_none() || !is_own(key, value) {
            return Err(foreign(NETWORKS, value.as_str().unwrap_or_default()));
        }
    }
    let Some(claim) = claim.map(str::to_owned) else { return Ok(false) };
    if let Some(uid) = uids.get(&claim) {
        element.insert(REFERENCE_UID.to_owned(), json!(uid));
    }
    element.insert(REFERENCE.to_owned(), json!(claim));
    Ok(true)
}

fn foreign(key: &str, claim: &str) -> String {
    let shown = meta::text::brief(claim, 64);
    format!(
        "annotation {key} names the IPAMClaim {shown:?}, which is not that of this machine's network: leave it out, and every network \
         with allowPersistentIPs gets the machine's own"
    )
}

/// The operations that write `annotations`.
pub fn patch(pod: &Value, annotations: &BTreeMap<&'static str, String>) -> Value {
    let mut operations = Vec::new();
    if !pod["metadata"]["annotations"].is_object() {
        operations.push(json!({ "op": "add", "path": "/metadata/annotations", "value": {} }));
    }
    for (key, value) in annotations {
        let path = format!("/metadata/annotations/{}", key.replace('~', "~0").replace('/', "~1"));
        operations.push(json!({ "op": "add", "path": path, "value": value }));
    }
    Value::Array(operations)
}

#[cfg(test)]
mod tests;
