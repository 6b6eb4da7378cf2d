//! The CDI object.

use api::hco::HyperConverged;
use serde_json::{Value, json};

use super::placement;
use crate::tree::{put, put_some};

pub(super) fn spec(hco: &HyperConverged) -> Value {
    let (deployment, storage) = (&hco.spec.deployment, &hco.spec.storage);
    let certificates = &hco.spec.security.cert_config;
    let strategy = deployment.uninstall_strategy.as_deref().unwrap_or("BlockUninstallIfWorkloadsExist");
    let mut spec = json!({
        "certConfig": { "ca": certificates.ca, "server": certificates.server, "client": certificates.server },
        "config": { "featureGates": ["HonorWaitForFirstConsumer", "DataVolumeClaimAdoption"] },
        "uninstallStrategy": strategy,
    });
    put_some(&mut spec, "infra", placement(deployment.node_placements.infra.as_ref()));
    put_some(&mut spec, "workload", placement(deployment.node_placements.workload.as_ref()));
    put_some(&mut spec, "config.filesystemOverhead", Some(storage.filesystem_overhead.clone()));
    let scratch = storage.scratch_space_storage_class.clone().filter(|class| !class.is_empty());
    put_some(&mut spec, "config.scratchSpaceStorageClass", scratch.map(Value::from));
    put_some(&mut spec, "config.podResourceRequirements", Some(storage.workload_resource_requirements.clone()));
    if let Some(import) = storage.storage_import.as_ref().filter(|import| !import.insecure_registries.is_empty()) {
        put(&mut spec, "config.insecureRegistries", json!(import.insecure_registries));
    }
    let verbosity = deployment.log_verbosity_config.as_ref().and_then(|log| log.cdi);
    put_some(&mut spec, "config.logVerbosity", verbosity.map(Value::from));
    let mut profile = hco.spec.security.tls_security_profile.clone();
    if let Some(custom) = profile.get_mut("custom").and_then(Value::as_object_mut) {
        // CDI wants both, and takes an empty list of ciphers for all.
        custom.entry("ciphers").or_insert_with(|| json!([]));
        custom.entry("minTLSVersion").or_insert_with(|| json!("VersionTLS12"));
    }
    put_some(&mut spec, "config.tlsSecurityProfile", Some(profile));
    spec
}
