//! What admission looks up before it judges.

use api::cdi::v1beta1::{CDIConfig, DataSource, DataVolume};
use api::cdi::words::CONFIG;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kit::admission::Cause;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};

use super::clone;
use super::validate::datavolume::Seen;

/// The feature gate by which DataVolumes take over claims of their name.
const ADOPTION: &str = "DataVolumeClaimAdoption";

/// The configuration, if it was written already.
async fn config(client: &Client) -> kube::Result<Option<CDIConfig>> {
    Api::<CDIConfig>::all(client.clone()).get_opt(CONFIG).await
}

/// The DataSource that `volume` in `namespace` refers to; none when it refers to none.
pub(crate) async fn reference(
    client: &Client,
    volume: &DataVolume,
    namespace: &str,
) -> kube::Result<Option<Result<DataSource, Cause>>> {
    let Some(reference) = volume.spec.source_ref.as_ref().filter(|reference| reference.kind == "DataSource") else {
        return Ok(None);
    };
    let at = reference.namespace.as_deref().filter(|at| !at.is_empty()).unwrap_or(namespace);
    let found = Api::<DataSource>::namespaced(client.clone(), at).get_opt(&reference.name).await?;
    let missing = || Cause {
        reason: "FieldValueNotFound",
        field: "spec.sourceRef".to_owned(),
        message: format!("SourceRef DataSource/{at}/{} not found", reference.name),
    };
    Ok(Some(found.ok_or_else(missing)))
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
    let referred = reference(client, volume, namespace).await?;
    let source = match &referred {
        Some(Err(cause)) => {
            seen.reference = Some(cause.clone());
            return Ok(seen);
        }
        Some(Ok(found)) => clone::source(volume, namespace, Some(found)),
        None => clone::source(volume, namespace, None),
    };
    let Some(source) = source else {
        if let Some(Ok(found)) = &referred {
            let name = found.metadata.name.as_deref().unwrap_or_default();
            let message = format!("Empty source field in '{name}'. DataSource may not be ready yet");
            seen.reference = Some(Cause { reason: "", field: "spec.sourceRef".to_owned(), message });
        }
        return Ok(seen);
    };
    if source.snapshot {
        seen.snapshot = snapshot_size(client, &source).await?;
    } else {
        seen.source = claims(&source.namespace).get_opt(&source.name).await?;
    }
    Ok(seen)
}

/// How large a claim from the snapshot must be, when its driver has said.
async fn snapshot_size(client: &Client, source: &clone::Source) -> kube::Result<Option<String>> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshot"));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &source.namespace, &resource);
    let found = api.get_opt(&source.name).await?;
    Ok(found.and_then(|snapshot| snapshot.data.pointer("/status/restoreSize")?.as_str().map(str::to_owned)))
}
