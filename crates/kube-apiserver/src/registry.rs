//! The resources served right now: built-ins and those of CustomResourceDefinitions, looked up by group, version, plural.
//!
//! A built-in is a CRD whose schema is shipped, plus a small strategy; so everything below is driven by [`Resource`].

pub mod builtin;
mod webhook;

use std::sync::Arc;

use apimachinery::schema::Schema;
use kube_store::Object;

pub use webhook::ConversionWebhook;

/// A printer column, `additionalPrinterColumns` of a CRD or the shipped column of a built-in.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Header as in the table.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean`, `date`.
    pub type_: String,
    /// `name` for the first column, else empty or an OpenAPI format.
    pub format: String,
    /// Text for the table's definition.
    pub description: String,
    /// Shown without `-o wide` when 0.
    pub priority: i32,
    /// JSONPath into the object, `.status.phase`; empty for columns computed by code.
    pub json_path: String,
}

/// The scale subresource of a CRD or built-in: three JSONPaths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScalePaths {
    /// `.spec.replicas`
    pub spec_replicas: String,
    /// `.status.replicas`
    pub status_replicas: String,
    /// `.status.labelSelector`, may be empty.
    pub selector: String,
}

/// One served version of one resource.
#[derive(Clone, Debug, Default)]
pub struct Resource {
    /// API group, empty for core.
    pub group: String,
    /// This version.
    pub version: String,
    /// Version objects are stored in.
    pub storage_version: String,
    /// `Pod`
    pub kind: String,
    /// `PodList`
    pub list_kind: String,
    /// `pods`
    pub plural: String,
    /// `pod`
    pub singular: String,
    /// `po`
    pub short_names: Vec<String>,
    /// `all`
    pub categories: Vec<String>,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Verbs in discovery, in alphabetical order.
    pub verbs: Vec<String>,
    /// Whether writes to the main resource leave `status` alone and `/status` writes touch nothing else.
    pub status_subresource: bool,
    /// The scale subresource, if any.
    pub scale: Option<ScalePaths>,
    /// Other subresources with their verbs and kind: `("log", ["get"], "Pod")`.
    pub subresources: Vec<(String, Vec<String>, String)>,
    /// Structural schema of the object.
    pub schema: Arc<Schema>,
    /// CEL rules of a custom resource.
    pub rules: Option<apimachinery::rules::Rules>,
    /// Printer columns beyond name (which is always first); age is listed explicitly.
    pub columns: Vec<Column>,
    /// Name of the CustomResourceDefinition this came from; None for built-ins.
    pub crd: Option<String>,
    /// Revision of that CustomResourceDefinition; 0 for built-ins.
    pub crd_revision: u64,
    /// Converts between the versions of the CRD, when their difference is more than a name.
    pub conversion_webhook: Option<Arc<ConversionWebhook>>,
    /// What clients of this version are warned of; empty when it is not deprecated.
    pub deprecation: String,
    /// CRD `selectableFields` JSONPaths, or the field labels a built-in supports (`spec.nodeName`).
    pub selectable_fields: Vec<String>,
}

impl Resource {
    /// `apps/v1` or `v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
    /// `deployments.apps`, `pods`.
    pub fn group_resource(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }
    /// Group resource the store keeps the objects under; both event APIs share one.
    pub fn storage_key(&self) -> String {
        if self.group == "events.k8s.io" { self.plural.clone() } else { self.group_resource() }
    }
    /// Whether stored bytes can be served as they are. An object of a definition whose storage version has changed
    /// since is still stored in the older one.
    pub fn serves_bytes(&self, object: &Object) -> bool {
        let stored = &object.json;
        if self.crd.is_none() {
            return self.version == self.storage_version && self.group != "events.k8s.io";
        }
        if self.wrote_before(object) {
            return false;
        }
        let rest = stored.strip_prefix(b"{\"apiVersion\":\"").and_then(|rest| rest.strip_prefix(self.group.as_bytes()));
        let rest = rest.and_then(|rest| rest.strip_prefix(b"/")?.strip_prefix(self.version.as_bytes()));
        rest.is_some_and(|rest| rest.starts_with(b"\""))
    }
    /// Whether the object was written before the definition's last change, and may lack what the definition now says.
    pub fn wrote_before(&self, object: &Object) -> bool {
        self.crd.is_some() && object.revision <= self.crd_revision
    }
    /// Whether `metadata.generation` counts changes of the desired state.
    pub fn has_generation(&self) -> bool {
        self.crd.is_some()
            || matches!(
                self.plural.as_str(),
                "pods"
                    | "podtemplates"
                    | "deployments"
                    | "daemonsets"
                    | "replicasets"
                    | "statefulsets"
                    | "replicationcontrollers"
                    | "jobs"
                    | "cronjobs"
                    | "poddisruptionbudgets"
                    | "ingresses"
                    | "ingressclasses"
                    | "networkpolicies"
                    | "endpointslices"
                    | "customresourcedefinitions"
                    | "validatingwebhookconfigurations"
                    | "mutatingwebhookconfigurations"
                    | "mutatingadmissionpolicies"
                    | "mutatingadmissionpolicybindings"
                    | "validatingadmissionpolicies"
                    | "validatingadmissionpolicybindings"
                    | "priorityclasses"
                    | "deviceclasses"
                    | "resourceslices"
                    | "flowschemas"
                    | "prioritylevelconfigurations"
            )
    }
}

/// A version served by an APIService of another server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aggregated {
    /// Group.
    pub group: String,
    /// Version.
    pub version: String,
    /// Namespace, name and port of the Service behind it.
    pub service: (String, String, u16),
    /// PEM bundle the backend's certificate must chain to; None with `insecure_skip_tls_verify`.
    pub ca_bundle: Option<Vec<u8>>,
    /// Skip verification.
    pub insecure_skip_tls_verify: bool,
    /// `spec.groupPriorityMinimum` and `spec.versionPriority`.
    pub priority: (i32, i32),
}

/// A snapshot of everything served; replaced as a whole when CRDs or APIServices change.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    /// All served versions, built-ins first.
    pub resources: Vec<Arc<Resource>>,
    /// Versions of definitions that are served no more, or not yet: owners may have written in them.
    pub unserved: Vec<Arc<Resource>>,
    /// Delegated group versions.
    pub aggregated: Vec<Aggregated>,
}

impl Registry {
    /// The resource at `group/version/plural`.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.resources.iter().find(|r| r.plural == plural && r.version == version && r.group == group)
    }
    /// The same, also of a version that is not served.
    pub fn find_declared(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        let declared = self.resources.iter().chain(&self.unserved);
        declared.into_iter().find(|r| r.plural == plural && r.version == version && r.group == group)
    }
    /// The resource of a kind, any version when `version` is empty.
    pub fn find_kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Resource>> {
        self.resources
            .iter()
            .find(|r| r.kind == kind && r.group == group && (version.is_empty() || r.version == version))
    }
}
