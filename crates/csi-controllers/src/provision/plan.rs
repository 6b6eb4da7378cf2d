//! What a driver is asked for on behalf of a claim, and the volume made of its answer. Pure.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kit::controller::quantity;
use kube::ResourceExt;
use rpc::csi;

use super::super::names::{DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE, PROVISIONED_BY, PROVISIONER_FINALIZER};
use super::super::secret::{self, Purpose, RESERVED};
use super::super::{capability, facts, topology};

/// A claim, its class, and what was found out about them.
pub(crate) struct Order<'a> {
    pub(crate) claim: &'a PersistentVolumeClaim,
    pub(crate) class: &'a StorageClass,
    /// What the class of attributes says that the claim names; `None` when it names none.
    pub(crate) attributes: Option<BTreeMap<String, String>>,
    pub(crate) source: Option<csi::VolumeContentSource>,
    pub(crate) topology: Option<csi::TopologyRequirement>,
    /// Whether the driver tells one pod from several on a node.
    pub(crate) fine: bool,
}

/// The name of a claim's volume: the same at every try.
pub(crate) fn name(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default())
}

fn fs_type(class: &StorageClass) -> &str {
    let parameters = class.parameters.as_ref();
    parameters.and_then(|p| p.get(&format!("{RESERVED}fstype"))).map_or("", String::as_str)
}

fn is_block(claim: &PersistentVolumeClaim) -> bool {
    facts::volume_mode(claim.spec.as_ref().and_then(|s| s.volume_mode.as_ref())) == "Block"
}

/// The class's parameters for the driver: without those meant for the control plane, of which unknown ones are errors.
fn parameters(class: &StorageClass) -> Result<HashMap<String, String>, String> {
    let mut found = HashMap::new();
    for (key, value) in class.parameters.iter().flatten() {
        let Some(word) = key.strip_prefix(RESERVED) else {
            found.insert(key.clone(), value.clone());
            continue;
        };
        let secret = |part: &str| {
            let purpose = word.strip_suffix(part).and_then(|word| word.strip_suffix("-secret-"));
            purpose.is_some_and(|word| Purpose::ALL.iter().any(|purpose| purpose.word() == word))
        };
        if word != "fstype" && !secret("name") && !secret("namespace") {
            return Err(format!("found unknown parameter key {key:?} with reserved namespace {RESERVED}"));
        }
    }
    Ok(found)
}

/// What volumes of a class are capable of, when no claim says more.
pub(crate) fn capabilities(class: &StorageClass) -> Vec<csi::VolumeCapability> {
    let flags = class.mount_options.as_deref().unwrap_or_default();
    capability::wanted(&["ReadWriteOnce".to_owned()], false, fs_type(class), flags, false).unwrap_or_default()
}

/// The request, without secrets.
pub(crate) fn request(order: &Order<'_>) -> Result<csi::CreateVolumeRequest, String> {
    let (claim, class) = (order.claim, order.class);
    let spec = claim.spec.as_ref();
    if spec.is_some_and(|spec| spec.selector.is_some()) {
        return Err("claim Selector is not supported".into());
    }
    let flags = class.mount_options.as_deref().unwrap_or_default();
    let limit = spec.and_then(|s| s.resources.as_ref()?.limits.as_ref()?.get("storage")).map_or(0, quantity::of);
    let modes = facts::modes(claim);
    Ok(csi::CreateVolumeRequest {
        name: name(claim),
        capacity_range: Some(csi::CapacityRange {
            required_bytes: facts::bytes(facts::requested(claim)),
            limit_bytes: facts::bytes(limit),
        }),
        volume_capabilities: capability::wanted(modes, is_block(claim), fs_type(class), flags, order.fine)?,
        parameters: parameters(class)?,
        secrets: HashMap::new(),
        volume_content_source: order.source.clone(),
        accessibility_requirements: order.topology.clone(),
        mutable_parameters: order.attributes.clone().unwrap_or_default().into_iter().collect(),
    })
}

