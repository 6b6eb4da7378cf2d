//! Group `hco.kubevirt.io`, v1: the HyperConverged object. What is handed on to the object of another operator as it stands is JSON
//! here: its schema is checked by the API server, and its meaning is the other operator's.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, ObjectReference, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The one object from which everything else follows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HyperConverged {
    /// Name and the like.
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(default)]
    pub spec: Spec,
    /// What is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

/// What is wanted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// Where and how the components run.
    pub deployment: Deployment,
    /// Features switched on or off.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub feature_gates: Vec<FeatureGate>,
    /// Networks.
    pub networking: Networking,
    /// Which alerts, recording rules and metrics there are.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub observability: Value,
    /// Certificates and TLS.
    pub security: Security,
    /// Disks.
    pub storage: Storage,
    /// Virtual machines.
    pub virtualization: Virtualization,
    /// Where virtual machines are made from.
    pub workload_sources: WorkloadSources,
}

/// Where and how the components run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Deployment {
    /// Quotas that count virtual machines by what their guests have.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub application_aware_config: Value,
    /// Whether pods of virtual machines ask for the resources of their networks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deploy_network_resources_injector: Option<bool>,
    /// Whether tokens for VNC can be had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deploy_vm_console_proxy: Option<bool>,
    /// What is logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_verbosity_config: Option<LogVerbosity>,
    /// Which nodes.
    pub node_placements: NodePlacements,
    /// Whether the object may be deleted while there are virtual machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uninstall_strategy: Option<String>,
}

/// What is logged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogVerbosity {
    /// By CDI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cdi: Option<i32>,
    /// By the components of KubeVirt.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub kubevirt: Value,
}

/// Which nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodePlacements {
    /// For the control plane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infra: Option<Placement>,
    /// For virtual machines and the agents of nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<Placement>,
}

/// Nodes by their labels and taints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Placement {
    /// Rules they satisfy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Labels they have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints they may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerations: Option<Vec<Toleration>>,
}

/// A feature switched on or off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureGate {
    /// Which, in any case of letters.
    pub name: String,
    /// `Enabled`, which it is when nothing is said, or `Disabled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

impl FeatureGate {
    /// Whether it is switched on.
    pub fn is_enabled(&self) -> bool {
        self.state.as_deref() != Some("Disabled")
    }
}

/// Networks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Networking {
    /// From which MAC addresses the pool takes.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub kube_mac_pool_configuration: Value,
    /// Where the name server of secondary networks is reached.
    #[serde(rename = "kubeSecondaryDNSNameServerIP", skip_serializing_if = "Option::is_none")]
    pub kube_secondary_dns_name_server_ip: Option<String>,
    /// Plugins that bind interfaces of virtual machines.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub network_binding: Value,
}

/// Certificates and TLS.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Security {
    /// How long certificates live.
    pub cert_config: CertConfig,
    /// Versions and ciphers of TLS that servers offer.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub tls_security_profile: Value,
}

/// Annotation of an SSP object, whose own fields do not speak of it: how long its certificates live, as JSON of [`CertConfig`].
pub const CERTIFICATES_OF_SSP: &str = "operator.ssp.kubevirt.io/certConfig";

/// How long certificates live.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CertConfig {
    /// Authorities.
    pub ca: CertSpan,
    /// What they sign.
    pub server: CertSpan,
}

/// The life of a certificate, as durations of Go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CertSpan {
    /// From its beginning to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
    /// How long before its end it is renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renew_before: Option<String>,
}

/// Disks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Storage {
    /// What a file system takes of a volume.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub filesystem_overhead: Value,
    /// SCSI reservations that outlive a start of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_reservation_configuration: Option<Enabled>,
    /// Where conversions keep what they need for a while.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scratch_space_storage_class: Option<String>,
    /// How images are fetched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_import: Option<StorageImport>,
    /// Where the state of TPMs and firmware is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm_state_storage_class: Option<String>,
    /// What pods that import, clone and upload ask for and may use.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub workload_resource_requirements: Value,
}

/// Whether something is on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Enabled {
    /// It is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// How images are fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageImport {
    /// Registries that are believed without a certificate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub insecure_registries: Vec<String>,
}

