//! What the collector reads of an object, whatever its kind: who it is, who owns it, how it goes. It follows every object of
//! the cluster, so the rest, field managers above all, is passed over and not made into values.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use kube::core::{ApiResource, DynamicResourceScope};
use serde::{Deserialize, Deserializer};

/// See the module. Of the metadata only what [`Facts`] lists is filled in.
#[derive(Clone, Debug, Default)]
pub(super) struct Owned {
    pub(super) metadata: ObjectMeta,
}

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    metadata: Facts,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Facts {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

impl<'de> Deserialize<'de> for Owned {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Facts { name, namespace, uid, resource_version, deletion_timestamp, finalizers, owner_references } =
            Document::deserialize(deserializer)?.metadata;
        let facts = ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() };
        Ok(Self { metadata: ObjectMeta { deletion_timestamp, finalizers, owner_references, ..facts } })
    }
}

impl Resource for Owned {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(of: &ApiResource) -> Cow<'_, str> {
        (&of.kind).into()
    }
    fn group(of: &ApiResource) -> Cow<'_, str> {
        (&of.group).into()
    }
    fn version(of: &ApiResource) -> Cow<'_, str> {
        (&of.version).into()
    }
    fn api_version(of: &ApiResource) -> Cow<'_, str> {
        (&of.api_version).into()
    }
    fn plural(of: &ApiResource) -> Cow<'_, str> {
        (&of.plural).into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_metadata_the_collector_needs_is_read() {
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "1", "blockOwnerDeletion": true});
        let metadata = json!({"name": "a", "namespace": "n", "uid": "2", "resourceVersion": "7", "finalizers": ["orphan"],
            "deletionTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": [owner]});
        let read = |extra: serde_json::Value| {
            let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": "v"}});
            object["metadata"]["managedFields"] = extra;
            serde_json::from_str::<Owned>(&object.to_string()).unwrap().metadata
        };
        assert_eq!(serde_json::to_value(read(json!([{"fieldsV1": {"f:data": {}}}]))).unwrap(), metadata);
        // It is passed over unread.
        assert_eq!(read(json!("no list")), read(json!(null)));
        assert_eq!(serde_json::from_str::<Owned>("{}").unwrap().metadata, ObjectMeta::default());
    }
}
