//! From the object and what the cluster has to what is deployed. Pure.

use serde_json::Value;

use super::object::{NetworkAddonsConfig, Spec};
use crate::kubemacpool::Range;
use crate::kubemacpool::certificates::Intervals;
use crate::secondary_dns::manifests as dns;

/// What can be deployed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operand {
    /// Networks beside the pod's own: their definition.
    Multus,
    /// What attaches them.
    MultusDaemon,
    /// MAC addresses.
    KubeMacPool,
    /// Marks of nodes with their bridges.
    BridgeMarker,
    /// The CNI plugins bridge and tuning.
    LinuxBridge,
    /// Links of nodes as devices.
    Macvtap,
    /// Names of machines on secondary networks.
    SecondaryDns,
    /// Addresses that outlive pods: their definition.
    IpamClaims,
    /// Who looks after them.
    IpamController,
}

/// What the cluster has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cluster {
    /// The kubelets of all nodes attach networks themselves.
    pub kubelets_attach: bool,
    /// Somebody else brought the kind NetworkAttachmentDefinition, and with it what attaches networks.
    pub has_kind: bool,
    /// Somebody else brought the kind IPAMClaim.
    pub has_claims: bool,
    /// A node has a bridge of Open vSwitch.
    pub has_ovs: bool,
    /// It is one of OpenShift.
    pub openshift: bool,
}

/// What becomes of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What is deployed.
    pub operands: Vec<Operand>,
    /// What the object asks for that is not, and why.
    pub missing: Vec<String>,
    /// What is done by the cluster itself, for people.
    pub notes: Vec<String>,
    /// What is wrong with the object: then nothing is deployed or changed.
    pub refused: Vec<String>,
}

/// The plan for `config`.
pub fn plan(config: &NetworkAddonsConfig, cluster: Cluster) -> Plan {
    let spec = &config.spec;
    let mut plan = Plan { refused: refused(spec), ..Plan::default() };
    if spec.multus.is_some() {
        multus(cluster, &mut plan);
    }
    if let Some(wanted) = &spec.multus_dynamic_networks {
        dynamic_networks(spec.multus.is_some(), wanted, cluster, &mut plan);
    }
    if spec.kube_mac_pool.is_some() {
        plan.operands.push(Operand::KubeMacPool);
    }
    if spec.kube_secondary_dns.is_some() {
        plan.operands.push(Operand::SecondaryDns);
    }
    if spec.linux_bridge.is_some() {
        plan.operands.push(Operand::BridgeMarker);
        match cluster.kubelets_attach {
            true => plan.notes.push("linuxBridge: the plugins are those of the kubelets of this cluster".to_owned()),
            false => plan.operands.push(Operand::LinuxBridge),
        }
    }
    if spec.macvtap.is_some() {
        if cluster.openshift {
            plan.refused.push("`macvtap` has been requested, but is not supported on OpenShift".to_owned());
        } else {
            plan.operands.push(Operand::Macvtap);
        }
    }
    if spec.kubevirt_ipam_controller.is_some() {
        ipam(cluster, &mut plan);
    }
    if spec.ovs.is_some() {
        match cluster.has_ovs {
            true => plan.notes.push("ovs: the nodes have Open vSwitch and its CNI plugin".to_owned()),
            false => plan.missing.push(
                "ovs: no node says that it has a bridge of Open vSwitch: install Open vSwitch and ovs-cni, whose marker says so, on \
                 the nodes"
                    .to_owned(),
            ),
        }
    }
    plan
}

fn ipam(cluster: Cluster, plan: &mut Plan) {
    plan.operands.push(Operand::IpamController);
    if !cluster.has_claims {
        plan.operands.push(Operand::IpamClaims);
    }
    if !cluster.kubelets_attach && !plan.operands.contains(&Operand::MultusDaemon) {
        let message = "kubevirtIpamController: addresses are kept by the CNI plugins that know IPAMClaims, as that of OVN-Kubernetes does";
        plan.notes.push(message.to_owned());
    }
}

