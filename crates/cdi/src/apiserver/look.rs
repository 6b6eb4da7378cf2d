//! What admission looks up before it judges.

use api::cdi::constants::CONFIG;
use api::cdi::v1beta1::{CDIConfig, DataVolume};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kit::admission::Cause;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use origin::Source;
use origin::follow::{self, Dead};

use super::validate::datavolume::Seen;

/// The feature gate by which DataVolumes take over claims of their name.
const ADOPTION: &str = "DataVolumeClaimAdoption";

/// The configuration, if it was written already.
async fn config(client: &Client) -> kube::Result<Option<CDIConfig>> {
    Api::<CDIConfig>::all(client.clone()).get_opt(CONFIG).await
}

/// A reference that leads nowhere.
pub(crate) fn dead(dead: &Dead) -> Cause {
    let reason = match dead {
        Dead::Missing(_) => "FieldValueNotFound",
        Dead::Empty(_) => "",
        Dead::Elsewhere(..) | Dead::TooLong(..) => "FieldValueInvalid",
    };
    Cause { reason, field: "spec.sourceRef".to_owned(), message: dead.to_string() }
}

/// What is there for a DataVolume that is created.
pub(crate) async fn volume(client: &Client, volume: &DataVolume, namespace: &str, name: &str) -> kube::Result<Seen> {
    let claims = |namespace: &str| Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace);
    let mut seen = Seen::default();
    if !name.is_empty() {
        seen.target = claims(namespace).get_opt(name).await?;
    }
    if seen.target.is_some() {
        let gates = config(client).await?.map(|config| config.spec.feature_gates).unwrap_or_default();
        seen.adopt = gates.iter().any(|gate| gate == ADOPTION);
    }
    let source = match follow::live(client, &volume.spec, namespace).await? {
        Some(Ok(end)) => end.source,
        Some(Err(why)) => {
            seen.reference = Some(dead(&why));
            return Ok(seen);
        }
        None => return Ok(seen),
    };
    if source.snapshot {
        seen.snapshot = snapshot_size(client, &source).await?;
    } else {
        seen.source = claims(&source.namespace).get_opt(&source.name).await?;
    }
    Ok(seen)
}

/// How large a claim from the snapshot must be, when its driver has said.
async fn snapshot_size(client: &Client, source: &Source) -> kube::Result<Option<String>> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshot"));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &source.namespace, &resource);
    let found = api.get_opt(&source.name).await?;
    Ok(found.and_then(|snapshot| snapshot.data.pointer("/status/restoreSize")?.as_str().map(str::to_owned)))
}
