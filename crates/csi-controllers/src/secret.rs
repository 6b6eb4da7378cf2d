//! The secrets a class names for its driver, and their contents.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret, SecretReference};
use kit::controller::{Context, During, Result};
use kube::{Api, ResourceExt};
use meta::volume_snapshot::VolumeSnapshot;

/// Parameters with this prefix are for the control plane, not for the driver.
pub(crate) const RESERVED: &str = "csi.storage.k8s.io/";

/// What a secret of a class is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Provision,
    Publish,
    NodeStage,
    NodePublish,
    Expand,
    NodeExpand,
}

impl Purpose {
    pub(crate) const ALL: [Self; 6] =
        [Self::Provision, Self::Publish, Self::NodeStage, Self::NodePublish, Self::Expand, Self::NodeExpand];

    /// As in `csi.storage.k8s.io/<word>-secret-name`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Provision => "provisioner",
            Self::Publish => "controller-publish",
            Self::NodeStage => "node-stage",
            Self::NodePublish => "node-publish",
            Self::Expand => "controller-expand",
            Self::NodeExpand => "node-expand",
        }
    }
}

/// The secret a class's parameters name, with the names of claim and volume filled in; `None` when they name none.
pub(crate) fn reference(
    parameters: &BTreeMap<String, String>,
    purpose: Purpose,
    claim: &PersistentVolumeClaim,
    volume: &str,
) -> Result<Option<SecretReference>, String> {
    let get = |part: &str| parameters.get(&format!("{RESERVED}{}-secret-{part}", purpose.word()));
    let (name, namespace) = match (get("name"), get("namespace")) {
        (None, None) => return Ok(None),
        (Some(name), Some(namespace)) => (name, namespace),
        _ => {
            return Err(format!(
                "either name and namespace for {} secret must both be set, or neither",
                purpose.word()
            ));
        }
    };
    let mut known = BTreeMap::from([
        ("pv.name".to_owned(), volume.to_owned()),
        ("pvc.namespace".to_owned(), claim.namespace().unwrap_or_default()),
    ]);
    let namespace = filled(namespace, &known)?;
    known.insert("pvc.name".into(), claim.name_any());
    if purpose != Purpose::Provision {
        for (key, value) in claim.annotations() {
            known.insert(format!("pvc.annotations['{key}']"), value.clone());
        }
    }
    Ok(Some(SecretReference { name: Some(filled(name, &known)?), namespace: Some(namespace) }))
}

/// The secret that a snapshot class's parameters name, with the names of snapshot and content filled in.
pub(crate) fn of_snapshot(
    parameters: &BTreeMap<String, String>,
    snapshot: &VolumeSnapshot,
    content: &str,
) -> Result<Option<SecretReference>, String> {
    let get = |part: &str| parameters.get(&format!("{RESERVED}snapshotter-secret-{part}"));
    let (name, namespace) = match (get("name"), get("namespace")) {
        (None, None) => return Ok(None),
        (Some(name), Some(namespace)) => (name, namespace),
        _ => return Err("either name and namespace for snapshotter secret must both be set, or neither".into()),
    };
    let mut known = BTreeMap::from([
        ("volumesnapshotcontent.name".to_owned(), content.to_owned()),
        ("volumesnapshot.namespace".to_owned(), snapshot.namespace().unwrap_or_default()),
    ]);
    let namespace = filled(namespace, &known)?;
    known.insert("volumesnapshot.name".into(), snapshot.name_any());
    Ok(Some(SecretReference { name: Some(filled(name, &known)?), namespace: Some(namespace) }))
}

/// Replaces `${name}` by what is known; anything else in braces is an error.
fn filled(template: &str, known: &BTreeMap<String, String>) -> Result<String, String> {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, tail) =
            after.split_once('}').ok_or_else(|| format!("secret {template:?}: \"${{\" is not closed"))?;
        let value = known.get(name);
        text.push_str(before);
        text.push_str(value.ok_or_else(|| {
            let names: Vec<String> = known.keys().map(|name| format!("${{{name}}}")).collect();
            format!("secret {template:?}: unknown ${{{name}}}, known are {}", names.join(", "))
        })?);
        rest = tail;
    }
    text.push_str(rest);
    Ok(text)
}

/// The contents of a secret, as drivers get them.
pub(crate) async fn read(ctx: &Context, reference: Option<&SecretReference>) -> Result<HashMap<String, String>> {
    let Some(reference) = reference else { return Ok(HashMap::new()) };
    let (namespace, name) =
        (reference.namespace.clone().unwrap_or_default(), reference.name.clone().unwrap_or_default());
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &namespace);
    let secret = api.get(&name).await.during("read secret", format!("{namespace}/{name}"))?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, text(value.0))).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(name: &str, namespace: &str, expect: Result<&str, &str>) {
        let claim =
            serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "n", "annotations": {"team": "t"}}}))
                .unwrap();
        let mut parameters = BTreeMap::new();
        for (part, value) in [("name", name), ("namespace", namespace)] {
            if !value.is_empty() {
                parameters.insert(format!("{RESERVED}node-stage-secret-{part}"), value.to_owned());
            }
        }
        let found = reference(&parameters, Purpose::NodeStage, &claim, "pv-1");
        let found = found.map(|r| r.map_or("none".into(), |r| format!("{}/{}", r.namespace.unwrap(), r.name.unwrap())));
        assert_eq!(found.as_deref().map_err(String::as_str), expect);
    }

    #[test]
    fn names_of_secrets_are_templates() {
        check("", "", Ok("none"));
        check("key", "kube-system", Ok("kube-system/key"));
        check("${pvc.name}-${pvc.annotations['team']}", "${pvc.namespace}", Ok("n/c-t"));
        check("${pv.name}", "x", Ok("x/pv-1"));
        check("key", "", Err("either name and namespace for node-stage secret must both be set, or neither"));
        let unknown = "secret \"${pvc.name}\": unknown ${pvc.name}, known are ${pv.name}, ${pvc.namespace}";
        check("key", "${pvc.name}", Err(unknown));
    }
}
