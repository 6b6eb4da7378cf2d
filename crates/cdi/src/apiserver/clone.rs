//! The leave to clone: a token says what its maker was allowed, for one target.

use std::collections::BTreeMap;

use api::cdi::constants::annotation;
use api::cdi::v1beta1::DataVolume;
use k8s_openapi::api::core::v1::Namespace;
use kit::admission::UserInfo;
use kube::{Api, Client};
use origin::{Source, leave};

use crate::token::{Payload, Resource, operation};

const SNAPSHOTS: &str = "snapshot.storage.k8s.io";

/// A DataVolume that comes with its content, such as one that is restored from a backup, is made whether its maker may copy or not.
pub(crate) fn comes_filled(volume: &DataVolume) -> bool {
    is_filled(volume) || has(volume, annotation::CHECK_STATIC_VOLUME)
}

/// One that has its content copies nothing: a token on it would be of use to others only.
pub(crate) fn is_filled(volume: &DataVolume) -> bool {
    has(volume, annotation::PRE_POPULATED)
}

fn has(volume: &DataVolume, key: &str) -> bool {
    volume.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(key))
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
pub(crate) async fn refusal(
    client: &Client,
    user: &UserInfo,
    source: &Source,
    namespace: &str,
) -> kube::Result<Option<String>> {
    Api::<Namespace>::all(client.clone()).get(&source.namespace).await?;
    leave::refusal(client, user, source, namespace).await
}
