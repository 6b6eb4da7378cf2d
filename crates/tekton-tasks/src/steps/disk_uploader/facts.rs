//! What is known of a disk: the instance type and preference of machines that boot from it, and the architecture of its programs.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::cluster::{CLAIM, SNAPSHOT, SNAPSHOT_CONTENT, VM, what};
use crate::{Cluster, Error};

const PREFIX: &str = "instancetype.kubevirt.io/";
/// By which boot sources say for which machines they are.
const ARCHITECTURE: &str = "template.kubevirt.io/architecture";

/// What the image says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// `NAME=value` each.
    pub(super) variables: Vec<String>,
    /// As images name it.
    pub(super) architecture: String,
}

/// Of the source and its volume, which is a claim.
///
/// # Errors
/// When the source is not there, or the cluster refuses.
pub(super) async fn of(cluster: &Cluster, kind: &str, name: &str, volume: &str) -> Result<Facts, Error> {
    let namespace = cluster.namespace.as_str();
    let machine = match kind {
        "vm" => Some(cluster.need(VM, namespace, name).await?.data["spec"].clone()),
        "vmsnapshot" => Some(snapshotted(cluster, namespace, name).await?),
        _ => None,
    };
    let claim = match &machine {
        None => Some(cluster.need(CLAIM, namespace, name).await?),
        // The claim of a snapshot's volume is not there before it is exported, and may be gone.
        Some(_) => cluster.get(CLAIM, namespace, volume).await?,
    };
    let labels = claim.and_then(|claim| claim.metadata.labels).unwrap_or_default();
    Ok(say(machine.as_ref(), &labels))
}

/// The `spec` of the machine, as it was.
async fn snapshotted(cluster: &Cluster, namespace: &str, name: &str) -> Result<Value, Error> {
    let snapshot = cluster.need(SNAPSHOT, namespace, name).await?;
    let content = snapshot.data["status"]["virtualMachineSnapshotContentName"].as_str();
    let content = content.ok_or_else(|| {
        let snapshot = what(SNAPSHOT, namespace, name);
        Error::Failed(format!("{snapshot} is not ready: it names no content yet; wait for its condition Ready"))
    })?;
    let content = cluster.need(SNAPSHOT_CONTENT, namespace, content).await?;
    Ok(content.data["spec"]["source"]["virtualMachine"]["spec"].clone())
}

/// The machine's word counts before its disk's: it is the one that runs with it.
fn say(machine: Option<&Value>, labels: &BTreeMap<String, String>) -> Facts {
    let mut defaults: BTreeMap<String, String> =
        labels.iter().filter_map(|(key, value)| Some((key.strip_prefix(PREFIX)?.to_owned(), value.clone()))).collect();
    for field in ["instancetype", "preference"] {
        let text = |key: &str| machine.and_then(|machine| machine[field][key].as_str()).filter(|text| !text.is_empty());
        let Some(name) = text("name") else { continue };
        defaults.insert(format!("default-{field}"), name.to_owned());
        match text("kind") {
            Some(kind) => defaults.insert(format!("default-{field}-kind"), kind.to_owned()),
            None => defaults.remove(&format!("default-{field}-kind")),
        };
    }
    let variable = |(name, value): (&String, &String)| {
        format!("INSTANCETYPE_KUBEVIRT_IO_{}={value}", name.to_uppercase().replace(['-', '.'], "_"))
    };
    let told = machine.and_then(|machine| machine["template"]["spec"]["architecture"].as_str());
    let told = told.filter(|text| !text.is_empty()).or(labels.get(ARCHITECTURE).map(String::as_str));
    Facts {
        variables: defaults.iter().map(variable).collect(),
        architecture: told.map_or_else(|| named(std::env::consts::ARCH).to_owned(), str::to_owned),
    }
}

/// The name that images give to an architecture: where nobody says of which a disk is, it is of the machine that runs the step.
fn named(architecture: &str) -> &str {
    match architecture {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(machine: Option<Value>, labels: &[(&str, &str)], variables: &[&str], architecture: &str) {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let facts = say(machine.as_ref(), &labels);
        assert_eq!(
            (facts.variables, facts.architecture.as_str()),
            (variables.iter().map(|text| (*text).to_owned()).collect(), architecture)
        );
    }

    #[test]
    fn an_image_says_what_its_machine_or_its_claim_says() {
        let own = named(std::env::consts::ARCH);
        let label = ("instancetype.kubevirt.io/default-instancetype", "u1.small");
        let kind = ("instancetype.kubevirt.io/default-instancetype-kind", "VirtualMachineInstancetype");
        let small = "INSTANCETYPE_KUBEVIRT_IO_DEFAULT_INSTANCETYPE=u1.small";
        check(None, &[label, ("app", "a")], &[small], own);
        check(None, &[(ARCHITECTURE, "s390x")], &[], "s390x");
        let machine = json!({
            "instancetype": { "name": "u1.large" }, "preference": { "name": "fedora", "kind": "VirtualMachinePreference" },
            "template": { "spec": { "architecture": "arm64" } },
        });
        let large = [
            "INSTANCETYPE_KUBEVIRT_IO_DEFAULT_INSTANCETYPE=u1.large",
            "INSTANCETYPE_KUBEVIRT_IO_DEFAULT_PREFERENCE=fedora",
            "INSTANCETYPE_KUBEVIRT_IO_DEFAULT_PREFERENCE_KIND=VirtualMachinePreference",
        ];
        check(Some(machine), &[label, kind, (ARCHITECTURE, "s390x")], &large, "arm64");
        check(Some(json!({})), &[label], &[small], own);
    }

    #[test]
    fn architectures_are_named_as_images_name_them() {
        assert_eq!(["x86_64", "aarch64", "s390x"].map(named), ["amd64", "arm64", "s390x"]);
    }
}
