//! The cluster, with the rights of the TaskRun's account.

mod until;

use std::time::Duration;

use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams, PropagationPolicy,
};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::{Error, PROGRAM};

/// A kind: group, version, kind, plural.
pub(crate) type Kind = (&'static str, &'static str, &'static str, &'static str);

pub(crate) const VM: Kind = ("kubevirt.io", "v1", "VirtualMachine", "virtualmachines");
pub(crate) const VMI: Kind = ("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances");
pub(crate) const DATA_VOLUME: Kind = ("cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes");
pub(crate) const DATA_SOURCE: Kind = ("cdi.kubevirt.io", "v1beta1", "DataSource", "datasources");
pub(crate) const CLAIM: Kind = ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims");
pub(crate) const SECRET: Kind = ("", "v1", "Secret", "secrets");
pub(crate) const CONFIG_MAP: Kind = ("", "v1", "ConfigMap", "configmaps");
pub(crate) const EXPORT: Kind = ("export.kubevirt.io", "v1", "VirtualMachineExport", "virtualmachineexports");
pub(crate) const SNAPSHOT: Kind =
    ("snapshot.kubevirt.io", "v1beta1", "VirtualMachineSnapshot", "virtualmachinesnapshots");
pub(crate) const SNAPSHOT_CONTENT: Kind =
    ("snapshot.kubevirt.io", "v1beta1", "VirtualMachineSnapshotContent", "virtualmachinesnapshotcontents");
pub(crate) const TEMPLATE: Kind =
    ("template.kubevirt.io", "v1beta1", "VirtualMachineTemplate", "virtualmachinetemplates");
pub(crate) const OPENSHIFT_TEMPLATE: Kind = ("template.openshift.io", "v1", "Template", "templates");

/// A client and the namespace of its account.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    /// Where objects are that name no namespace.
    pub namespace: String,
    /// The pod of the step: its name and UID, where it is known.
    pub pod: Option<(String, String)>,
}

impl Cluster {
    /// As the pod's account.
    ///
    /// # Errors
    /// When there is no cluster to be reached.
    pub async fn connect() -> Result<Self, Error> {
        let client = kit::client::connect(PROGRAM).await.map_err(|error| Error::Cluster(Box::new(error)))?;
        let namespace = client.default_namespace().to_owned();
        let pod = std::env::var("POD_NAME").ok().zip(std::env::var("POD_UID").ok());
        Ok(Self::new(client, &namespace, pod))
    }

    /// With another client.
    pub fn new(client: Client, namespace: &str, pod: Option<(String, String)>) -> Self {
        Self { client, namespace: namespace.to_owned(), pod }
    }

    pub(crate) fn api(&self, kind: Kind, namespace: &str) -> Api<DynamicObject> {
        let (group, version, name, plural) = kind;
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, name), plural);
        Api::namespaced_with(self.client.clone(), namespace, &resource)
    }

    pub(crate) async fn get(&self, kind: Kind, namespace: &str, name: &str) -> Result<Option<DynamicObject>, Error> {
        self.api(kind, namespace).get_opt(name).await.map_err(Error::api("get", what(kind, namespace, name)))
    }

    /// The object, which has to be there.
    pub(crate) async fn need(&self, kind: Kind, namespace: &str, name: &str) -> Result<DynamicObject, Error> {
        let found = self.get(kind, namespace, name).await?;
        found.ok_or_else(|| Error::Failed(format!("there is no {}", what(kind, namespace, name))))
    }

    /// Creates `manifest` in `namespace`, and returns its name.
    pub(crate) async fn create(&self, kind: Kind, namespace: &str, manifest: &Value) -> Result<String, Error> {
        let name = manifest["metadata"]["name"].as_str().or(manifest["metadata"]["generateName"].as_str());
        let what = what(kind, namespace, name.unwrap_or_default());
        let mut manifest = manifest.clone();
        manifest["apiVersion"] =
            json!(if kind.0.is_empty() { kind.1.to_owned() } else { format!("{}/{}", kind.0, kind.1) });
        manifest["kind"] = json!(kind.2);
        let object: DynamicObject = serde_json::from_value(manifest)
            .map_err(|error| Error::Failed(format!("the manifest is no {}: {error}", kind.2)))?;
        let made = self.api(kind, namespace).create(&PostParams::default(), &object).await;
        let made = made.map_err(Error::api("create", what))?;
        Ok(made.metadata.name.unwrap_or_default())
    }

    pub(crate) async fn merge(&self, kind: Kind, namespace: &str, name: &str, change: &Value) -> Result<(), Error> {
        let done = self.api(kind, namespace).patch(name, &PatchParams::default(), &Patch::Merge(change)).await;
        done.map(drop).map_err(Error::api("change", what(kind, namespace, name)))
    }

    /// Deletes the object, and waits for nothing. Whether it was there.
    pub(crate) async fn remove(&self, kind: Kind, namespace: &str, name: &str) -> Result<bool, Error> {
        let how = DeleteParams { propagation_policy: Some(PropagationPolicy::Background), ..DeleteParams::default() };
        match self.api(kind, namespace).delete(name, &how).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            done => done.map(|_| true).map_err(Error::api("delete", what(kind, namespace, name))),
        }
    }

    /// Deletes the object, and waits until it is gone. Whether it was there.
    pub(crate) async fn delete(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        patience: Duration,
    ) -> Result<bool, Error> {
        if !self.remove(kind, namespace, name).await? {
            return Ok(false);
        }
        let gone = format!("{} was not gone", what(kind, namespace, name));
        self.until(kind, namespace, name, |object: Option<&DynamicObject>| object.is_none(), patience, gone).await?;
        Ok(true)
    }

    /// Asks for a machine's start or stop.
    pub(crate) async fn power(&self, namespace: &str, name: &str, verb: &'static str) -> Result<(), Error> {
        let at = format!("/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachines/{name}/{verb}");
        let request = http(&at)?;
        let done = self.client.request_text(request).await;
        done.map(drop).map_err(Error::api(verb, what(VM, namespace, name)))
    }
}

fn http(at: &str) -> Result<http::Request<Vec<u8>>, Error> {
    let request = http::Request::put(at).header("content-type", "application/json").body(b"{}".to_vec());
    request.map_err(|error| Error::Failed(format!("{at} is no address: {error}")))
}

/// Kind, namespace and name.
pub(crate) fn what(kind: Kind, namespace: &str, name: &str) -> String {
    format!("{} {namespace}/{name}", kind.2)
}

/// Whether the object's condition of that type is true.
pub(crate) fn is_true(object: &DynamicObject, type_: &str) -> bool {
    let conditions = object.data["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| condition["type"] == type_ && condition["status"] == "True")
}