/// Virtual machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Virtualization {
    /// Namespaces whose machines get a limit of CPU.
    #[serde(rename = "autoCPULimitNamespaceLabelSelector", skip_serializing_if = "Value::is_null")]
    pub auto_cpu_limit_namespace_label_selector: Value,
    /// Machines whose changed blocks are tracked.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub changed_block_tracking_label_selectors: Value,
    /// What becomes of machines when their node is drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction_strategy: Option<String>,
    /// More memory for guests than there is.
    pub higher_workload_density: Density,
    /// What runs machines.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub hypervisors: Value,
    /// Nodes that merge equal pages.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub ksm_configuration: Value,
    /// Limits of live migrations.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub live_migration_config: Value,
    /// How far machines can grow while they run.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub live_update_configuration: Value,
    /// Parts of devices for guests.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub mediated_devices_configuration: Value,
    /// CPU models that no machine uses, beside those that always are.
    #[serde(rename = "obsoleteCPUModels", skip_serializing_if = "Vec::is_empty")]
    pub obsolete_cpu_models: Vec<String>,
    /// Devices of nodes that guests may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permitted_host_devices: Option<PermittedHostDevices>,
    /// Whether users' roles of Kubernetes include those for machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role_aggregation_strategy: Option<String>,
    /// How fast components may ask the API server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuning_policy: Option<String>,
    /// What all machines have.
    pub virtual_machine_options: VirtualMachineOptions,
    /// How many virtual CPUs share one.
    #[serde(rename = "vmiCPUAllocationRatio", skip_serializing_if = "Option::is_none")]
    pub vmi_cpu_allocation_ratio: Option<i64>,
    /// How running machines follow a new version.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub workload_update_strategy: Value,
}

/// More memory for guests than there is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Density {
    /// In percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_overcommit_percentage: Option<i64>,
}

/// Devices of nodes that guests may have. A device that is `disabled` is none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PermittedHostDevices {
    /// Parts of devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mediated_devices: Vec<Value>,
    /// On the PCI bus.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pci_host_devices: Vec<Value>,
    /// On a USB bus.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub usb_host_devices: Vec<Value>,
}

/// What all machines have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualMachineOptions {
    /// The CPU of those that name none.
    #[serde(rename = "defaultCPUModel", skip_serializing_if = "Option::is_none")]
    pub default_cpu_model: Option<String>,
    /// The runtime class of their pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_runtime_class: Option<String>,
    /// Guests do not give free pages back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_free_page_reporting: Option<bool>,
    /// Serial consoles are not logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_serial_console_log: Option<bool>,
}

/// Where virtual machines are made from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadSources {
    /// Where images are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub common_boot_image_namespace: Option<String>,
    /// Whether instance types and preferences are deployed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub common_instancetypes_deployment: Option<Enabled>,
    /// Where templates are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub common_templates_namespace: Option<String>,
    /// Images that are fetched and kept current, beside the common ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub data_import_cron_templates: Vec<CronTemplate>,
    /// Whether the common images are fetched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_common_boot_image_import: Option<bool>,
    /// Whether images are fetched for every architecture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_multi_arch_boot_image_import: Option<bool>,
    /// How machines refer to instance types.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub instancetype_config: Value,
}

/// An image that is fetched and kept current.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CronTemplate {
    /// Name, labels and annotations of the DataImportCron.
    pub metadata: ObjectMeta,
    /// Its spec; none where a common image is only switched off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<Value>,
    /// What was made of it; only in the status of the HyperConverged object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<CronTemplateStatus>,
}

/// What was made of an image.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CronTemplateStatus {
    /// It is one of the common ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub common_template: Option<bool>,
    /// Why it is not fetched, where it is not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// A common one that the object changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified: Option<bool>,
    /// For which architectures there is an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original_supported_architectures: Option<String>,
}

/// What is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// Facts that are true, false or not known.
    pub conditions: Vec<Condition>,
    /// The images that are fetched.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub data_import_cron_templates: Vec<CronTemplate>,
    /// When, chosen once: so that not all clusters ask at the same moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_import_schedule: Option<String>,
    /// There are two workers or more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infrastructure_highly_available: Option<bool>,
    /// Architectures of the nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_info: Option<NodeInfo>,
    /// The generation of the object that this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What follows from the object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub related_objects: Vec<ObjectReference>,
    /// `healthy`, `warning` or `error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_health_status: Option<String>,
    /// Of the parts; that of `operator` is the product's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<Version>,
}

/// Architectures of the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeInfo {
    /// Of the control plane's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub control_plane_architectures: Vec<String>,
    /// Of machines that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_workload_architecture: Option<String>,
    /// Of the nodes that machines run on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workloads_architectures: Vec<String>,
}

/// The version of a part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Version {
    /// Which part.
    pub name: String,
    /// Its version.
    pub version: String,
}

meta::kind!(HyperConverged, "hco.kubevirt.io", "v1", "hyperconvergeds", NamespaceResourceScope);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_on_unless_it_is_switched_off() {
        let gate = |state: Option<&str>| FeatureGate { name: "x".to_owned(), state: state.map(str::to_owned) };
        assert!(gate(None).is_enabled() && gate(Some("Enabled")).is_enabled() && !gate(Some("Disabled")).is_enabled());
    }

    #[test]
    fn what_is_not_said_is_not_written() {
        let object: HyperConverged =
            serde_json::from_value(serde_json::json!({ "metadata": { "name": "kubevirt-hyperconverged" } })).unwrap();
        let text = serde_json::to_string(&object.spec).unwrap();
        assert!(!text.contains("null"), "{text}");
    }
}
