//! The SSP object.

use api::hco::{CERTIFICATES_OF_SSP, HyperConverged};
use serde_json::{Value, json};

use super::{Input, images, placement};
use crate::tree::{put, put_some};

pub(super) fn annotations(hco: &HyperConverged) -> Value {
    json!({ (CERTIFICATES_OF_SSP): json!(hco.spec.security.cert_config).to_string() })
}

pub(super) fn spec(hco: &HyperConverged, input: &Input) -> Value {
    let (sources, deployment) = (&hco.spec.workload_sources, &hco.spec.deployment);
    let namespace = sources.common_templates_namespace.as_deref().filter(|name| !name.is_empty());
    let replicas = if input.topology.has_one_place_for_infra() { 1 } else { 2 };
    let mut spec = json!({
        "commonTemplates": { "namespace": namespace.unwrap_or(&input.namespace) },
        "templateValidator": { "replicas": replicas },
        "tokenGenerationService": { "enabled": deployment.deploy_vm_console_proxy.unwrap_or(false) },
    });
    put_some(&mut spec, "templateValidator.placement", placement(deployment.node_placements.infra.as_ref()));
    let images: Vec<Value> =
        images(hco, input).into_iter().map(|image| json!({ "metadata": image.metadata, "spec": image.spec })).collect();
    if !images.is_empty() {
        put(&mut spec, "commonTemplates.dataImportCronTemplates", json!(images));
    }
    let many = sources.enable_multi_arch_boot_image_import;
    put_some(&mut spec, "enableMultipleArchitectures", many.map(Value::from));
    let info = input.topology.architectures(deployment.node_placements.workload.as_ref());
    let lists = [
        ("cluster.controlPlaneArchitectures", info.control_plane_architectures),
        ("cluster.workloadArchitectures", info.workloads_architectures),
    ];
    for (field, list) in lists {
        if many == Some(true) && !list.is_empty() {
            put(&mut spec, field, json!(list));
        }
    }
    put_some(&mut spec, "tlsSecurityProfile", Some(hco.spec.security.tls_security_profile.clone()));
    spec
}
