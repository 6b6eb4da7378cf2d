//! What is deployed, as manifests. Pure.

use kit::operator;
use kit::workload::Placement;
use serde_json::{Value, json};

use super::MANAGER;
use super::object::NetworkAddonsConfig;
use super::plan::Operand;
use crate::base::Base;
use crate::bridge_marker::manifests as marker;
use crate::ipam::manifests as ipam;
use crate::kubemacpool::names::SECRET;
use crate::kubemacpool::{Range, manifests as pool};
use crate::macvtap::manifests as macvtap;
use crate::multus::manifests as multus;
use crate::secondary_dns::manifests as dns;
use crate::{bridge_marker, constraints, linux_bridge};

/// What the manifests are made from.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Namespace of what is deployed.
    pub namespace: String,
    /// Its image.
    pub image: String,
    /// Version of the product.
    pub version: String,
    /// The addresses of the pool.
    pub range: Option<Range>,
    /// Who vouches for the certificates.
    pub ca_bundle: String,
    /// How many copies of a controller run.
    pub replicas: i32,
    /// The pool answers: machines are judged by it.
    pub answers: bool,
    /// Who vouches for the certificate of the controller of claims.
    pub ipam_ca_bundle: String,
    /// That controller answers: pods of machines are judged by it.
    pub ipam_answers: bool,
    /// The cluster is one of OpenShift.
    pub openshift: bool,
    /// The cluster has the kinds of Prometheus' operator.
    pub monitoring: bool,
}

/// Labels of everything this operator owns.
pub fn labels(version: &str) -> Value {
    json!({
        "app.kubernetes.io/component": "network",
        "app.kubernetes.io/managed-by": MANAGER,
        "app.kubernetes.io/version": version,
    })
}

/// Where controllers run.
fn infra(config: &NetworkAddonsConfig) -> Placement {
    let placement = config.spec.placement_configuration.clone().unwrap_or_default().infra;
    match placement {
        Some(placement) => Placement {
            node_selector: placement.node_selector,
            affinity: placement.affinity,
            tolerations: placement.tolerations,
        },
        // With the control plane, where it is among the nodes.
        None => {
            let prefer = |label: &str, weight: i32| {
                let has = json!({ "matchExpressions": [{ "key": label, "operator": "Exists" }] });
                json!({ "weight": weight, "preference": has })
            };
            let roles =
                [prefer("node-role.kubernetes.io/control-plane", 10), prefer("node-role.kubernetes.io/master", 1)];
            let tolerate = |role: &str| json!({ "key": format!("node-role.kubernetes.io/{role}"), "operator": "Exists", "effect": "NoSchedule" });
            Placement {
                affinity: json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": roles } }),
                tolerations: json!([tolerate("control-plane"), tolerate("master")]),
                ..Placement::default()
            }
        }
    }
}

/// The manifests of `operands`.
pub fn render(config: &NetworkAddonsConfig, operands: &[Operand], input: &Input) -> Vec<Value> {
    let mut all = Vec::new();
    for operand in operands {
        match operand {
            // The definition goes with the others: see deploy.
            Operand::Multus | Operand::IpamClaims => {}
            Operand::MultusDaemon => all.extend(multus_daemon(config, input)),
            Operand::KubeMacPool => all.extend(kubemacpool(config, input)),
            Operand::BridgeMarker => all.extend(bridge_marker(config, input)),
            Operand::LinuxBridge => all.extend(linux_bridge(config, input)),
            Operand::Macvtap => all.extend(macvtap(config, input)),
            Operand::SecondaryDns => all.extend(secondary_dns(config, input)),
            Operand::IpamController => all.extend(ipam_controller(config, input)),
        }
    }
    for manifest in &mut all {
        operator::label(manifest, &labels(&input.version));
    }
    all
}

fn pull_policy(config: &NetworkAddonsConfig) -> String {
    let policy = config.spec.image_pull_policy.clone().filter(|policy| !policy.is_empty());
    policy.unwrap_or_else(|| "IfNotPresent".to_owned())
}

fn base(config: &NetworkAddonsConfig, input: &Input, placement: Placement) -> Base {
    Base { namespace: input.namespace.clone(), image: input.image.clone(), pull_policy: pull_policy(config), placement }
}

fn bridge_marker(config: &NetworkAddonsConfig, input: &Input) -> Vec<Value> {
    marker::render(&marker::Input { base: base(config, input, workloads(config)), openshift: input.openshift })
}

fn linux_bridge(config: &NetworkAddonsConfig, input: &Input) -> Vec<Value> {
    linux_bridge::render(&linux_bridge::Input {
        base: base(config, input, workloads(config)),
        openshift: input.openshift,
    })
}

fn macvtap(config: &NetworkAddonsConfig, input: &Input) -> Vec<Value> {
    let named = config.spec.macvtap.as_ref().and_then(|wanted| wanted.device_plugin_config.clone());
    macvtap::render(&macvtap::Input {
        base: base(config, input, workloads(config)),
        config: named.filter(|name| !name.is_empty()).unwrap_or_else(|| macvtap::CONFIG.to_owned()),
    })
}

