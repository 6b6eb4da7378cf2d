//! What an administrator has decided: the CDIConfig's words as values, and which storage class is meant. Pure.

use api::cdi::constants::{VERBOSE, annotation, gate};
use api::cdi::v1beta1::{CDIConfig, FilesystemOverhead, ImportProxy};
use k8s_openapi::api::core::v1::{LocalObjectReference, ResourceRequirements};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use meta::quantity::Amount;

use crate::security;

/// The share of a file system that is not a disk's, unless configured.
pub const DEFAULT_OVERHEAD: &str = "0.06";
const MEBIBYTE: u64 = 1 << 20;

/// The configuration as the controllers use it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Shares of file systems that are not a disk's.
    pub overhead: FilesystemOverhead,
    /// Claims of classes that wait for their consumer are left to it.
    pub honor_first_consumer: bool,
    /// A DataVolume takes over a claim of its name.
    pub claim_adoption: bool,
    /// Volumes are allocated in full.
    pub preallocation: bool,
    /// Plain claims are rendered by the webhook.
    pub webhook_rendering: bool,
    /// What a worker pod asks for and may use.
    pub resources: ResourceRequirements,
    /// Credentials for the workers' images.
    pub pull_secrets: Vec<LocalObjectReference>,
    /// The proxy that imports go through.
    pub proxy: Option<ImportProxy>,
    /// Workers say all they do.
    pub verbose: bool,
    /// The TLS that servers are to offer: least version and ciphers, no ciphers being all.
    pub tls: (String, Vec<String>),
    /// Registries that are spoken to without a certificate being checked: `host:port`.
    pub insecure_registries: Vec<String>,
}

impl Settings {
    /// What `config` decides; of one that is not there, the defaults.
    pub fn of(config: Option<&CDIConfig>) -> Self {
        let Some(config) = config else { return Self { resources: default_resources(), ..Self::default() } };
        let (spec, status) = (&config.spec, config.status.as_deref());
        let has = |gate: &str| spec.feature_gates.iter().any(|on| on == gate);
        Self {
            overhead: spec.filesystem_overhead.clone().unwrap_or_default(),
            honor_first_consumer: has(gate::HONOR_WAIT_FOR_FIRST_CONSUMER),
            claim_adoption: has(gate::CLAIM_ADOPTION),
            preallocation: spec.preallocation.unwrap_or(false),
            webhook_rendering: spec.webhook_pvc_rendering.as_deref() != Some("Disabled"),
            resources: resources(spec.pod_resource_requirements.as_ref()),
            pull_secrets: spec.image_pull_secrets.clone(),
            proxy: status.and_then(|status| status.import_proxy.clone()).or_else(|| spec.import_proxy.clone()),
            verbose: spec.log_verbosity.is_some_and(|level| level >= VERBOSE),
            tls: {
                let (least, ciphers) = security::asked(spec.tls_security_profile.as_deref());
                (least.to_owned(), ciphers.to_vec())
            },
            insecure_registries: spec.insecure_registries.clone(),
        }
    }

    /// The share of a file system of `class` that is not a disk's, as text and as a number.
    pub fn overhead(&self, class: Option<&str>) -> (String, f64) {
        let of_class = class.and_then(|class| self.overhead.storage_class.get(class));
        let text = of_class.or(self.overhead.global.as_ref()).map_or(DEFAULT_OVERHEAD, String::as_str);
        match text.parse::<f64>() {
            Ok(share) if (0.0..1.0).contains(&share) => (text.to_owned(), share),
            _ => (DEFAULT_OVERHEAD.to_owned(), 0.06),
        }
    }

    /// The size a file system of `class` must have to hold a disk of `bytes`.
    pub fn inflated(&self, bytes: u64, class: Option<&str>) -> Quantity {
        let aligned = bytes.div_ceil(MEBIBYTE) * MEBIBYTE;
        let (_, share) = self.overhead(class);
        // Sizes of disks are far below 2^53, where a float is exact.
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "see above"
        )]
        let needed = (aligned as f64 / (1.0 - share)).ceil() as u64;
        Quantity(needed.to_string())
    }
}