/// The volume made of a driver's answer; the error says why the answer is of no use.
pub(crate) fn volume(order: &Order<'_>, made: &csi::Volume) -> Result<PersistentVolume, String> {
    let (claim, class) = (order.claim, order.class);
    if made.volume_id.is_empty() {
        return Err("the driver answered without a volume id".into());
    }
    let requested = facts::bytes(facts::requested(claim));
    let bytes = if made.capacity_bytes == 0 { requested } else { made.capacity_bytes };
    if bytes < requested {
        return Err(format!("created volume capacity {bytes} less than requested capacity {requested}"));
    }
    if order.source.is_some() && made.content_source.is_none() {
        return Err("volume content source missing".into());
    }
    let name = name(claim);
    let secret =
        |purpose| secret::reference(class.parameters.as_ref().unwrap_or(&BTreeMap::new()), purpose, claim, &name);
    let mut annotations = BTreeMap::from([(PROVISIONED_BY.to_owned(), class.provisioner.clone())]);
    if let Some(secret) = secret(Purpose::Provision)? {
        annotations.insert(DELETION_SECRET_NAME.to_owned(), secret.name.unwrap_or_default());
        annotations.insert(DELETION_SECRET_NAMESPACE.to_owned(), secret.namespace.unwrap_or_default());
    }
    let policy = class.reclaim_policy.clone().unwrap_or_else(|| "Delete".into());
    let block = is_block(claim);
    let source = CSIPersistentVolumeSource {
        driver: class.provisioner.clone(),
        volume_handle: made.volume_id.clone(),
        fs_type: Some(fs_type(class).to_owned()).filter(|fs_type| !block && !fs_type.is_empty()),
        volume_attributes: Some(made.volume_context.clone().into_iter().collect())
            .filter(|map: &BTreeMap<_, _>| !map.is_empty()),
        controller_publish_secret_ref: secret(Purpose::Publish)?,
        node_stage_secret_ref: secret(Purpose::NodeStage)?,
        node_publish_secret_ref: secret(Purpose::NodePublish)?,
        controller_expand_secret_ref: secret(Purpose::Expand)?,
        node_expand_secret_ref: secret(Purpose::NodeExpand)?,
        read_only: None,
    };
    Ok(PersistentVolume {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            annotations: Some(annotations),
            finalizers: Some(vec![PROVISIONER_FINALIZER.to_owned()]).filter(|_| policy == "Delete"),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: Some(facts::modes(claim).to_vec()),
            capacity: Some(BTreeMap::from([("storage".into(), quantity::format(i128::from(bytes) * 1000, true))])),
            claim_ref: Some(ObjectReference {
                api_version: Some("v1".into()),
                kind: Some("PersistentVolumeClaim".into()),
                namespace: claim.namespace(),
                name: claim.metadata.name.clone(),
                uid: claim.metadata.uid.clone(),
                resource_version: claim.metadata.resource_version.clone(),
                field_path: None,
            }),
            csi: Some(source),
            mount_options: class.mount_options.clone(),
            node_affinity: topology::affinity(&made.accessible_topology),
            persistent_volume_reclaim_policy: Some(policy),
            storage_class_name: Some(facts::class_of(claim).to_owned()),
            volume_attributes_class_name: order.attributes.as_ref().map(|_| facts::attributes_class(claim).to_owned()),
            volume_mode: claim.spec.as_ref().and_then(|s| s.volume_mode.clone()),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim() -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"name": "data", "namespace": "n", "uid": "u-1"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "s", "resources": {"requests": {"storage": "1Gi"}}}}))
        .unwrap()
    }

    fn class(parameters: &Value) -> StorageClass {
        serde_json::from_value(json!({"metadata": {"name": "s"}, "provisioner": "d", "reclaimPolicy": "Delete",
            "mountOptions": ["noatime"], "parameters": parameters}))
        .unwrap()
    }

    fn order<'a>(claim: &'a PersistentVolumeClaim, class: &'a StorageClass) -> Order<'a> {
        Order { claim, class, attributes: None, source: None, topology: None, fine: false }
    }

    #[test]
    fn requests() {
        let (claim, class) = (claim(), class(&json!({"tier": "fast", "csi.storage.k8s.io/fstype": "xfs"})));
        let made = request(&order(&claim, &class)).unwrap();
        assert_eq!(made.name, "pvc-u-1");
        assert_eq!(made.parameters, HashMap::from([("tier".to_owned(), "fast".to_owned())]));
        assert_eq!(made.capacity_range, Some(csi::CapacityRange { required_bytes: 1 << 30, limit_bytes: 0 }));
        let Some(csi::volume_capability::AccessType::Mount(mount)) = &made.volume_capabilities[0].access_type else {
            panic!("{made:?}")
        };
        assert_eq!((mount.fs_type.as_str(), mount.mount_flags.as_slice()), ("xfs", &["noatime".to_owned()][..]));
    }

    #[test]
    fn attributes_are_asked_for_and_recorded() {
        let (mut claim, class) = (claim(), class(&json!({})));
        claim.spec.as_mut().unwrap().volume_attributes_class_name = Some("gold".into());
        let attributes = BTreeMap::from([("iops".to_owned(), "9000".to_owned())]);
        let order = Order { attributes: Some(attributes), ..order(&claim, &class) };
        let asked = request(&order).unwrap();
        assert_eq!(asked.mutable_parameters, HashMap::from([("iops".to_owned(), "9000".to_owned())]));
        let answer = csi::Volume { volume_id: "id".into(), ..csi::Volume::default() };
        let made = volume(&order, &answer).unwrap();
        assert_eq!(made.spec.unwrap().volume_attributes_class_name.as_deref(), Some("gold"));
    }

    #[test]
    fn requests_that_cannot_be_made() {
        let claim = claim();
        let class = class(&json!({"csi.storage.k8s.io/fsType": "xfs"}));
        let why = request(&order(&claim, &class)).unwrap_err();
        assert_eq!(
            why,
            "found unknown parameter key \"csi.storage.k8s.io/fsType\" with reserved namespace csi.storage.k8s.io/"
        );
    }

    #[test]
    fn volumes() {
        let secret = json!({"csi.storage.k8s.io/provisioner-secret-name": "key", "csi.storage.k8s.io/provisioner-secret-namespace": "n"});
        let (claim, class) = (claim(), class(&secret));
        let answer = csi::Volume {
            volume_id: "id".into(),
            capacity_bytes: 2 << 30,
            accessible_topology: vec![csi::Topology { segments: HashMap::from([("host".into(), "a".into())]) }],
            ..csi::Volume::default()
        };
        let made = serde_json::to_value(volume(&order(&claim, &class), &answer).unwrap()).unwrap();
        assert_eq!(made["metadata"]["finalizers"], json!([PROVISIONER_FINALIZER]));
        assert_eq!(made["metadata"]["annotations"][PROVISIONED_BY], "d");
        assert_eq!(made["metadata"]["annotations"][DELETION_SECRET_NAME], "key");
        assert_eq!(made["spec"]["capacity"]["storage"], "2Gi");
        assert_eq!(made["spec"]["claimRef"]["uid"], "u-1");
        assert_eq!(made["spec"]["csi"], json!({"driver": "d", "volumeHandle": "id"}));
        let rule = &made["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
        assert_eq!(rule, &json!({"key": "host", "operator": "In", "values": ["a"]}));
        let small = csi::Volume { volume_id: "id".into(), capacity_bytes: 1, ..csi::Volume::default() };
        let why = volume(&order(&claim, &class), &small).unwrap_err();
        assert_eq!(why, "created volume capacity 1 less than requested capacity 1073741824");
    }
}