fn multus_daemon(config: &NetworkAddonsConfig, input: &Input) -> Vec<Value> {
    multus::render(&multus::Input {
        base: base(config, input, workloads(config)),
        dynamic_networks: config.spec.multus_dynamic_networks.is_some(),
    })
}

/// Where what serves pods of a node runs.
fn workloads(config: &NetworkAddonsConfig) -> Placement {
    let placement = config.spec.placement_configuration.clone().unwrap_or_default().workloads.unwrap_or_default();
    Placement {
        node_selector: placement.node_selector,
        affinity: placement.affinity,
        tolerations: placement.tolerations,
    }
}

fn secondary_dns(config: &NetworkAddonsConfig, input: &Input) -> Vec<Value> {
    let wanted = config.spec.kube_secondary_dns.clone().unwrap_or_default();
    dns::render(&dns::Input {
        base: base(config, input, infra(config)),
        domain: wanted.domain().to_owned(),
        name_server_ip: wanted.name_server_ip().to_owned(),
    })
}

fn ipam_controller(config: &NetworkAddonsConfig, input: &Input) -> Vec<Value> {
    let wanted = config.spec.kubevirt_ipam_controller.clone().unwrap_or_default();
    let mut all = ipam::render(&ipam::Input {
        base: base(config, input, infra(config)),
        replicas: input.replicas,
        ca_bundle: input.ipam_ca_bundle.clone(),
        default_network_namespace: wanted.default_network_nad_namespace.unwrap_or_default(),
        tls: tls(config),
    });
    // Machines would not start from the moment that the webhook is there while nobody answers.
    all.retain(|manifest| input.ipam_answers || manifest["kind"] != "MutatingWebhookConfiguration");
    all
}

fn kubemacpool(config: &NetworkAddonsConfig, input: &Input) -> Vec<Value> {
    let mut wanted =
        pool::Input::new(&input.namespace, &input.image, input.range.unwrap_or_else(|| Range::prefixed(0, 0)));
    wanted.pull_policy = pull_policy(config);
    wanted.ca_bundle.clone_from(&input.ca_bundle);
    wanted.replicas = input.replicas;
    wanted.infra = infra(config);
    wanted.monitoring = input.monitoring;
    if let Some((least, ciphers)) = tls(config) {
        wanted.tls_min_version = least;
        wanted.tls_cipher_suites = ciphers;
    }
    let mut all = pool::render(&wanted);
    // Machines are refused from the moment that the webhook is there while nobody answers.
    all.retain(|manifest| input.answers || manifest["kind"] != "MutatingWebhookConfiguration");
    all
}

/// The least version of TLS and the ciphers that the object asks for.
fn tls(config: &NetworkAddonsConfig) -> Option<(String, Vec<String>)> {
    let profile = config.spec.tls_security_profile.as_ref()?;
    let least = match profile["type"].as_str()? {
        "Old" => "VersionTLS10",
        "Modern" => "VersionTLS13",
        "Custom" => {
            let custom = &profile["custom"];
            let ciphers = custom["ciphers"].as_array().into_iter().flatten();
            let ciphers = ciphers.filter_map(|cipher| cipher.as_str().map(str::to_owned)).collect();
            return Some((custom["minTLSVersion"].as_str().unwrap_or("VersionTLS12").to_owned(), ciphers));
        }
        _ => "VersionTLS12",
    };
    Some((least.to_owned(), Vec::new()))
}

/// All that can be rendered for `namespace`, whatever the object asks for.
pub fn every(namespace: &str) -> Vec<Value> {
    let input = Input {
        namespace: namespace.to_owned(),
        answers: true,
        ipam_answers: true,
        monitoring: true,
        ..Input::default()
    };
    let mut all = render(
        &NetworkAddonsConfig::default(),
        &[
            Operand::MultusDaemon,
            Operand::KubeMacPool,
            Operand::BridgeMarker,
            Operand::LinuxBridge,
            Operand::Macvtap,
            Operand::SecondaryDns,
            Operand::IpamController,
        ],
        &input,
    );
    // The constraints themselves are of a kind that OpenShift alone has, and what is here is watched.
    all.extend(
        [linux_bridge::ACCOUNT, bridge_marker::PROGRAM]
            .into_iter()
            .flat_map(|name| constraints::grant(name, namespace)),
    );
    let metadata = json!({ "name": SECRET, "namespace": namespace });
    all.extend(["Secret", "ConfigMap"].map(|kind| json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata })));
    all
}

/// The kinds by which networks are asked for, and in which addresses are kept that no two pods of the cluster have.
pub const DEFINITIONS: [(&str, &str); 2] = [
    (
        "network-attachment-definitions.k8s.cni.cncf.io",
        include_str!("../../../../deploy/crds/network-attachment-definitions.k8s.cni.cncf.io.yaml"),
    ),
    ("ippools.whereabouts.cni.cncf.io", include_str!("../../data/ippools.whereabouts.cni.cncf.io.json")),
];

/// The kind by which machines keep addresses.
pub const CLAIMS: (&str, &str) =
    (crate::ipam::names::DEFINITION, include_str!("../../../../deploy/crds/ipamclaims.k8s.cni.cncf.io.yaml"));