/// What a worker pod asks for and may use when nobody says otherwise.
pub fn default_resources() -> ResourceRequirements {
    let of = |cpu: &str, memory: &str| {
        Some([("cpu", cpu), ("memory", memory)].map(|(k, v)| (k.to_owned(), Quantity(v.to_owned()))).into())
    };
    ResourceRequirements { limits: of("750m", "600M"), requests: of("100m", "60M"), claims: None }
}

/// The defaults with what `configured` says instead, name by name.
pub fn resources(configured: Option<&ResourceRequirements>) -> ResourceRequirements {
    let mut out = default_resources();
    let Some(configured) = configured else { return out };
    for (into, from) in [(&mut out.limits, &configured.limits), (&mut out.requests, &configured.requests)] {
        into.get_or_insert_default().extend(from.iter().flatten().map(|(k, v)| (k.clone(), v.clone())));
    }
    out
}

/// The class that `name` means. None names the default: for a guest's disk the default of virtualization, if there is one.
pub fn class<'a>(classes: &'a [StorageClass], name: Option<&str>, guest: bool) -> Option<&'a StorageClass> {
    if let Some(name) = name {
        return classes.iter().find(|class| class.name_any() == name);
    }
    let marked = |key: &str| {
        let marked = classes.iter().filter(|class| class.annotations().get(key).is_some_and(|value| value == "true"));
        // Of several, the newest, as the API server does; then by name.
        marked.max_by(|a, b| {
            let age = a.creation_timestamp().cmp(&b.creation_timestamp());
            age.then_with(|| b.name_any().cmp(&a.name_any()))
        })
    };
    guest.then(|| marked(annotation::DEFAULT_VIRT_CLASS)).flatten().or_else(|| marked(annotation::DEFAULT_CLASS))
}

/// True when claims of `class` are bound only once a pod that uses them is scheduled.
pub fn waits_for_consumer(class: Option<&StorageClass>) -> bool {
    class.and_then(|class| class.volume_binding_mode.as_deref()) == Some("WaitForFirstConsumer")
}

/// The bytes of a quantity; zero when it is not one.
pub fn bytes(quantity: &Quantity) -> u64 {
    Amount::try_from(quantity).map(Amount::bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn settings(spec: serde_json::Value) -> Settings {
        Settings::of(Some(&serde_json::from_value(json!({ "spec": spec })).unwrap()))
    }

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn inflates(overhead: serde_json::Value, bytes: u64, expect: &str) {
        let settings = settings(json!({ "filesystemOverhead": overhead }));
        assert_eq!(settings.inflated(bytes, Some("fast")).0, expect);
    }

    #[test]
    fn a_disk_is_less_than_its_file_system() {
        inflates(json!(null), 1 << 30, "1142278537");
        inflates(json!({ "global": "0" }), 1 << 30, "1073741824");
        inflates(json!({ "global": "0.5" }), 1 << 30, "2147483648");
        inflates(json!({ "global": "0.5", "storageClass": { "fast": "0" } }), (1 << 20) - 1, "1048576");
        inflates(json!({ "global": "nonsense" }), 1 << 30, "1142278537");
    }

    #[test]
    fn configured_values_precede_defaults() {
        let found = settings(json!({ "podResourceRequirements": { "limits": { "cpu": "2" } } })).resources;
        let json = serde_json::to_value(found).unwrap();
        let expect =
            json!({ "limits": { "cpu": "2", "memory": "600M" }, "requests": { "cpu": "100m", "memory": "60M" } });
        assert_eq!(json, expect);
    }

    #[test]
    fn the_default_of_virtualization_is_for_guests() {
        let class_with = |name: &str, key: &str| -> StorageClass {
            let annotations = json!({ key: "true" });
            serde_json::from_value(
                json!({ "metadata": { "name": name, "annotations": annotations }, "provisioner": "p" }),
            )
            .unwrap()
        };
        let classes =
            [class_with("k8s", annotation::DEFAULT_CLASS), class_with("virt", annotation::DEFAULT_VIRT_CLASS)];
        let name = |found: Option<&StorageClass>| found.map(ResourceExt::name_any);
        assert_eq!(name(class(&classes, None, true)).as_deref(), Some("virt"));
        assert_eq!(name(class(&classes, None, false)).as_deref(), Some("k8s"));
        assert_eq!(name(class(&classes, Some("gone"), true)), None);
    }
}