fn multus(cluster: Cluster, plan: &mut Plan) {
    if cluster.kubelets_attach {
        plan.notes.push("multus: the kubelets of this cluster attach networks themselves".to_owned());
        if !cluster.has_kind {
            plan.operands.push(Operand::Multus);
        }
    } else if cluster.has_kind {
        plan.notes.push("multus: the cluster has one of its own".to_owned());
    } else {
        plan.operands.extend([Operand::Multus, Operand::MultusDaemon]);
    }
}

fn dynamic_networks(has_multus: bool, wanted: &Value, cluster: Cluster, plan: &mut Plan) {
    let field = "multusDynamicNetworks";
    if !has_multus {
        plan.refused.push(format!("{field} changes what multus has made: ask for multus too"));
    } else if cluster.kubelets_attach {
        plan.notes
            .push(format!("{field}: the kubelets of this cluster change the interfaces of running pods themselves"));
    } else if cluster.has_kind {
        plan.missing.push(format!(
            "{field}: the cluster has a Multus of its own, which this operator does not reach: install its controller of dynamic \
             networks"
        ));
    }
    if wanted["hostCRISocketPath"].as_str().is_some_and(|path| !path.is_empty()) {
        plan.notes.push(format!("{field}.hostCRISocketPath: the container runtime is not asked for anything"));
    }
}

/// How long certificates live, as it is written.
pub(super) fn intervals(spec: &Spec) -> Intervals<'_> {
    let said = |name: &str| spec.self_sign_configuration.as_ref()?.get(name).map(String::as_str);
    Intervals {
        ca_rotate: said("caRotateInterval"),
        ca_overlap: said("caOverlapInterval"),
        cert_rotate: said("certRotateInterval"),
        cert_overlap: said("certOverlapInterval"),
    }
}

fn refused(spec: &Spec) -> Vec<String> {
    let mut refused = Vec::new();
    if let Some(pool) = &spec.kube_mac_pool {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        if let Err(error) = Range::asked(&text(&pool.range_start), &text(&pool.range_end)) {
            refused.push(error.to_string());
        }
    }
    if let Some(policy) = &spec.image_pull_policy
        && !["", "Always", "IfNotPresent", "Never"].contains(&policy.as_str())
    {
        refused.push(format!("requested imagePullPolicy {policy:?} is not valid: set Always, IfNotPresent or Never"));
    }
    if let Some(wanted) = &spec.kube_secondary_dns {
        refused.extend(dns::refused(wanted.domain(), wanted.name_server_ip()));
    }
    let namespace =
        spec.kubevirt_ipam_controller.as_ref().and_then(|wanted| wanted.default_network_nad_namespace.as_deref());
    if let Some(namespace) = namespace.filter(|namespace| !namespace.is_empty() && !is_namespace(namespace)) {
        refused.push(format!(
            "kubevirtIpamController.defaultNetworkNADNamespace is {namespace:?}, which is not the name of a namespace: it has lower case \
             letters, digits and '-'"
        ));
    }
    if let Err(error) = intervals(spec).lifetimes() {
        refused.push(error.to_string());
    }
    refused
}

