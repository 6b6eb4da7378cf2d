//! Who may clone: whoever could read the source anyway, because they may create pods beside it, or whom its namespace lets.

use std::collections::BTreeMap;

use api::cdi::v1beta1::{DataSource, DataVolume};
use api::cdi::words::annotation;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::Namespace;
use kit::admission::UserInfo;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::token::{Payload, Resource, operation};

const SNAPSHOTS: &str = "snapshot.storage.k8s.io";

/// What is cloned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// A snapshot, else a claim.
    pub snapshot: bool,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What a DataVolume in `namespace` clones, if it does; through `reference` when it names a DataSource.
pub(crate) fn source(volume: &DataVolume, namespace: &str, reference: Option<&DataSource>) -> Option<Source> {
    let of = |snapshot: bool, (at, name): (&str, &str)| {
        let namespace = if at.is_empty() { namespace } else { at }.to_owned();
        Some(Source { snapshot, namespace, name: name.to_owned() })
    };
    let (pvc, snapshot) = match (&volume.spec.source, reference) {
        (Some(source), _) => (source.pvc.as_ref(), source.snapshot.as_ref()),
        (None, Some(reference)) => {
            let resolved = reference.status.as_ref().and_then(|status| status.source.as_deref());
            let named = &reference.spec.source;
            let source = if named.data_source.is_some() { resolved? } else { named };
            (source.pvc.as_ref(), source.snapshot.as_ref())
        }
        (None, None) => return None,
    };
    match (pvc, snapshot) {
        (Some(pvc), _) => of(false, (&pvc.namespace, &pvc.name)),
        (None, Some(snapshot)) => of(true, (&snapshot.namespace, &snapshot.name)),
        (None, None) => None,
    }
}

/// A DataVolume that comes with its content, such as one that is restored from a backup, needs no leave to copy it.
pub(crate) fn comes_filled(volume: &DataVolume) -> bool {
    let annotations = volume.metadata.annotations.as_ref();
    let has = |key: &str| annotations.is_some_and(|annotations| annotations.contains_key(key));
    has(annotation::PRE_POPULATED) || has(annotation::CHECK_STATIC_VOLUME)
}

/// The leave, as it is signed.
pub(crate) fn payload(source: &Source, namespace: &str, name: &str) -> Payload {
    let resource = if source.snapshot { Resource::new(SNAPSHOTS, "v1", "volumesnapshots") } else { Resource::claims() };
    Payload {
        operation: operation::CLONE.to_owned(),
        name: source.name.clone(),
        namespace: source.namespace.clone(),
        resource,
        params: BTreeMap::from([
            ("targetNamespace".to_owned(), namespace.to_owned()),
            ("targetName".to_owned(), name.to_owned()),
        ]),
    }
}

/// Why `user` may not clone `source` into `namespace`; none when they may.
///
/// # Errors
/// When the cluster cannot be asked, or the source's namespace is not there.
pub(crate) async fn hindrance(
    client: &Client,
    user: &UserInfo,
    source: &Source,
    namespace: &str,
) -> kube::Result<Option<String>> {
    Api::<Namespace>::all(client.clone()).get(&source.namespace).await?;
    if source.namespace == namespace {
        return Ok(None);
    }
    for all in ways(source) {
        let mut granted = true;
        for attributes in all {
            granted = granted && allowed(client, user, attributes).await?;
        }
        if granted {
            return Ok(None);
        }
    }
    let (user, at) = (&user.username, &source.namespace);
    Ok(Some(format!("User {user} has insufficient permissions in clone source namespace {at}")))
}

/// Any of these is enough; of each, everything is needed.
fn ways(source: &Source) -> [Vec<ResourceAttributes>; 2] {
    let create = |group: &str, resource: &str, subresource: Option<&str>, name: Option<&String>| ResourceAttributes {
        namespace: Some(source.namespace.clone()),
        verb: Some("create".to_owned()),
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        subresource: subresource.map(str::to_owned),
        name: name.cloned(),
        ..ResourceAttributes::default()
    };
    let said = create("cdi.kubevirt.io", "datavolumes", Some("source"), Some(&source.name));
    let mut implied = vec![create("", "pods", None, None)];
    if source.snapshot {
        implied.push(create("", "persistentvolumeclaims", None, None));
    }
    [vec![said], implied]
}

async fn allowed(client: &Client, user: &UserInfo, attributes: ResourceAttributes) -> kube::Result<bool> {
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.username.clone()),
            groups: Some(user.groups.clone()),
            uid: Some(user.uid.clone()).filter(|uid| !uid.is_empty()),
            extra: Some(user.extra.clone()),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let answer = Api::<SubjectAccessReview>::all(client.clone()).create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed && !status.denied.unwrap_or(false)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(spec: Value, reference: Option<Value>, expect: Option<(bool, &str, &str)>) {
        let volume: DataVolume = serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap();
        let reference: Option<DataSource> = reference.map(|object| serde_json::from_value(object).unwrap());
        let found = source(&volume, "here", reference.as_ref());
        let found = found.as_ref().map(|found| (found.snapshot, found.namespace.as_str(), found.name.as_str()));
        assert_eq!(found, expect);
    }

    #[test]
    fn what_is_cloned() {
        check(json!({ "source": { "blank": {} } }), None, None);
        check(json!({ "source": { "pvc": { "namespace": "a", "name": "x" } } }), None, Some((false, "a", "x")));
        check(json!({ "source": { "snapshot": { "namespace": "", "name": "x" } } }), None, Some((true, "here", "x")));
        let named = json!({ "metadata": {}, "spec": { "source": { "pvc": { "namespace": "g", "name": "v1" } } } });
        check(json!({ "sourceRef": { "kind": "DataSource", "name": "d" } }), Some(named), Some((false, "g", "v1")));
        let pointer = json!({
            "metadata": {}, "spec": { "source": { "dataSource": { "namespace": "g", "name": "e" } } },
            "status": { "source": { "snapshot": { "namespace": "g", "name": "s" } } },
        });
        check(json!({ "sourceRef": { "kind": "DataSource", "name": "d" } }), Some(pointer), Some((true, "g", "s")));
    }
}