fn is_namespace(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    text.len() <= 63 && text.chars().all(plain) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(spec: Value, cluster: Cluster) -> Plan {
        plan(&serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap(), cluster)
    }

    #[test]
    fn what_is_asked_for_is_deployed_or_named() {
        let found = of(json!({ "kubeMacPool": {} }), Cluster::default());
        assert_eq!((found.operands, found.missing), (vec![Operand::KubeMacPool], Vec::new()));
        let found = of(json!({ "ovs": {} }), Cluster::default());
        assert!(found.missing.len() == 1 && found.missing[0].starts_with("ovs: "), "{found:?}");
        let found = of(json!({ "ovs": {} }), Cluster { has_ovs: true, ..Cluster::default() });
        assert!(found.missing.is_empty() && found.notes == ["ovs: the nodes have Open vSwitch and its CNI plugin"]);
        assert_eq!(of(json!({}), Cluster::default()), Plan::default());
    }

    #[test]
    fn claims_are_defined_unless_the_cluster_has_them() {
        let ask = |cluster: Cluster| of(json!({ "kubevirtIpamController": {} }), cluster);
        let own = ask(Cluster { kubelets_attach: true, ..Cluster::default() });
        assert_eq!((own.operands, own.notes), (vec![Operand::IpamController, Operand::IpamClaims], Vec::new()));
        let theirs = ask(Cluster { has_claims: true, ..Cluster::default() });
        assert_eq!((theirs.operands, theirs.notes.len()), (vec![Operand::IpamController], 1));
        assert!(theirs.missing.is_empty());
    }

    #[test]
    fn networks_are_attached_by_whoever_does_so() {
        let ours = of(json!({ "multus": {} }), Cluster { kubelets_attach: true, ..Cluster::default() });
        assert!(ours.operands == [Operand::Multus] && ours.missing.is_empty() && ours.notes.len() == 1, "{ours:?}");
        let none = of(json!({ "multus": {}, "multusDynamicNetworks": {} }), Cluster::default());
        assert_eq!(none.operands, [Operand::Multus, Operand::MultusDaemon]);
        assert!(none.missing.is_empty() && none.notes.is_empty(), "{none:?}");
        let theirs = Cluster { has_kind: true, ..Cluster::default() };
        let both = of(json!({ "multus": {}, "multusDynamicNetworks": {} }), theirs);
        assert!(both.operands.is_empty() && both.missing.len() == 1, "{both:?}");
        let theirs = of(json!({ "multus": {} }), theirs);
        assert!(theirs.operands.is_empty() && theirs.missing.is_empty(), "{theirs:?}");
    }

    #[test]
    fn plugins_are_installed_where_the_kubelets_bring_none() {
        let theirs = of(json!({ "linuxBridge": {} }), Cluster::default());
        assert_eq!((theirs.operands, theirs.notes), (vec![Operand::BridgeMarker, Operand::LinuxBridge], Vec::new()));
        let embedded = Cluster { kubelets_attach: true, ..Cluster::default() };
        let ours = of(json!({ "linuxBridge": {} }), embedded);
        assert!(ours.operands == [Operand::BridgeMarker] && ours.notes.len() == 1, "{ours:?}");
    }

    #[test]
    fn links_are_devices_but_on_openshift() {
        let embedded = Cluster { kubelets_attach: true, ..Cluster::default() };
        let openshift = Cluster { openshift: true, ..Cluster::default() };
        let asked = || json!({ "macvtap": {} });
        assert_eq!(of(asked(), Cluster::default()).operands, [Operand::Macvtap]);
        assert_eq!(of(asked(), embedded).operands, [Operand::Macvtap]);
        let refused = of(asked(), openshift);
        assert!(
            refused.operands.is_empty() && refused.refused[0].contains("not supported on OpenShift"),
            "{refused:?}"
        );
    }

    #[track_caller]
    fn check(spec: Value, expect: &str) {
        let found = of(spec, Cluster::default());
        assert!(found.refused.iter().any(|error| error.contains(expect)), "{found:?}");
    }

    #[test]
    fn bad_values_are_refused_with_their_remedy() {
        check(json!({ "kubeMacPool": { "rangeStart": "02:00:00:00:00:00" } }), "both or none");
        check(json!({ "kubeMacPool": { "rangeStart": "x", "rangeEnd": "y" } }), "failed to parse rangeStart");
        check(json!({ "kubeSecondaryDNS": { "nameServerIP": "::1" } }), "no IPv4 address");
        check(
            json!({ "kubevirtIpamController": { "defaultNetworkNADNamespace": "A/b" } }),
            "is not the name of a namespace",
        );
        check(json!({ "imagePullPolicy": "Sometimes" }), "is not valid");
        check(json!({ "multusDynamicNetworks": {} }), "ask for multus too");
        check(json!({ "selfSignConfiguration": { "caRotateInterval": "1h" } }), "is missing");
    }
}
